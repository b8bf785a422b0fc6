"""`mapa` with a cloud that is broken on purpose, for the judge of chaos: python broken_cloud.py HOW cloud …"""

from __future__ import annotations

import sys

from cloud.recovery_log import History
from cloud.server import CloudServer
from common.messages import Effect, GradientArrived
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


if __name__ == "__main__":
    {"double": double, "forget": forget, "twice": twice}[sys.argv.pop(1)]()
    main()
