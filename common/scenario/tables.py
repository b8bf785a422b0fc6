"""What the tables of a scenario file have in common, and the small ones; checks here need no other table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

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
from common.mechanism.guarantee import MOST_STEPS
from common.mechanism.local_work import LOCAL_WORK, LocalWork, named_work
from common.mechanism.part import Port
from common.models.registry import MODELS
from common.own_code import is_dotted
from common.transport.link import LEAST_RATE_KBPS, LONGEST_DELAY_MS, MOST_PARTITIONS, link_profile

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Span = Annotated[tuple[NonNegative, Positive], Field(strict=False)]  # a TOML array is a list
cycled = Field(min_length=1, max_length=100_000)  # of a list that is cycled over edges
one_or_more = BeforeValidator(lambda value: value if isinstance(value, list) else [value])


def named(key: str, known: tuple[str, ...]) -> AfterValidator:
    """Refuse a name that is neither built in nor a dotted path, before anything is asked about it."""

    def check(name: str) -> str:
        if name not in known and not is_dotted(name):
            raise ValueError(f"{key} = {name!r}: allowed are {', '.join(known)} or package.module:Class")
        return name

    return AfterValidator(check)


def lasting(values: Mapping[str, Any], later: Mapping[str, object]) -> dict[str, Any]:
    """Return what a record holds: a key that came later is left out at the value given here, so that digests last."""
    return {key: value for key, value in values.items() if key not in later or value != later[key]}


class Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)  # `edges = true` is not one edge


class ModelTable(Table):
    """[model]"""

    name: Annotated[str, named("model.name", MODELS)] = Field(
        "lr",
        min_length=1,
        description="lr, svm, softmax, least-squares, scattering, cnn or package.module:Class",
    )
    regularization: NonNegative = Field(1e-4, description="λ of λ/2·‖x‖²")
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="lr: positive = [labels]; cnn: activation; scattering: see docs/features.md",
    )


class WorkTable(Table):
    """What edges do. The cloud fills it from the algorithm; a welcome carries it, a scenario file never does.

    No value has a default: an edge takes part only where it is told.
    """

    private: bool = Field(..., description="whether edges clip and noise")
    centralised: bool = Field(..., description="whether one worker holds all data")


def options_given(table: BaseModel, declared: Collection[str]) -> dict[str, Any]:
    """Return the options of a mechanism's part that a table gives: declared keys that were set, and all others."""
    given = {key: getattr(table, key) for key in declared if key in table.model_fields_set}
    return {key: value for key, value in {**given, **(table.model_extra or {})}.items() if value is not None}


def made_part(port: Port, name: str, given: Mapping[str, Any], known: Collection[str]) -> Any:
    """Return the part of the release mechanism that a table names, with its options; ValueError for any other key.

    `known` are the table's keys beside them, for the error's words.
    """
    table = port.key.partition(".")[0]
    try:
        described = port.describe(name)
        for key, value in given.items():
            if key not in described.names:
                allowed = ", ".join((*known, *described.names))
                raise ValueError(f"{table}.{key} = {value!r}: unknown key; allowed are {allowed}")
        return described.make(given, port.key)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


