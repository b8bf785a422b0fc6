"""Options of a class as fields of its dataclass: a description, a range, and a check that names key and value."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import ConfigurationError

Value = float | int | str | bool
_KINDS: dict[str, tuple[type, ...]] = {"float": (float, int), "int": (int,), "str": (str,), "bool": (bool,)}
_WORDS = {"float": "a number", "int": "an integer", "str": "a text", "bool": "true or false"}
_JSON = {"float": "number", "int": "integer", "str": "string", "bool": "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What an option may be; kept in the metadata of its field."""

    about: str
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    only: tuple[str, str] | None = None  # key and value beside which the option means something
    symbol: str = ""  # of a noise law's parameter, in tables and statements
    larger_is_noisier: bool = False  # likewise: a run limits it by <name>_ceiling, otherwise by <name>_floor

    @property
    def words(self) -> str:
        if self.choices:
            return "one of " + ", ".join(repr(choice) for choice in self.choices)
        signs = (("> ", self.above), ("≥ ", self.at_least), ("< ", self.below), ("≤ ", self.at_most))
        return " and ".join(f"{sign}{limit:g}" for sign, limit in signs if limit is not None)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a class."""

    name: str
    kind: str  # float, int, str or bool
    range: Range
    default: Value | None  # None: it must be given

    @property
    def limit(self) -> str:
        """The key of [privacy] by which a run says how much noise it bears, of a noise law's parameter."""
        return f"{self.name}_ceiling" if self.range.larger_is_noisier else f"{self.name}_floor"

    def passes(self, value: float, limit: float) -> bool:
        """Tell whether a value means more noise than the limit bears."""
        return value > limit if self.range.larger_is_noisier else value < limit

    @property
    def words(self) -> str:
        """What is allowed."""
        return ", ".join(part for part in (_WORDS[self.kind], self.range.words) if part)

    def checked(self, key: str, value: Any) -> Value:
        """Return the value, or raise ConfigurationError with what is allowed."""
        kinds, limits = _KINDS[self.kind], self.range
        valid = isinstance(value, kinds) and (self.kind == "bool" or not isinstance(value, bool))
        if valid and self.kind in ("float", "int"):
            valid = (
                math.isfinite(value)
                and (limits.above is None or value > limits.above)
                and (limits.at_least is None or value >= limits.at_least)
                and (limits.below is None or value < limits.below)
                and (limits.at_most is None or value <= limits.at_most)
            )
        if valid and limits.choices:
            valid = value in limits.choices
        if not valid:
            raise ConfigurationError(f"{key} = {value!r}: must be {self.words}")
        checked: Value = float(value) if self.kind == "float" else value
        return checked

    def json_schema(self) -> dict[str, Any]:
        limits = self.range
        schema: dict[str, Any] = {"type": _JSON[self.kind], "description": limits.about}
        words = {
            "exclusiveMinimum": limits.above,
            "minimum": limits.at_least,
            "exclusiveMaximum": limits.below,
            "maximum": limits.at_most,
            "enum": list(limits.choices) or None,
            "default": self.default,
        }
        return schema | {word: value for word, value in words.items() if value is not None}


def option(about: str, default: Any = dataclasses.MISSING, *, neutral: bool = False, **limits: Any) -> Any:
    """Declare a field of a dataclass as an option; its annotation must be float, int, str or bool.

    A `neutral` option of a release mechanism's part does not change what a release costs, so it has no part in
    comparisons and records of cost; it must have a default.
    Limits are `above`, `at_least`, `below`, `at_most` and `choices`. Without a default it must be given.
    `only = (key, value)` says beside which value of another key it means something.
    """
    metadata = {"option": Range(about=about, **limits)}
    return dataclasses.field(
        default=default, kw_only=True, metadata=metadata, compare=not neutral, repr=not neutral
    )


def unrecorded(default: Any) -> Any:
    """Declare a field that is no option, and has no part in comparisons and records."""
    return dataclasses.field(default=default, kw_only=True, compare=False, repr=False)


def options_of(made: type, key: str) -> tuple[Option, ...]:
    """Return the options of a dataclass; ConfigurationError where a field is neither an option nor has a default."""
    found = []
    for field in dataclasses.fields(made):
        limits, missing = field.metadata.get("option"), field.default is dataclasses.MISSING
        if limits is None:
            if missing and field.default_factory is dataclasses.MISSING:
                raise ConfigurationError(f"{key}: field {field.name!r} is no option, so it needs a default")
            continue
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
        if kind not in _KINDS:
            raise ConfigurationError(f"{key}: option {field.name!r} must be one of {', '.join(_KINDS)}")
        if missing and not field.compare:
            raise ConfigurationError(f"{key}: option {field.name!r} is neutral, so it needs a default")
        default: Any = field.default
        found.append(Option(field.name, kind, limits, None if missing else default))
    return tuple(found)


def check_belonging(options: tuple[Option, ...], values: Mapping[str, Any], prefix: str) -> None:
    """Refuse a value that was given to an option which means nothing beside the other keys' values."""
    for one in options:
        if one.range.only is None or values[one.name] == one.default:
            continue
        key, needed = one.range.only
        if values[key] != needed:
            raise ConfigurationError(
                f"{prefix}.{one.name} = {values[one.name]!r}: only with {prefix}.{key} = {needed!r}, not"
                f" {values[key]!r}"
            )


def resolved(
    options: tuple[Option, ...], given: Mapping[str, Any], prefix: str, whose: str
) -> dict[str, Value]:
    """Return the value of every option, checked; `whose` says in an error who needs one that is missing."""
    values: dict[str, Value] = {}
    for one in options:
        key = f"{prefix}.{one.name}" if prefix else one.name
        if one.name in given:
            values[one.name] = one.checked(key, given[one.name])
        elif one.default is None:
            raise ConfigurationError(f"{key}: needed with {whose}; must be {one.words}")
        else:
            values[one.name] = one.default
    return values
