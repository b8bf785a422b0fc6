"""Packages that only some data need: optional extras, asked for by name when they are missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from common.errors import ConfigurationError


def need(package: str, what: Path | str, extra: str) -> None:
    """Raise ConfigurationError, with the extra to install, where a package is missing."""
    if importlib.util.find_spec(package) is None:
        raise ConfigurationError(f"{what}: needs the package {package}: pip install 'mapa-testbed[{extra}]'")
