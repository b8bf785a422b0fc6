"""[privacy]: how edges clip and noise, under which budget, and each at which pace."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from common.errors import ConfigurationError, nearest
from common.mechanism.clipping import CLIPPINGS, Clipping
from common.mechanism.grid import LEAST_BITS, MOST_BITS
from common.noise.law import LARGEST_PARAMETER, LEAST_PARAMETER
from common.noise.registry import LawDescription, describe_law, laws_with
from common.scenario.tables import (
    Fraction,
    NonNegative,
    Positive,
    Table,
    cycled,
    made_part,
    one_or_more,
)

PerEdge = Annotated[
    list[Annotated[float, Field(ge=LEAST_PARAMETER, le=LARGEST_PARAMETER, allow_inf_nan=False)]],
    one_or_more,
    cycled,
]
_OF_PACE = ("paces", "gradients_per_second", "release_caps")


class PrivacyTable(Table):
    """[privacy]: how edges clip and noise, and beside that what the law and the clipping that are named take.

    `epsilon` and `noise_multiplier` are written down for every law, so that digests last; what a law has beyond
    them is asked of the law.
    """

    # parameters of the law and their limits, options of the clipping: `check` does
    model_config = ConfigDict(extra="allow")
    later = ("pace", *_OF_PACE, "grid", "colluding")

    noise: str = Field(
        "gaussian", min_length=1, max_length=200, description="the law of the noise; or package.module:Class"
    )
    epsilon: PerEdge | None = Field(None, description="ε_k of one release; a list is cycled over edges")
    noise_multiplier: PerEdge | None = Field(None, description="z_k of the gaussian law, instead of epsilon")
    clipping: str = Field(
        "per-sample",
        min_length=1,
        max_length=200,
        description="what is brought to the bound C, and how: per-sample, normalised, quantile, batch-mean or"
        " package.module:Class; see docs/privacy.md",
    )
    scope: Literal["all", "first-conv"] = Field(
        "all", description="which coordinates are noised; first-conv is the paper's, and NOT private"
    )
    total_epsilon: Positive | None = Field(
        None, le=LARGEST_PARAMETER, description="budget of each edge for the whole run"
    )
    total_delta: Fraction = Field(1e-5, description="the privacy δ")
    releases: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="noised gradients of one edge that total_epsilon must cover: with local steps, messages × E",
    )
    epsilon_floor: NonNegative = Field(0.0, description="the cloud refuses a hello with a smaller ε_k")
    noise_multiplier_ceiling: Positive | None = Field(None, description="likewise for z_k")
    pace: Literal["same", "own"] = Field(
        "same", description="own: each edge has its own R_k and z_k for total_epsilon; see docs/pacing.md"
    )
    paces: Annotated[list[Positive], cycled] | None = Field(
        None, description="with pace = own: how fast edges are beside each other; cycled"
    )
    gradients_per_second: Annotated[list[Positive], cycled] | None = Field(
        None,
        description="with pace = own and time_limit: how fast edges are; cycled; `mapa pace` measures it",
    )
    release_caps: Annotated[list[Annotated[int, Field(ge=1, le=1_000_000_000)]], cycled] | None = Field(
        None, description="with pace = own: R_k beside z_k; filled in when a run is assembled; cycled"
    )

    grid: int | None = Field(
        None,
        ge=LEAST_BITS,
        le=MOST_BITS,
        description="releases are integers: C is 2^grid steps, and rounding is counted; absent: floating-point numbers,"
        " or with [secure] as fine as its sums allow",
    )
    colluding: int = Field(
        0,
        ge=0,
        le=1023,
        description="with [secure] a: edges that may tell the cloud their noise; less than m",
    )

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, values: Any) -> Any:
        """Bring a law's own parameters into the form of the declared ones: a value for each edge."""
        if not isinstance(values, dict) or not isinstance(name := values.get("noise", "gaussian"), str):
            return values
        own = {*describe_law(name, "privacy.noise").names} - {*cls.model_fields}
        return {key: [v] if key in own and not isinstance(v, list) else v for key, v in values.items()}

    def check(self) -> None:
        law, clipping = self.described, self._clipping_names
        own, extra = {*law.names, *law.limits, *clipping}, set(self.model_extra or {})
        if shared := {*law.names, *law.limits} & set(clipping):
            raise ValueError(
                f"privacy.clipping = {self.clipping!r}: {', '.join(sorted(shared))}: parameters of privacy.noise ="
                f" {self.noise!r} have these names; rename the options of one of them"
            )
        _ = self.clipped
        declared = {key for key in type(self).model_fields if laws_with(key) and getattr(self, key)}
        for key in sorted((declared | extra) - own):
            raise ValueError(self._of_another_law(key))
        calibrated = law.made.calibrated
        for key in law.names:
            if getattr(self, key, None) is None and not (
                key == calibrated and self.total_epsilon is not None
            ):
                instead = " or privacy.total_epsilon" if key == calibrated else ""
                raise ValueError(f"privacy.noise = {self.noise!r}: needs privacy.{key}{instead}")
        given = calibrated is not None and getattr(self, calibrated) is not None
        if given and self.releases is not None:
            raise ValueError(
                f"privacy.releases = {self.releases}: requires privacy.total_epsilon without privacy.{calibrated},"
                f" which it calibrates; leave privacy.releases or privacy.{calibrated} out"
            )
        self._check_pace(calibrated, given=given)
        if self.grid is not None and self.scope != "all":
            raise ValueError(f"privacy.grid = {self.grid}: not with privacy.scope = {self.scope!r}")
        for parameter in law.options:
            for value in self._values(parameter.name):
                parameter.checked(f"privacy.{parameter.name}", value)
            if parameter.limit in self.limits:
                parameter.checked(f"privacy.{parameter.limit}", self.limits[parameter.limit])

    def _check_pace(self, calibrated: str | None, *, given: bool) -> None:
        """Refuse a pace that says too much or too little. R_k and z_k come together, and only with each other."""
        own = self.pace == "own"
        for key in _OF_PACE:
            if getattr(self, key) is not None and not own:
                raise ValueError(f"privacy.{key} = {getattr(self, key)!r}: only with privacy.pace = 'own'")
        if not own:
            return
        if self.total_epsilon is None or calibrated is None:
            raise ValueError(
                f"privacy.pace = 'own': needs privacy.total_epsilon and a law that it can calibrate, not"
                f" {self.noise!r} with privacy.total_epsilon = {self.total_epsilon}"
            )
        if self.releases is not None:
            raise ValueError(
                f"privacy.releases = {self.releases}: with privacy.pace = 'own' each edge has its own"
            )
        if self.paces is not None and self.gradients_per_second is not None:
            raise ValueError("privacy.paces: not beside privacy.gradients_per_second; give one of them")
        if given != (self.release_caps is not None):
            raise ValueError(
                f"privacy.release_caps: only beside privacy.{calibrated}; with privacy.pace = 'own' both follow from"
                " privacy.total_epsilon when a run is assembled"
            )

    def cap(self, index: int) -> int | None:
        """Return R_k of edge k; None: it has no pace of its own."""
        return None if self.release_caps is None else self.release_caps[index % len(self.release_caps)]

    def _of_another_law(self, key: str) -> str:
        value, law = getattr(self, key), self.described
        if laws := laws_with(key):
            named = " or ".join(repr(one) for one in laws)
            return f"privacy.{key} = {value!r}: requires privacy.noise = {named}, not {self.noise!r}"
        known = [one for one in type(self).model_fields if not laws_with(one)]
        known += [*law.names, *law.limits, *self._clipping_names]
        allowed = f"allowed with noise = {self.noise!r} are {', '.join(known)}{nearest(key, known)}"
        return f"privacy.{key} = {value!r}: unknown key; {allowed}"

    def _values(self, key: str) -> list[Any]:
        given: list[Any] | None = getattr(self, key, None)
        if given is not None and not 0 < len(given) <= 100_000:
            raise ValueError(f"privacy.{key}: {len(given)} values; must be from 1 to 100000")
        return given or []

    @property
    def _clipping_names(self) -> tuple[str, ...]:
        return CLIPPINGS.describe(self.clipping).names

    @property
    def clipped(self) -> Clipping:
        """The clipping with its options."""
        extra = self.model_extra or {}
        given = {key: extra[key] for key in self._clipping_names if key in extra}
        made: Clipping = made_part(CLIPPINGS, self.clipping, given, type(self).model_fields)
        return made

    @property
    def described(self) -> LawDescription:
        """What the law says of itself."""
        return describe_law(self.noise, "privacy.noise")

    @property
    def given(self) -> dict[str, list[float]]:
        """The law's parameters, each a list that is cycled over edges; one that a budget must still set is absent."""
        return {key: values for key in self.described.names if (values := self._values(key))}

    @property
    def limits(self) -> dict[str, float]:
        """How much noise the run bears: limits of the law's parameters by key, those that are set."""
        unset = (None, 0.0)  # of the declared ones; a law's own are either there or not
        found: dict[str, Any] = {key: getattr(self, key, None) for key in self.described.limits}
        return {key: v for key, v in found.items() if key in (self.model_extra or {}) or v not in unset}

    def parameters(self, index: int) -> dict[str, float]:
        """Return the law's parameters for edge k."""
        given = self.given
        if len(given) < len(self.described.names):
            raise ConfigurationError("privacy.total_epsilon: not yet calibrated to a noise multiplier")
        return {key: values[index % len(values)] for key, values in given.items()}
