"""Noise laws by name: those of this package, one for each file, or any other by "package.module:Class"."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from common.errors import ConfigurationError
from common.mechanism.guarantee import Norm
from common.mechanism.part import PartDescription, Port
from common.noise.law import NoiseLaw

MOST_PARAMETERS = 8
PARAMETER_NAME = r"^[a-z][a-z0-9_]{0,31}$"

# Keys that stand beside a law's parameters in [privacy] and in the record of an edge; others are no option of any part.
_TAKEN = frozenset(
    (
        *("total_epsilon", "total_delta", "releases"),
        *("pace", "paces", "gradients_per_second", "release_caps"),
        *("event", "time", "edge", "edge_id", "t", "returned"),
    )
)


class LawDescription(PartDescription):
    """What a law says of itself; its options are its parameters."""

    __slots__ = ()

    @property
    def limits(self) -> tuple[str, ...]:
        """The keys by which a run limits its parameters."""
        return tuple(option.limit for option in self.options)

    def make(self, given: Mapping[str, Any], key: str = "noise") -> NoiseLaw:
        """Return the law with these parameters: all of its own and no other."""
        if set(given) != set(self.names):
            missing = ", ".join(name for name in self.names if name not in given)
            others = ", ".join(sorted(given.keys() - set(self.names)))
            raise ConfigurationError(
                f"{key} = {self.name!r} takes {' and '.join(self.names) or 'no parameter'}"
                + (f", not {others}" if others else f"; missing: {missing}")
            )
        law: NoiseLaw = PartDescription.make(self, given, key)
        return law


class _LawPort(Port):
    def description_of(self, name: str, made: Any, key: str) -> LawDescription:
        """Check that a class has what the port asks for; above all that it says which norm must be clipped."""
        described = super().description_of(name, made, key)
        key = f"{key} = {name!r}"
        if not isinstance(getattr(made, "norm", None), Norm):
            raise ConfigurationError(
                f"{key}: does not say which norm must be clipped: set `norm` to Norm.L1 or Norm.L2"
            )
        for option in described.options:
            if not option.range.symbol or option.kind != "float":
                raise ConfigurationError(
                    f"{key}: parameter {option.name!r} must be a float, declared by `parameter`"
                )
            ends = option.name.endswith(("_floor", "_ceiling"))
            if option.name in _TAKEN or ends or not re.fullmatch(PARAMETER_NAME, option.name):
                raise ConfigurationError(
                    f"{key}: parameter {option.name!r}: not a name for one; it is taken, or not like {PARAMETER_NAME}"
                )
        if len(described.options) > MOST_PARAMETERS:
            raise ConfigurationError(
                f"{key}: {len(described.options)} parameters; at most {MOST_PARAMETERS} are allowed"
            )
        if made.calibrated is not None and described.names != (made.calibrated,):
            raise ConfigurationError(f"{key}: `calibrated` must name its only parameter")
        return LawDescription(name, described.about, described.options, made)


_STATED = ("draw", "relative_second_moment", "relative_tail", "guarantee")
LAWS = _LawPort(NoiseLaw, "noise", "common.noise", _STATED, besides=("law", "registry"))


def law_names() -> tuple[str, ...]:
    """Return the names of the laws that come with mapa: one for each file."""
    return LAWS.names


def describe_law(name: str, key: str = "noise") -> LawDescription:
    """Return what the law says of itself; ConfigurationError where there is none, or it says too little."""
    described: LawDescription = LAWS.describe(name, key)  # type: ignore[assignment]
    return described


def noise_law(name: str, parameters: Mapping[str, Any], *, key: str = "noise") -> NoiseLaw:
    """Return the law called `name` with its parameters."""
    return describe_law(name, key).make(parameters, key)


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
