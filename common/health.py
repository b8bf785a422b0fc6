"""A heartbeat file: touched while the service is healthy, read by a container's health check.

As a script it imports the standard library alone: a fleet's checks share the cores with its training.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.transport.channel import Loop

VARIABLE = "MAPA_HEALTH_FILE"
_EVERY = 3.0  # seconds between two heartbeats


def beat(loop: Loop, healthy: Callable[[], bool], environ: Mapping[str, str] = os.environ) -> None:
    """Touch the file that the environment names every few seconds while `healthy()` holds; no file: do nothing."""
    name = environ.get(VARIABLE, "").strip()
    if not name:
        return
    path = Path(name)

    def look() -> None:
        if healthy():
            path.touch()
        loop.call_later(_EVERY, look)

    loop.call_later(0.0, look)


def main(arguments: list[str]) -> int:
    """FILE MAX_AGE: return 0 where the last heartbeat is younger, else 1."""
    path, most = Path(arguments[0]), float(arguments[1])
    try:
        seconds = time.time() - path.stat().st_mtime
    except OSError:
        print("no heartbeat yet")
        return 1
    print(f"last heartbeat {seconds:.0f} s ago")
    return 0 if seconds <= most else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
