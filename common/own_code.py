"""Custom code: what a scenario names, what may be imported, objects of this process, files beside a scenario."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Generic, TypeVar

from common.errors import ConfigurationError, MapaError, nearest
from common.options import Option

DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
# of a table with several of them, the one that an object alone stands for comes last
CODE_KEYS = (
    *(("model", "name"), ("data", "sampler"), ("data", "set"), ("algorithm", "name")),
    *(("privacy", "clipping"), ("privacy", "noise"), ("local", "work")),
)
MECHANISM_KEYS = frozenset(("data.sampler", "privacy.clipping", "privacy.noise", "local.work"))
_ALLOWED: ContextVar[frozenset[str] | None] = ContextVar("dotted paths to import; None: any", default=None)
_NONE: Mapping[str, object] = {}
_GIVEN: ContextVar[Mapping[str, object]] = ContextVar("objects by dotted path", default=_NONE)
_ADDED: set[str] = set()  # folders that `add_code` put onto Python's path
_SEEN: dict[Path, int] = {}  # files beside scenarios: when each was written last, as it was imported


# -- what a file may name -----------------------------------------------------------------------------


def code_named_by(values: object) -> Iterator[tuple[str, str]]:
    """Yield each key of a scenario's plain values that holds a dotted path, and the path."""
    for table, key in CODE_KEYS:
        found = values.get(table) if isinstance(values, Mapping) else None
        name = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(name, str) and ":" in name:
            yield f"{table}.{key}", name


def allowing(values: object) -> str:
    """Return the options that let another command import what a scenario names, from where this one would."""
    named = dict.fromkeys(path for _, path in code_named_by(values) if DOTTED.fullmatch(path))
    homes = dict.fromkeys(str(code_folder(path)) for path in named)
    words = [*(("--allow", path) for path in named), *(("--code", home) for home in homes if home in _ADDED)]
    return "".join(f" {option} {shlex.quote(value)}" for option, value in words)


@contextmanager
def only_code(allowed: Iterable[str]) -> Iterator[None]:
    """Let no dotted path but these be imported, in this thread and until the end of the block.

    For whatever opens files of unknown origin. Outside such a block any path may be imported.
    """
    token = _ALLOWED.set(frozenset(allowed))
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def is_allowed(path: str) -> bool:
    """Return whether a dotted path may be imported here."""
    allowed = _ALLOWED.get()
    return allowed is None or path in allowed or given_object(path) is not None


def require_allowed(path: str, key: str) -> None:
    """Raise ConfigurationError where a dotted path may not be imported here."""
    if not is_allowed(path):
        raise ConfigurationError(
            f"{key} = {path!r}: names code, which is not imported because a file says so; if you trust it,"
            f" allow it with --allow {path}"
        )


# -- objects of this process --------------------------------------------------------------------------


@contextmanager
def given_objects(objects: Mapping[str, object]) -> Iterator[None]:
    """Let these dotted paths mean these objects, in this thread and until the end of the block."""
    token = _GIVEN.set({**_GIVEN.get(), **objects})
    try:
        yield
    finally:
        _GIVEN.reset(token)


def given_object(path: str) -> Any:
    """Return the object that was given for a path; None: none was."""
    return _GIVEN.get().get(path)


# -- folders of the user's own ------------------------------------------------------------------------


def add_code(folder: Path) -> None:
    """Let the modules of a folder be imported; after all others, so that none stands in for an installed one."""
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.append(place)
        _ADDED.add(place)
    importlib.invalidate_caches()  # a file that was just written


def code_folders() -> list[str]:
    """Return the folders that were added to Python's path, for a process that must import the same code."""
    return sorted(_ADDED)


def use_code_beside(path: str, folder: Path, key: str) -> None:
    """Let a path's file be imported from a folder, where it is there; other folders never come onto Python's path.

    ConfigurationError where Python would take another file of that name, or an older state of this one.
    """
    if not DOTTED.fullmatch(path) or given_object(path) is not None or not is_allowed(path):
        return  # `import_dotted` says what is wrong
    top = _top(path)
    files = (folder / f"{top}.py", folder / top / "__init__.py")
    file = next((one.resolve() for one in files if one.is_file()), None)
    if file is None:
        return
    add_code(folder)
    loaded, found = top in sys.modules, _origin(top)
    if found != file:
        raise ConfigurationError(
            f"{key} = {path!r}: {file} is beside the scenario, but Python finds {top!r} in"
            f" {found or 'itself'}; rename the file, or use a new process"
        )
    written = file.stat().st_mtime_ns
    if loaded and _SEEN.get(file, written) != written:
        raise ConfigurationError(
            f"{key} = {path!r}: {file} has changed since it was imported; use a new process"
            " (in a notebook: restart the kernel)"
        )
    _SEEN[file] = written


def code_folder(path: str) -> Path | None:
    """Return the folder from which Python imports the module of a dotted path; None: it has no file."""
    spec = _spec(_top(path))
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    if places:
        return Path(places[0]).resolve().parent
    origin = _origin(_top(path))
    return None if origin is None else origin.parent


def _top(path: str) -> str:
    return re.split(r"[.:]", path, maxsplit=1)[0]


def _origin(top: str) -> Path | None:
    spec = _spec(top)
    return Path(spec.origin).resolve() if spec is not None and spec.has_location and spec.origin else None


def _spec(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # __main__ has none
        return None


def is_dotted(name: str) -> bool:
    """Return whether `name` is meant as a dotted path, well formed or not."""
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
        allowed = f"{', '.join(repr(one) for one in names)} or package.module:Class{nearest(name, names)}"
        raise ConfigurationError(f"{key} = {name!r}: allowed are {allowed}")
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
    with asking(f"{key} = {path!r}: cannot import {module_name!r}"):
        module = importlib.import_module(module_name)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigurationError(f"{key} = {path!r}: {module_name!r} has no {attribute!r}") from None


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Raise ConfigurationError for whatever code of the user's own raises; `what` says what it was asked for."""
    try:
        yield
    except MapaError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{what} ({type(error).__name__}: {error})") from error


@dataclass(frozen=True, slots=True)
class Description:
    """What a class that is found by name says of itself."""

    name: str
    about: str
    options: tuple[Option, ...]
    made: type[Any]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its options."""
        return tuple(option.name for option in self.options)

    def make_of(self, values: Mapping[str, Any], key: str) -> Any:
        """Return an instance with these options, which are checked; `key` is the configuration key that names it."""
        with asking(f"{key} = {self.name!r}: cannot be made"):
            return self.made(**values)


def about(made: type) -> str:
    """Return the first line of a class's docstring."""
    return (made.__doc__ or "").strip().partition("\n")[0]


D = TypeVar("D", bound=Description)


class Catalogue(Generic[D]):
    """Classes of one kind by name, each described once: those of a package's files, and others by dotted path."""

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
