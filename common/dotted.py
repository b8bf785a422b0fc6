"""Custom classes by dotted path: "package.module:Class".

A module is looked for among what is installed, then in the folders of one's own: the scenario's, those of
MAPA_CODE_DIR, the current one. They come last: a file there replaces nothing that is installed.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError

CODE_VARIABLE = "MAPA_CODE_DIR"  # folders; child processes inherit it
_FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_dotted(name: str) -> bool:
    """Say whether `name` is meant as a dotted path, well formed or not."""
    return ":" in name


def look_in(folder: Path) -> None:
    """Let this process and its children find modules in a folder."""
    place = str(folder.resolve())
    places = [known for known in os.environ.get(CODE_VARIABLE, "").split(os.pathsep) if known]
    if place not in places:
        os.environ[CODE_VARIABLE] = os.pathsep.join([*places, place])


def _extend_path() -> None:
    for place in (*os.environ.get(CODE_VARIABLE, "").split(os.pathsep), str(Path.cwd())):
        if place and place not in sys.path:
            sys.path.append(place)


def import_dotted(path: str, key: str) -> Any:
    """Return what "package.module:Class" names; `key` is the configuration key that holds the path."""
    if not _FORM.fullmatch(path):
        raise ConfigurationError(f'{key} = {path!r}: a dotted path must read "package.module:Class"')
    module_name, _, attribute = path.partition(":")
    _extend_path()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a custom module may raise anything while it is imported
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{key} = {path!r}: cannot import {module_name!r} ({reason})") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigurationError(f"{key} = {path!r}: {module_name!r} has no {attribute!r}") from None
