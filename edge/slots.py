"""State directories of several edges on one machine: each takes the first that no living process holds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigurationError

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
    for name in map(str, range(_MOST)) if names is None else names:
        directory = state_dir / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(f"state directory {str(state_dir)!r}: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            continue
        return Slot(directory, descriptor)
    count = _MOST if names is None else len(names)
    raise ConfigurationError(f"state directory {str(state_dir)!r}: all {count} places are taken")
