"""A slow disk for `mapa chaos`: every write of log, checkpoint and ledger waits as long as a file says.

The wait is made here, before the system call, not by the device: it needs no privileges and no kernel of its own. Only
a process that chaos starts has the variable; anywhere else it is refused, so that nobody slows a run down by accident.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

from common.errors import ConfigurationError

VARIABLE = "MAPA_CHAOS_SLOW_DISK"  # names the file
PROGRAMS = ("cloud", "edge")
_HEAD = "mapa chaos: seconds for every write: "
_LONGEST = 10.0  # seconds

_file: Path | None = None  # None: the disk is as it is


def set_seconds(file: Path, seconds: float) -> None:
    """Write the file, whole at every instant; 0: as fast as it is."""
    draft = file.with_name(f".{file.name}.tmp")
    draft.write_text(f"{_HEAD}{seconds:g}\n", encoding="utf-8")
    draft.replace(file)


def enable(environ: Mapping[str, str], program: str) -> None:
    """Take the variable, if it is set; ConfigurationError where it is not from chaos."""
    global _file
    named = environ.get(VARIABLE, "")
    if not named:
        return
    if program not in PROGRAMS:
        raise ConfigurationError(
            f"{VARIABLE} = {named!r}: is for processes that `mapa chaos` starts; unset it"
        )
    _seconds(Path(named))
    _file = Path(named)


def wait() -> None:
    """Wait as a slow disk would before it takes a write."""
    if _file is not None and (seconds := _seconds(_file)):
        time.sleep(seconds)


def _seconds(file: Path) -> float:
    try:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            said = os.read(descriptor, 100).decode("ascii", errors="replace")
        finally:
            os.close(descriptor)
        seconds = float(said.removeprefix(_HEAD)) if said.startswith(_HEAD) else math.nan
    except (OSError, ValueError):
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST:
        raise ConfigurationError(
            f"{VARIABLE} = {str(file)!r}: not a file of `mapa chaos`, which alone sets it; unset it"
        )
    return seconds
