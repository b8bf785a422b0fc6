"""What the parts of a release mechanism have in common, and the ports by which they are found by name.

A part is a frozen dataclass whose fields are its options. It states what it costs; a class that leaves a statement out
is refused when a scenario names it. Built-in parts have a file each, others are named by "package.module:Class".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from common.errors import ConfigurationError, LocalProtocolError
from common.options import Value, options_of, resolved
from common.own_code import Catalogue, Description, about

# Keys beside a part's options in the record of a release (`Mechanism.fields`).
RECORDED = frozenset(
    ("noise", "parameters", "clipping", "scope", "sampling", "work", "batch_size", "shard_size", "grid")
)


class Part:
    """A part of a release mechanism: a name, and options as fields of a frozen dataclass."""

    __slots__ = ()

    name: ClassVar[str]  # of a part of one's own: "package.module:Class", filled in

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = f"{cls.__module__}:{cls.__qualname__}"

    @property
    def option_values(self) -> dict[str, Value]:
        """Every option by name."""
        return {field.name: getattr(self, field.name) for field in option_fields(self)}

    @property
    def charged_options(self) -> dict[str, Value]:
        """The options that the cost may depend on, by name, where they differ from their default."""
        charged = {field.name: field.default for field in option_fields(self) if field.compare}
        return {key: v for key, v in self.option_values.items() if key in charged and v != charged[key]}

    def without_neutral(self) -> Self:
        """Return it with every neutral option at its default, as a ledger that is read again has it."""
        neutral = {field.name: field.default for field in option_fields(self) if not field.compare}
        return dataclasses.replace(self, **neutral) if neutral else self  # type: ignore[type-var]


def option_fields(part: Part) -> list[dataclasses.Field[Any]]:
    """Return the fields of a part that are options."""
    return [field for field in dataclasses.fields(part) if "option" in field.metadata]  # type: ignore[arg-type]


def check_vector(part: Part, key: str, made: object, dimension: int, *, finite: bool = True) -> None:
    """Raise LocalProtocolError where a part makes anything but this many finite floats."""
    right = isinstance(made, np.ndarray) and made.shape == (dimension,) and made.dtype.kind == "f"
    if not right or (finite and not np.isfinite(made).all()):  # type: ignore[call-overload]
        raise LocalProtocolError(
            f"{key} = {part.name!r}: made {made!r:.80}: must be one array of {dimension} finite floats"
        )


class PartDescription(Description):
    """What a part says of itself."""

    __slots__ = ()

    def make(self, given: Mapping[str, Any], key: str) -> Any:
        """Return the part with these options, checked; `key` is the configuration key that names the part."""
        who = f"{key} = {self.name!r}"
        if others := sorted(given.keys() - set(self.names)):
            allowed = ", ".join(self.names) or "none"
            raise ConfigurationError(f"{who}: has no option {others[0]!r}; its options are: {allowed}")
        return self.make_of(resolved(self.options, given, key.rpartition(".")[0], who), key)


class Port:
    """One kind of part: the key that names it, and the statements that every class must make itself."""

    def __init__(
        self, base: type[Part], key: str, home: str, stated: tuple[str, ...], besides: Collection[str] = ()
    ) -> None:
        self.base, self.key, self.stated = base, key, stated
        self._catalogue = Catalogue(home, "PART", self.description_of, besides)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of those that come with mapa."""
        return self._catalogue.names

    def describe(self, name: str, key: str = "") -> PartDescription:
        """Return what a part says of itself; ConfigurationError where there is none, or it states too little."""
        return self._catalogue.describe(name, key or self.key)

    def make(self, name: str, given: Mapping[str, Any]) -> Any:
        """Return the part called `name` with these options and no others."""
        return self.describe(name).make(given, self.key)

    def make_from(self, name: str, table: Mapping[str, Any]) -> Any:
        """Return the part called `name` with what a table has of its options; other keys are no business of it."""
        described = self.describe(name)
        return described.make(
            {key: table[key] for key in described.names if table.get(key) is not None}, self.key
        )

    def description_of(self, name: str, made: Any, key: str) -> PartDescription:
        """Check that a class has what the port asks for."""
        key, base = f"{key} = {name!r}", self.base
        if not isinstance(made, type) or not issubclass(made, base):
            raise ConfigurationError(f"{key}: must be a subclass of {base.__module__}:{base.__name__}")
        if "__dataclass_params__" not in vars(made) or not made.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise ConfigurationError(f"{key}: must be a frozen dataclass: its fields are its options")
        if made.name != name:
            raise ConfigurationError(
                f"{key}: its own name is {made.name!r}; records and ledgers could not find it again by that"
            )
        if lacking := [one for one in self.stated if getattr(made, one) is getattr(base, one)]:
            raise ConfigurationError(
                f"{key}: the class does not state {', '.join(lacking)}; define it, see docs/your-own-mechanism.md"
            )
        options = options_of(made, key)
        for option in options:
            if option.name in RECORDED | {"sampler"}:
                raise ConfigurationError(f"{key}: option {option.name!r}: the name is taken; choose another")
        return PartDescription(name, about(made), options, made)
