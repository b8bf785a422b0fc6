"""mapa reproduce: seeds, containers or processes, bounds chosen on held-out records, constants."""

from __future__ import annotations

import gc
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigurationError
from experiments.reproduce import reproduction, runs
from experiments.reproduce.catalogue import FigurePoint, Results, catalogue, result_cache
from experiments.reproduce.claims import MODELS, SOUND, Verdict, bound_of, held_out
from experiments.reproduce.plots import draw_all
from experiments.reproduce.report import conventions, rows_of
from experiments.reproduce.reproduction import notes, reproduce
from experiments.reproduce.runs import (
    LIVE,
    LiveRunError,
    choose_containers,
    jobs_of,
    lacking_here,
    live_command,
    patience,
    world_for,
)
from mapa.scenario_patterns import matching_lines, values_of
from tests.program_support import PATIENCE
from tests.reproduce_support import NOWHERE, ends_at, judged, made_up, order, points

pytestmark = pytest.mark.slow  # every choice of the catalogue: seconds

# -- seeds --------------------------------------------------------------------------------------------


def test_seeds_are_capped_for_every_point_but_never_raised() -> None:
    def most(some: list[FigurePoint]) -> dict[str, int]:
        lines = {(p.line, p.engine, p.x, p.sweep): 0 for p in some}
        for p in some:
            lines[p.line, p.engine, p.x, p.sweep] += 1
        return {name: max(n for key, n in lines.items() if key[0] == name) for name, *_ in lines}

    whole, two, many = (points("quick", most_seeds=n) for n in (None, 2, 99))
    assert max(most(whole).values()) == 3
    assert max(most(two).values()) == 2
    assert many == whole
    assert {p.key for p in two} < {p.key for p in whole}
    assert {(p.line, p.engine, p.x) for p in two} == {(p.line, p.engine, p.x) for p in whole}


def test_the_notes_say_which_seeds_were_left_out(tmp_path: Path) -> None:
    def said(seeds: int | None, *names: str) -> str:
        asked = order(tmp_path, *names, size="quick", seeds=seeds)
        return " ".join(notes(asked, points("quick", *names, most_seeds=seeds)))

    assert "at most 1 for a point: norms (of 2), accuracy (of 3)" in said(1, "norms", "accuracy", "attack")
    assert "attack" not in said(1, "norms", "attack")
    assert "at most 2 for a point: accuracy (of 3)." in said(2, "norms", "accuracy")
    for seeds in (None, 3):
        assert "Seeds" not in said(seeds, "norms", "accuracy")


def test_a_run_that_failed_is_left_out_of_the_picture(tmp_path: Path) -> None:
    some = points("quick", "sound", only=("sound-lr-mnist-*",))
    found = {p.key: ends_at(0.8, p) for p in some}
    del found[next(p.key for p in some if p.line.endswith("mapa"))]
    drawn = draw_all(Results(some, found), ["sound"], tmp_path)
    assert {path.suffix for path in drawn["sound"]} == {".svg", ".png"}
    assert all(path.stat().st_size for path in drawn["sound"])


# -- some lines only --------------------------------------------------------------------------------


def test_globs_choose_lines_and_the_notes_say_so(tmp_path: Path) -> None:
    globs = ("*-lr-*", "norms-*")
    whole, some = points("quick"), points("quick", only=globs)
    assert some == [p for p in whole if "-lr-" in p.line]
    assert {p.experiment for p in some} > {"norms", "accuracy", "convergence"}
    assert "*-lr-*, norms-*" in " ".join(notes(order(tmp_path, size="quick", only=globs), some))


def test_a_glob_that_matches_nothing_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"only = \['knn-\*'\].*norms-lr-usps-asgd"):
        points("quick", "norms", only=("knn-*",))


# -- containers or processes --------------------------------------------------------------------------


def never() -> str | None:
    raise AssertionError("an engine was asked for that nobody needs")


@pytest.mark.parametrize(
    ("wanted", "size", "lacking", "chosen"),
    [
        ("auto", "tiny", never, (False, "")),
        ("auto", "quick", never, (False, "")),
        ("auto", "full", lambda: None, (True, "")),
        ("auto", "full", lambda: "no engine", (False, "no engine")),
        ("processes", "full", never, (False, "")),
        ("containers", "tiny", lambda: None, (True, "")),
    ],
)
def test_containers_are_taken_where_they_are_asked_for_or_fit(
    wanted: str, size: str, lacking: Callable[[], str | None], chosen: tuple[bool, str]
) -> None:
    assert choose_containers(wanted, size, lacking) == chosen


