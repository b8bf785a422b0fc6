"""The tables of a scenario file, each with the checks that need no other table."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from common.availability import LEAST_SPAN, LONGEST_SPAN, MOST_WINDOWS
from common.devices import (
    LARGEST_JITTER,
    LARGEST_SLOWDOWN,
    LONGEST_REFERENCE_MS,
    DeviceProfile,
    device_profile,
)
from common.dotted import is_dotted
from common.errors import ConfigurationError
from common.models.registry import MODELS
from common.noise.law import LARGEST_PARAMETER, LEAST_PARAMETER
from common.noise.mechanism import LARGEST_BOUND, LEAST_BOUND, MOST_STEPS
from common.noise.registry import LawDescription, describe_law, laws_with
from common.transport.link import LEAST_RATE_KBPS, LONGEST_DELAY_MS, MOST_PARTITIONS, link_profile

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
PerEdge = Annotated[
    list[Annotated[float, Field(ge=LEAST_PARAMETER, le=LARGEST_PARAMETER, allow_inf_nan=False)]],
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    Field(min_length=1, max_length=100_000),
]


def named(key: str, known: tuple[str, ...]) -> AfterValidator:
    """Refuse a name that is neither built in nor a dotted path, before anything is asked about it."""

    def check(name: str) -> str:
        if name not in known and not is_dotted(name):
            raise ValueError(f"{key} = {name!r}: allowed are {', '.join(known)} or package.module:Class")
        return name

    return AfterValidator(check)


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


_LATER = {"average": "none", "average_decay": None, "average_from": None, "weights": None}


class AlgorithmTable(Table):
    """[algorithm]: constants that any algorithm may ask for, and beside them the options of the one that is named.

    What is left open follows from the model and the data set where they are known.
    """

    model_config = ConfigDict(extra="allow")  # the algorithm's own options: Scenario asks it about them

    name: str = Field(
        "mapa", min_length=1, max_length=200, description="see `mapa algorithms`; or package.module:Class"
    )
    theta: Fraction = Field(0.5, description="θ, reduction ratio")
    smoothness: Positive | None = Field(None, description="L")
    sigma: NonNegative | None = Field(None, description="σ")
    delta: Fraction = Field(1e-3, description="δ of Theorem 3 alone; the privacy δ is privacy.total_delta")
    tau_max: int | None = Field(None, ge=0, le=10_000_000, description="τ_max; absent: the number of edges")
    tau_max_from: Literal["configured", "measured"] = Field(
        "configured", description="measured: each new stage takes τ_max from the staleness of recent updates"
    )
    loss_gap: Positive | None = Field(None, description="f₀ = f(x₁) − f(x*)")
    radius: Positive | None = Field(None, description="R")
    first_clip: float | None = Field(
        None,
        ge=LEAST_BOUND,
        le=LARGEST_BOUND,
        allow_inf_nan=False,
        description="AUDP's bound, MAPA's first one; absent: Theorem 3",
    )
    rule: Literal["theta", "table"] = Field(
        "theta", description="how ΔS shrinks: θΔS, or the parameter table's"
    )
    average: Literal["none", "ema", "tail"] = Field(
        "none", description="the result is x, or an average of models; see docs/algorithms.md"
    )
    average_decay: float | None = Field(
        None, ge=0, lt=1, allow_inf_nan=False, description="β of average = ema; absent: 0.99"
    )
    average_from: float | None = Field(
        None, ge=0, lt=1, allow_inf_nan=False, description="share of T before average = tail; absent: 0.5"
    )

    weights: Literal["none", "noise"] | None = Field(
        None,
        description="noise: gradients weigh ∝ 1/z_k²; absent: so with privacy.pace = own, else all alike",
    )

    @model_validator(mode="after")
    def _average(self) -> Self:
        """Refuse a parameter of an average that was not asked for."""
        for key, kind in (("average_decay", "ema"), ("average_from", "tail")):
            value = getattr(self, key)
            if value is not None and self.average != kind:
                raise ValueError(f"algorithm.{key} = {value}: only with algorithm.average = {kind!r}")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The algorithm's own options."""
        return dict(self.model_extra or {})

    def recorded(self) -> dict[str, Any]:
        """Return the shared keys of a record: those that came later only where they are set, so that digests last."""
        values = self.model_dump(mode="json", exclude=set(self.options))
        return {key: value for key, value in values.items() if key not in _LATER or value != _LATER[key]}


