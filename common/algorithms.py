"""Algorithms by name, as far as a scenario must know them: their options, and what they have edges do.

An algorithm is a class in a file of its own under cloud/algorithms/, or a user's own by "package.module:Class"
(docs/decisions/0007-algorithm-port.md). It is looked up by its path when a scenario with an `[algorithm]`
table is parsed. A welcome has no such table, so an edge never loads one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import ConfigurationError, nearest
from common.options import Value, options_of, resolved
from common.own_code import Catalogue, Description, about

_KEY = "algorithm.name"
_METHODS = ("begin", "apply", "with_moment", "opened", "result", "sensitivity_for")
# Every record has held these two, whatever the algorithm. They are written and read so that digests last.
_UNSET: dict[str, Value | None] = {"rate": None, "rate_decay": "none"}


@dataclass(frozen=True, slots=True)
class AlgorithmDescription(Description):
    """What an algorithm says of itself."""

    private: bool  # whether its edges clip and noise
    centralised: bool  # one worker holds all data
    needs_constants: bool  # L, σ, R and f₀
    requires: tuple[str, ...]  # keys of [algorithm] that must be given
    clipping: str | None  # the only privacy.clipping that it works with
    takes_sums: bool  # means of sets of releases will do: it runs on secure sums

    def resolve(self, given: Mapping[str, Any], shared: Iterable[str] = ()) -> dict[str, Value]:
        """Return the value of every option of its own; ConfigurationError for any other key.

        `shared` are the keys that every algorithm has, for the error's text.
        """
        known = {option.name for option in self.options}
        values = {key: value for key, value in given.items() if value is not None}
        for key, value in values.items():
            if key not in known and value != _UNSET.get(key):
                allowed = [*shared, *sorted(known)]
                raise ConfigurationError(
                    f"algorithm.{key} = {value!r}: unknown key; allowed with {self.name!r} are"
                    f" {', '.join(allowed) or 'none'}{nearest(key, allowed)}"
                )
        return resolved(self.options, values, "algorithm", f"{_KEY} = {self.name!r}")

    def recorded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those values that a record needs: all but the defaults."""
        defaults = {option.name: option.default for option in self.options}
        kept = {key: value for key, value in values.items() if value != defaults[key]}
        return {**_UNSET, **kept}

    def make(self, values: Mapping[str, Value]) -> Any:
        """Return the algorithm with these options, before its first update."""
        return self.make_of(values, _KEY)


def algorithm_names() -> tuple[str, ...]:
    """Return the names of those that come with mapa: one for each file."""
    return _ALGORITHMS.names


def describe(name: str) -> AlgorithmDescription:
    """Return what the algorithm says of itself; ConfigurationError where there is none, or it says too little."""
    return _ALGORITHMS.describe(name, _KEY)


def description_of(name: str, made: Any, key: str = _KEY) -> AlgorithmDescription:
    """Check that a class has what the port asks for; above all that it says whether it is private."""
    key = f"{key} = {name!r}"
    if not isinstance(made, type):
        raise ConfigurationError(f"{key}: not a class")
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise ConfigurationError(f"{key}: the class lacks {', '.join(missing)}; see cloud/algorithm.py")
    if not dataclasses.is_dataclass(made) or not made.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ConfigurationError(
            f"{key}: must be a frozen dataclass: its fields are its options and its state"
        )
    private = getattr(made, "private", None)
    if not isinstance(private, bool):
        raise ConfigurationError(
            f"{key}: does not say whether its edges clip and noise: set `private` to True or False"
        )
    return AlgorithmDescription(
        name=name,
        about=about(made),
        private=private,
        centralised=bool(getattr(made, "centralised", False)),
        needs_constants=bool(getattr(made, "needs_constants", True)),
        requires=tuple(getattr(made, "requires", ())),
        clipping=getattr(made, "clipping", None),
        takes_sums=bool(getattr(made, "takes_sums", False)),
        options=options_of(made, key),
        made=made,
    )


_ALGORITHMS = Catalogue("cloud.algorithms", "ALGORITHM", description_of)
