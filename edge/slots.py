"""State directories of several edges on one machine: each takes the first that no living process holds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigurationError
from common.records.regular import open_regular

_MOST = 10_000


@dataclass(slots=True)
class Slot:
    """One edge's own directory, held by a lock until closed or until the process ends."""

    directory: Path
    _descriptor: int

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def take_slot(state_dir: Path, names: Sequence[str] | None = None) -> Slot:
    """Return the first free of state_dir/0, state_dir/1, … or of the names: who comes back finds its ledger."""
    with _looking(state_dir):
        for name in map(str, range(_MOST)) if names is None else names:
            directory = state_dir / name
            try:
                directory.mkdir(parents=True, exist_ok=True)
                descriptor = _lock(directory)
            except OSError as error:
                raise ConfigurationError(f"state directory {str(state_dir)!r}: {error}") from error
            if descriptor is not None:
                return Slot(directory, descriptor)
    count = _MOST if names is None else len(names)
    raise ConfigurationError(f"state directory {str(state_dir)!r}: all {count} places are taken")


def is_held(directory: Path) -> bool:
    """Tell whether a living process holds this slot; one that cannot be looked at counts as held."""
    if not directory.is_dir():
        return False
    try:
        with _looking(directory.parent):
            descriptor = _lock(directory)
    except OSError:
        return True
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def _lock(directory: Path) -> int | None:
    """Take the slot's lock; None where another has it."""
    descriptor = open_regular(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def _looking(state_dir: Path) -> Iterator[None]:
    """Let one look at a time: a slot that is tried for a moment must not pass for a taken one."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        descriptor = open_regular(state_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigurationError(f"state directory {str(state_dir)!r}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
