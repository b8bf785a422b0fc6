"""`mapa` with a cloud that is broken on purpose, for the judge of chaos: python broken_cloud.py HOW cloud …"""

from __future__ import annotations

import sys

from cloud.admission import EdgeAccount
from cloud.history import History
from cloud.server import CloudServer, Judged, JudgedGradient
from common.messages import Effect, GradientArrived
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


def forget() -> None:
    """Apply and answer, and write nothing down."""
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


if __name__ == "__main__":
    {"double": double, "forget": forget, "twice": twice}[sys.argv.pop(1)]()
    main()