class Engine:
    """What `lacking_here` asks of a Docker client."""

    def __init__(self, *tags: str) -> None:
        self.images, self.tags, self.closed = self, list(tags), False

    def list(self) -> Sequence[Any]:
        return [self]

    def close(self) -> None:
        self.closed = True


def test_a_machine_without_an_engine_says_so_and_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    left: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", left.append)
    said = r"testbed = 'containers': no Docker engine .*make engine.* or use --testbed processes"
    with pytest.raises(ConfigurationError, match=said):
        reproduce(order(tmp_path, "testbed", testbed="containers"))
    assert not list(tmp_path.iterdir())
    gc.collect()
    assert not left  # an unclosed socket is an error in these tests, raised where it is collected


def test_an_engine_without_our_images_says_which_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("mapa-cloud:latest", "eclipse-mosquitto:2")
    monkeypatch.setattr("mapa.container_run.connect", lambda: engine)
    assert lacking_here() == "no image mapa-edge-cnn (`make images` builds the images)"
    assert engine.closed
    engine.tags.append("mapa-edge-cnn:latest")
    assert lacking_here() is None


def test_an_engine_is_not_asked_for_where_no_run_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reproduction, "lacking_here", never)
    _, why_not = reproduction._points(order(tmp_path, "norms", testbed="containers"), result_cache(tmp_path))
    assert why_not == ""


def test_containers_are_other_runs_than_processes() -> None:
    (as_processes, *_), (as_containers, *_) = (
        points("tiny", "testbed", containers=flag) for flag in (False, True)
    )
    assert (as_processes.run_as, as_containers.run_as) == ("processes", "containers")
    assert as_containers == replace(as_processes, engine="containers")
    assert as_containers.key != as_processes.key
    assert {as_processes.engine, as_containers.engine} == set(LIVE)
    changed = [a for a, b in zip(points("tiny"), points("tiny", containers=True), strict=True) if a != b]
    assert {point.experiment for point in changed} == {"testbed"}


def test_the_command_of_a_live_point_is_the_one_that_is_run(tmp_path: Path) -> None:
    for flag, word in ((False, "run"), (True, "containers")):
        for point in points("tiny", "testbed", containers=flag):
            command = live_command(point, data_dir=tmp_path, runs=tmp_path / "runs")
            assert command[4:6] == [word, point.file]
            shown = shlex.split(point.command)
            assert shown[:2] == ["mapa", word]
            for words in (command, shown):
                changes = [words[i + 1] for i, text in enumerate(words) if text == "--set"]
                assert tuple(changes) == point.changes
                assert words[words.index("--seed") + 1] == str(point.seed)
            assert command[command.index("--data-dir") + 1] == str(tmp_path)
            assert ("--processes" in command) == ("--processes" in shown) == (word == "run")


def test_a_data_folder_reaches_the_containers_where_there_is_one(tmp_path: Path) -> None:
    point = points("tiny", "testbed", containers=True)[0]
    assert "--data-dir" not in live_command(point, data_dir=NOWHERE, runs=tmp_path)
    assert "--data-dir" not in point.command  # the images hold the embedded set
    data = point.scenario.data.model_copy(update={"set": "mnist"})
    real = replace(point, scenario=point.scenario.model_copy(update={"data": data}))
    assert real.command.endswith(f"--data-dir {NOWHERE}")
    command = live_command(real, data_dir=tmp_path, runs=tmp_path)
    assert float(command[command.index("--timeout") + 1]) == patience(real)


@pytest.mark.parametrize(("containers", "words"), [(False, "processes"), (True, "containers")])
def test_tables_and_notes_say_which_of_the_two_a_run_was(
    tmp_path: Path, containers: bool, words: str
) -> None:
    some = points("tiny", "testbed", "sensitivity", containers=containers)
    results = Results(some, {p.key: ends_at(0.5, p) for p in some})
    assert {row["run as"] for row in rows_of(results, "testbed")} == {words}
    assert {row["run as"] for row in rows_of(results, "sensitivity")} == {"simulation"}
    asked = order(tmp_path, "testbed", "sensitivity")
    assert f"Runs of the testbed (testbed) were {words} on this machine." in notes(asked, some)
    why = " ".join(notes(asked, points("tiny", "testbed"), "no engine"))
    assert "were processes on this machine instead of containers: no engine." in why


