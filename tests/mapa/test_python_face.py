"""mapa.simulate, mapa.run and mapa.load_run: what Python code and notebooks see."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest

import mapa
from common.scenario.scenario import parse_scenario
from experiments.examples.own import SquaredHinge, TwoRings
from mapa.algorithms import Algorithm, Problem, Update, Vector, descend, option
from mapa.run_view import NotebookBar, bar_for
from mapa.scenario_files import load_scenario

SMALL: dict[str, Any] = {
    "edges": 3,
    "iterations": 60,
    "batch_size": 16,
    "seed": 3,
    "data": {"set": "experiments.examples.own:TwoRings"},
    "model": {"name": "experiments.examples.own:SquaredHinge"},
    "algorithm": {"name": "asgd", "smoothness": 30.0, "sigma": 4.0, "radius": 3.0, "loss_gap": 1.0},
    "evaluation": {"every": 20},
}


@dataclass(frozen=True, slots=True)
class Fixed(Algorithm):
    """A constant step, without privacy."""

    private: ClassVar[bool] = False
    needs_constants: ClassVar[bool] = False
    step: float = option("γ", above=0)
    begun: bool = False  # state
    sensitivity: float = 0.0

    def begin(self, problem: Problem, moment: float) -> Self:  # noqa: ARG002
        return replace(self, begun=True)

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        return descend(x, update.gradient, self.step), self


def simulated(tmp_path: Path, source: Any = SMALL, **changes: Any) -> mapa.Run:
    return mapa.simulate(source, runs_dir=tmp_path / "runs", progress=False, **changes)


def test_a_run_has_the_arrays_of_its_records(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    applied = [event for event in events if event["event"] == "gradient_applied"]
    assert run.updates["t"].tolist() == [event["t"] for event in applied] == list(range(1, 61))
    assert run.staleness.tolist() == [event["staleness"] for event in applied]
    assert run.updates["edge"].dtype == np.int64
    assert run.metrics["t"].tolist() == [0, 20, 40, 60]
    assert run.metrics["accuracy"].tolist() == [row["accuracy"] for row in run.summary["evaluations"]]
    assert run.model["weight"].shape == (1, 65)
    np.testing.assert_array_equal(run.model["weight"].ravel(), run.x)
    assert run.reason == "finished"
    assert run.scenario["edges"] == 3
    assert "finished, accuracy" in repr(run)
    assert run.edges["edge_id"].tolist() == ["edge-0", "edge-1", "edge-2"]
    assert np.isnan(run.edges["epsilon"]).all()  # asgd protects nobody
    assert len(run.privacy["words"]) > 0


def test_nothing_of_a_run_can_be_overwritten(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    for array in (run.staleness, run.x, run.model["weight"], run.metrics["loss"], run.edges["edge"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(TypeError):
        run.summary["updates"] = 1  # type: ignore[index]
    with pytest.raises(AttributeError):
        run.path = tmp_path  # type: ignore[misc]


def test_a_loaded_run_is_the_simulated_one(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    for loaded in (mapa.load_run(run.path), mapa.load_run(run.name, runs_dir=tmp_path / "runs")):
        assert loaded.summary == run.summary
        np.testing.assert_array_equal(loaded.x, run.x)
        np.testing.assert_array_equal(loaded.updates["sensitivity"], run.updates["sensitivity"])
    with pytest.raises(mapa.ConfigurationError, match="no such run"):
        mapa.load_run("nothing", runs_dir=tmp_path)


def test_a_run_that_was_cut_off_has_what_its_events_say(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    (run.path / "summary.json").unlink()
    (run.path / "model.safetensors").unlink()
    events = run.path / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if "gradient_applied" in line)
    events.write_text("".join(lines[:last]) + lines[last][:20])
    cut = mapa.load_run(run.path)
    assert (cut.reason, len(cut.staleness), len(cut.x)) == ("unfinished", 59, 0)
    assert "unfinished, 59 updates" in repr(cut)
    assert "mapa ledger" in cut.privacy["words"][0]


def test_a_name_a_file_a_dict_and_a_scenario_are_one_run(tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "experiments" / "examples" / "own.toml"
    changes: dict[str, Any] = {
        "seed": 5,
        "iterations": 20,
        "algorithm": {**SMALL["algorithm"], "rate": None, "power": None},
        "privacy": {"total_epsilon": None, "releases": None, "noise_multiplier": 1.0},
    }
    by_file = simulated(tmp_path, file, **changes)
    by_text = simulated(tmp_path, str(file), **changes)
    by_scenario = simulated(tmp_path, parse_scenario(by_file.scenario))
    by_dict = simulated(tmp_path, dict(by_file.scenario))
    for other in (by_text, by_scenario, by_dict):
        np.testing.assert_array_equal(other.x, by_file.x)
        assert other.summary["scenario_sha256"] == by_file.summary["scenario_sha256"]
    assert by_file.summary["name"] == "own"


def test_a_scenario_is_loaded_and_changed_and_stays_as_it_was(tmp_path: Path) -> None:
    small = mapa.Scenario.load(SMALL)
    changed = small.with_({"evaluation.every": 5, "model.options.width": None}, iterations=10)
    assert (small.iterations, small.evaluation.every) == (60, 20)
    assert (changed.iterations, changed.evaluation.every, changed.edges) == (10, 5, 3)
    run = simulated(tmp_path, changed, seed=4)
    assert run.metrics["t"].tolist() == [0, 5, 10]
    assert math.isnan(run.epsilon)  # asgd protects nobody
    same = simulated(tmp_path, SMALL, iterations=10, evaluation={"every": 5}, seed=4)
    assert run.summary["scenario_sha256"] == same.summary["scenario_sha256"]
    assert mapa.Scenario.load("quickstart").with_(seed=1) == mapa.Scenario.load("quickstart").with_(
        {"seed": 1}
    )
    mine = mapa.Scenario.load(SMALL).with_(model=SquaredHinge, data=TwoRings, algorithm=Fixed(step=0.1))
    assert simulated(tmp_path, mine, iterations=5).scenario["algorithm"]["step"] == 0.1
    with pytest.raises(mapa.ConfigurationError, match=r"evaluation\.every\.a: every is not a table"):
        small.with_({"evaluation.every.a": 1})
    with pytest.raises(mapa.ConfigurationError, match=r"privacy\.noisy"):
        small.with_({"privacy.noisy": 1})


def test_noise_for_a_budget_is_found_from_python() -> None:
    asked = {"releases": 10, "batch_size": 100, "shard_size": 100}
    z = mapa.calibrate(1.0, **asked)
    assert mapa.calibrate(2.0, **asked) < z
    with pytest.raises(mapa.ConfigurationError, match="sampler = 'odd': allowed are 'poisson'"):
        mapa.calibrate(1.0, sampler="odd", **asked)


def test_former_names_still_work_and_say_where_they_are() -> None:
    with pytest.warns(DeprecationWarning, match=r"mapa\.TwoWayModel is now mapa\.models\.TwoWayModel"):
        assert mapa.TwoWayModel is mapa.models.TwoWayModel
    with pytest.warns(DeprecationWarning, match=r"mapa\.Images is now mapa\.models\.Inputs"):
        assert mapa.Images is mapa.models.Inputs
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        mapa.Nothing  # noqa: B018


def test_changes_reach_into_tables_and_are_checked(tmp_path: Path) -> None:
    run = simulated(tmp_path, iterations=10, evaluation={"every": 5}, delays={"kind": "exponential"})
    assert run.metrics["t"].tolist() == [0, 5, 10]
    assert run.scenario["algorithm"]["smoothness"] == 30.0
    assert not np.isnan(run.metrics["seconds"]).any()
    for wrong, words in (
        ({"iteration": 10}, "iteration"),
        ({"algorithm": {"pace": 1}}, r"algorithm\.pace"),
        ({"algorithm": {"smoothness": None}}, r"algorithm\.smoothness: needed"),
        ({"engine": "quick"}, "engine = 'quick'"),
        ({"model": 7}, r"model\.name = 7: must be a name or a class"),
        ({"data": [1]}, r"data\.set = \[1\]: must be a name, a class or a Dataset"),
    ):
        with pytest.raises(mapa.ConfigurationError, match=words):
            simulated(tmp_path, **wrong)
    with pytest.raises(mapa.ConfigurationError, match="must be the name of a scenario"):
        mapa.simulate(7)  # type: ignore[arg-type]


def test_classes_of_this_process_stand_for_names(tmp_path: Path) -> None:
    class Mine(SquaredHinge):
        name = "mine"

    rings = TwoRings().load(tmp_path)
    named = simulated(tmp_path)
    given = simulated(tmp_path, model=Mine, data=rings)
    np.testing.assert_array_equal(given.x, named.x)
    assert given.scenario["model"]["name"] == "__main__:Mine"  # nobody can import it: a replay says so
    assert given.scenario["data"]["set"] == "__main__:two_rings"
    assert given.manifest["data"] == {"__main__:two_rings": rings.checksum}
    with pytest.raises(mapa.ConfigurationError, match="__main__"):
        parse_scenario(given.scenario | {"algorithm": {"name": "__main__:Mine"}})


def test_a_data_set_that_is_given_is_checked(tmp_path: Path) -> None:
    rings = TwoRings().load(tmp_path)
    wrong = replace(rings, train=replace(rings.train, labels=rings.train.labels + 5))
    with pytest.raises(mapa.ConfigurationError, match="labels"):
        simulated(tmp_path, data=wrong)
    assert not (tmp_path / "runs").exists()


def test_an_algorithm_is_given_as_a_class_or_with_its_options(tmp_path: Path) -> None:
    by_class = simulated(tmp_path, {**SMALL, "algorithm": {"name": Fixed, "step": 0.05}})
    by_value = simulated(tmp_path, algorithm=Fixed(step=0.05))
    np.testing.assert_array_equal(by_class.x, by_value.x)
    assert by_value.scenario["algorithm"]["step"] == 0.05
    assert not np.array_equal(simulated(tmp_path, algorithm=Fixed(step=0.1)).x, by_value.x)
    with pytest.raises(mapa.ConfigurationError, match="give them once"):
        simulated(tmp_path, algorithm={"name": Fixed(step=0.1), "step": 0.2})
    with pytest.raises(mapa.ConfigurationError, match="has begun already"):
        simulated(tmp_path, algorithm=replace(Fixed(step=0.1), begun=True))


def test_a_class_that_is_defined_again_replaces_the_former(tmp_path: Path) -> None:
    """As in a notebook, where a cell is edited and run once more."""

    def defined(factor: float) -> type:
        class Scaled(Fixed):
            def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
                return descend(x, update.gradient, factor * self.step), self

        return dataclass(frozen=True)(Scaled)

    first, second = (simulated(tmp_path, algorithm=defined(f)(step=0.05)) for f in (1.0, 2.0))
    assert first.summary["algorithm"] == second.summary["algorithm"] == "__main__:Scaled"
    assert not np.array_equal(first.x, second.x)


def test_edges_cannot_import_what_lives_in_a_notebook(tmp_path: Path) -> None:
    class Mine(SquaredHinge):
        pass

    for changes, words in (
        ({"model": Mine}, r"model\.name = <class .*put the class into a file.*'my_model:Mine'"),
        ({"data": TwoRings().load(tmp_path)}, r"data\.set = .*a Dataset exists in this process alone"),
    ):
        with pytest.raises(mapa.ConfigurationError, match=words):
            mapa.run(SMALL, runs_dir=tmp_path / "runs", **changes)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


def test_it_works_inside_a_running_loop_and_in_another_thread(tmp_path: Path) -> None:
    async def cell() -> tuple[mapa.Run, mapa.Run]:
        here = simulated(tmp_path)
        return here, await asyncio.to_thread(simulated, tmp_path, model=SquaredHinge)

    here, apart = asyncio.run(cell())
    np.testing.assert_array_equal(here.x, apart.x)


def test_an_interrupt_leaves_whole_records(tmp_path: Path) -> None:
    pressed: list[int] = []

    def press_stop(done: int, total: int) -> None:  # noqa: ARG001
        if done and not pressed:  # a second time would not wait for anything
            pressed.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"interrupted after \d+ updates; mapa\.load_run") as stopped:
        mapa.simulate(SMALL, iterations=400_000, runs_dir=tmp_path, progress=press_stop)
    assert signal.getsignal(signal.SIGINT) is before
    (path,) = tmp_path.iterdir()
    assert str(path) in str(stopped.value)
    run = mapa.load_run(path)
    assert (run.reason, len(run.staleness), run.x.size) == ("interrupted", pressed[0], 65)


def test_pandas_is_asked_for_only_by_to_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulated(tmp_path)
    frame = run.to_pandas()
    assert list(frame.columns) == ["t", "seconds", "accuracy", "loss"]
    assert frame["t"].tolist() == [0, 20, 40, 60]
    for table in ("updates", "stages", "edges"):
        assert len(run.to_pandas(table)) == len(getattr(run, table)[next(iter(getattr(run, table)))])
    with pytest.raises(mapa.ConfigurationError, match="table = 'models': allowed are updates"):
        run.to_pandas("models")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(mapa.ConfigurationError, match=r"pip install 'mapa-testbed\[pandas\]'"):
        run.to_pandas()


class Shown:
    """What IPython's display returns, and what it was shown."""

    def __init__(self) -> None:
        self.pictures: list[str] = []

    def __call__(self, picture: Any, *, display_id: bool) -> Shown:
        assert display_id
        self.update(picture)
        return self

    def update(self, picture: Any) -> None:
        self.pictures.append(f"{picture!r} | {picture._repr_html_()}")


