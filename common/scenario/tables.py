"""What the tables of a scenario file have in common, and the small ones; checks here need no other table.

An error names the key, its value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

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
from common.errors import ConfigurationError, nearest
from common.mechanism.guarantee import MOST_STEPS
from common.mechanism.local_work import LOCAL_WORK, LocalWork, named_work
from common.mechanism.part import Port
from common.models.registry import MODELS
from common.own_code import is_dotted
from common.transport.link import (
    LEAST_RATE_KBPS,
    LONGEST_DELAY_MS,
    MOST_PARTITIONS,
    LinkProfile,
    link_profile,
)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Span = Annotated[tuple[NonNegative, Positive], Field(strict=False)]  # a TOML array is a list
cycled = Field(min_length=1, max_length=100_000)  # of a list that is cycled over edges
one_or_more = BeforeValidator(lambda value: value if isinstance(value, list) else [value])


RECORD = {"record": True}  # the context of a dump that a record or a welcome holds
_MOST_LINES = 10  # a scenario may come from a peer, with thousands of wrong values
_MOST_CHARACTERS = 120  # of a key, of a value
LIMITS = {
    "exclusiveMinimum": "> ",
    "minimum": "≥ ",
    "exclusiveMaximum": "< ",
    "maximum": "≤ ",
}  # by JSON Schema


class Table(BaseModel):
    """A table of a scenario file. What checks of its parts refuse, and a ValueError of its own, is explained."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)  # `edges = true` is not one edge
    later: ClassVar[
        tuple[str, ...]
    ] = ()  # keys that records leave out at their default, so that digests last

    @model_validator(mode="wrap")
    @classmethod
    def _refuse(cls, values: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            table = check(values)
            table.check()
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return table

    def check(self) -> None:
        """Raise ConfigurationError or ValueError where values do not go together."""

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        values: dict[str, Any] = write(self)
        for key in self.later if info.context == RECORD else ():
            if getattr(self, key) == _default(type(self), key):
                values.pop(type(self).model_fields[key].alias or key, None)
        return values


@cache
def _default(table: type[Table], key: str) -> Any:
    """Return the default of a key; to ask pydantic takes a third of a welcome's time."""
    return table.model_fields[key].get_default(call_default_factory=True)


AnyTable = TypeVar("AnyTable", bound=Table)


def checked(table: type[AnyTable], values: Any, *, key: str = "", context: Any = None) -> AnyTable:
    """Return values as a table; ConfigurationError has a line for each of the first wrong keys, then how many more.

    A line names the key, below `key`, its value, and what is allowed.
    """
    try:
        return table.model_validate(values, context=context)
    except ValidationError as error:
        found = error.errors(include_url=False)
        lines = [f"{key}{_line(item, table)}" for item in found[:_MOST_LINES]]
        if len(found) > _MOST_LINES:
            lines.append(f"and {len(found) - _MOST_LINES} more")
        raise ConfigurationError("\n".join(lines)) from error


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"


def _line(item: Any, root: type[BaseModel]) -> str:
    location = item["loc"]
    key = _short(".".join(str(part) for part in location))
    message = str(item["msg"]).removeprefix("Value error, ")
    message = (message[0].lower() + message[1:]).replace("tuple", "list")
    match item["type"]:
        case "extra_forbidden":
            known = [f.alias or name for name, f in _table(root, location[:-1]).model_fields.items()]
            near = nearest(str(location[-1]), known)
            return f"{key} = {_short(repr(item['input']))}: unknown key; allowed are {', '.join(known)}{near}"
        case "missing":
            return f"{key}: missing"
        case "value_error":
            return (
                message
                if not key or message.startswith(key) or "." in message.split(":")[0]
                else f"{key}: {message}"
            )
        case _:
            return f"{key} = {_short(repr(item['input']))}: {message}{_range(root, location)}"


def _table(root: type[BaseModel], location: tuple[object, ...]) -> type[BaseModel]:
    """Return the table that a location lies in."""
    table = root
    for part in location:
        named = {field.alias or key: field for key, field in table.model_fields.items()}
        table = (str(part) in named and inner_table(named[str(part)])) or table
    return table


def inner_table(field: FieldInfo) -> type[BaseModel] | None:
    """Return the table that a key opens: itself, one that may be absent, or a list of them."""
    for one in (field.annotation, *get_args(field.annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


@lru_cache(maxsize=64)
def _properties(table: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a table's keys; a millisecond's work, and an error may ask for it ten times."""
    properties: dict[str, Any] = table.model_json_schema()["properties"]
    return properties


def _range(root: type[BaseModel], location: tuple[object, ...]) -> str:
    """Return the allowed range of a number in words, from the JSON schema."""
    names = [str(part) for part in location if isinstance(part, str)]
    if not names:
        return ""
    schema = _properties(_table(root, tuple(names[:-1]))).get(names[-1], {})
    flat = [schema, *schema.get("anyOf", [])]
    flat += [part["items"] for part in flat if "items" in part]
    limits = [f"{sign}{part[word]}" for part in flat for word, sign in LIMITS.items() if word in part]
    return f" (allowed: {' and '.join(limits)})" if limits else ""


def named(key: str, known: tuple[str, ...]) -> AfterValidator:
    """Refuse a name that is neither built in nor a dotted path, before anything is asked about it."""

    def check(name: str) -> str:
        if name not in known and not is_dotted(name):
            allowed = f"{', '.join(known)} or package.module:Class{nearest(name, known)}"
            raise ValueError(f"{key} = {name!r}: allowed are {allowed}")
        return name

    return AfterValidator(check)


def options_given(table: BaseModel, declared: Collection[str]) -> dict[str, Any]:
    """Return the options of a mechanism's part that a table gives: declared keys that were set, and all others."""
    given = {key: getattr(table, key) for key in declared if key in table.model_fields_set}
    return {key: v for key, v in given.items() if v is not None} | (table.model_extra or {})


def made_part(
    port: Port, name: str, given: Mapping[str, Any], known: Collection[str], shared: Collection[str] = ()
) -> Any:
    """Return the part of the release mechanism that a table names, with its options; raise for any other key.

    `known` are the table's own keys, which no option may be called by but those that are `shared`.
    """
    table, described = port.key.partition(".")[0], port.describe(name)
    if taken := (set(described.names) & set(known)) - set(shared):
        raise ValueError(f"{port.key} = {name!r}: option {min(taken)!r}: the name is taken; choose another")
    for key, value in given.items():
        if key not in described.names:
            allowed = (*known, *described.names)
            raise ValueError(
                f"{table}.{_short(key)} = {_short(repr(value))}: unknown key; allowed are {', '.join(allowed)}"
                f"{nearest(key, allowed)}"
            )
    return described.make(given, port.key)


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


class LocalTable(Table):
    """[local]: what an edge does on its own for one message; beside that the options of the work that is named."""

    model_config = ConfigDict(extra="allow")  # options of the work: `made` checks them
    later = ("work", "steps", "rate")

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

    def check(self) -> None:
        if self.work is None:
            if self.steps > 1 and self.rate is None:
                raise ValueError(f"local.rate: needed with local.steps = {self.steps}")
            if self.steps == 1 and self.rate is not None:
                raise ValueError(f"local.rate = {self.rate}: means nothing with local.steps = 1")
        _ = self.made

    @property
    def made(self) -> LocalWork:
        """The work with its options."""
        given = options_given(self, ("steps", "rate"))
        name = self.work or named_work(given)
        if self.work is None and self.steps == 1:
            given.pop("steps", None)  # said, and the same as not said
        made: LocalWork = made_part(LOCAL_WORK, name, given, ("work", "steps", "rate"), ("steps", "rate"))
        return made


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

    def check(self) -> None:
        if self.kind == "recorded" and self.file is None:
            raise ValueError("delays.file: needed with delays.kind = 'recorded'")
        if self.kind != "recorded" and self.file is not None:
            raise ValueError(
                f"delays.file = {self.file!r}: requires delays.kind = 'recorded', not {self.kind!r}"
            )
        if self.kind == "uniform" and self.spread > 1:
            raise ValueError(f"delays.spread = {self.spread}: must be at most 1 with delays.kind = 'uniform'")


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

    later = ("keep_gradients", "durability")

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


CodingName = Literal["float32", "float16", "int8"]  # common/wire/codings


class CompressionTable(Table):
    """[compression]: how models and gradients are coded on the wire, where a link does not say otherwise."""

    gradients: CodingName = Field(
        "float32", description="upwards: float32, as they are; float16; int8, at random"
    )
    models: CodingName = Field("float32", description="downwards, likewise")
    offered: list[CodingName] = Field(
        default_factory=list,
        max_length=3,
        description="codings that an edge may ask for, both ways, in its hello",
    )


class LinkTable(Table):
    """One of links: a preset's name, or numbers, or both."""

    later = ("gradients", "models")

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
    gradients: CodingName | None = Field(None, description="coding upwards; absent: compression.gradients")
    models: CodingName | None = Field(None, description="coding downwards; absent: compression.models")

    @property
    def profile(self) -> LinkProfile:
        """The link in the core's own form."""
        return link_profile(self.model_dump(exclude={"gradients", "models"}))

    def check(self) -> None:
        """Refuse here what would end every edge that is given this link."""
        try:
            _ = self.profile
        except ConfigurationError as error:
            raise ValueError(str(error).removeprefix("link: ")) from error


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
    # both drive timers of the peers that are told of them: no peer may make another spin or fall asleep
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
        description="how many times as long a gradient takes",
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

    def check(self) -> None:
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

    def profile(self, index: int) -> DeviceProfile:
        """Return the device in the core's own form, of edge k."""
        return device_profile(self.model_dump(), index)
