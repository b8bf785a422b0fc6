"""`mapa` with a cloud that is broken on purpose, for the judge of chaos: python broken_cloud.py HOW cloud …"""

from __future__ import annotations

import sys

from cloud.history import History
from cloud.server import CloudServer
from common.messages import GradientArrived
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


if __name__ == "__main__":
    {"double": double, "forget": forget}[sys.argv.pop(1)]()
    main()
