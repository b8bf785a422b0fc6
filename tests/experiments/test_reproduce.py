"""mapa reproduce: the catalogue, the cache, the synchronous twin, the verdicts, and a small one from end to end."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigurationError
from experiments.commands.reproduce import reproduce_command
from experiments.harness import UnfinishedError, deviation, percent
from experiments.reproduce.catalogue import (
    SIZES,
    WINDOW,
    FigurePoint,
    Result,
    Results,
    catalogue,
    data_set,
    result_cache,
)
from experiments.reproduce.claims import claims
from experiments.reproduce.reproduction import reproduce
from experiments.reproduce.runs import MemoryJournal, jobs_of, run_points, world_for
from mapa.cli import build
from mapa.releases import privacy_of
from mapa.scenario_files import load_scenario
from mapa.scenario_patterns import line_names
from mapa.simulation.delays import drawn_trips
from mapa.simulation.simulator import simulate
from mapa.simulation.synchronous import simulate_synchronously
from mapa.simulation.vectorised import simulate_many
from tests.core_support import small_world
from tests.reproduce_support import NOWHERE, order, points, result_of

# -- the catalogue ------------------------------------------------------------------------------------


def test_the_seven_experiments_are_there_and_every_one_has_points_at_every_size() -> None:
    assert {experiment.number for experiment in catalogue().experiment} == set(range(1, 8))
    named = {block.experiment for block in catalogue().block}
    assert named == {experiment.name for experiment in catalogue().experiment}
    for block in catalogue().block:
        for size in SIZES:
            assert block.lines_at(block.size(size))
    assert {line for block in catalogue().block for line in block.lines_at(block.full)} == set(line_names())
    assert len(line_names()) > 50


def test_a_block_whose_lines_match_nothing_is_an_error() -> None:
    block = catalogue().block[0].model_copy(update={"lines": ["accuracy-lr-emnist-*"]})
    with pytest.raises(ConfigurationError, match="accuracy-lr-emnist"):
        block.lines_at(block.tiny)


def test_every_claim_is_of_an_experiment_and_every_experiment_has_one() -> None:
    assert {claim.experiment for claim in claims()} == {e.name for e in catalogue().experiment}
    assert len({(claim.judge, str(claim.given)) for claim in claims()}) == len(claims())


def test_experiments_are_chosen_by_name_by_number_or_as_ours() -> None:
    def chosen(*words: str) -> list[str]:
        return [experiment.name for experiment in catalogue().chosen(list(words))]

    assert chosen("norms", "4") == ["norms", "convergence"]
    assert chosen("ours") == chosen("7") == ["bounds", "heldout", "sound", "constants", "stragglers"]
    assert len(chosen()) == 11
    with pytest.raises(ConfigurationError, match="figure = 'fig9': allowed are attack, norms"):
        chosen("fig9")


# -- points -----------------------------------------------------------------------------------------


def test_embedded_images_stand_in_but_never_at_full_size() -> None:
    assert data_set("mnist", "quick", {"mnist", "usps", "mnist-5k"}) == "mnist-5k"
    assert data_set("usps", "quick", {"usps"}) == "usps"
    assert data_set("usps", "quick", {"mnist"}) == "mnist-5k"
    assert data_set("usps", "full", {"usps"}) == "usps"
    with pytest.raises(ConfigurationError, match="mapa data get usps"):
        data_set("usps", "full", {"mnist-5k"})


def test_the_command_of_a_point_runs_the_very_scenario_of_the_point() -> None:
    some = points("tiny")
    assert len(some) > 100
    for point in some:
        words = shlex.split(point.command)
        changes = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        _, scenario = load_scenario(words[2], changes, seed=int(words[words.index("--seed") + 1]))
        assert scenario.digest == point.scenario.digest


def printed_by(point: FigurePoint, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """Run the command of a point as it is printed, and return its JSON."""
    _, command, *words = shlex.split(point.command)
    with pytest.raises(SystemExit) as end:
        build([command])([command, *words, *more, "--json"])
    out, err = capsys.readouterr()
    assert not end.value.code, err
    report: dict[str, Any] = json.loads(out)
    return report


@pytest.mark.slow
def test_the_command_of_an_attack_gives_its_very_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    point = next(p for p in points("tiny", "attack") if p.panel.startswith("lr"))
    (result,) = run_points([point], NOWHERE, NOWHERE)
    cells = printed_by(point, capsys, "--out", str(tmp_path), "--data-dir", str(NOWHERE))["cells"]
    keys = ("law", "epsilon", "t", "correlation", "ssim", "psnr", "label_accuracy")
    printed, kept = ([[cell[key] for key in keys] for cell in some] for some in (cells, result.cells or []))
    assert printed == kept
    assert len(cells) > 6


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["events", "synchronous"])
def test_the_command_of_a_point_gives_its_very_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    point = next(p for p in points("tiny", "stragglers") if p.engine == engine and p.variant == "mapa")
    (result,) = run_points([point], NOWHERE, NOWHERE)
    summary = printed_by(point, capsys, "--runs-dir", str(tmp_path), "--data-dir", str(NOWHERE))
    first, *evaluations = summary["evaluations"]
    assert first["updates"] == 0
    assert summary["engine"] == engine
    assert [seen["updates"] for seen in evaluations] == result.t
    assert [round(seen["accuracy"], 6) for seen in evaluations] == result.accuracy
    assert [round(seen["loss"], 6) for seen in evaluations] == result.loss
    assert result.seconds is not None
    assert summary["virtual_seconds"] == pytest.approx(result.seconds[-1])


def test_a_line_that_does_not_depend_on_x_is_run_once() -> None:
    accuracy = points("tiny", "accuracy")
    assert {p.x for p in accuracy if p.variant == "asgd"} == {None}
    assert len({p.x for p in accuracy if p.line == "accuracy-lr-mnist-mapa"}) == 2
    assert {p.x for p in points("tiny", "convergence") if p.variant == "csgd"} == {None}


def test_results_are_shared_by_scenario_and_engine_alone() -> None:
    first, *_ = points("tiny", "stragglers")
    assert replace(first, line="another", experiment="other", x=9.0).key == first.key
    assert replace(first, engine="synchronous").key != first.key
    _, other = load_scenario(first.file, [*first.changes, "batch_size=13"], seed=0)
    assert replace(first, scenario=other).key != first.key


def test_tasks_hold_every_point_once_and_only_alike_ones_together() -> None:
    some = points("tiny")
    by_key = {point.key: point for point in some}
    jobs = [[by_key[key] for key in job.labels] for job in jobs_of(some, NOWHERE, NOWHERE)]
    assert sorted(point.key for job in jobs for point in job) == sorted(by_key)
    together = [job for job in jobs if len(job) > 1]
    assert together
    for job in together:
        assert {(p.engine, p.scenario.workers, p.scenario.model.name) for p in job} == {
            ("block", job[0].scenario.workers, job[0].scenario.model.name)
        }


def test_a_point_gives_the_same_result_alone_and_among_others() -> None:
    some = [p for p in points("tiny", "bounds") if p.line.startswith("bounds-lr-mnist")]
    assert len(some) == 4

    def run(*some: FigurePoint) -> list[Result]:
        return [replace(r, wall=0.0) for r in run_points(some, NOWHERE, NOWHERE)]

    assert run(*some) == [run(point)[0] for point in some]


# -- results ------------------------------------------------------------------------------------------


def test_convergence_is_the_mean_of_five_evaluations() -> None:
    assert WINDOW == 5
    losses = [9.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.0]
    (point, *_) = points("tiny", "stragglers")
    seen = result_of(point, t=[10, 20, 30, 40, 50, 60, 70], accuracy=[0.0] * 7, loss=losses)
    assert seen.reached(0.985) == 60
    assert seen.reached(0.5) is None
    assert replace(seen, loss=[None, *losses[1:]]).reached(0.985) == 60
    assert replace(seen, loss=[*losses[:4], None, *losses[5:]]).reached(5.0) is None
    assert seen.floor == seen.reached(9.0) == 50  # nothing converges before the first whole window
    assert replace(seen, t=[10, 20, 30, 40]).floor is None


def test_means_in_percent_have_a_deviation_where_there_are_several_seeds() -> None:
    assert deviation([1.0, 3.0]) == pytest.approx(2**0.5)
    assert (deviation([1.0]), percent([]), percent([0.5])) == (0.0, "–", "50.00")
    assert percent([0.97, 0.99], 1, "±") == "98.0±1.4"


def test_an_unfinished_run_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(world: Any, **more: Any) -> Any:
        return replace(simulate(world, **more), reason="interrupted")

    monkeypatch.setattr("experiments.reproduce.runs.simulate", interrupted)
    point = next(p for p in points("tiny", "stragglers") if p.engine == "events")
    with pytest.raises(UnfinishedError, match="interrupted after 400 updates"):
        run_points([point], NOWHERE, NOWHERE)


def test_norms_are_put_where_the_cyclic_delay_applies_them() -> None:
    journal = MemoryJournal()
    for n in (1, 2):
        for k in range(3):
            fields = {"edge": k, "sequence": n, "gradient_norm": float(10 * n + k)}
            journal.write("diagnostic", fields)
    norms = journal.norms(3)
    assert norms["t"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert norms["mean"] == [10.0, 11.0, 12.0, 20.0, 21.0, 22.0]


@pytest.mark.slow
def test_no_run_of_a_total_budget_spends_more_than_it() -> None:
    some = [p for p in points("tiny", "sound") if p.scenario.private and p.line.startswith("sound-lr-mnist")]
    assert {p.variant for p in some} == {"audp", "mapa"}
    worlds = [world_for(point.scenario, NOWHERE) for point in some]
    assert len({world.scenario.law(0) for world in worlds}) == 1
    for world, outcome in zip(worlds, simulate_many(worlds, blocks=True), strict=True):
        scenario, most = world.scenario, max(outcome.releases)
        spent = privacy_of(scenario, [(0, "edge-0", scenario.law(0), len(world.rows[0]), most)])
        (edge,) = spent["edges"]
        assert 0.5 < edge["epsilon"] <= scenario.privacy.total_epsilon


# -- the synchronous twin -----------------------------------------------------------------------------


def test_a_round_of_one_edge_is_csgd() -> None:
    world = small_world(algorithm={"name": "csgd"}, delays={"kind": "constant"}, edges=1)
    alone = simulate(world).tally.evaluations
    rounds = simulate_synchronously(world).tally.evaluations
    assert [e.updates for e in rounds] == [e.updates for e in alone] == [0, 20, 40, 60]
    for ours, theirs in zip(rounds, alone, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["accuracy"] == theirs["accuracy"]


def test_a_round_takes_as_long_as_its_slowest_edge() -> None:
    delays = {"kind": "lognormal", "speeds": [1.0, 1.0, 1.0, 0.05]}
    world = small_world(delays=delays)
    outcome = simulate_synchronously(world)
    assert outcome.tally.updates == 60  # 15 rounds of 4 edges
    trip = drawn_trips(world.scenario.delays, world.streams)
    expected = sum(max(sum(trip(k, r)) for k in range(4)) for r in range(1, 16))
    assert outcome.seconds[-1] == pytest.approx(expected)
    asynchronous = simulate(small_world(delays=delays)).virtual_seconds
    assert asynchronous is not None
    assert asynchronous < outcome.seconds[-1] / 2


def test_a_round_needs_times() -> None:
    with pytest.raises(ConfigurationError, match=r"delays\.kind = 'cyclic'"):
        simulate_synchronously(small_world())


# -- from end to end ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reproduction_writes_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    outcome = reproduce(order(tmp_path, "norms", "stragglers"))
    assert not outcome.failures
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2
    assert "src='http" not in page
    assert "<link" not in page
    assert "mnist" in page
    for one in outcome.judged:
        assert one.claim.text in page.replace("&#x27;", "'")
    for point in points("tiny", "norms", "stragglers"):
        assert point.scenario.digest[:16] in page
    for name in ("norms", "stragglers"):
        for kind in ("svg", "png"):
            assert (tmp_path / "figures" / f"{name}.{kind}").stat().st_size > 1000
        assert (tmp_path / "tables" / f"{name}.csv").read_text(encoding="utf-8").count("\n") > 2
    assert "verdict" in (tmp_path / "tables" / "verdicts.csv").read_text(encoding="utf-8")
    assert (tmp_path / "report.md").read_text(encoding="utf-8").startswith("# Reproduction, size tiny")


@pytest.mark.slow
def test_results_do_not_depend_on_how_many_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    tables = []
    for jobs in (1, None):  # None: one for each core
        folder = tmp_path / str(jobs)
        outcome = reproduce(order(folder, "stragglers", "bounds", only=("*-lr-*",), jobs=jobs))
        assert (outcome.cached, outcome.failures) == (0, {})
        assert outcome.runs > 4
        tables.append([path.read_text(encoding="utf-8") for path in sorted((folder / "tables").iterdir())])
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_an_interrupted_reproduction_goes_on_where_it_stopped(tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []

    def stop(done: float, total: float, line: str) -> None:  # noqa: ARG001
        seen.append((done, total))
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(order(tmp_path, "stragglers"), stop)
    assert seen[0][0] == 0 < seen[1][0] < seen[1][1] == seen[0][1]
    kept = len(list((tmp_path / "cache").glob("*.json")))
    assert kept == 1
    outcome = reproduce(order(tmp_path, "stragglers"))
    assert (outcome.cached, outcome.runs) == (1, 3)
    again = reproduce(order(tmp_path, "stragglers"))
    assert (again.cached, again.runs) == (4, 0)
    assert [one.judgement for one in again.judged] == [one.judgement for one in outcome.judged]


def test_wrong_options_are_refused_before_anything_runs(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"quick": True, "full": True}, "--quick and --full"),
        ({"engine": "slurm"}, "engine = 'slurm'"),
        ({"ray_address": "auto"}, "--ray-address"),
        ({"full": True}, "mapa data get"),
        ({"testbed": "cloud"}, "testbed = 'cloud': allowed are auto, containers, processes"),
    ]
    for options, words in wrong:
        with pytest.raises(ConfigurationError, match=words):
            reproduce_command([], out=tmp_path, data_dir=NOWHERE, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tiny_size_represents_every_experiment(tmp_path: Path) -> None:
    """Everything there is, real processes over real MQTT included; it says nothing of the claims."""
    outcome = reproduce(order(tmp_path))
    assert not outcome.failures
    pictures = {path.stem.partition("-")[0] for path in (tmp_path / "figures").glob("*.png")}
    assert pictures == {experiment.name for experiment in catalogue().experiment}
    assert "its verdicts mean nothing" in (tmp_path / "report.html").read_text(encoding="utf-8")
    some, cache = points("tiny"), result_cache(tmp_path / "cache")
    live = Results(some, {p.key: r for p in some if (r := cache.get(p.key))})
    assert not live.missing
    for entry in live.of("testbed"):
        assert entry.result.seconds
        assert sum(entry.result.staleness.values()) == 60
