"""mapa run and mapa cloud as a user types them."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.datasets.catalogue import data_directory, load_dataset
from common.models.registry import make_model
from experiments.reconstruction import nearest_image, observe_directory
from mapa.brokers import Broker
from mapa.process_run import edge_counts
from tests.broker.testbed_support import open_testbed, scenario
from tests.program_support import PATIENCE, eventually, journal_has, start_mapa, summary_of
from tests.program_support import run_mapa as mapa

pytestmark = pytest.mark.broker
Start = Callable[..., subprocess.Popen[Any]]


@pytest.mark.usefixtures("mosquitto")
def test_simulate_and_run_of_one_scenario_reach_the_same_accuracy_within_seed_noise(tmp_path: Path) -> None:
    common = ["quickstart", "--set", "iterations=800", "--runs-dir", str(tmp_path), "--json"]
    simulated = [
        summary_of(mapa("simulate", *common, "--seed", str(seed)))["final_accuracy"] for seed in range(4)
    ]
    ran = summary_of(mapa("run", *common, "--broker", "mosquitto"))
    noise = max(statistics.stdev(simulated), 0.005)
    assert abs(ran["final_accuracy"] - statistics.mean(simulated)) < 5 * noise
    assert ran["reason"] == "finished"
    assert ran["updates"] == 800
    assert ran["staleness"]["max"] >= 1
    records = Path(ran["path"])
    names = {"manifest.json", "events.jsonl", "summary.json", "model.safetensors"}
    assert {path.name for path in records.iterdir()} >= names


@pytest.mark.usefixtures("mosquitto")
def test_a_model_a_data_set_and_an_algorithm_of_ones_own_run_over_mqtt(tmp_path: Path) -> None:
    own = Path(__file__).parents[2] / "experiments" / "examples" / "own.toml"
    ran = summary_of(mapa("run", str(own), "--broker", "mosquitto", "--runs-dir", str(tmp_path), "--json"))
    assert (ran["reason"], ran["updates"]) == ("finished", 400)
    assert ran["algorithm"] == "experiments.examples.own:Damped"
    assert ran["final_accuracy"] > 0.95
    assert 0 < ran["privacy"]["epsilon"] <= 4


@pytest.mark.usefixtures("mosquitto")
def test_the_edges_of_a_local_run_take_no_option_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAPA_NOISE", "nonsense")  # an edge that read it would end with 2
    monkeypatch.setenv("MAPA_SEED", "nonsense")
    short = ("--edges", "2", "--iterations", "20", "--runs-dir", str(tmp_path), "--json")
    assert summary_of(mapa("run", "quickstart", *short))["updates"] == 20
    alone = mapa("edge", "--broker", "127.0.0.1:1", "--run", "r", "--state-dir", str(tmp_path / "state"))
    assert alone.returncode == 2
    assert "'nonsense'" in alone.stderr


def test_the_embedded_broker_serves_where_no_mosquitto_is(tmp_path: Path) -> None:
    options = ("--set", "iterations=60", "--edges", "2", "--broker", "embedded")
    options = (*options, "--runs-dir", str(tmp_path), "--json")
    assert summary_of(mapa("run", "quickstart", *options))["updates"] == 60


def test_a_wrong_scenario_ends_with_2_before_anything_starts(tmp_path: Path) -> None:
    done = mapa("run", "quickstart", "--set", "algorithm.theta=2", "--runs-dir", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "algorithm.theta = 2" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_whose_edges_all_fail_says_why(tmp_path: Path) -> None:
    changes = ("privacy.epsilon_floor=10", "privacy.noise=gamma-norm", "privacy.epsilon=1")
    values = [word for change in changes for word in ("--set", change)]
    options = ("--edges", "1", "--broker", "embedded", "--runs-dir", str(tmp_path))
    done = mapa("run", "quickstart", *values, *options)
    assert done.returncode == 1
    assert "epsilon-floor" in done.stderr


def lab(
    start: Start, broker: Broker, directory: Path, *words: str, **more: Any
) -> list[subprocess.Popen[str]]:
    """Start a cloud and an edge, and wait for an update."""
    reached = ("--broker", str(broker.address), "--run", "lab")
    endless = ("--runs-dir", str(directory), "--set", "iterations=1000000")
    edge = ("--state-dir", str(directory / "state"), "--data-dir", str(data_directory(os.environ)))
    children = [start("cloud", "quickstart", *reached, *endless, *words, text=True, **more)]
    children.append(start("edge", *reached, *edge))
    eventually(lambda: journal_has(directory, '"gradient_applied"', "lab-*/events.jsonl"), "an update")
    return children


def test_an_interrupted_cloud_ends_with_130_and_its_records_are_whole(
    mosquitto: Broker, tmp_path: Path, start: Start
) -> None:
    cloud, edge = lab(start, mosquitto, tmp_path, "--json", stdout=subprocess.PIPE)
    cloud.send_signal(signal.SIGINT)
    printed, _ = cloud.communicate(timeout=PATIENCE)
    assert cloud.returncode == 130
    assert edge.wait(PATIENCE) == 0
    ended = json.loads(printed)
    lines = (Path(ended["path"]) / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert ended["reason"] == "interrupted"
    assert sum(event["event"] == "gradient_applied" for event in events) == ended["updates"] > 0
    after = events[[event["event"] for event in events].index("halted") + 1 :]
    assert {event["event"] for event in after} <= {"gradient_refused"}


def test_a_halt_said_while_the_broker_is_away_reaches_the_edges_when_it_is_back(
    mosquitto: Broker, tmp_path: Path, start: Start
) -> None:
    cloud, edge = lab(start, mosquitto, tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    mosquitto.stop(signal.SIGKILL)
    cloud.send_signal(signal.SIGINT)
    assert cloud.stderr is not None
    assert any("waiting up to" in line for line in cloud.stderr)
    mosquitto.start()
    assert cloud.wait(PATIENCE) == 130
    assert edge.wait(PATIENCE) == 0


def test_edges_are_spread_evenly_over_processes() -> None:
    assert edge_counts(20, 8) == [3, 3, 3, 3, 2, 2, 2, 2]
    assert edge_counts(3, 8) == [1, 1, 1]
    assert sum(edge_counts(20)) == 20
    assert len(edge_counts(20)) <= 8


def test_an_observer_on_the_broker_sees_enough_to_attack_what_is_not_private(
    mosquitto: Broker, tmp_path: Path
) -> None:
    values = scenario(
        batch_size=1, iterations=1_000_000, algorithm={"name": "asgd"}, data={"sampler": "shuffled"}
    )
    payloads = tmp_path / "payloads"
    with open_testbed(mosquitto.address, tmp_path / "bed", values, edges_at_least=2) as bed:
        words = ["observe", "--broker", str(mosquitto.address), "--run", bed.run]
        observer = start_mapa(*words, "--out", str(payloads), "--limit", "5")
        bed.edge("--count", "2")
        assert observer.wait(PATIENCE) == 0
    dataset = load_dataset("mnist-5k", data_directory(os.environ))
    model = make_model("lr", shape=dataset.shape, classes=dataset.classes, options={})
    sightings = observe_directory(model, payloads, regularization=1e-4)
    assert len(sightings) == 5
    assert max(abs(nearest_image(dataset, s.picture)[1]) for s in sightings if s.picture is not None) > 0.99
