"""What samplers, clippings and kinds of local work have in common, and where they are found by name.

A part of a release mechanism is a frozen dataclass whose fields are its options. It states what it costs; a class that
leaves a statement out is refused when a scenario names it. Those of this package stand in one file each, any other
class is named by "package.module:Class".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from common.errors import ConfigurationError, MapaError
from common.options import Option, Value, options_of, resolved
from common.own_code import Catalogue

# Keys that stand beside options: in [data], [privacy] and [local], and in the record of a release.
_TAKEN = frozenset(
    (
        *(
            "sampler",
            "clipping",
            "work",
            "noise",
            "parameters",
            "scope",
            "sampling",
            "batch_size",
            "shard_size",
        ),
        *("set", "schema", "partition", "holdout", "releases", "pace", "epsilon", "noise_multiplier"),
    )
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
    def charged_options(self) -> dict[str, Value]:
        """The options that the cost may depend on, by name, where they differ from their default."""
        given = ((field, getattr(self, field.name)) for field in _option_fields(self) if field.compare)
        return {field.name: value for field, value in given if value != field.default}

    @property
    def every_option(self) -> tuple[Value, ...]:
        """The values of all options, those included that the cost does not depend on."""
        return tuple(getattr(self, field.name) for field in _option_fields(self))

    def without_neutral(self) -> Self:
        """Return it with every neutral option at its default, as a ledger that is read again has it."""
        neutral = {
            field.name: field.default
            for field in _option_fields(self)
            if not field.compare and field.default is not dataclasses.MISSING
        }
        return dataclasses.replace(self, **neutral) if neutral else self  # type: ignore[type-var]


def _option_fields(part: Part) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(part) if "option" in field.metadata]  # type: ignore[arg-type]


def option_names(part: Part) -> list[str]:
    """Return the names of a part's options."""
    return [field.name for field in _option_fields(part)]


@dataclass(frozen=True, slots=True)
class PartDescription:
    """What a part says of itself."""

    name: str
    about: str
    options: tuple[Option, ...]
    made: type[Any]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its options."""
        return tuple(option.name for option in self.options)

    def make(self, given: Mapping[str, Any], key: str) -> Any:
        """Return the part with these options, checked; `key` is the configuration key that names the part."""
        table = key.partition(".")[0]
        values = resolved(self.options, given, table, f"{key} = {self.name!r}")
        try:
            return self.made(**values)
        except MapaError:
            raise
        except Exception as error:  # another's class may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ConfigurationError(f"{key} = {self.name!r}: cannot be made ({reason})") from error


class Port:
    """One kind of part: the key that names it, and the statements that every class must make itself."""

    def __init__(self, base: type[Part], key: str, home: str, stated: tuple[str, ...]) -> None:
        self.base, self.key, self.stated = base, key, stated
        self._catalogue = Catalogue(home, "PART", self._described)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of those that come with mapa."""
        return self._catalogue.names

    def describe(self, name: str) -> PartDescription:
        """Return what a part says of itself; ConfigurationError where there is none, or it states too little."""
        return self._catalogue.describe(name, self.key)

    def make(self, name: str, given: Mapping[str, Any]) -> Any:
        """Return the part called `name` with these options and no others."""
        described = self.describe(name)
        for other in given.keys() - set(described.names):
            allowed = ", ".join(described.names) or "none"
            raise ConfigurationError(
                f"{self.key} = {name!r}: has no option {other!r}; its options are: {allowed}"
            )
        return described.make(given, self.key)

    def make_from(self, name: str, table: Mapping[str, Any]) -> Any:
        """Return the part called `name` with what a table has of its options; other keys are no business of it."""
        described = self.describe(name)
        return described.make(
            {key: table[key] for key in described.names if table.get(key) is not None}, self.key
        )

    def _described(self, name: str, made: Any, key: str) -> PartDescription:
        key, base = f"{key} = {name!r}", self.base
        if not isinstance(made, type) or not issubclass(made, base):
            raise ConfigurationError(f"{key}: must be a subclass of {base.__module__}:{base.__name__}")
        if "__dataclass_params__" not in vars(made) or not made.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise ConfigurationError(f"{key}: must be a frozen dataclass: its fields are its options")
        if made.name != name:
            raise ConfigurationError(
                f"{key}: its own name is {made.name!r}; records and ledgers could not find it again by that"
            )
        lacking = [method for method in self.stated if getattr(made, method) is getattr(base, method)]
        if lacking:
            raise ConfigurationError(
                f"{key}: the class does not state {', '.join(lacking)}; define it, see docs/your-own-mechanism.md"
            )
        options = options_of(made, key)
        for option in options:
            if option.name in _TAKEN:
                raise ConfigurationError(f"{key}: option {option.name!r}: the name is taken; choose another")
        about = (made.__doc__ or "").strip().partition("\n")[0]
        return PartDescription(name, about, options, made)