class LocalTable(Table):
    """[local]: what an edge does on its own for one message; beside that the options of the work that is named."""

    model_config = ConfigDict(extra="allow")  # options of the work: `_work` checks them

    work: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="single-step, local-steps or package.module:Class; absent: by local.steps",
    )
    steps: int = Field(1, ge=1, le=MOST_STEPS, description="E; each is charged as a release")
    rate: Positive | None = Field(
        None, le=1e6, description="ρ_local: a local step is ρ_local/C times a noised gradient"
    )

    @model_validator(mode="after")
    def _work(self) -> Self:
        if self.work is None:
            if self.steps > 1 and self.rate is None:
                raise ValueError(f"local.rate: needed with local.steps = {self.steps}")
            if self.steps == 1 and self.rate is not None:
                raise ValueError(f"local.rate = {self.rate}: means nothing with local.steps = 1")
        _ = self.made
        return self

    @property
    def made(self) -> LocalWork:
        """The work with its options."""
        given = options_given(self, ("steps", "rate"))
        name = self.work or named_work(given)
        if self.work is None and self.steps == 1:
            given.pop("steps", None)  # said, and the same as not said
        made: LocalWork = made_part(LOCAL_WORK, name, given, ("work", "steps", "rate"))
        return made

    def recorded(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return what a record and a welcome hold: keys that say something."""
        return lasting(values, {"work": None} if self.work is None else {"rate": None, "steps": 1})

    @property
    def given(self) -> bool:
        """Whether it says anything: a key that came later is written down only where it does."""
        return self.steps > 1 or self.work is not None


class DelaysTable(Table):
    """[delays]: how the simulator makes gradients stale. Times are virtual seconds."""

    kind: Literal["cyclic", "constant", "uniform", "exponential", "lognormal", "recorded"] = Field(
        "cyclic", description="cyclic: edges in turn, without times; else the law of the times below"
    )
    compute: NonNegative = Field(0.01, le=1e6, description="mean time of a gradient at speed 1")
    network: NonNegative = Field(0.02, le=1e6, description="mean one-way time")
    spread: NonNegative = Field(
        0.5, le=100, description="uniform: ± this share of the mean; lognormal: σ of the logarithm"
    )
    speeds: list[Positive] = Field(
        default_factory=lambda: [1.0], min_length=1, max_length=100_000, description="cycled over edges"
    )
    file: str | None = Field(None, description="recorded: CSV with columns edge,compute,up,down in seconds")

    @model_validator(mode="after")
    def _file(self) -> Self:
        if self.kind == "recorded" and self.file is None:
            raise ValueError("delays.file: needed with delays.kind = 'recorded'")
        if self.kind != "recorded" and self.file is not None:
            raise ValueError(
                f"delays.file = {self.file!r}: requires delays.kind = 'recorded', not {self.kind!r}"
            )
        if self.kind == "uniform" and self.spread > 1:
            raise ValueError(f"delays.spread = {self.spread}: must be at most 1 with delays.kind = 'uniform'")
        return self


class EvaluationTable(Table):
    """[evaluation]"""

    every: int | None = Field(
        None,
        ge=0,
        le=1_000_000_000,
        description="updates between evaluations on the test set, from x₁ at t = 0 on; 0: only the last; absent: by T,"
        " at most 40 in a run or every 500",
    )


class RecordsTable(Table):
    """[records]"""

    events: bool = Field(True, description="write events.jsonl")
    diagnostics: bool = Field(False, description="record gradient norms before noise: NOT private")
    keep_gradients: bool | None = Field(
        None,
        description="keep the gradient log for replay and verify; absent: a cloud does where T·4N is below 1 GB, a"
        " simulation does not; only the events engine simulates with one",
    )
    durability: Literal["process", "power"] = Field(
        "process", description="what an answered update survives: a SIGKILL of the cloud, or a power failure"
    )

    def recorded(self) -> dict[str, Any]:
        """Return what a record holds."""
        return lasting(self.model_dump(mode="json"), {"keep_gradients": None, "durability": "process"})


class LinkTable(Table):
    """One of links: a preset's name, or numbers, or both."""

    name: str | None = Field(None, description="lan, wifi, 5g, 4g, wan, satellite, or any with numbers")
    delay_ms: NonNegative | None = Field(None, le=LONGEST_DELAY_MS, description="one way")
    jitter_ms: NonNegative | None = Field(
        None, le=LONGEST_DELAY_MS, description="of the delay, as distribution says"
    )
    distribution: Literal["constant", "uniform", "normal", "exponential", "lognormal", "pareto"] | None = (
        Field(None, description="law of the jitter; normal: jitter_ms is its standard deviation")
    )
    rate_kbps: float | None = Field(
        None, ge=LEAST_RATE_KBPS, allow_inf_nan=False, description="kilobits a second; absent: no limit"
    )
    partitions: list[Span] = Field(
        default_factory=list,
        max_length=MOST_PARTITIONS,
        description="[start, duration] in seconds since the edge began",
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        """Refuse here what would end every edge that is given this link."""
        try:
            link_profile(self.model_dump())
        except ConfigurationError as error:
            raise ValueError(str(error).removeprefix("link: ")) from error
        return self


class TestbedTable(Table):
    """[testbed]: what only a real network needs."""

    __test__ = False  # pytest: not a test class

    edges_at_least: int = Field(
        1,
        ge=1,
        le=100_000,
        description="edges that can train to wait for before the first update; not given, and with"
        ' data.set = "local", all of them',
    )
    # both drive timers of whoever is told of them: a peer must be able to make nobody spin or fall asleep
    silent_after: float = Field(
        30.0, ge=0.1, le=86_400, description="seconds after which a silent edge is reported gone"
    )
    resend_after: float = Field(
        5.0, ge=0.05, le=3600, description="seconds after which an unanswered message is sent again"
    )


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
