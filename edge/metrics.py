"""An edge's Prometheus metrics. A closed list: nothing here derives from records or from a batch.

Not the loss, a norm, a batch's size, how long a gradient took, processor time or memory: docs/privacy.md says why
each of these would be a release of its own, and why none of the following is. All edges of a process are told
together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from common.telemetry.family import Family, MetricKind, Reading, Readings
from edge.accountant import SpentCurves
from edge.client import EdgeClient
from edge.ledger import Standing
from edge.session import WELCOMED, Phase

EVERY = 5.0  # seconds between two readings: when exactly a release was made does not show
STATES = ("joining", "training", "ended")
DROPPED = ("forged", "halt", "model", "presence", "retained", "welcome")
_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE

RUN_INFO = Family("mapa_edge_run_info", _GAUGE, "1, with the run's name.", "run", most=1)
STATE = Family("mapa_edge_state", _GAUGE, "Edges of this process by state.", "state", STATES)
CONNECTED = Family("mapa_edge_connected", _GAUGE, "Edges of this process that are connected to the broker.")
RELEASES = Family(
    "mapa_edge_releases_total", _COUNTER, "Releases debited in this run, all processes of these edges."
)
RESENT = Family(
    "mapa_edge_resent_total",
    _COUNTER,
    "Releases sent again, byte for byte, because no answer came; they cost nothing.",
)
RECONNECTS = Family(
    "mapa_edge_reconnects_total",
    _COUNTER,
    "Connections to the broker that were lost and had to be made again.",
)
DROPS = Family(
    "mapa_edge_dropped_messages_total",
    _COUNTER,
    "Messages dropped because they break the protocol, by kind.",
    "kind",
    DROPPED,
)
EPSILON = Family(
    "mapa_edge_epsilon_spent",
    _GAUGE,
    "Upper bound on the total ε of this run's releases at mapa_edge_delta, zero-out adjacency, largest over edges;"
    " +Inf: no guarantee.",
)
DELTA = Family("mapa_edge_delta", _GAUGE, "δ of mapa_edge_epsilon_spent and of the budget.")
BUDGET = Family(
    "mapa_edge_budget_epsilon", _GAUGE, "Budget: the ε that releases may cost, smallest over edges."
)
USED = Family(
    "mapa_edge_budget_used_ratio",
    _GAUGE,
    "Share of this run's permitted charges that is spent, largest over edges; 1: no further release.",
)

FAMILIES = (
    *(RUN_INFO, STATE, CONNECTED, RELEASES, RESENT, RECONNECTS, DROPS),
    *(EPSILON, DELTA, BUDGET, USED),
)


def read_edges(clients: Sequence[EdgeClient], curves: SpentCurves) -> Readings:
    """Return the values of this moment, in the loop's thread."""
    readings: dict[Family, Reading] = {
        RUN_INFO: {client.run: 1 for client in clients},
        STATE: Counter(_state(client.session.phase) for client in clients),
        CONNECTED: sum(client.connection.connected for client in clients),
        RELEASES: sum(client.session.last_sequence for client in clients),
        RESENT: sum(client.resent for client in clients),
        RECONNECTS: sum(client.lost_connections for client in clients),
        DROPS: sum((client.dropped for client in clients), Counter[str]()),
    }
    standings = [client.standing for client in clients]
    readings |= _privacy([standing for standing in standings if standing is not None], clients, curves)
    return {family: readings[family] for family in FAMILIES if family in readings}


def _state(phase: Phase) -> str:
    if phase is Phase.DONE:
        return "ended"
    return "training" if phase in WELCOMED else "joining"  # one word: Phase.MAKING alone would tell how long


def _privacy(
    standings: Sequence[Standing], clients: Iterable[EdgeClient], curves: SpentCurves
) -> dict[Family, Reading]:
    """Return what was spent; nothing where one of the edges cannot say: the largest is not known then."""
    deltas = {delta for client in clients if (delta := _delta(client)) is not None}
    if not standings or len(deltas) != 1:
        return {}
    [delta] = deltas
    spent = [_epsilon(standing, delta, curves) for standing in standings]
    known = [] if None in spent else [epsilon for epsilon in spent if epsilon is not None]
    budgets = [each.account.budget.epsilon for each in standings if each.account.budget is not None]
    shares = [
        1.0 if each.exhausted or not each.cap else min(1.0, each.charges / each.cap)
        for each in standings
        if each.cap is not None
    ]
    readings: dict[Family, Reading] = {DELTA: delta}
    for family, values, worst in ((EPSILON, known, max), (BUDGET, budgets, min), (USED, shares, max)):
        if values:
            readings[family] = worst(values)
    return readings


def _delta(client: EdgeClient) -> float | None:
    """Return the δ that this run is accounted at; None: not known yet."""
    standing, preparation = client.standing, client.preparation
    if standing is not None and standing.account.budget is not None:
        return standing.account.budget.delta
    return None if preparation is None else preparation.scenario.privacy.total_delta


def _epsilon(standing: Standing, delta: float, curves: SpentCurves) -> float | None:
    """Return a bound on what this run's releases cost: the accountant's, or the budget that they are within."""
    if standing.account.reproducible:
        return math.inf  # who knows the seed subtracts the noise
    bound = curves.epsilon(standing.account.kind, standing.charges, delta)
    budget, cap = standing.account.budget, standing.cap
    if bound is not None and budget is not None and cap is not None and standing.charges <= cap:
        return min(bound, budget.epsilon)
    return bound
