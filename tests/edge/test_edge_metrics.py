"""What an edge tells Prometheus: a closed list, and nothing of records or batches in it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.errors import ConfigurationError
from common.mechanism.mechanism import Mechanism
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from edge.accountant import MOST_KINDS, SpentCurves, epsilons_apart
from edge.ledger import Ledger
from edge.metrics import DROPPED, FAMILIES, read_edges
from edge.policy import OperatorPolicy
from tests.common.test_telemetry import exposition, read
from tests.core_support import small_dataset
from tests.edge_support import Stage, plenty, private_scenario

# The whole of what an edge may tell. Whoever adds a line says in docs/privacy.md why it is harmless.
CLOSED = {
    *(f"mapa_edge_{name}" for name in ("run_info", "state", "connected", "releases_total", "resent_total")),
    *(f"mapa_edge_{name}" for name in ("reconnects_total", "dropped_messages_total", "epsilon_spent")),
    *(f"mapa_edge_{name}" for name in ("delta", "budget_epsilon", "budget_used_ratio")),
}
KIND = ReleaseKind(Mechanism(GammaNorm(0.1), 16), 800)


def at_once(work: Callable[[], None]) -> None:
    work()


def here(kind: ReleaseKind, charges: Sequence[int], delta: float) -> list[float | None]:
    """Account in this process, as the process apart does."""
    found = [total([Spent(kind, n)], delta, quick=True).epsilon for n in charges]
    return [one if math.isfinite(one) else None for one in found]


def told(stage: Stage, spending: SpentCurves | None = None) -> dict[tuple[str, str], float]:
    return read(exposition(read_edges([stage.edge], spending or SpentCurves(here, at_once))))


def unseeded(**changes: Any) -> Any:
    return private_scenario(**{"seed": None, **changes})


def test_the_list_is_closed_and_the_privacy_page_explains_each() -> None:
    assert {family.name for family in FAMILIES} == CLOSED
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    section = page.partition("## What metrics tell")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(mapa_edge_\w+)`", section)) == CLOSED


def test_other_records_and_other_batches_tell_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is a function of what was released when, byte for byte, whatever the records are."""
    texts = []
    for seed in (1, 2):
        monkeypatch.setattr("tests.edge_support.small_dataset", lambda seed=seed: small_dataset(seed=seed))
        scenario = unseeded(data={"sampler": "poisson"})  # every edge draws batches of other sizes, too
        stage = Stage(scenario=scenario, ledger=Ledger(accountant=plenty))
        stage.welcome()
        for _ in range(20):
            stage.model()
        assert stage.edge.session.last_sequence == 20
        texts.append(exposition(read_edges([stage.edge], SpentCurves(here, at_once))))
    assert texts[0] == texts[1]


def test_an_edge_says_what_it_does_and_no_more() -> None:
    stage = Stage(scenario=unseeded())
    first = told(stage)
    assert first["mapa_edge_state", "joining"] == first["mapa_edge_connected", ""] == 1
    assert ("mapa_edge_epsilon_spent", "") not in first
    stage.welcome()
    stage.model()
    stage.edge.dropped["model"] += 1
    after = told(stage)
    assert after["mapa_edge_state", "training"] == after["mapa_edge_releases_total", ""] == 1
    assert after["mapa_edge_dropped_messages_total", "model"] == 1
    assert {name for name, _ in after} <= CLOSED
    stage.edge.leave("shutdown")
    assert told(stage)["mapa_edge_state", "ended"] == 1


def test_a_lost_connection_is_counted() -> None:
    stage = Stage()
    stage.edge.on_lost("gone")
    assert told(stage)["mapa_edge_reconnects_total", ""] == 1


def test_the_words_for_dropped_messages_are_all_there() -> None:
    root = Path(__file__).parents[2]
    text = "".join((root / path).read_text() for path in ("edge/client.py", "edge/fleet.py"))
    assert set(re.findall(r'(?:_read\(|dropped\[)"(\w+)"', text)) == set(DROPPED)


# -- ε ----------------------------------------------------------------------------------------------------


