"""Custom classes by dotted path: "package.module:Class"; in a folder of the user's own, or given as objects."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError

_FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_GIVEN: ContextVar[Mapping[str, object]] = ContextVar("given objects by dotted path", default={})  # noqa: B039 - read only
_SEEN: dict[Path, int] = {}  # files of code folders: when each was last written as it was imported


def is_dotted(name: str) -> bool:
    """Say whether `name` is meant as a dotted path, well formed or not."""
    return ":" in name


def import_dotted(path: str, key: str) -> Any:
    """Return what "package.module:Class" names; `key` is the configuration key that holds the path."""
    if (given := given_object(path)) is not None:
        return given
    if not _FORM.fullmatch(path):
        raise ConfigurationError(f'{key} = {path!r}: a dotted path must read "package.module:Class"')
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
    importlib.invalidate_caches()  # a file that was just written


def use_code_beside(path: str, folder: Path, key: str) -> None:
    """Let a path's file be imported from a folder, where it is there; other folders never come onto Python's path.

    ConfigurationError where Python would take another file of that name, or an older state of this one.
    """
    if not _FORM.fullmatch(path) or given_object(path) is not None:
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


def code_folder(path: str, key: str) -> Path | None:
    """Return the folder from which Python imports a path's module; None: it is built in, or has no file."""
    import_dotted(path, key)
    top = _top(path)
    module = sys.modules.get(top)
    places = list(getattr(module, "__path__", ()))
    if places:
        return Path(places[0]).resolve().parent
    origin = _origin(top)
    return None if origin is None else origin.parent


def _top(path: str) -> str:
    return re.split(r"[.:]", path, maxsplit=1)[0]


def _origin(top: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.has_location and spec.origin else None
