"""Noise laws by name: those of this package, one for each file, or anybody's by "package.module:Class"."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import ConfigurationError, MapaError
from common.mechanism.guarantee import Norm
from common.noise.law import NoiseLaw, Reading
from common.options import Option, options_of
from common.own_code import Catalogue

MOST_PARAMETERS = 8
PARAMETER_NAME = r"^[a-z][a-z0-9_]{0,31}$"

_HOME = "common.noise"
_NOT_LAWS = ("law", "registry")
_KEY = "noise"
_METHODS = ("draw", "relative_second_moment", "relative_tail", "guarantee")
# Keys that stand beside a law's parameters: in [privacy], in a ledger's account, in the record of an edge.
_TAKEN = frozenset(
    (
        *("noise", "clipping", "scope", "sampling", "batch_size", "shard_size"),
        *("total_epsilon", "total_delta", "releases"),
        *("event", "time", "edge", "edge_id", "t", "returned", "parameters"),
    )
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a law."""

    option: Option
    reading: Reading

    @property
    def name(self) -> str:
        return self.option.name

    @property
    def limit(self) -> str:
        """The key of [privacy] by which a run says how much noise it bears."""
        return f"{self.name}_ceiling" if self.reading.larger_is_noisier else f"{self.name}_floor"

    def passes(self, value: float, limit: float) -> bool:
        """Tell whether a value means more noise than the limit bears."""
        return value > limit if self.reading.larger_is_noisier else value < limit


@dataclass(frozen=True, slots=True)
class LawDescription:
    """What a law says of itself."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    made: type[NoiseLaw]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return tuple(one.name for one in self.parameters)

    @property
    def limits(self) -> tuple[str, ...]:
        """The keys by which a run limits them."""
        return tuple(one.limit for one in self.parameters)

    def make(self, values: Mapping[str, Any], prefix: str = "") -> NoiseLaw:
        """Return the law with these parameters: all of its own and no other; `prefix` stands before their keys."""
        wanted = " and ".join(self.names) or "no parameter"
        others = [key for key in values if key not in self.names]
        if others:
            raise ConfigurationError(f"noise = {self.name!r} takes {wanted}, not {', '.join(sorted(others))}")
        missing = [key for key in self.names if key not in values]
        if missing:
            raise ConfigurationError(f"noise = {self.name!r} takes {wanted}; missing: {', '.join(missing)}")
        checked = {
            one.name: one.option.checked(f"{prefix}{one.name}", values[one.name]) for one in self.parameters
        }
        try:
            return self.made(**checked)
        except MapaError:
            raise
        except Exception as error:  # another's class may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ConfigurationError(f"noise = {self.name!r}: cannot be made ({reason})") from error


def law_names() -> tuple[str, ...]:
    """Return the names of the laws that come with mapa: one for each file."""
    return _LAWS.names


def describe_law(name: str, key: str = _KEY) -> LawDescription:
    """Return what the law says of itself; ConfigurationError where there is none, or it says too little."""
    return _LAWS.describe(name, key)


def law_description(name: str, made: Any, key: str = _KEY) -> LawDescription:
    """Check that a class has what the port asks for; above all that it says which norm must be clipped."""
    key = f"{key} = {name!r}"
    if not isinstance(made, type) or not issubclass(made, NoiseLaw):
        raise ConfigurationError(f"{key}: must be a subclass of common.noise.law:NoiseLaw")
    frozen = getattr(getattr(made, "__dataclass_params__", None), "frozen", False)
    if not frozen or "__dataclass_params__" not in vars(made):
        raise ConfigurationError(f"{key}: must be a frozen dataclass: its fields are its parameters")
    if made.name != name:
        raise ConfigurationError(
            f"{key}: its own name is {made.name!r}; records and ledgers could not find it again by that"
        )
    lacking = [method for method in _METHODS if getattr(made, method) is getattr(NoiseLaw, method)]
    if lacking:
        raise ConfigurationError(f"{key}: the class lacks {', '.join(lacking)}; see common/noise/law.py")
    if not isinstance(getattr(made, "norm", None), Norm):
        raise ConfigurationError(
            f"{key}: does not say which norm must be clipped: set `norm` to Norm.L1 or Norm.L2"
        )
    parameters = _parameters(made, key)
    if made.calibrated is not None and (len(parameters) != 1 or parameters[0].name != made.calibrated):
        raise ConfigurationError(f"{key}: `calibrated` must name its only parameter")
    about = (made.__doc__ or "").strip().partition("\n")[0]
    return LawDescription(name, about, parameters, made)


def _parameters(made: type[NoiseLaw], key: str) -> tuple[Parameter, ...]:
    readings = {field.name: field.metadata.get("reading") for field in dataclasses.fields(made)}  # type: ignore[arg-type]
    found = []
    for option in options_of(made, key):
        reading, name = readings[option.name], option.name
        if reading is None or option.kind != "float":
            raise ConfigurationError(f"{key}: parameter {name!r} must be a float, declared by `parameter`")
        ends = name.endswith(("_floor", "_ceiling"))
        if name in _TAKEN or ends or not re.fullmatch(PARAMETER_NAME, name):
            raise ConfigurationError(
                f"{key}: parameter {name!r}: not a name for one; it is taken, or not like {PARAMETER_NAME}"
            )
        found.append(Parameter(option, reading))
    if len(found) > MOST_PARAMETERS:
        raise ConfigurationError(f"{key}: {len(found)} parameters; at most {MOST_PARAMETERS} are allowed")
    return tuple(found)


_LAWS = Catalogue(_HOME, "LAW", law_description, _NOT_LAWS)


def noise_law(name: str, parameters: Mapping[str, Any], *, key: str = _KEY) -> NoiseLaw:
    """Return the law called `name` with its parameters."""
    return describe_law(name, key).make(parameters)


def implied_law(names: Collection[str]) -> str:
    """Return the law that is meant where parameters of these names are given and no law is."""
    for law in law_names():
        described = describe_law(law)
        if described.made.implied and set(described.names) == set(names):
            return law
    raise ConfigurationError(f"{', '.join(sorted(names))}: no law is meant by that; name it by noise")


def laws_with(key: str) -> list[str]:
    """Return the built-in laws that have a parameter, or a limit, of this name."""
    described = (describe_law(name) for name in law_names())
    return [one.name for one in described if key in one.names or key in one.limits]


def paced_law(planned: NoiseLaw, name: str | None, parameters: Mapping[str, float]) -> NoiseLaw:
    """Return how an edge noises that has a pace of its own: as planned, or more where its operator asks for more.

    Cloud and edge ask the same question, so they agree. What was planned is the least: R_k was computed for it.
    """
    key = planned.calibrated
    if key is None or name not in (None, planned.name) or set(parameters) - {key}:
        asked = "" if name is None else f"noise = {name!r}: "
        raise ConfigurationError(
            f"{asked}in a run with privacy.pace = 'own' every edge noises by {planned.name!r}; an edge may ask for a"
            f" larger {key or 'parameter'} and nothing else"
        )
    asked_for = parameters.get(key, 0.0)
    if asked_for <= planned.parameters[key]:
        return planned
    return noise_law(planned.name, {**planned.parameters, key: asked_for})
