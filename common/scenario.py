"""One scenario = one run: the schema, its checks, and what it says about the algorithm.

Pydantic stands here, at the border; the core gets `Problem` and plain values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from common.constants import NOMINAL, measured_constants
from common.errors import ConfigurationError
from common.noise import Clipping, Mechanism, NoiseLaw, Sampling, Scope, noise_law
from common.problem import Problem, RateDecay, SensitivityRule

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
PerEdge = Annotated[
    list[Positive],
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    Field(min_length=1, max_length=100_000),
]


class Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)  # `edges = true` is not one edge


class DataTable(Table):
    """[data]"""

    set: str = Field("mnist-5k", min_length=1, description="mnist, usps, mnist-5k or package.module:Class")
    partition: Literal["iid", "dirichlet", "label", "shared"] = "iid"
    alpha: Positive = Field(0.5, description="concentration of the dirichlet partition")
    labels_per_edge: int = Field(2, ge=1, le=1000, description="of the label partition")
    sampler: Literal["poisson", "shuffled", "with-replacement"] = "poisson"
    holdout: int = Field(
        0, ge=0, description="training records in no shard, evaluated on instead of the test set: for tuning"
    )


class ModelTable(Table):
    """[model]"""

    name: str = Field(
        "lr", min_length=1, description="lr, svm, softmax, scattering, cnn or package.module:Class"
    )
    regularization: NonNegative = Field(1e-4, description="λ of λ/2·‖x‖²")
    options: dict[str, Any] = Field(
        default_factory=dict, description="lr: positive = [labels]; cnn: activation; scattering: landmarks"
    )


class AlgorithmTable(Table):
    """[algorithm]; what is left open follows from the model and the data set where they are known."""

    name: Literal["csgd", "asgd", "audp", "mapa", "constant"] = "mapa"
    theta: Fraction = Field(0.5, description="θ, reduction ratio")
    smoothness: Positive | None = Field(None, description="L")
    sigma: NonNegative | None = Field(None, description="σ")
    delta: Fraction = Field(1e-3, description="δ of Theorem 3 alone; the privacy δ is privacy.total_delta")
    tau_max: int | None = Field(None, ge=0, le=10_000_000, description="τ_max; absent: the number of edges")
    tau_max_from: Literal["configured", "measured"] = "configured"
    loss_gap: Positive | None = Field(None, description="f₀ = f(x₁) − f(x*)")
    radius: Positive | None = Field(None, description="R")
    first_clip: Positive | None = Field(None, description="AUDP's bound, MAPA's first one; absent: Theorem 3")
    rule: Literal["theta", "table"] = Field(
        "theta", description="how ΔS shrinks: θΔS, or the parameter table's"
    )
    rate: Positive | None = Field(None, description="ρ of `constant`: γ_t = ρ/C with C = first_clip")
    rate_decay: Literal["none", "linear"] = Field("none", description="linear: ρ falls to 0 over T updates")

    @model_validator(mode="after")
    def _rate(self) -> Self:
        if self.name == "constant":
            for key in ("rate", "first_clip"):
                if getattr(self, key) is None:
                    raise ValueError(f"algorithm.{key}: needed with algorithm.name = 'constant'")
        elif self.rate is not None or self.rate_decay != "none":
            key = "rate_decay" if self.rate is None else "rate"
            value = getattr(self, key)
            raise ValueError(f"algorithm.{key} = {value!r}: goes with algorithm.name = 'constant' alone")
        return self


class PrivacyTable(Table):
    """[privacy]"""

    noise: Literal["gaussian", "gamma-norm", "exponential-norm"] = "gaussian"
    epsilon: PerEdge | None = Field(None, description="ε_k of one release; a list is cycled over edges")
    noise_multiplier: PerEdge | None = Field(None, description="z_k of the gaussian law, instead of epsilon")
    clipping: Literal["per-sample", "batch-mean"] = "per-sample"
    scope: Literal["all", "first-conv"] = "all"
    total_epsilon: Positive | None = Field(None, description="budget of each edge for the whole run")
    total_delta: Fraction = Field(1e-5, description="the privacy δ")
    releases: int | None = Field(
        None, ge=1, description="gradients of one edge that total_epsilon must cover"
    )
    epsilon_floor: NonNegative = Field(0.0, description="the cloud refuses a hello with a smaller ε_k")
    noise_multiplier_ceiling: Positive | None = Field(None, description="likewise for z_k")

    @model_validator(mode="after")
    def _one_parameter(self) -> Self:
        if self.noise == "gaussian":
            if self.epsilon is not None:
                raise ValueError(
                    "privacy.epsilon goes with gamma-norm and exponential-norm; gaussian takes z"
                )
            if self.noise_multiplier is None and self.total_epsilon is None:
                raise ValueError("noise = 'gaussian' needs privacy.noise_multiplier or privacy.total_epsilon")
            if self.noise_multiplier is not None and self.releases is not None:
                raise ValueError(
                    "privacy.releases goes with total_epsilon alone: it is what z is calibrated for"
                )
        else:
            if self.noise_multiplier is not None:
                raise ValueError(f"privacy.noise_multiplier goes with gaussian; {self.noise} takes epsilon")
            if self.epsilon is None:
                raise ValueError(f"noise = {self.noise!r} needs privacy.epsilon")
        return self

    def parameter(self, index: int) -> float:
        """Return ε_k, or z_k for the gaussian law."""
        given = self.noise_multiplier if self.noise == "gaussian" else self.epsilon
        if given is None:
            raise ConfigurationError("privacy.total_epsilon: not yet calibrated to a noise multiplier")
        return given[index % len(given)]


class DelaysTable(Table):
    """[delays]: how the simulator makes gradients stale. Times are virtual seconds."""

    kind: Literal["cyclic", "constant", "uniform", "exponential", "lognormal", "recorded"] = "cyclic"
    compute: NonNegative = Field(0.01, description="mean time of a gradient at speed 1")
    network: NonNegative = Field(0.02, description="mean one-way time")
    spread: NonNegative = Field(
        0.5, description="uniform: ± this share of the mean; lognormal: σ of the logarithm"
    )
    speeds: list[Positive] = Field(
        default_factory=lambda: [1.0], min_length=1, description="cycled over edges"
    )
    file: str | None = Field(None, description="recorded: CSV with columns edge,compute,up,down in seconds")

    @model_validator(mode="after")
    def _file(self) -> Self:
        if (self.kind == "recorded") != (self.file is not None):
            raise ValueError("delays.file goes with delays.kind = 'recorded', and is needed there")
        if self.kind == "uniform" and self.spread > 1:
            raise ValueError(f"delays.spread = {self.spread}: must be at most 1 with kind = 'uniform'")
        return self


class EvaluationTable(Table):
    """[evaluation]"""

    every: int = Field(500, ge=0, description="updates between evaluations on the test set; 0: only the last")


class RecordsTable(Table):
    """[records]"""

    events: bool = Field(True, description="write events.jsonl")
    diagnostics: bool = Field(False, description="record gradient norms before noise: NOT private")


class LinkTable(Table):
    """One of links: a preset's name, or numbers, or both."""

    name: str | None = None
    delay_ms: NonNegative | None = None
    jitter_ms: NonNegative | None = None
    distribution: Literal["constant", "uniform", "normal", "exponential", "lognormal", "pareto"] | None = None
    rate_kbps: Positive | None = None
    partitions: list[Annotated[tuple[NonNegative, Positive], Field(strict=False)]] = Field(
        default_factory=list, description="[start, duration] in seconds since the edge began"
    )


