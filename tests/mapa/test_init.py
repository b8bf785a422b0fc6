"""mapa init writes a project that runs at once, from any folder."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

import mapa as face
from common.scenario.scenario import parse_scenario
from experiments.bench.large_model import large_scenario
from mapa.commands.containers import for_a_container, memory_for, message_limit, own_code
from mapa.commands.init import TEMPLATES, write_project
from mapa.process_run import edge_code
from mapa.run_parts import edge_data_bytes
from mapa.scenario_files import load_scenario
from tests.program_support import Mapa, environment, require_mosquitto, run_as_user, summary_of

FILES = ["README.md", "my_model.py", "scenario.toml"]
CASES = [("numpy", 400, 0.9)]
if importlib.util.find_spec("common.models.torch_model") is not None:
    CASES.append(("torch", 20, 0.0))


def test_a_project_is_three_short_files_and_says_what_is_next(mapa: Mapa, tmp_path: Path) -> None:
    done = mapa("init", str(tmp_path / "mine"))
    assert (done.code, f"mapa simulate {tmp_path / 'mine' / 'scenario.toml'}" in done.out) == (0, True)
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == FILES
    for template in ("numpy", "torch"):
        written = write_project(tmp_path / template, template)
        assert sorted(path.name for path in written) == FILES
        for path in written:
            assert len(path.read_text(encoding="utf-8").splitlines()) < 45, path
        readme = (tmp_path / template / "README.md").read_text(encoding="utf-8")
        for command in ("simulate", "run", "containers"):
            assert f"mapa {command} scenario.toml" in readme


def test_a_folder_that_holds_something_is_left_alone(mapa: Mapa, tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text("mine")
    done = mapa("init", str(tmp_path))
    assert (done.code, "not empty (my_model.py)" in done.err, "--force" in done.err) == (2, True, True)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    assert mapa("init", str(tmp_path), "--force").code == 0
    assert (tmp_path / "my_model.py").read_text() == (TEMPLATES / "numpy" / "my_model.py.txt").read_text()
    assert "is a file" in mapa.refusal("init", str(tmp_path / "my_model.py"))


@pytest.mark.slow
@pytest.mark.parametrize(("template", "updates", "accuracy"), CASES)
def test_the_project_simulates_from_any_folder(
    tmp_path: Path, template: str, updates: int, accuracy: float
) -> None:
    write_project(tmp_path / "mine", template)
    (tmp_path / "elsewhere").mkdir()
    words = ("simulate", "../mine/scenario.toml", "--seed", "1", "--iterations", str(updates), "--json")
    summary = summary_of(run_as_user(tmp_path / "elsewhere", *words, "--runs-dir", str(tmp_path / "runs")))
    assert (summary["reason"], summary["updates"]) == ("finished", updates)
    assert summary["model"] == "my_model:MyModel"
    assert summary["final_accuracy"] >= accuracy
    assert summary["privacy"]["epsilon"] <= 8.0


@pytest.mark.broker
@pytest.mark.slow
def test_the_project_runs_in_processes_whose_edges_find_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_mosquitto()
    write_project(tmp_path / "mine", "numpy")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("MAPA_DATA_DIR", environment()["MAPA_DATA_DIR"])

    async def cell() -> face.Run:  # no main thread, so no signals; as `mapa run` otherwise
        return await asyncio.to_thread(
            face.run, "../mine/scenario.toml", iterations=40, processes=1, progress=False, runs_dir="runs"
        )

    try:
        trained = asyncio.run(cell())
    finally:
        sys.modules.pop("my_model", None)
    assert (trained.reason, len(trained.staleness)) == ("finished", 40)
    assert set(trained.updates["edge"].tolist()) == {0, 1, 2, 3}
    assert trained.edges["epsilon"].max() <= 4.0


def test_containers_get_the_projects_code_and_a_broker_of_its_models_size(tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "experiments" / "examples" / "own.toml"  # one process has one my_model
    _, scenario = load_scenario(str(file))
    _, folder = for_a_container(str(file))
    assert own_code(scenario, folder) == {
        "ALLOW": "experiments.examples.own:SquaredHinge experiments.examples.own:TwoRings",
        "ALLOW_UNPROTECTED": "true",
        "CODE": "/scenarios",
    }
    assert edge_code(scenario) == ["--code", str(Path(__file__).parents[2])]
    assert message_limit(scenario, tmp_path) == 1 << 20
    _, plain = load_scenario("quickstart")
    assert own_code(plain, folder) == {}
    limit = message_limit(parse_scenario(large_scenario()), tmp_path)
    assert 4_000_040 < limit < 4_100_000
    assert memory_for(1 << 20, 5) == {"edge": "512m", "cloud": "2048m", "broker": "256m"}
    assert memory_for(1 << 20, 5, 300 << 20)["edge"] == "812m"
    assert int(memory_for(limit, 20)["broker"].removesuffix("m")) >= 256 + 20 * 4


@pytest.mark.parametrize(("partition", "shard"), [("iid", 12_500), ("dirichlet", 50_000)])
def test_an_edge_has_memory_for_the_data_set_and_its_shard(partition: str, shard: int) -> None:
    scenario = parse_scenario(
        {
            "edges": 4,
            "iterations": 10,
            "data": {"set": "cifar-10", "partition": partition},
            "model": {"name": "softmax"},
            "algorithm": {"name": "constant", "rate": 0.1, "first_clip": 1.0},
        }
    )
    assert edge_data_bytes(scenario) == 3 * 32 * 32 * (60_000 + 5 * shard)
