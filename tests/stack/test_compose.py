"""docker compose up: runs to T, at several scales, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.stack.compose_support import MARKS, PATIENCE, ROOT, assert_applied_exactly_once, compose

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]
SLOW = "links=[{delay_ms = 20.0}]; testbed.resend_after=0.5"  # 25 updates a second and edge at most


def test_three_edges_train_to_the_end_and_nothing_is_left(engine: Any, tmp_path: Path) -> None:
    with compose(engine, tmp_path / "runs", EDGES="3", ITERATIONS="400") as project:
        project.up(3)
        project.finish()
        per_edge = assert_applied_exactly_once(project.records, 400)
        assert set(per_edge) == {0, 1, 2}
        said = project("logs", "--no-log-prefix", "cloud")
        assert "finished" in said
        assert "accuracy" in said
        path = project.records.path
        assert path is not None
        for file in (path.parent, path, path / "events.jsonl", path / "summary.json"):
            assert (file.stat().st_uid, file.stat().st_gid) == (os.getuid(), os.getgid())
        project("down", "--volumes")
        assert not project.leftovers()


def test_a_model_a_data_set_and_an_algorithm_of_ones_own_run_in_containers(
    engine: Any, tmp_path: Path
) -> None:
    own = "experiments.examples.own"
    places = {"SCENARIO": "own", "SCENARIOS_DIR": str(ROOT / "experiments" / "examples"), "EDGES": "4"}
    places |= {"EDGE_IMAGE": "mapa-edge-cnn", "EDGE_TARGET": "edge-cnn"}  # a budget needs the accountant
    with compose(engine, tmp_path / "runs", ALLOW=f"{own}:TwoRings {own}:SquaredHinge", **places) as project:
        project.up(4)
        summary = project.finish()
        assert_applied_exactly_once(project.records, 400)
        assert summary["algorithm"] == f"{own}:Damped"
        assert summary["final_accuracy"] > 0.95


def test_a_second_run_goes_on_the_same_broker_with_the_same_ledgers(engine: Any, tmp_path: Path) -> None:
    """Another scenario, so the ledgers hold two accounts; the first run's halt does not end the second."""
    with compose(engine, tmp_path / "runs", EDGES="2", ITERATIONS="100") as project:
        project.up(2)
        project.finish()
        broker = project.stack.container("broker").id
        first = {event["edge_id"] for event in project.records.named("edge_joined")}
        project.tail = type(project.records)(tmp_path / "runs")
        project.environment |= {"ITERATIONS": "150", "SET": "model.name=svm; algorithm.first_clip="}
        project.up(2)
        project.finish()
        assert_applied_exactly_once(project.records, 150)
        assert project.stack.container("broker").id == broker
        assert {event["edge_id"] for event in project.records.named("edge_joined")} == first


def test_twenty_edges_train_to_the_end(engine: Any, tmp_path: Path, record_property: Any) -> None:
    with compose(engine, tmp_path / "runs", ITERATIONS="6000", SET=SLOW) as project:
        began = time.monotonic()
        project.up(20)
        project.until_edges(20)
        seconds = time.monotonic() - began
        record_property("seconds_to_twenty_in_training", round(seconds, 1))
        project.finish()
        per_edge = assert_applied_exactly_once(project.records, 6000)
    assert set(per_edge) == set(range(20))


def test_edges_come_and_go_while_the_training_runs(engine: Any, tmp_path: Path) -> None:
    endless = {"ITERATIONS": "1000000", "EDGES_AT_LEAST": "5"}
    with compose(engine, tmp_path / "runs", SET=SLOW, **endless) as project:
        project.up(5)
        project.until_edges(5)
        project.scale(20)
        project.until_edges(20)
        project.scale(8)
        project.stack.until(
            lambda: len({event["edge"] for event in project.records.named("edge_gone")}) >= 12,
            PATIENCE,
            "twelve edges that left",
        )
        before = project.records.updates
        project.until_updates(before + 600)
        summary = project.interrupt()
        per_edge = assert_applied_exactly_once(project.records, summary["updates"])
        late = [e for e in project.records.named("gradient_applied") if e["t"] > before + 200]
    assert set(per_edge) == set(range(20))
    assert len({event["edge"] for event in late}) == 8


def test_all_are_healthy_while_they_train_and_a_stop_keeps_the_records(engine: Any, tmp_path: Path) -> None:
    with compose(engine, tmp_path / "runs", EDGES="2", ITERATIONS="1000000", SET=SLOW) as project:
        project.up(2)
        project.until_healthy("broker", "cloud", "edge-1", "edge-2")
        for name in ("edge-1", "edge-2"):
            assert project.stack.container(name).attrs["Config"]["User"] == "10001:10001"
        project.until_updates(20)
        summary = project.interrupt()
        assert_applied_exactly_once(project.records, summary["updates"])


def test_make_up_ends_by_itself_with_the_clouds_code_and_takes_everything_down(
    engine: Any, tmp_path: Path
) -> None:
    before = {volume.name for volume in engine.volumes.list()}
    with compose(engine, tmp_path / "runs", ITERATIONS="100") as project:
        environment = {**os.environ, **project.environment, "COMPOSE_PROJECT_NAME": project.stack.project}

        def make_up() -> subprocess.CompletedProcess[str]:
            command, output = ["make", "up", "EDGES=3"], subprocess.PIPE
            return subprocess.run(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, text=True, timeout=PATIENCE
            )

        done = make_up()
        assert done.returncode == 0, done.stderr[-2000:]
        assert "accuracy" in done.stdout + done.stderr
        assert project.stack.containers() == []
        assert_applied_exactly_once(project.records, 100)
        environment["SET"] = "iterations=-1"  # the cloud refuses: its code must come through
        assert make_up().returncode != 0
        assert project.stack.containers() == []
        ledgers = {f"{project.stack.project}_{part}" for part in ("data", "state", "shared")}
        assert {volume.name for volume in engine.volumes.list()} - before == ledgers


def test_the_example_environment_is_the_default_one(engine: Any, tmp_path: Path) -> None:
    with compose(engine, tmp_path / "runs") as project:
        project.environment = {}
        assert project("--env-file", ".env.example", "config") == project("--env-file", "/dev/null", "config")