class TestbedTable(Table):
    """[testbed]: what only a real network needs."""

    __test__ = False  # pytest: not a test class

    edges_at_least: int = Field(1, ge=1, description="hellos to wait for before the first update")
    silent_after: Positive = Field(30.0, description="seconds after which a silent edge is reported gone")
    resend_after: Positive = Field(5.0, description="seconds after which an unanswered message is sent again")


class Scenario(Table):
    """One TOML file."""

    edges: int = Field(5, ge=1, le=100_000, description="K: how many edges, and shards")
    iterations: int = Field(..., ge=1, le=1_000_000_000, description="T: updates of the model")
    batch_size: int = Field(12, ge=1, le=1_000_000, description="b")
    seed: int | None = Field(None, ge=0, lt=2**63, description="absent: secure randomness, not replayable")
    data: DataTable = DataTable()
    model: ModelTable = ModelTable()
    algorithm: AlgorithmTable = AlgorithmTable()
    privacy: PrivacyTable = Field(default_factory=lambda: PrivacyTable(noise_multiplier=[1.0]))
    delays: DelaysTable = DelaysTable()
    evaluation: EvaluationTable = EvaluationTable()
    records: RecordsTable = RecordsTable()
    links: list[LinkTable] = Field(
        default_factory=list, description="cycled over edges; none: no added delay"
    )
    testbed: TestbedTable = TestbedTable()

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Fill what the problem's known constants say; ask for what nobody knows."""
        known = measured_constants(self.model.name, self.data.set)
        if known is None and self.algorithm.name == "constant":
            known = NOMINAL
        filled: dict[str, float | int] = {}
        for key in ("smoothness", "sigma", "radius", "loss_gap"):
            if getattr(self.algorithm, key) is None:
                if known is None:
                    raise ValueError(
                        f"algorithm.{key}: needed, since no constants are known for model "
                        f"{self.model.name!r} on {self.data.set!r}"
                    )
                filled[key] = getattr(known, key)
        if self.algorithm.tau_max is None:
            filled["tau_max"] = self.workers
        object.__setattr__(self, "algorithm", self.algorithm.model_copy(update=filled))
        if self.algorithm.first_clip is None and not self.algorithm.sigma:
            raise ValueError("algorithm.sigma = 0.0: must be greater than 0 where no first_clip is given")
        if self.testbed.edges_at_least > self.edges:
            raise ValueError(
                f"testbed.edges_at_least = {self.testbed.edges_at_least}: must be at most {self.edges}, "
                "the number of edges, or the run would never begin"
            )
        return self

    # -- what the core asks for -----------------------------------------------------------------------

    @property
    def private(self) -> bool:
        """ASGD and CSGD never clip or noise, whatever [privacy] says."""
        return self.algorithm.name in ("audp", "mapa", "constant")

    @property
    def workers(self) -> int:
        """How many edges take part: CSGD is one worker on all data."""
        return 1 if self.algorithm.name == "csgd" else self.edges

    @property
    def problem(self) -> Problem:
        """The constants in the core's own form."""
        a = self.algorithm
        assert a.smoothness is not None
        assert a.sigma is not None
        assert a.radius is not None
        assert a.loss_gap is not None
        assert a.tau_max is not None
        return Problem(
            batch_size=self.batch_size,
            smoothness=a.smoothness,
            sigma=a.sigma,
            tau_max=a.tau_max,
            iterations=self.iterations,
            theta=a.theta,
            delta=a.delta,
            loss_gap=a.loss_gap,
            radius=a.radius,
            first_clip=a.first_clip,
            rule=SensitivityRule(a.rule),
            rate=a.rate,
            rate_decay=RateDecay(a.rate_decay),
        )

    @property
    def mechanism(self) -> Mechanism:
        p = self.privacy
        return Mechanism(Clipping(p.clipping), Scope(p.scope), Sampling(self.data.sampler), self.batch_size)

    def law(self, index: int) -> NoiseLaw | None:
        """Return how edge k noises; None where the algorithm never does."""
        if not self.private:
            return None
        if self.privacy.noise == "gaussian":
            return noise_law("gaussian", noise_multiplier=self.privacy.parameter(index))
        return noise_law(self.privacy.noise, epsilon=self.privacy.parameter(index))

    def for_edge(self, index: int) -> dict[str, Any]:
        """Return what edge k needs: its own ε_k and link alone; the seed travels apart, where there is one."""
        values = self.model_dump(mode="json", exclude={"seed", "evaluation", "records", "delays"})
        for key in ("epsilon", "noise_multiplier"):
            if given := values["privacy"][key]:
                values["privacy"][key] = [given[index % len(given)]]
        if self.links:
            values["links"] = [values["links"][index % len(self.links)]]
        return values

    def canonical(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved scenario."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def parse_scenario(values: Mapping[str, Any]) -> Scenario:
    """Check a whole scenario; a ConfigurationError names key, value and what is allowed."""
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError("\n".join(_explain(item) for item in error.errors())) from error


def _explain(item: Any) -> str:
    location = item["loc"]
    key = ".".join(str(part) for part in location)
    message = str(item["msg"]).removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    match item["type"]:
        case "extra_forbidden":
            allowed = ", ".join(_table(location[:-1]).model_fields)
            return f"{key} = {item['input']!r}: unknown key; allowed are {allowed}"
        case "missing":
            return f"{key}: missing"
        case "value_error":
            return (
                message
                if not key or message.startswith(key) or "." in message.split(":")[0]
                else f"{key}: {message}"
            )
        case _:
            return f"{key} = {item['input']!r}: {message}{_range(location)}"


def _table(location: tuple[object, ...]) -> type[BaseModel]:
    """Return the table that a location lies in."""
    table: type[BaseModel] = Scenario
    for part in location:
        annotation = table.model_fields[str(part)].annotation if str(part) in table.model_fields else None
        if annotation == list[LinkTable]:
            table = LinkTable
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            table = annotation
    return table


def _range(location: tuple[object, ...]) -> str:
    """Return the allowed range of a number in words, from the JSON schema."""
    names = [str(part) for part in location if isinstance(part, str)]
    schema = _table(tuple(names[:-1])).model_json_schema()["properties"].get(names[-1], {})
    flat = [schema, *schema.get("anyOf", [])]
    flat += [part["items"] for part in flat if "items" in part]
    words = {"exclusiveMinimum": "> ", "minimum": "≥ ", "exclusiveMaximum": "< ", "maximum": "≤ "}
    limits = [f"{sign}{part[word]}" for part in flat for word, sign in words.items() if word in part]
    return f" (allowed: {' and '.join(limits)})" if limits else ""