def test_a_notebooks_bar_is_one_output_without_times() -> None:
    shown = Shown()
    with NotebookBar("asgd <mine>", 60, shown) as bar:
        for done in range(0, 61, 20):
            bar.show(done, "accuracy 91.00%")
    assert shown.pictures[0].startswith('asgd <mine>: 0 of 60 updates | <progress value="0" max="60"')
    assert "asgd <mine>: 60 of 60 updates  accuracy 91.00%" in shown.pictures[-1]
    assert "asgd &lt;mine&gt;: 60" in shown.pictures[-1]
    assert len(shown.pictures) <= 5


def test_progress_can_be_a_function_or_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int]] = []
    mapa.simulate(SMALL, iterations=400, runs_dir=tmp_path, progress=lambda *two: seen.append(two))
    assert seen[0] == (0, 400)
    assert seen[-1] == (400, 400)
    assert seen == sorted(seen)
    with bar_for("nothing", 5, False) as bar:
        bar.show(5)
    assert capsys.readouterr() == ("", "")


Project = Callable[[str, str], Path]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Make folders with a scenario and a module of a name that no other test uses."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = "face_own_model"
    monkeypatch.delitem(sys.modules, module, raising=False)

    def make(folder: str, loss: str) -> Path:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / f"{module}.py").write_text(
            "from experiments.examples.own import SquaredHinge\n"
            f"class Mine(SquaredHinge):\n    name = {loss!r}\n"
        )
        (place / "scenario.toml").write_text(
            f'iterations = 5\ndata.set = "experiments.examples.own:TwoRings"\nmodel.name = "{module}:Mine"\n'
            'algorithm = { name = "asgd", smoothness = 30.0, sigma = 4.0, radius = 3.0, loss_gap = 1.0 }\n'
        )
        return place / "scenario.toml"

    yield make  # type: ignore[misc]
    sys.modules.pop(module, None)