def test_an_interrupted_run_is_interrupted_once_and_may_tidy_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that hangs is given up; what it does at the end, as taking containers down, is waited for."""
    begun, tidied = tmp_path / "begun", tmp_path / "tidied"
    os.mkfifo(begun)
    script = (
        "import pathlib, threading\n"
        f"try:\n    pathlib.Path({str(begun)!r}).write_text('here')\n    threading.Event().wait()\n"
        f"finally:\n    pathlib.Path({str(tidied)!r}).touch()\n"
    )
    point = points("tiny", "testbed")[0]
    monkeypatch.setattr(runs, "patience", lambda _: 1.0)
    monkeypatch.setattr(runs, "_GRACE", 0.5)
    waits: list[float] = []

    class Watched(subprocess.Popen[str]):
        def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[str, str]:
            waits.append(timeout or 0)
            if len(waits) == 1:
                assert begun.read_text() == "here"  # it runs, and has taken too long
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            return super().communicate(input, PATIENCE)

    monkeypatch.setattr("experiments.reproduce.runs.subprocess.Popen", Watched)
    with pytest.raises(LiveRunError, match="timed out after 2 s"):
        runs._output_of([*live_command(point, data_dir=NOWHERE, runs=tmp_path)[:1], "-c", script], point)
    assert waits == [2.0, 0.5]
    assert tidied.exists()


def test_the_report_says_how_sensitivity_was_run_and_where_bounds_come_from() -> None:
    for engine, words in (
        ("events", "Sensitivity: simulation, with delays drawn"),
        ("testbed", "Sensitivity: processes."),
    ):
        some = [replace(p, engine=engine) for p in points("tiny", "sensitivity")]
        said = " ".join(conventions(Results(some, {p.key: ends_at(0.5, p) for p in some})))
        assert words in said
    assert f"LR {bound_of('accuracy-lr-mnist-audp-fair'):g}, SVM" in said
    assert "never on a test set" in said
    held = points("tiny", "heldout")
    rows = rows_of(Results(held, {p.key: ends_at(0.5, p) for p in held}), "heldout")
    assert {row["measured on"] for row in rows} == {"500 held-out training records"}


# -- sensitivity --------------------------------------------------------------------------------------


def test_sensitivity_is_of_the_testbed_at_full_size_alone() -> None:
    blocks = [block for block in catalogue().block if block.experiment == "sensitivity"]
    assert len(blocks) == 6
    for block in blocks:
        assert [block.engine_at(block.size(size)) for size in ("tiny", "quick")] == ["events"] * 2
        assert block.engine_at(block.full) == "testbed"
        assert (block.full.seeds, block.full.iterations) == (1, None)  # T is the file's
    assert values_of("sensitivity-cnn-mnist-mapa")["iterations"] == 5000


# -- bounds chosen on held-out records ----------------------------------------------------------------


def test_no_bound_is_chosen_on_a_test_set_nor_with_a_seed_of_the_figures() -> None:
    for size in ("tiny", "quick"):
        chosen = points(size, "heldout")
        others = {p.seed for p in points(size) if p.experiment != "heldout"}
        assert len(chosen) > 20
        assert all(p.scenario.data.holdout > 0 for p in chosen)
        assert not {p.seed for p in chosen} & others
        assert all(p.scenario.data.holdout == 0 for p in points(size) if p.experiment != "heldout")
    for line in matching_lines("heldout-*"):
        assert values_of(line)["data"]["holdout"] > 0


def test_held_out_records_are_in_no_shard_and_take_the_test_sets_place() -> None:
    point = points("tiny", "heldout")[0]
    figure = next(p for p in points("tiny", "bounds") if p.panel == point.panel)
    held, whole = (world_for(p.scenario, NOWHERE) for p in (point, figure))
    count = point.scenario.data.holdout
    assert len(held.features) == len(whole.features) - count
    assert sum(map(len, held.rows)) == len(held.features)
    assert len(held.dataset.test) == count
    images = {image.tobytes() for image in whole.dataset.train.inputs}
    assert {image.tobytes() for image in held.dataset.test.inputs} <= images


def test_runs_with_other_records_held_out_are_not_one_product() -> None:
    point = next(p for p in points("tiny", "heldout") if p.engine == "block")
    data = point.scenario.data.model_copy(update={"holdout": 400})
    other = replace(point, scenario=point.scenario.model_copy(update={"data": data}))
    assert [len(job.labels) for job in jobs_of([point, other], NOWHERE, NOWHERE)] == [1, 1]


def test_every_fair_bound_of_a_model_is_the_same() -> None:
    for model in MODELS:
        fair = matching_lines(f"*-{model}-*-audp-fair")
        assert len(fair) >= 4
        assert len({bound_of(line) for line in fair}) == 1
    for model in SOUND:
        for name in ("audp", "mapa"):
            assert bound_of(f"sound-{model}-mnist-{name}") == bound_of(f"sound-{model}-usps-{name}")


def test_a_bound_counts_by_its_mean_over_the_lines_that_were_all_run() -> None:
    some = [p for p in points("quick", "heldout") if p.line.startswith("heldout-lr-mnist-audp-0")]

    def accuracy(p: FigurePoint) -> float | None:
        if p.x == 30 and p.variant == "audp-0.5":
            return None  # it would count for ε = 0.1 alone
        return (0.9 if p.x == 1 else 0.8) - (0.1 if p.variant == "audp-0.1" else 0)

    curve = held_out(made_up(accuracy, some), "lr", ("audp-0.1", "audp-0.5"))
    assert 30 not in curve
    assert curve[1.0] == pytest.approx(0.85)
    assert curve[3.0] == pytest.approx(0.75)
    assert held_out(made_up(accuracy, some), "svm", ("audp-0.1",)) == {}


@pytest.mark.parametrize(
    ("at_taken", "verdict"), [(0.9, Verdict.REPRODUCED), (0.797, Verdict.REPRODUCED), (0.7, Verdict.NOT)]
)
def test_a_fair_bound_must_be_the_best_on_held_out_records(at_taken: float, verdict: Verdict) -> None:
    def accuracy(p: FigurePoint) -> float:
        name, model = p.variant.split("-")[0], p.line.split("-")[1]
        sound = p.variant.endswith("sound")
        line = f"sound-{model}-mnist-{name}" if sound else f"accuracy-{model}-mnist-audp-fair"
        return at_taken if p.x == bound_of(line) else 0.8

    results = made_up(accuracy, points("quick", "heldout"))
    for claim in ("held-out choice", "held-out choice, sound"):
        found = judged(claim, results)
        assert found.verdict is verdict
        assert f"{100 * at_taken:.1f} %" in found.measured


# -- constants ----------------------------------------------------------------------------------------


def test_the_lines_of_a_panel_differ_in_their_constants_alone() -> None:
    some = points("quick", "constants")
    for panel in ("lr-mnist", "svm-usps", "cnn-mnist"):
        lines = {p.variant: p.scenario for p in some if p.panel == panel and p.x == 0.1 and p.seed == 0}
        assert set(lines) == {"measured", "paper", "theorem3"}
        assert (lines["paper"].algorithm.sigma, lines["paper"].algorithm.smoothness) == (30.0, 10.0)
        assert lines["measured"].algorithm.sigma != 30.0
        assert lines["theorem3"].algorithm.first_clip is None
        same = {"sigma": None, "smoothness": None, "first_clip": None}
        bare = [{**s.canonical(), "algorithm": {**s.algorithm.model_dump(), **same}} for s in lines.values()]
        assert bare[0] == bare[1] == bare[2]


def test_the_measured_line_is_the_run_of_the_accuracy_figure() -> None:
    figure = {p.key for p in points("quick", "accuracy") if p.variant == "mapa"}
    measured = {p.key for p in points("quick", "constants") if p.variant == "measured"}
    assert measured
    assert measured <= figure


def test_measured_constants_are_compared_with_both_lines_of_the_paper() -> None:
    results = made_up(lambda p: 0.8 if p.variant == "measured" else 0.7, points("quick", "constants"))
    found = judged("measured constants", results)
    assert found.verdict is Verdict.REPRODUCED
    assert "80.0 : 70.0 %" in found.measured
    assert "Theorem 3's first bound" in found.measured
