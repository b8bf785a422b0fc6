"""`mapa` with a cloud that is broken on purpose, for the judge of chaos: python broken_cloud.py HOW cloud …"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from cloud import quick_way, service
from cloud import recovery_log as history_module
from cloud.admission import EdgeAccount
from cloud.recovery_log import History
from cloud.server import CloudServer, Judged, JudgedGradient
from cloud.service import CloudService
from common.messages import Effect, GradientArrived
from common.records.checkpoint import Checkpoints
from common.records.gradient_log import Kind, LogWriter, pack_record
from mapa.cli import main


def double() -> None:
    """Take a gradient that has come before for a new one."""
    judge = CloudServer.judge_gradient

    def forgetful(server: CloudServer, arrived: GradientArrived) -> JudgedGradient:
        account = server.edges.get(arrived.edge_id)
        if account is not None and server.halted is None and arrived.sequence == account.last_sequence > 0:
            account.last_sequence -= 1
        return judge(server, arrived)

    CloudServer.judge_gradient = forgetful  # type: ignore[method-assign]


def only_the_pure_way() -> None:
    """Leave no gradient to the quick way, where what is broken here is done by other code."""
    quick_way.take = lambda *_: False


def forget() -> None:
    """Apply and answer, and write nothing down."""
    only_the_pure_way()
    write = History.event
    taken = 0

    def unwritten(
        history: History, server: CloudServer, judged: Judged, payload: bytes, seconds: float
    ) -> None:
        nonlocal taken
        taken += isinstance(judged, JudgedGradient)
        if taken < 40 or not isinstance(judged, JudgedGradient):
            write(history, server, judged, payload, seconds)

    History.event = unwritten  # type: ignore[method-assign]


def twice() -> None:
    """Apply the first gradient after a resume two times."""
    if "--resume" not in sys.argv:
        return
    only_the_pure_way()
    write, apply = History.event, CloudServer._apply
    due, done = False, False

    def written(
        history: History, server: CloudServer, judged: Judged, payload: bytes, seconds: float
    ) -> None:
        nonlocal due
        due = (
            isinstance(judged, JudgedGradient) and not done
        )  # what is read from the log is not written again
        write(history, server, judged, payload, seconds)

    def applied(
        server: CloudServer, arrived: GradientArrived, account: EdgeAccount, stage: int
    ) -> list[Effect]:
        nonlocal due, done
        effects = apply(server, arrived, account, stage)
        if due:
            due, done = False, True
            effects += apply(server, arrived, account, stage)
        return effects

    History.event = written  # type: ignore[method-assign]
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

    def reached() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def torn(log: LogWriter, *entry: Any) -> None:
        nonlocal left
        left -= entry[0] is Kind.GRADIENT
        if left == 0:
            record = b"".join(pack_record(*entry))
            with log.path.open("ab") as stream:
                stream.write(record[: len(record) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        append(log, *entry)

    if step == "torn":
        LogWriter.append = torn  # type: ignore[method-assign]
        return
    owner, name, half = {
        "logged": (History, "append", ""),
        "applied": (CloudService, "send_model", ""),
        "replied": (CloudService, "on_gradient", ""),
        "checkpoint-half": (Checkpoints, "_file", "arrays.safetensors"),
        "checkpoint-written": (Checkpoints, "_file", "state.json"),
        "renamed": (Checkpoints, "write", ""),
        "segment": (LogWriter, "_open", ""),
    }[step]
    method = getattr(owner, name)

    def stepped(self: object, *given: Any, **named: Any) -> object:
        if step == "applied":
            reached()
        done = method(self, *given, **named)
        if step != "applied" and (not half or given[0].name == half):
            reached()
        return done

    setattr(owner, name, stepped)


if __name__ == "__main__":
    {"double": double, "forget": forget, "killed": killed, "twice": twice}[sys.argv.pop(1)]()
    main()
