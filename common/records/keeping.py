"""Whether a run's gradient log stays when the run has ended; imports nothing, since every container asks for it."""

from __future__ import annotations

_KEEP_BELOW = 10**9  # bytes: a log that stays below is kept unless the scenario says otherwise


def keeps_gradients(asked: bool | None, iterations: int, dimension: int) -> bool:
    """Tell whether the log stays for a replay: as asked, else where T·4N is below 1 GB."""
    return iterations * 4 * dimension < _KEEP_BELOW if asked is None else asked
