"""mapa reproduce: runs that diverge or fail, the cache and what it alone can tell, the bar, and how it ends."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from common.errors import ConfigurationError
from experiments import harness
from experiments.commands import reproduce as command
from experiments.commands.reproduce import reproduce_command
from experiments.harness import Done, ResultCache
from experiments.reproduce import catalogue as catalogue_module
from experiments.reproduce import reproduction, runs
from experiments.reproduce.catalogue import FORMAT, Result, Results, result_cache
from experiments.reproduce.plots import draw_all
from experiments.reproduce.reproduction import reproduce
from experiments.reproduce.runs import LiveRunError, live_command, run_live
from mapa.scenario_files import load_scenario
from tests.program_support import PATIENCE
from tests.reproduce_support import NOWHERE, ends_at, order, points


def printing(text: str, code: int = 0) -> list[str]:
    return [sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"]


# -- runs on the testbed ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_diverges_on_the_testbed_is_a_result(tmp_path: Path) -> None:
    calm = points("tiny", "testbed")[0]
    steep = ("algorithm.name=constant", "algorithm.rate=1e30", "algorithm.first_clip=1e-9")
    changes = (*calm.changes, *steep)
    _, scenario = load_scenario(calm.file, changes, seed=calm.seed)
    point = replace(calm, changes=changes, scenario=scenario)
    result = run_live(point, data_dir=NOWHERE, runs=tmp_path / "runs")
    assert 0 < result.t[-1] < scenario.iterations
    assert result.loss[-1] is None
    assert 0 <= result.final <= 1


def test_a_run_with_another_end_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (point, *_) = points("tiny", "testbed")
    for said, code in ((json.dumps({"reason": "no-budget"}), 3), ("", 1), ("[]", 1)):
        monkeypatch.setattr(runs, "live_command", lambda *_, out=said, end=code, **__: printing(out, end))
        with pytest.raises(LiveRunError, match=f"exit code {code}"):
            run_live(point, data_dir=NOWHERE, runs=tmp_path)


@pytest.mark.parametrize(
    "argv",
    [
        printing("hello"),
        printing("[]"),
        printing("{}"),
        printing('{"run": "nobody"}'),
        ["/nonexistent/python"],
    ],
    ids=["words", "a list", "no run", "no records", "no program"],
)
def test_what_a_run_leaves_and_nobody_can_read_is_a_failure_of_that_run_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: list[str]
) -> None:
    monkeypatch.setattr(runs, "live_command", lambda *_, **__: argv)
    outcome = reproduce(order(tmp_path, "testbed"))
    lines = [f"testbed-cnn-mnist-{name}, edges 2, seed 0, processes" for name in ("asgd", "mapa")]
    assert sorted(outcome.failures) == lines
    assert all(error.startswith("LiveRunError: ") for error in outcome.failures.values())
    assert "testbed-cnn-mnist-mapa, edges 2" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_live_run_imports_nothing_from_the_callers_directory(tmp_path: Path) -> None:
    (tmp_path / "mapa").mkdir()
    (tmp_path / "mapa" / "cli.py").write_text("raise SystemExit('not this one')")
    python, *options = live_command(points("tiny", "testbed")[0], data_dir=NOWHERE, runs=tmp_path)[:4]
    said = subprocess.run(
        [python, *options, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("mapa ")


def test_every_point_that_failed_is_named_with_its_place_and_its_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(work: Any, tasks: Sequence[Any], **_: Any) -> Iterator[Done[Any, Any]]:  # noqa: ARG001
        for task in tasks:
            yield Done(task, error=f"ValueError: {next(iter(task.labels))}")

    monkeypatch.setattr(harness, "sweep", fail)
    some = points("quick", "stragglers")
    outcome = reproduce(order(tmp_path, "stragglers", size="quick"))
    assert len(outcome.failures) == len(some) == len({p.label for p in some})
    assert outcome.failures == {p.label: f"ValueError: {p.key}" for p in some}
    assert "stragglers-lr-mnist-mapa, delays.speeds 10, seed 1, simulation in rounds" in outcome.failures


TIDY = """
import os, pathlib, sys, threading
try:
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
    threading.Event().wait()
finally:
    pathlib.Path(sys.argv[2]).touch()
