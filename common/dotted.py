"""Classes by name: those of a package, one for each file, or anybody's by dotted path "package.module:Class"."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any, Generic, TypeVar

from common.errors import ConfigurationError
from common.own_code import DOTTED, given_object, require_allowed


def is_dotted(name: str) -> bool:
    """Say whether `name` is meant as a dotted path, well formed or not."""
    return ":" in name


def names_in(package: str, besides: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names that a package's files stand for, `gamma-norm` for gamma_norm.py; nothing is imported."""
    home = importlib.util.find_spec(package)
    places = None if home is None else home.submodule_search_locations
    files = (module.name for module in pkgutil.iter_modules(places or []) if module.name not in besides)
    return tuple(sorted(name.replace("_", "-") for name in files))


def import_named(name: str, key: str, package: str, attribute: str, names: Collection[str]) -> Any:
    """Return what a dotted path names, or `attribute` of the package's file that has one of these names."""
    if is_dotted(name):
        return import_dotted(name, key)
    if name not in names:
        allowed = ", ".join(repr(one) for one in names)
        raise ConfigurationError(f"{key} = {name!r}: allowed are {allowed} or package.module:Class")
    return _imported(f"{package}.{name.replace('-', '_')}:{attribute}", key)


def import_dotted(path: str, key: str) -> Any:
    """Return what "package.module:Class" names; `key` is the configuration key that holds the path."""
    if (given := given_object(path)) is not None:
        return given
    if not DOTTED.fullmatch(path):
        raise ConfigurationError(f'{key} = {path!r}: a dotted path must read "package.module:Class"')
    require_allowed(path, key)
    return _imported(path, key)


def _imported(path: str, key: str) -> Any:
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a custom module may raise anything while it is imported
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{key} = {path!r}: cannot import {module_name!r} ({reason})") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigurationError(f"{key} = {path!r}: {module_name!r} has no {attribute!r}") from None


D = TypeVar("D")


class Catalogue(Generic[D]):
    """Classes of one kind by name, each described once: those of a package's files, and anybody's by dotted path."""

    def __init__(
        self, home: str, attribute: str, describe: Callable[[str, Any, str], D], besides: Collection[str] = ()
    ) -> None:
        self._home, self._attribute, self._describe, self._besides = home, attribute, describe, besides
        self._known: dict[tuple[str, str], D] = {}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of those that come with mapa: one for each file."""
        return names_in(self._home, self._besides)

    def describe(self, name: str, key: str) -> D:
        """Return what a class says of itself; ConfigurationError where there is none, or it says too little."""
        given = given_object(name)  # never kept: a notebook may give another class of the same name
        if given is not None:
            return self._describe(name, given, key)
        if is_dotted(name):
            require_allowed(name, key)  # also where an earlier block has imported it
        if (name, key) not in self._known:
            made = import_named(name, key, self._home, self._attribute, self.names)
            self._known[name, key] = self._describe(name, made, key)
        return self._known[name, key]
