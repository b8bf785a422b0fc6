"""Equal privacy for fast and slow edges: the shipped scenarios on few images, and the table made of their runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import mapa
from experiments.pacing import (
    CASES,
    RunRow,
    Simulation,
    cases_of,
    draw,
    main,
    row_of,
    simulate_task,
    spending,
    spread,
)
from mapa.scenario_files import read_scenario

# 800 records an edge, all in each batch: the accountant has a closed form, and is quick
SMALL = (
    "data.set=mnist-5k",
    "batch_size=800",
    "iterations=100",
    "model.options.landmarks=10",
    "model.options.mirror=false",
    "evaluation.every=0",
)
SHARES = [4, 8, 16, 32, 40]  # of 100 updates, by speeds 1 : 2 : 4 : 8 : 10


@pytest.fixture(scope="module", autouse=True)
def features_are_made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAPA_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("MAPA_CACHE_MB", "50")
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One run of each case."""
    folder = tmp_path_factory.mktemp("runs")
    return [simulate_task(Simulation(name, (*own, *SMALL), 1, Path("data"), folder)) for name, own in CASES]


def test_the_two_scenarios_differ_in_budget_and_pace_alone() -> None:
    (_, unequal), (_, paced) = read_scenario("unequal-fashion"), read_scenario("paced-fashion")
    one, other = unequal.pop("privacy"), paced.pop("privacy")
    assert unequal == paced
    assert one.keys() ^ other.keys() == {"noise_multiplier", "total_epsilon", "pace"}
    assert all(one[key] == other[key] for key in one.keys() & other.keys())
    assert (other["total_epsilon"], other["pace"]) == (3.0, "own")
    assert [10 / device["slowdown"] for device in unequal["devices"]] == [1, 2, 4, 8, 10]


@pytest.mark.slow
def test_unpaced_edges_differ_in_epsilon_and_paced_ones_end_at_the_budget(runs: list[Path]) -> None:
    unequal, paced, unweighted = map(row_of, runs)
    assert list(unequal.releases) == pytest.approx(SHARES, abs=1)
    assert spread(unequal.epsilon) >= 2
    assert unequal.budget is None
    for row in (paced, unweighted):
        assert list(row.releases) == SHARES
        assert all(0.98 * 3 <= one <= 3 for one in row.epsilon)
        assert list(row.z) == sorted(row.z)
    assert paced.accuracy != unweighted.accuracy
    # from the events alone, without the statement that the table reads
    of_events = [edge.epsilon[-1] for edge in spending(runs[1], points=1)]
    assert list(paced.epsilon) == pytest.approx(of_events)


@pytest.mark.slow
def test_the_table_says_what_the_runs_say(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*map(str, runs), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    unequal, paced, _ = before["cases"]
    assert unequal["against"] is None
    assert paced["against"] == "unequal-fashion"
    assert paced["off_budget"] < 0.02
    of_runs = [json.loads((path / "summary.json").read_text())["final_accuracy"] for path in runs]
    assert [row["accuracy"] for row in before["runs"]] == of_runs
    assert paced["points"] == pytest.approx([100 * (of_runs[1] - of_runs[0])])

    # the same run with more releases and a worse model
    copy = shutil.copytree(runs[0], tmp_path / runs[0].name)
    summary = json.loads((copy / "summary.json").read_text())
    summary["final_accuracy"] -= 0.25
    for key in ("releases", "charges"):
        summary["privacy"]["edges"][4][key] += 60
    (copy / "summary.json").write_text(json.dumps(summary))
    assert main([str(copy), str(runs[1]), "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["cases"][0]["spread"] > 1.2 * unequal["spread"]
    assert after["cases"][1]["points"] == pytest.approx([paced["points"][0] + 25])
    assert main([str(copy), str(runs[1])]) == 0
    told = capsys.readouterr().out
    assert f"{100 * summary['final_accuracy']:.2f} |" in told
    assert f"{after['cases'][1]['points'][0]:+.2f} points from unequal-fashion" in told


def test_runs_without_seeds_are_compared_by_their_means() -> None:
    one = RunRow(
        run="run",
        case="one noise",
        engine="processes",
        seed=None,
        paced=False,
        budget=None,
        releases=(1, 2),
        z=(2.0,),
        epsilon=(1.0, 2.5),
        staleness=(1.0, 1.0),
        accuracy=0.80,
    )
    paced = replace(one, case="own pace", paced=True, budget=2.0, epsilon=(1.9, 2.0), accuracy=0.83)
    simulated = replace(one, case="simulated", engine="events", accuracy=0.10)
    unpaced, own, _ = cases_of([one, replace(one, accuracy=0.84), paced, simulated])
    assert (unpaced["runs"], unpaced["accuracy"], unpaced["spread"]) == (2, pytest.approx(0.82), 2.5)
    assert (own["against"], own["points"]) == ("one noise", (pytest.approx(1.0),))
    assert own["off_budget"] == pytest.approx(0.05)
    [again] = [one for one in cases_of([replace(one, seed=1), replace(paced, seed=2)]) if one["against"]]
    assert again["points"] == (pytest.approx(3.0),)
    assert spread((0.0, 1.0, 2.5)) == 2.5  # an edge that came too late has released nothing
    assert spread((0.0, 0.0)) == 1.0


@pytest.mark.slow
def test_the_fastest_of_five_devices_releases_ten_times_as_much_and_pays_for_it(tmp_path: Path) -> None:
    run = mapa.simulate("unequal-privacy", seed=1, iterations=250, evaluation={"every": 0}, runs_dir=tmp_path)
    edges = spending(run.path, points=2)
    assert [one.device for one in edges] == ["speed-1", "speed-2", "speed-4", "speed-8", "speed-10"]
    counts = [one.releases[-1] for one in edges]
    assert sum(counts) == 250
    assert counts == pytest.approx([10, 20, 40, 80, 100], abs=1)
    spent = [one.epsilon[-1] for one in edges]
    assert spent == sorted(spent)
    assert spread(spent) > 2.0
    assert all(one.epsilon == sorted(one.epsilon) and one.seconds == sorted(one.seconds) for one in edges)
    drawn = draw({"one noise for all": edges, "again": edges}, tmp_path / "figure")
    assert "speed-10: 100 releases" in drawn[0].read_text(encoding="utf-8")


def test_a_run_without_times_has_no_figure(tmp_path: Path) -> None:
    run = mapa.simulate("quickstart", seed=1, iterations=5, runs_dir=tmp_path)
    assert main([str(run.path), "--figure", str(tmp_path / "figure")]) == 2


@pytest.mark.slow
def test_a_run_that_did_not_finish_is_not_compared(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(runs[0], tmp_path / runs[0].name)
    (copy / "summary.json").unlink()
    assert main([str(copy)]) == 1
    assert "unfinished" in capsys.readouterr().err
    assert main(["absent", "--runs-dir", str(tmp_path)]) == 2
    assert main(["--set", "privacy.pace=other", "--runs-dir", str(tmp_path)]) == 2
    assert "privacy.pace" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_simulates_every_case_with_every_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [part for word in SMALL for part in ("--set", word)]
    assert main([*words, "--seeds", "1", "2", "--jobs", "2", "--runs-dir", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    cases = ("unequal-fashion", "paced-fashion", "paced-fashion, no weights")
    expected = [(case, seed) for case in cases for seed in (1, 2)]
    assert [(row["case"], row["seed"]) for row in found["runs"]] == expected
    assert [case["runs"] for case in found["cases"]] == [2, 2, 2]
    assert len(found["cases"][1]["points"]) == 2
    assert len(list(tmp_path.iterdir())) == 6