"""


@pytest.mark.slow
def test_a_reproduction_that_is_terminated_interrupts_its_live_run_which_tidies_up(tmp_path: Path) -> None:
    begun, tidied = tmp_path / "begun", tmp_path / "tidied"
    os.mkfifo(begun)
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from experiments.commands.reproduce import reproduce_command\n"
        "from experiments.reproduce import runs\n"
        f"words = [sys.executable, '-c', {TIDY!r}, {str(begun)!r}, {str(tidied)!r}]\n"
        "runs.live_command = lambda *_, **__: words\n"
        f"reproduce_command(['testbed'], tiny=True, out=Path({str(tmp_path / 'out')!r}), data_dir=Path('/none'))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    child = int(begun.read_text())
    watched = os.pidfd_open(child)
    try:
        parent.send_signal(signal.SIGTERM)
        _, said = parent.communicate(timeout=PATIENCE)
        ended, _, _ = select.select([watched], [], [], 0)
        assert ended, "the live run goes on, and nobody knows of it"
    finally:
        parent.kill()
        if not select.select([watched], [], [], 0)[0]:
            os.kill(child, signal.SIGKILL)
        os.close(watched)
    assert tidied.exists()
    assert "KeyboardInterrupt" in said


# -- points and results -------------------------------------------------------------------------------


def test_what_the_attack_tries_is_in_its_key_and_in_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    some = points("tiny")
    before = [point.key for point in some]
    monkeypatch.setattr(
        catalogue_module, "ATTACK_OPTIONS", (*catalogue_module.ATTACK_OPTIONS, "--releases", "21")
    )
    for point, key in zip(some, before, strict=True):
        if point.engine == "attack":
            assert point.key != key
        else:  # results of hours are kept by this name
            text = json.dumps([FORMAT, point.engine, point.scenario.digest, point.updates])
            assert point.key == key == hashlib.sha256(text.encode()).hexdigest()[:32]
    assert "attack" in {point.engine for point in some}


def test_the_command_of_a_point_names_the_folder_of_its_data(tmp_path: Path) -> None:
    folder = tmp_path / "data sets"
    one = replace(points("tiny", "testbed")[0], data_dir=folder)
    data = one.scenario.data.model_copy(update={"set": "usps"})
    real = replace(one, scenario=one.scenario.model_copy(update={"data": data}))
    for engine in ("block", "events", "synchronous", "testbed", "containers", "attack"):
        words = shlex.split(replace(real, engine=engine).command)
        assert words[-2:] == ["--data-dir", str(folder)]
        assert "--data-dir" not in replace(one, engine=engine).command  # embedded
    here = replace(real, data_dir=Path.cwd() / "data")
    assert here.command.endswith(" --data-dir data")
    assert {p.data_dir for p in points("tiny")} == {NOWHERE}


def test_a_result_survives_the_cache_and_a_damaged_or_other_one_is_made_again(tmp_path: Path) -> None:
    cache = result_cache(tmp_path / "cache")
    usual = ends_at(0.5, points("tiny", "stragglers")[0])
    kept = replace(usual, staleness={0: 3, 12: 1}, clips=[(1, 2.5)], norms={"t": [1.0]})
    assert cache.get(kept.key) is None
    cache.put(kept.key, kept)
    assert cache.get(kept.key) == kept
    file = tmp_path / "cache" / f"{kept.key}.json"
    text = file.read_text(encoding="utf-8")
    fields = json.loads(text)
    file.write_text(text[:-9], encoding="utf-8")
    assert cache.get(kept.key) is None
    wrong: list[dict[str, Any]] = [
        {**fields, "staleness": [1]},
        {**fields, "clips": [1]},
        {name: value for name, value in fields.items() if name != "t"},
    ]
    for values in wrong:
        file.write_text(json.dumps(values), encoding="utf-8")
        assert cache.get(kept.key) is None


@pytest.mark.slow
def test_a_panel_of_the_same_runs_as_another_counts_once(tmp_path: Path) -> None:
    some = points("tiny", "sound", "accuracy")
    whole = Results(some, {p.key: ends_at(0.8, p) for p in some})
    panels = {"lr-mnist", "lr-usps", "svm-mnist", "svm-usps"}
    assert {p.panel for p in some if p.experiment == "sound"} == panels
    assert whole.panels("sound") == ["lr-mnist", "svm-mnist"]
    assert whole.panels("accuracy") == ["lr-mnist", "lr-usps", "svm-mnist", "svm-usps", "cnn-mnist"]
    usps = Results(some, {e.point.key: e.result for e in whole.entries if e.point.panel == "lr-usps"})
    assert usps.panels("sound")[0] in ("lr-mnist", "lr-usps")
    for name in ("sound", "accuracy"):  # four and five panels
        assert draw_all(whole, [name], tmp_path)[name]


# -- what the cache alone can tell --------------------------------------------------------------------


def keep(cache: ResultCache[Result], result: Result) -> None:
    cache.put(result.key, result)


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_task(work: Any, tasks: Sequence[Any], **_: Any) -> list[Any]:  # noqa: ARG001
        assert not tasks
        return []

    def never(*_: Any) -> Any:
        raise AssertionError("a run, or a look for a Docker engine")

    monkeypatch.setattr(harness, "sweep", no_task)
    monkeypatch.setattr(runs, "run_points", never)
    monkeypatch.setattr(reproduction, "lacking_here", never)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_runs")
def test_what_was_run_in_parts_with_other_seeds_becomes_one_report(tmp_path: Path) -> None:
    cache = result_cache(tmp_path / "cache")
    lr, svm = (points("quick", "accuracy", only=(f"*-{model}-*",)) for model in ("lr", "svm"))
    for point in lr:
        keep(cache, ends_at(0.8, point))
    for point in points("quick", "accuracy", "norms", only=("*-svm-*", "norms-*"), most_seeds=1):
        norms = {"t": [1.0], "mean": [2.0], "low": [1.0], "high": [3.0]}
        keep(cache, replace(ends_at(0.8, point), norms=norms))
    before = sorted(path.name for path in cache.directory.iterdir())
    outcome = reproduce(order(tmp_path, "accuracy", "norms", "stragglers", size="quick", cached_only=True))
    assert (outcome.runs, outcome.failures) == (0, {})
    assert outcome.cached == len(before) == len(list(cache.directory.iterdir()))
    assert {p.seed for p in lr} == {0, 1, 2}
    assert {p.seed for p in svm} == {0, 1}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Seeds of a point: norms 1, accuracy 1 to 3." in page
    assert "Seeds were reduced" not in page
    missing = re.search(r"\d+ points are missing, of: ([^<]*)\.", page)
    assert missing is not None
    assert missing[1] == "norms, accuracy, stragglers"
    assert (tmp_path / "figures" / "accuracy.svg").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_runs")
def test_containers_are_taken_from_the_cache_before_processes(tmp_path: Path) -> None:
    inside, outside = (points("quick", "testbed", containers=flag) for flag in (True, False))
    cache = result_cache(tmp_path / "cache")
    for number in (0, 1):
        keep(cache, ends_at(0.9, inside[number]))
    for number in (1, 2):
        keep(cache, ends_at(0.1, outside[number]))

    def taken(**more: Any) -> list[tuple[str, float]]:
        asked = order(tmp_path, "testbed", size="quick", cached_only=True, **more)
        found, _ = reproduction._points(asked, cache)
        kept = [(p.engine, result.final) for p in found if (result := cache.get(p.key)) is not None]
        assert len(found) == len(inside)
        reproduce(asked)
        return kept

    assert taken() == [("containers", 0.9), ("containers", 0.9), ("testbed", 0.1)]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Runs of the testbed (testbed) were containers and processes on this machine." in page
    assert "Seeds of a point: testbed 1." in page
    assert taken(testbed="processes") == [("testbed", 0.1)] * 2
    assert taken(testbed="containers") == [("containers", 0.9)] * 2


@pytest.mark.usefixtures("nothing_runs")
def test_an_empty_cache_is_refused_by_its_place(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=f"--cached: {tmp_path}/cache holds no result of this at size tiny"
    ):
        reproduce(order(tmp_path, "stragglers", cached_only=True))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_runs")
def test_the_command_reports_what_is_cached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(result_cache(tmp_path / "cache"), ends_at(0.8, points("tiny", "stragglers")[0]))
    given: dict[str, Any] = {"tiny": True, "out": tmp_path, "data_dir": NOWHERE, "cached": True}
    with pytest.raises(typer.Exit) as ended:
        reproduce_command(["stragglers"], as_json=True, **given)
    assert ended.value.exit_code == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["size"], report["runs"], report["cached"], report["failures"]) == ("tiny", 0, 1, {})
    assert [row["claim"] for row in report["verdicts"]] == ["stragglers"]
    with pytest.raises(ConfigurationError, match="--cached and --fresh"):
        reproduce_command(["stragglers"], resume=False, **given)


# -- the bar ------------------------------------------------------------------------------------------


def test_the_bar_knows_the_time_left_however_long_a_task_takes() -> None:
    now = 1000.0
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=200, color_system=None)
    bar = command._bar(console, lambda: now)
    watch = command._watching(bar, "size quick")

    def shown() -> str:
        stream.truncate(stream.seek(0))
        console.print(bar.get_renderable())
        return stream.getvalue()

    watch(0.0, 400.0, "")
    assert bar.tasks[0].total == 400.0
    assert "0%" in shown()
    assert "left -:--:-- size quick" in shown()
    now += 60
    watch(100.0, 400.0, "accuracy-lr-mnist-mapa")
    assert "25% 0:01:00 left 0:03:00 accuracy-lr-mnist-mapa" in shown()
    now += 100  # nothing ends for longer than Rich looks back
    assert "25% 0:02:40 left 0:01:20" in shown()
    now += 300
    assert "left 0:00:00" in shown()
    watch(200.0, 400.0, "another")
    assert "50% 0:07:40 left 0:07:40 another" in shown()


def test_the_bar_has_its_total_before_the_first_task_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, bool]] = []
    monkeypatch.setattr(harness, "sweep", lambda *_, **__: iter(()))
    reproduce(
        order(tmp_path, "stragglers"), lambda done, total, line: seen.append((done, total > 0 and not line))
    )
    assert seen == [(0.0, True)]
