"""Run a program with a slow disk: python -m mapa.chaos.slow_disk FILE MODULE|PROGRAM.py cloud|edge [ARGUMENTS].

While FILE exists, every record of the log, every checkpoint and every commit of a ledger waits before it is written.
The program knows nothing of it: its writing methods are wrapped before it begins. `mapa chaos` starts its services so.
"""

from __future__ import annotations

import functools
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mapa.processes import one_thread

SECONDS = 0.05  # that every write takes longer


def slow_writes(file: Path, service: str) -> None:
    """Make every write of a `cloud` or an `edge` in this process wait while the file exists."""

    def slowed(owner: type, method: str) -> None:
        write: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(write)
        def waits(*arguments: Any, **named: Any) -> Any:
            if file.exists():
                time.sleep(SECONDS)
            return write(*arguments, **named)

        setattr(owner, method, waits)

    if service == "edge":
        from edge.journal import DebitJournal  # a cloud does not need it, nor an edge the others

        slowed(DebitJournal, "_write")
    else:
        from common.records.checkpoint import Checkpoints
        from common.records.gradient_log import LogWriter

        slowed(LogWriter, "append")
        slowed(Checkpoints, "write")


def main() -> None:
    file, program, *arguments = sys.argv[1:]
    one_thread()  # before numpy is imported
    slow_writes(Path(file), next(word for word in arguments if word in ("cloud", "edge")))
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
