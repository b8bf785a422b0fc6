"""A run whose model is no longer finite ends as on the testbed: reason, exit code, and no complaint of numpy."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mapa.cli import main
from mapa.simulation.simulator import Outcome, World, simulate
from mapa.simulation.vectorised import simulate_many, simulate_rounds
from tests.core_support import recorded, small_scenario, small_world

STEEP: dict[str, Any] = {"algorithm": {"name": "constant", "rate": 1e38, "first_clip": 2.0}}
UNCLIPPED: dict[str, Any] = {
    "algorithm": {"name": "asgd", "smoothness": 1e-30, "sigma": 1e-30},
    "model": {"name": "softmax"},
}
ENGINES = {"events": simulate, "vectorised": simulate_rounds}


def run(engine: str, world: World) -> tuple[Outcome, list[dict[str, Any]]]:
    return recorded(ENGINES[engine], world)


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("changes", [STEEP, UNCLIPPED], ids=["steep", "unclipped"])
def test_a_run_ends_with_the_first_model_that_is_not_finite(engine: str, changes: dict[str, Any]) -> None:
    outcome, events = run(engine, small_world(**changes))
    done = outcome.tally.updates
    assert outcome.reason == "diverged"
    assert 0 < done < 60
    assert not np.isfinite(outcome.x).all()
    assert sum(event["event"] == "gradient_applied" for event in events) == done
    assert events[-1] == {"event": "halted", "t": done, "reason": "diverged"}
    assert events[-2]["event"] == "evaluated"
    assert events[-2]["t"] == done
    assert outcome.tally.evaluations[-1].updates == done


@pytest.mark.parametrize("changes", [STEEP, UNCLIPPED], ids=["steep", "unclipped"])
def test_both_engines_end_at_the_same_update_with_the_same_records(changes: dict[str, Any]) -> None:
    one, two = (run(engine, small_world(**changes, iterations=400)) for engine in sorted(ENGINES))
    assert one[0].reason == two[0].reason == "diverged"
    assert one[0].tally.updates == two[0].tally.updates
    assert one[0].releases == two[0].releases
    assert [event["event"] for event in one[1]] == [event["event"] for event in two[1]]


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_the_last_update_counts_although_it_is_sent_to_nobody(engine: str) -> None:
    full, _ = run(engine, small_world(**UNCLIPPED))
    outcome, _ = run(engine, small_world(**UNCLIPPED, iterations=full.tally.updates))
    assert (outcome.reason, outcome.tally.updates) == ("diverged", full.tally.updates)


def test_a_run_that_diverges_leaves_those_beside_it_alone() -> None:
    calm = {"name": "constant", "rate": 0.01, "first_clip": 2.0}
    shared = small_world(algorithm=calm)
    steep = replace(shared, scenario=small_scenario(**STEEP))
    diverged, finished = simulate_many([steep, shared])
    assert diverged.reason == "diverged"
    assert diverged.tally.updates == simulate(steep).tally.updates < 60
    alone = simulate_rounds(shared)
    assert (finished.reason, finished.tally.updates) == ("finished", 60)
    np.testing.assert_array_equal(finished.x, alone.x)


@pytest.mark.parametrize("engine", ["events", "vectorised", "block"])
def test_the_command_says_so_in_its_exit_code_and_numpy_says_nothing(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steep = ["algorithm.name=constant", "algorithm.rate=1e30", "algorithm.first_clip=1e-9"]
    changes = [word for change in (*steep, "data.sampler=with-replacement") for word in ("--set", change)]
    arguments = ["--engine", engine, "--runs-dir", str(tmp_path), "--json"]
    monkeypatch.setattr(sys, "argv", ["mapa", "simulate", "quickstart", *changes, *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert end.value.code == 1
    summary = json.loads(out)
    assert summary["reason"] == "diverged"
    assert summary["final_loss"] is None
    assert summary["updates"] < summary["iterations"]
    # on a busy machine the account takes long enough to be announced
    assert all(line.startswith("accounting ε") for line in err.splitlines())
