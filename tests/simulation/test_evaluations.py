"""When a model is evaluated: x₁ first, then on a beat that follows T, and x_{T+1} at the end, in every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mapa
from common.scenario.scenario import parse_scenario
from mapa.simulation.simulator import simulate
from mapa.simulation.synchronous import simulate_synchronously
from mapa.simulation.vectorised import simulate_rounds
from tests.core_support import recorded, small_scenario, small_world

ENGINES: dict[str, Callable[..., Any]] = {
    "events": simulate,
    "vectorised": simulate_rounds,
    "block": lambda world, journal: simulate_rounds(world, journal, blocks=True),
    "synchronous": simulate_synchronously,
}


def evaluated(engine: str, **changes: Any) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the updates of a run's evaluations by its tally, and its events."""
    if engine == "synchronous":
        changes["delays"] = {"kind": "constant"}
    outcome, events = recorded(ENGINES[engine], small_world(**changes))
    return [one.updates for one in outcome.tally.evaluations], events


@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_model_is_evaluated_before_any_update(engine: str) -> None:
    seen, events = evaluated(engine)
    assert seen == [0, 20, 40, 60]
    kinds = [event["event"] for event in events]
    assert kinds.index("evaluated") < kinds.index("gradient_applied")
    assert [event["t"] for event in events if event["event"] == "evaluated"] == seen


@pytest.mark.parametrize("engine", ENGINES)
def test_every_zero_evaluates_the_last_model_alone(engine: str) -> None:
    assert evaluated(engine, evaluation={"every": 0})[0] == [60]


@pytest.mark.parametrize(
    ("iterations", "every"),
    [(1, 1), (40, 1), (41, 2), (400, 10), (1000, 50), (20_000, 500), (10**9, 500)],
)
def test_the_beat_follows_the_length_of_the_run(iterations: int, every: int) -> None:
    scenario = parse_scenario({**small_scenario().canonical(), "iterations": iterations, "evaluation": {}})
    assert scenario.evaluate_every == every
    assert scenario.canonical()["evaluation"] == scenario.resolved()["evaluation"] == {"every": every}
    assert parse_scenario(scenario.canonical()) == scenario


def test_an_evaluation_changes_no_model() -> None:
    often, never = (simulate(small_world(evaluation={"every": every})) for every in (1, 0))
    assert often.x.tobytes() == never.x.tobytes()


def test_records_and_results_hold_the_first_model_at_second_zero(tmp_path: Path) -> None:
    run = mapa.simulate(
        "quickstart",
        seed=1,
        iterations=40,
        delays={"kind": "exponential"},
        evaluation=None,
        runs_dir=tmp_path,
        progress=False,
    )
    assert list(run.metrics["t"]) == list(range(41))
    assert run.metrics["seconds"][0] == 0.0
    assert run.summary["evaluations"][0]["updates"] == 0