class WorkTable(Table):
    """What edges do. The cloud fills it from the algorithm; a welcome carries it, a scenario file never does.

    No value has a default: an edge takes part only where it is told.
    """

    private: bool = Field(..., description="whether edges clip and noise")
    centralised: bool = Field(..., description="whether one worker holds all data")


class LocalTable(Table):
    """[local]: E noised steps of an edge on its own before it sends their mean."""

    steps: int = Field(1, ge=1, le=MOST_STEPS, description="E; each is charged as a release")
    rate: Positive | None = Field(
        None, le=1e6, description="ρ_local: a local step is ρ_local/C times a noised gradient"
    )

    @model_validator(mode="after")
    def _rate(self) -> Self:
        if self.steps > 1 and self.rate is None:
            raise ValueError(f"local.rate: needed with local.steps = {self.steps}")
        if self.steps == 1 and self.rate is not None:
            raise ValueError(f"local.rate = {self.rate}: means nothing with local.steps = 1")
        return self

    @property
    def given(self) -> bool:
        """Whether it says anything: a key that came later is written down only where it does."""
        return self.steps > 1


_OF_PACE = ("paces", "gradients_per_second", "release_caps")


class PrivacyTable(Table):
    """[privacy]: how edges clip and noise, and beside that the parameters of the law that is named.

    `epsilon` and `noise_multiplier` are written down for every law, so that digests last; what a law has beyond
    them is asked of the law.
    """

    model_config = ConfigDict(
        extra="allow"
    )  # parameters of the law, and their limits: `_of_the_law` checks them

    noise: str = Field(
        "gaussian", min_length=1, max_length=200, description="the law of the noise; or package.module:Class"
    )
    epsilon: PerEdge | None = Field(None, description="ε_k of one release; a list is cycled over edges")
    noise_multiplier: PerEdge | None = Field(None, description="z_k of the gaussian law, instead of epsilon")
    clipping: Literal["per-sample", "normalised", "quantile", "batch-mean"] = Field(
        "per-sample", description="what is brought to the bound C, and how; see docs/privacy.md"
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
    paces: Annotated[list[Positive], Field(min_length=1, max_length=100_000)] | None = Field(
        None, description="with pace = own: how fast edges are beside each other; cycled"
    )
    gradients_per_second: Annotated[list[Positive], Field(min_length=1, max_length=100_000)] | None = Field(
        None,
        description="with pace = own and time_limit: how fast edges are; cycled; `mapa pace` measures it",
    )
    release_caps: (
        Annotated[
            list[Annotated[int, Field(ge=1, le=1_000_000_000)]], Field(min_length=1, max_length=100_000)
        ]
        | None
    ) = Field(None, description="with pace = own: R_k beside z_k; filled in when a run is assembled; cycled")

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, values: Any) -> Any:
        """Bring a law's own parameters into the form of the declared ones: a value for each edge."""
        if not isinstance(values, dict) or not isinstance(name := values.get("noise", "gaussian"), str):
            return values
        own = [key for key in _described(name).names if key in values and key not in cls.model_fields]
        return values | {key: v if isinstance(v := values[key], list) else [v] for key in own}

    @model_validator(mode="after")
    def _of_the_law(self) -> Self:
        law = self.described
        own, extra = {*law.names, *law.limits}, set(self.model_extra or {})
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
        for parameter in law.parameters:
            for value in self._values(parameter.name):
                parameter.option.checked(f"privacy.{parameter.name}", value)
            if parameter.limit in self.limits:
                parameter.option.checked(f"privacy.{parameter.limit}", self.limits[parameter.limit])
        return self

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

    def recorded(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return what a record and a welcome hold: keys that came later only where they are set."""
        later = ("pace", *_OF_PACE)
        return {
            key: value
            for key, value in values.items()
            if key not in later or value != type(self).model_fields[key].default
        }

    def _of_another_law(self, key: str) -> str:
        value, law = getattr(self, key), self.described
        if laws := laws_with(key):
            named = " or ".join(repr(one) for one in laws)
            return f"privacy.{key} = {value!r}: requires privacy.noise = {named}, not {self.noise!r}"
        known = [one for one in type(self).model_fields if not laws_with(one)]
        allowed = ", ".join((*known, *law.names, *law.limits))
        return f"privacy.{key} = {value!r}: unknown key; allowed with noise = {self.noise!r} are {allowed}"

    def _values(self, key: str) -> list[Any]:
        given: list[Any] | None = getattr(self, key, None)
        if given is not None and not 0 < len(given) <= 100_000:
            raise ValueError(f"privacy.{key}: {len(given)} values; must be from 1 to 100000")
        return given or []

    @property
    def described(self) -> LawDescription:
        """What the law says of itself."""
        return _described(self.noise)

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


def _described(name: str) -> LawDescription:
    return describe_law(name, "privacy.noise")


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

    every: int = Field(
        500,
        ge=0,
        le=1_000_000_000,
        description="updates between evaluations on the test set; 0: only the last",
    )


class RecordsTable(Table):
    """[records]"""

    events: bool = Field(True, description="write events.jsonl")
    diagnostics: bool = Field(False, description="record gradient norms before noise: NOT private")
    keep_gradients: bool | None = Field(
        None, description="keep the gradient log for a replay; absent: a cloud does where T·4N is below 1 GB"
    )
    durability: Literal["process", "power"] = Field(
        "process", description="what an answered update survives: a SIGKILL of the cloud, or a power failure"
    )

    def recorded(self) -> dict[str, Any]:
        """Return what a record holds: keys that came later only where they are set, so that digests last."""
        values = self.model_dump(mode="json")
        later = ("keep_gradients", "durability")
        return {
            key: value
            for key, value in values.items()
            if key not in later or value != type(self).model_fields[key].default
        }


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
    partitions: list[Annotated[tuple[NonNegative, Positive], Field(strict=False)]] = Field(
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


Seconds = Annotated[float, Field(ge=LEAST_SPAN, le=LONGEST_SPAN, allow_inf_nan=False)]


class AvailabilityTable(Table):
    """[devices.availability]: windows that repeat, a share of every period, or churn. Seconds since the edge began."""

    windows: list[Annotated[tuple[NonNegative, Positive], Field(strict=False)]] | None = Field(
        None, min_length=1, max_length=MOST_WINDOWS, description="[start, end], in order"
    )
    period: Seconds | None = Field(
        None, description="after which it all repeats; absent with windows: their last end"
    )
    share: Fraction | None = Field(None, description="of every period that the edge is there")
    phase: (
        Annotated[
            list[Annotated[float, Field(ge=0, lt=1)]],
            BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
            Field(min_length=1, max_length=100_000),
        ]
        | None
    ) = Field(None, description="where in the period its time begins, as a share of it; cycled over edges")
    up: Seconds | None = Field(None, description="churn: mean time there, exponential")
    down: Seconds | None = Field(None, description="churn: mean time away, exponential")


class DeviceTable(Table):
    """One of devices: a preset's name, or numbers, or both."""

    name: str | None = Field(None, min_length=1, max_length=64, description="see `mapa devices list`; or any")
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


class TestbedTable(Table):
    """[testbed]: what only a real network needs."""

    __test__ = False  # pytest: not a test class

    edges_at_least: int = Field(1, ge=1, le=100_000, description="hellos to wait for before the first update")
    # both drive timers of whoever is told of them: a peer must be able to make nobody spin or fall asleep
    silent_after: float = Field(
        30.0, ge=0.1, le=86_400, description="seconds after which a silent edge is reported gone"
    )
    resend_after: float = Field(
        5.0, ge=0.05, le=3600, description="seconds after which an unanswered message is sent again"
    )