def test_a_seeded_run_or_one_without_a_guarantee_has_no_finite_epsilon() -> None:
    for scenario in (private_scenario(), unseeded(privacy={"noise": "exponential-norm", "epsilon": 1.0})):
        stage = Stage(scenario=scenario)
        stage.welcome()
        stage.model()
        assert told(stage)["mapa_edge_epsilon_spent", ""] == math.inf


def test_a_budget_bounds_what_is_spent_and_its_share_is_told() -> None:
    def three(budget: Budget, kind: ReleaseKind, spent: tuple[Spent, ...]) -> int:  # noqa: ARG001
        return 3

    stage = Stage(
        scenario=unseeded(data={"sampler": "poisson"}),
        ledger=Ledger(accountant=three),
        policy=OperatorPolicy(budget=Budget(0.5, 1e-6)),
    )
    stage.welcome()
    shares = []
    for _ in range(3):
        stage.model()
        found = told(stage)
        shares.append(found["mapa_edge_budget_used_ratio", ""])
        assert found["mapa_edge_epsilon_spent", ""] <= found["mapa_edge_budget_epsilon", ""] == 0.5
        assert found["mapa_edge_delta", ""] == 1e-6
    assert shares == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]


@pytest.mark.parametrize("charges", [0, 1, 2, 3, 7, 50, 64, 65, 1000, 12_345])
def test_the_bound_is_one_and_a_close_one(charges: int) -> None:
    spending = SpentCurves(here, at_once)
    spending.epsilon(KIND, charges, 1e-5)
    bound = spending.epsilon(KIND, charges, 1e-5)
    exact = total([Spent(KIND, charges)], 1e-5, quick=True).epsilon
    assert bound is not None
    assert exact <= bound <= 1.15 * exact


def test_few_questions_are_asked_in_a_long_run() -> None:
    asked: list[int] = []

    def counting(kind: ReleaseKind, charges: Sequence[int], delta: float) -> list[float | None]:  # noqa: ARG001
        asked.append(len(charges))
        return [float(n) for n in charges]

    spending = SpentCurves(counting, at_once)
    bounds = [spending.epsilon(KIND, n, 1e-5) for n in range(20_000)]
    assert all(bound is None or bound >= n for n, bound in enumerate(bounds))
    assert bounds.count(None) == 0
    assert len(asked) <= 8


def test_nobody_waits_for_the_accountant() -> None:
    waiting: list[Callable[[], None]] = []
    spending = SpentCurves(here, waiting.append)
    assert spending.epsilon(KIND, 5, 1e-5) is None
    assert spending.epsilon(KIND, 6, 1e-5) is None
    assert len(waiting) == 1, "one question at a time"
    waiting.pop()()
    assert spending.epsilon(KIND, 6, 1e-5) is not None


def test_without_an_accountant_nothing_is_claimed_and_it_is_not_asked_again() -> None:
    asked: list[float] = []

    def missing(kind: ReleaseKind, charges: Sequence[int], delta: float) -> list[float | None]:  # noqa: ARG001
        asked.append(delta)
        raise ConfigurationError("dp-accounting is not installed")

    spending = SpentCurves(missing, at_once)
    assert [spending.epsilon(KIND, n, 1e-5) for n in range(1, 4)] == [None, None, None]
    assert len(asked) == 1


def test_so_many_kinds_and_no_more() -> None:
    spending = SpentCurves(here, at_once)
    kinds = [ReleaseKind(KIND.mechanism, 100 + k) for k in range(MOST_KINDS + 2)]
    for kind in kinds:
        spending.epsilon(kind, 1, 1e-5)
    assert [spending.epsilon(kind, 1, 1e-5) is None for kind in kinds].count(True) == 2


@pytest.mark.slow
def test_the_process_apart_says_what_the_accountant_says() -> None:
    for law in (Gaussian(2.0), GammaNorm(0.2)):
        kind = ReleaseKind(replace(KIND.mechanism, law=law), 800)
        assert epsilons_apart(kind, [1, 10, 100], 1e-5) == here(kind, [1, 10, 100], 1e-5)
