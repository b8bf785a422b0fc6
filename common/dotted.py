"""Custom classes by dotted path: "package.module:Class"."""

from __future__ import annotations

import importlib
import re
from typing import Any

from common.errors import ConfigurationError

_FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_dotted(name: str) -> bool:
    """Say whether `name` is meant as a dotted path, well formed or not."""
    return ":" in name


def import_dotted(path: str, key: str) -> Any:
    """Return what "package.module:Class" names; `key` is the configuration key that holds the path."""
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
