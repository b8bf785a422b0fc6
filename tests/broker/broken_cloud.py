"""`mapa` with a cloud that is broken on purpose, for the judge of chaos: python broken_cloud.py HOW cloud …"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from cloud import recovery_log as history_module
from cloud import service
from cloud.recovery_log import History
from cloud.server import CloudServer
from common.messages import Effect, GradientArrived
from common.records.gradient_log import Entry, Kind, LogWriter, pack_record
from mapa.cli import main


def double() -> None:
    """Take a gradient that has come before for a new one."""
    is_new = CloudServer.is_new

    def forgetful(server: CloudServer, arrived: GradientArrived) -> bool:
        account = server.edges.get(arrived.edge_id)
        if account is not None and server.halted is None and arrived.sequence == account.last_sequence > 0:
            account.last_sequence -= 1
        return is_new(server, arrived)

    CloudServer.is_new = forgetful  # type: ignore[method-assign]


def forget() -> None:
    """Apply and answer, and write nothing down."""
    gradient = History.gradient
    taken = 0

    def unwritten(
        history: History, server: CloudServer, arrived: GradientArrived, payload: bytes, seconds: float
    ) -> None:
        nonlocal taken
        taken += 1
        if taken < 40:
            gradient(history, server, arrived, payload, seconds)

    History.gradient = unwritten  # type: ignore[method-assign]


def twice() -> None:
    """Apply the first gradient after a resume two times."""
    if "--resume" not in sys.argv:
        return
    gradient, apply = History.gradient, CloudServer._apply
    due, done = False, False

    def written(
        history: History, server: CloudServer, arrived: GradientArrived, payload: bytes, seconds: float
    ) -> None:
        nonlocal due
        due = not done  # what is read from the log on the way back is not written again
        gradient(history, server, arrived, payload, seconds)

    def applied(server: CloudServer, arrived: GradientArrived, effects: list[Effect]) -> None:
        nonlocal due, done
        apply(server, arrived, effects)
        if due:
            due, done = False, True
            apply(server, arrived, effects)

    History.gradient = written  # type: ignore[method-assign]
    CloudServer._apply = applied  # type: ignore[method-assign]


def killed() -> None:
    """Die at a step of the recovery log, or in the midst of a record (`torn`): the first of a file, which loses it.

    Checkpoints come often, lest one waits for them.
    """
    file = Path(sys.argv.pop(1))
    steps = json.loads(file.read_text())
    if not steps:
        return
    (step, left), *rest = steps
    file.write_text(json.dumps(rest))
    history_module.EVERY_SECONDS = history_module._SHARE = 0
    service._RECORD_EVERY = 0.02
    append = LogWriter.append

    def reached(point: str) -> None:
        nonlocal left
        left -= point == step
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def torn(log: LogWriter, entry: Entry) -> None:
        nonlocal left
        left -= entry.kind is Kind.GRADIENT
        if left == 0:
            record = b"".join(pack_record(entry))
            with log.path.open("ab") as stream:
                stream.write(record[: len(record) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        append(log, entry)

    if step == "torn":
        LogWriter.append = torn  # type: ignore[method-assign]
    else:
        History.at = staticmethod(reached)


if __name__ == "__main__":
    {"double": double, "forget": forget, "killed": killed, "twice": twice}[sys.argv.pop(1)]()
    main()
