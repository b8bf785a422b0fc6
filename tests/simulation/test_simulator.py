"""The event-driven simulator: staleness, delays, records, replay, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from common.errors import ConfigurationError
from common.records.gradient_log import Kind, LogReader
from common.records.tally import Tally
from common.scenario.scenario import Scenario
from common.wire import v1
from common.wire.codings.coding import coded_bytes
from common.wire.codings.registry import CODINGS
from mapa.recording import record_simulation
from mapa.simulation.simulator import check_world, simulate
from mapa.simulation.synchronous import check_synchronous_scenario
from mapa.simulation.vectorised import check_vectorised_scenario
from tests.algorithm_support import begun
from tests.core_support import recorded, small_world
from tests.program_support import PATIENCE, eventually, start_mapa

TIMED = ["constant", "uniform", "exponential", "lognormal"]


def applied(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "gradient_applied"]


@pytest.mark.parametrize("edges", [1, 2, 5])
def test_a_cyclic_delay_over_k_edges_gives_a_staleness_of_k_minus_one(edges: int) -> None:
    _, events = recorded(simulate, small_world(edges=edges))
    facts = applied(events)
    assert [fact["edge"] for fact in facts] == [i % edges for i in range(60)]
    assert [fact["staleness"] for fact in facts] == [min(i, edges - 1) for i in range(60)]
    assert [fact["sequence"] for fact in facts] == [i // edges + 1 for i in range(60)]


@pytest.mark.parametrize("algorithm", ["mapa", "audp", "asgd", "csgd"])
def test_a_run_makes_exactly_t_updates_and_learns(algorithm: str) -> None:
    outcome, events = recorded(
        simulate,
        small_world(
            iterations=400,
            algorithm={"name": algorithm},
            privacy={"noise": "gaussian", "noise_multiplier": 0.05},
        ),
    )
    assert outcome.reason == "finished"
    assert outcome.tally.updates == len(applied(events)) == 400
    assert events[-1] == {"event": "halted", "t": 400, "reason": "finished"}
    evaluations = outcome.tally.evaluations
    assert [evaluation.updates for evaluation in evaluations] == list(range(0, 401, 20))
    assert evaluations[-1]["loss"] < evaluations[0]["loss"]
    workers = 1 if algorithm == "csgd" else 4
    assert len(outcome.releases) == workers
    assert sum(outcome.releases) == 400 + workers - 1  # all but the last edge had one in flight


@pytest.mark.parametrize("algorithm", ["asgd", "csgd"])
def test_asgd_and_csgd_do_the_same_whatever_privacy_says(algorithm: str) -> None:
    runs = [
        simulate(small_world(algorithm={"name": algorithm}, privacy=privacy))
        for privacy in (
            {"noise": "exponential-norm", "epsilon": 1.0},
            {"noise": "gaussian", "noise_multiplier": 9.0, "clipping": "batch-mean"},
        )
    ]
    np.testing.assert_array_equal(runs[0].x, runs[1].x)


@pytest.mark.parametrize("kind", TIMED)
def test_every_timed_kind_runs_in_virtual_time(kind: str) -> None:
    outcome, events = recorded(simulate, small_world(delays={"kind": kind}, iterations=200))
    facts = applied(events)
    times = [fact["time"] for fact in facts]
    assert times == sorted(times)
    assert outcome.virtual_seconds == pytest.approx(times[-1], abs=1e-6)
    # 200 updates of 4 edges that take 0.05 s each on average
    assert outcome.virtual_seconds == pytest.approx(200 / 4 * 0.05, rel=0.2)
    assert all(fact["staleness"] == fact["t"] - fact["version"] >= 0 for fact in facts)
    summary = outcome.tally.summary()
    assert summary["staleness"]["mean"] == pytest.approx(3, rel=0.1)
    if kind in ("exponential", "lognormal"):
        assert summary["staleness"]["max"] > 3


def test_faster_edges_contribute_more_and_are_less_stale() -> None:
    delays = {"kind": "constant", "compute": 1.0, "network": 0.0, "speeds": [1.0, 2.0, 4.0, 1.0]}
    outcome, _ = recorded(simulate, small_world(delays=delays, iterations=160))
    edges = outcome.tally.summary()["edges"]
    assert [edge["applied"] for edge in edges] == pytest.approx([20, 40, 80, 20], abs=1)
    assert edges[2]["staleness_mean"] < edges[1]["staleness_mean"] < edges[0]["staleness_mean"]


def test_recorded_delays_decide_the_order(tmp_path: Path) -> None:
    file = tmp_path / "delays.csv"
    file.write_text("edge,compute,up,down\n0,1,0,0\n1,0.3,0,0\n")
    delays = {"kind": "recorded", "file": str(file)}
    _, events = recorded(simulate, small_world(edges=2, delays=delays, iterations=8))
    assert [fact["edge"] for fact in applied(events)] == [1, 1, 1, 0, 1, 1, 1, 0]
    assert [fact["time"] for fact in applied(events)] == pytest.approx(
        [0.3, 0.6, 0.9, 1.0, 1.2, 1.5, 1.8, 2.0]
    )


@pytest.mark.slow
def test_ten_thousand_edges_take_part() -> None:
    outcome = simulate(small_world(edges=10_000, iterations=10_100, data={"partition": "shared"}))
    summary = outcome.tally.summary()
    assert len(summary["edges"]) == 10_000
    assert {edge["applied"] for edge in summary["edges"]} == {1, 2}
    assert summary["staleness"]["max"] == 9_999


def test_the_smallest_epsilon_decides_the_stage_and_every_edge_noises_with_its_own() -> None:
    world = small_world(privacy={"noise": "exponential-norm", "epsilon": [0.5, 2.0]})
    assert [worker.mechanism.law.epsilon for worker in world.workers()] == [0.5, 2.0, 0.5, 2.0]  # type: ignore[union-attr]
    _, events = recorded(simulate, world)
    opened = next(event for event in events if event["event"] == "stage_opened")
    assert opened["variance"] == pytest.approx(9 / 5 + opened["sensitivity"] ** 2 * 2 / 0.5**2)


# -- replay -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["with-replacement", "shuffled", "poisson"])
def test_any_arrival_order_can_be_replayed_from_its_records_bit_for_bit(sampler: str) -> None:
    """Batch and noise depend on (seed, k, n) alone: no message but the log is needed."""
    changes: dict[str, Any] = {
        "iterations": 120,
        "data": {"sampler": sampler},
        "delays": {"kind": "lognormal", "spread": 1.5},
        "algorithm": {"loss_gap": 1e-3},
    }
    outcome, events = recorded(simulate, small_world(**changes))
    world = small_world(**changes)
    workers, problem = world.workers(), world.scenario.problem
    schedule = begun("mapa", problem, 2.0)
    x = np.zeros(world.model.dimension, np.float32)
    versions = {1: x.copy()}
    for fact in applied(events):
        t = fact["t"]
        g = workers[fact["edge"]].gradient(versions[fact["version"]], fact["sensitivity"], fact["sequence"])
        x -= np.float32(schedule.learning_rate(t)) * g
        versions[t + 1] = x.copy()
        schedule = schedule.after(t, 0)
    assert schedule.stage > 3
    np.testing.assert_array_equal(x, outcome.x)


@pytest.mark.parametrize("delays", ["cyclic", "lognormal"])
@pytest.mark.parametrize("model", ["lr", "svm"])
def test_two_runs_of_one_seeded_scenario_are_byte_identical(tmp_path: Path, delays: str, model: str) -> None:
    changes: dict[str, Any] = {
        "delays": {"kind": delays},
        "model": {"name": model},
        "data": {"sampler": "poisson"},
    }
    for name in ("one", "two"):
        record_simulation(small_world(**changes), name="same", runs=tmp_path / name)
    one, two = (next((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert (one / "events.jsonl").stat().st_size > 60 * 100
    for file in ("events.jsonl", "model.safetensors"):
        assert (one / file).read_bytes() == (two / file).read_bytes()
    summaries = [json.loads((run / "summary.json").read_text()) for run in (one, two)]
    for summary in summaries:
        for timing in ("run", "path", "seconds", "iterations_per_second"):
            summary.pop(timing)
    assert summaries[0] == summaries[1]


def test_another_seed_is_another_run_and_no_seed_never_the_same() -> None:
    def x(seed: int | None) -> bytes:
        world = small_world(seed=seed) if seed is not None else small_world(seed=None)
        return simulate(world).x.tobytes()

    assert x(1) == x(1)
    assert len({x(1), x(2), x(None), x(None)}) == 4


# -- records ----------------------------------------------------------------------------------------------


def test_a_recorded_run_has_its_four_files(tmp_path: Path) -> None:
    world = small_world()
    summary = record_simulation(world, name="four", runs=tmp_path)
    run = Path(summary["path"])
    assert sorted(path.name for path in run.iterdir()) == [
        "events.jsonl",
        "manifest.json",
        "model.safetensors",
        "summary.json",
    ]
    assert json.loads((run / "summary.json").read_text()) == json.loads(json.dumps({**summary, "path": "."}))
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["scenario_sha256"] == summary["scenario_sha256"] == world.scenario.digest
    assert manifest["data"] == {world.scenario.data.set: "0" * 64}
    assert "philox" in manifest["random_stream"]
    keys = {
        "final_accuracy",
        "best_accuracy",
        "final_loss",
        "iterations_per_second",
        "staleness",
        "stages",
        "edges",
    }
    assert keys <= set(summary)
    np.testing.assert_array_equal(load_file(run / "model.safetensors")["x"], simulate(small_world()).x)


def test_records_hold_no_gradient_and_no_norm_before_noise() -> None:
    _, events = recorded(simulate, small_world(delays={"kind": "lognormal"}))
    allowed = {
        "edge_joined": {"edge", "edge_id", "t", "noise", "epsilon", "noise_multiplier", "returned"},
        "stage_opened": {
            "stage", "t", "sensitivity", "variance", "p", "learning_rate", "length", "tau_max", "reopened"
        },
        "gradient_applied": {
            "edge", "edge_id", "sequence", "version", "t", "staleness", "stage", "sensitivity"
        },
        "evaluated": {"t", "stage", "loss", "accuracy"},
        "halted": {"t", "reason"},
    }  # fmt: skip
    assert {event["event"] for event in events} == set(allowed)
    for event in events:
        assert set(event) - {"event", "time"} == allowed[event["event"]]


def test_without_events_only_the_file_is_empty(tmp_path: Path) -> None:
    summary = record_simulation(small_world(records={"events": False}), name="quiet", runs=tmp_path)
    assert (Path(summary["path"]) / "events.jsonl").read_bytes() == b""
    assert summary["updates"] == 60


# -- what cannot begin ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"delays": {"kind": "recorded", "file": "nowhere.csv"}}, r"delays\.file = 'nowhere\.csv'"),
        (
            {"privacy": {"noise": "exponential-norm", "epsilon": [1.0, 0.1], "epsilon_floor": 0.5}},
            "edge-1 is refused .epsilon-floor.: epsilon = 0.1",
        ),
        ({"privacy": {"noise": "gamma-norm", "epsilon": 1e-200}}, r"privacy\.epsilon\.0 = 1e-200.*≥ 1e-09"),
        ({"algorithm": {"first_clip": 1e-200}}, r"algorithm\.first_clip = 1e-200.*≥ 1e-09"),
    ],
)
def test_what_no_simulation_could_begin_with_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_world(small_world(**changes))
    with pytest.raises(ConfigurationError, match=words):
        simulate(small_world(**changes))


def test_a_check_leaves_no_trace_in_the_run() -> None:
    world = small_world()
    check_world(world)
    np.testing.assert_array_equal(simulate(world).x, simulate(small_world()).x)


# -- Ctrl-C -----------------------------------------------------------------------------------------------


def test_an_interrupt_waits_for_the_end_of_an_event() -> None:
    def interrupt(tally: Tally) -> None:
        if tally.updates == 30:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    world = small_world(iterations=10_000)
    outcome, events = recorded(simulate, world, interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert outcome.reason == "interrupted"
    assert outcome.tally.updates == len(applied(events)) == 30
    assert events[-1] == {"event": "halted", "t": 30, "reason": "interrupted"}
    assert outcome.tally.evaluations[-1].updates == 30
    np.testing.assert_array_equal(outcome.x, simulate(small_world(iterations=30)).x)


def test_the_second_interrupt_does_not_wait() -> None:
    def interrupt(tally: Tally) -> None:
        if tally.updates == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        simulate(small_world(), progress=interrupt)
    assert signal.getsignal(signal.SIGINT) is before


SCENARIO = """
edges = 3
iterations = 400000
batch_size = 4
seed = 1
[data]
set = "experiments.examples.own:TwoRings"
sampler = "with-replacement"
[model]
name = "experiments.examples.own:SquaredHinge"
[algorithm]
name = "audp"
smoothness = 8.0
sigma = 4.2
loss_gap = 0.75
radius = 3.4
first_clip = 4.7
[privacy]
noise = "exponential-norm"
epsilon = 1.0
[evaluation]
every = 0
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "number"),
    [("events", signal.SIGINT), ("vectorised", signal.SIGINT), ("events", signal.SIGTERM)],
)
def test_a_signal_ends_a_run_with_its_records_intact_and_exit_code_130(
    tmp_path: Path, engine: str, number: signal.Signals
) -> None:
    file = tmp_path / "endless.toml"
    file.write_text(SCENARIO)
    words = ("simulate", str(file), "--json", "--engine", engine, "--runs-dir", str(tmp_path / "runs"))
    running = start_mapa(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        await_growth(tmp_path / "runs", running)
        running.send_signal(number)
        out, err = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130, err
    summary = json.loads(out)
    (run,) = (tmp_path / "runs").iterdir()
    lines = (run / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    facts = applied(events)
    done = len(facts)
    assert [fact["t"] for fact in facts] == list(range(1, done + 1))
    assert events[-1] == {"event": "halted", "t": done, "reason": "interrupted"}
    assert {**summary, "path": "."} == json.loads((run / "summary.json").read_text())
    assert (summary["reason"], summary["updates"]) == ("interrupted", done)
    assert summary["final_accuracy"] is not None
    with safe_open(run / "model.safetensors", "np") as model:
        assert model.metadata()["updates"] == str(done)


def await_growth(runs: Path, running: subprocess.Popen[str]) -> None:
    """Return once the events file has begun to grow: the run is in full swing."""

    def grows() -> bool:
        assert running.poll() is None, running.communicate()
        return any(path.stat().st_size for path in runs.glob("*/events.jsonl"))

    eventually(grows, "an event on disk")


# -- coded messages -----------------------------------------------------------------------------------------

INT8 = {"compression": {"gradients": "int8", "models": "int8"}}


def test_a_simulated_run_codes_as_a_testbed_does_and_its_log_has_the_coded_bytes(tmp_path: Path) -> None:
    plain, coded = (simulate(small_world(seed=3, **changes)) for changes in ({}, INT8))
    again = simulate(small_world(seed=3, **INT8), logged=tmp_path)
    assert coded.x.tobytes() == again.x.tobytes() != plain.x.tobytes()
    np.testing.assert_allclose(coded.x, plain.x, atol=0.2 * float(np.abs(plain.x).max()))
    entries = [entry for entry in LogReader(tmp_path) if entry.kind is Kind.GRADIENT]
    assert len(entries) == coded.tally.updates
    coding, n = CODINGS["int8"], coded.x.size
    assert {len(entry.body) for entry in entries} == {v1.HEADER_BYTES + coded_bytes(coding, n)}
    assert {entry.arrived.gradient.size for entry in entries} == {n}


@pytest.mark.parametrize("check", [check_vectorised_scenario, check_synchronous_scenario])
def test_an_engine_that_codes_nothing_says_so(check: Callable[[Scenario], None]) -> None:
    delays = {"kind": "cyclic" if check is check_vectorised_scenario else "uniform"}
    check(small_world(delays=delays).scenario)
    with pytest.raises(ConfigurationError, match="compression says int8"):
        check(small_world(delays=delays, **INT8).scenario)
