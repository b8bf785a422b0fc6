"""One of devices, and [devices.availability]: how slow an edge's device is, and when it is there."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from common.devices import (
    LARGEST_JITTER,
    LARGEST_SLOWDOWN,
    LEAST_SPAN,
    LONGEST_NAME,
    LONGEST_REFERENCE_MS,
    LONGEST_SPAN,
    MOST_WINDOWS,
    DeviceProfile,
    device_profile,
)
from common.errors import ConfigurationError
from common.scenario.tables import Fraction, NonNegative, Positive, Span, Table, cycled, one_or_more

Seconds = Annotated[float, Field(ge=LEAST_SPAN, le=LONGEST_SPAN, allow_inf_nan=False)]


class AvailabilityTable(Table):
    """[devices.availability]: windows that repeat, a share of every period, or churn. Seconds since the edge began."""

    windows: list[Span] | None = Field(
        None, min_length=1, max_length=MOST_WINDOWS, description="[start, end], in order"
    )
    period: Seconds | None = Field(
        None, description="after which it all repeats; absent with windows: their last end"
    )
    share: Fraction | None = Field(None, description="of every period that the edge is there")
    phase: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], one_or_more, cycled] | None = Field(
        None, description="where in the period its time begins, as a share of it; cycled over edges"
    )
    up: Seconds | None = Field(None, description="churn: mean time there, exponential")
    down: Seconds | None = Field(None, description="churn: mean time away, exponential")


class DeviceTable(Table):
    """One of devices: a preset's name, or numbers, or both."""

    name: str | None = Field(
        None, min_length=1, max_length=LONGEST_NAME, description="see `mapa devices list`; or any"
    )
    slowdown: float | None = Field(
        None,
        ge=1,
        le=LARGEST_SLOWDOWN,
        allow_inf_nan=False,
        description="a gradient takes so many times as long",
    )
    jitter: NonNegative | None = Field(
        None, le=LARGEST_JITTER, description="lognormal: σ of the logarithm; uniform: ± this share"
    )
    distribution: Literal["lognormal", "uniform"] | None = Field(None, description="law of the jitter")
    reference_ms: Positive | None = Field(
        None,
        le=LONGEST_REFERENCE_MS,
        description="of a gradient at slowdown 1; absent: measured by the edge on made-up rows, or delays.compute",
    )
    availability: AvailabilityTable | None = Field(None, description="when the edge is there; absent: always")

    @model_validator(mode="after")
    def _known(self) -> Self:
        """Refuse here what would end every edge that is given this device."""
        phases = 1 if self.availability is None else len(self.availability.phase or [0.0])
        try:
            for index in range(phases):
                self.profile(index)
        except ConfigurationError as error:
            text = str(error).removeprefix("device: ")
            raise ValueError(
                text if text.startswith("device") else f"device {self.name!r}: {text}"
            ) from error
        return self

    def profile(self, index: int) -> DeviceProfile:
        """Return the device in the core's own form, of edge k."""
        return device_profile(self.model_dump(), index)