def test_code_beside_a_scenario_is_found_from_any_folder(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = project("one", "first")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = mapa.simulate(scenario, runs_dir=tmp_path / "runs", progress=False)
    assert run.summary["model"] == "face_own_model:Mine"
    assert sys.path[-1] == str(scenario.parent)  # after all that is installed


def test_a_folder_without_the_named_file_never_comes_onto_the_path(tmp_path: Path) -> None:
    before = list(sys.path)
    (tmp_path / "torch.py").write_text("raise SystemExit('planted')\n")
    (tmp_path / "plain.toml").write_text('iterations = 5\nmodel.name = "lr"\n')
    load_scenario(str(tmp_path / "plain.toml"))
    assert sys.path == before


def test_another_file_of_the_same_name_is_never_taken_for_it(project: Project, tmp_path: Path) -> None:
    first, second = project("one", "first"), project("two", "second")
    simulated(tmp_path, first)
    with pytest.raises(
        mapa.ConfigurationError, match=r"two/face_own_model\.py is beside .*one/face_own_model"
    ):
        simulated(tmp_path, second)


def test_a_file_that_changed_since_its_import_is_refused(project: Project, tmp_path: Path) -> None:
    scenario = project("one", "first")
    simulated(tmp_path, scenario)
    simulated(tmp_path, scenario)
    module = scenario.with_name("face_own_model.py")
    written = module.stat().st_mtime_ns
    project("one", "other")
    os.utime(module, ns=(written + 10**9, written + 10**9))
    with pytest.raises(mapa.ConfigurationError, match="has changed since it was imported"):
        simulated(tmp_path, scenario)


def test_edges_own_files_are_simulated_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    files = []
    for name, count in (("one", 40), ("two", 60), ("test", 30)):
        inputs = rng.normal(0, 1, (count, 4)).astype(np.float32)
        files.append(tmp_path / f"{name}.npz")
        np.savez(files[-1], inputs=inputs, labels=(inputs[:, 0] > 0).astype(np.int64))
    values: dict[str, Any] = {
        "edges": 2,
        "iterations": 20,
        "batch_size": 4,
        "seed": 1,
        "data": {"set": "local", "schema": {"kind": "array", "shape": [4], "classes": 2}},
        "algorithm": {**SMALL["algorithm"], "smoothness": 1.0},
        "evaluation": {"every": 10},
    }
    run = simulated(tmp_path, values, edge_data=files[:2], test_data=files[2])
    assert run.manifest["shard_sizes"] == [40, 60]
    assert run.metrics["t"].tolist() == [0, 10, 20]
    untested = simulated(tmp_path, values, edge_data=files[:2])
    assert len(untested.metrics["t"]) == 0
    assert "accuracy" not in repr(untested)
    with pytest.raises(mapa.ConfigurationError, match="--data: 1 files"):
        simulated(tmp_path, values, edge_data=files[:1])
