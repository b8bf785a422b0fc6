"""Every kind of run that mapa makes passes `mapa verify`: engines, laws, samplers, clippings, ends, scenarios."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.datasets.catalogue import describe
from common.datasets.dataset import Dataset, Samples
from common.errors import ConfigurationError
from common.mechanism.clipping import CLIPPINGS
from common.mechanism.sampler import SAMPLERS
from common.messages import GradientArrived, Hello, Leave
from common.noise.registry import describe_law, law_names
from common.quantities import EdgeId, NoisyGradient
from common.records.tally import Tally
from common.scenario.scenario import parse_scenario
from common.wire.codec import encode, encode_gradient
from common.wire.topics import EdgeTopic, edge_topic
from mapa.recording import check_engine, record_simulation
from mapa.run_parts import OwnFiles
from mapa.scenario_files import read_scenario, shipped_names
from mapa.simulation.simulator import World
from mapa.verification.check import Check, Status, is_verified
from mapa.verification.verify import verify
from tests.core_support import small_dataset, small_scenario
from tests.local_support import local_values, write_csv
from tests.mapa.test_conversation import Talk
from tests.verification_support import PRIVATE, logged_run

GAUSSIAN = {"noise": "gaussian", "noise_multiplier": 4.0}
LOGGED = {"keep_gradients": True}
TIMED = {"kind": "exponential", "compute": 0.01, "network": 0.01}
DEVICE = {"availability": {"up": 0.2, "down": 0.1}}


def simulated(
    runs: Path, engine: str = "events", progress: Callable[[Tally], None] | None = None, **changes: Any
) -> Path:
    values = {"edges": 3, "iterations": 30, "seed": None, "data": {"sampler": "poisson"}, "privacy": GAUSSIAN}
    world = World.on(small_scenario(**{**values, **changes}), small_dataset())
    done = record_simulation(world, name="one", runs=runs, engine=engine, progress=progress)
    return Path(done["path"])


def of_law(name: str) -> dict[str, Any]:
    return {"noise": name, **dict.fromkeys(describe_law(name).names, 1.0)}


def interrupted(runs: Path, engine: str, **changes: Any) -> Path:
    """Stop a simulation by a signal, as Ctrl-C does."""

    def stop(tally: Tally) -> None:
        if tally.updates >= 200:
            os.kill(os.getpid(), signal.SIGINT)

    return simulated(runs, engine, stop, iterations=2000, evaluation={"every": 0}, **changes)


def local(runs: Path) -> Path:
    files = tuple(write_csv(runs / f"{k}.csv", 40 + k, k) for k in range(2))
    scenario = parse_scenario(local_values(records=LOGGED, data={"sampler": "poisson"}))
    world = World.of(scenario, runs, OwnFiles(files, write_csv(runs / "test.csv", 20, 9)))
    return Path(record_simulation(world, name="own", runs=runs)["path"])


def beyond_the_cap(talk: Talk) -> None:
    """Let anybody who can write to the topic send a gradient beyond R_k."""
    service = talk.service
    talk.until(lambda: any(one.gone == "budget" for one in service.tally.edges.values()))
    service.records.write()
    index = next(k for k, one in service.tally.edges.items() if one.gone == "budget")
    account = next(one for one in service.server.edges.values() if one.index == index)
    zeros = NoisyGradient(np.zeros(service.server.model.size, np.float32))
    life = service.server.incarnation
    forged = GradientArrived(account.edge_id, account.last_sequence + 1, 1, 1.0, zeros, life)
    service.on_gradient(edge_topic(talk.run_id, account.edge_id, EdgeTopic.GRADIENT), encode_gradient(forged))
    assert service.records.facts[-1][1].reason == "cap"  # type: ignore[union-attr]


def one_refuses(talk: Talk) -> None:
    """Let an edge join and leave for good before it has released anything: another one takes its place."""
    wrong = Hello(
        edge_id=EdgeId("wrong"),
        nonce="0123456789abcdef",
        number=1,
        incarnation=talk.service.server.incarnation,
    )
    talk.service.on_hello(edge_topic(talk.run_id, wrong.edge_id, EdgeTopic.HELLO), encode(wrong))
    leave = encode(Leave(wrong.edge_id, "refused", wrong.nonce))
    talk.service.on_leave(edge_topic(talk.run_id, wrong.edge_id, EdgeTopic.LEAVE), leave)
    assert talk.service.server.edges[wrong.edge_id].left == "refused"


def in_the_middle(talk: Talk) -> None:
    talk.until(lambda: talk.service.server.updates >= 20)
    talk.service.halt("interrupted")


PACED: dict[str, Any] = {
    "seed": None,
    "batch_size": 80,
    "data": {"sampler": "poisson"},
    "algorithm": {"name": "constant", "rate": 0.3},
    "privacy": {"total_epsilon": 3.0, "pace": "own", "paces": [1.0, 2.0, 4.0]},
}
OWN_CODE = ("tests.algorithms.fedbuff:FedBuff", "tests.algorithms.averaged:Averaged")
ALGORITHMS: tuple[dict[str, Any], ...] = (
    {"name": "audp"},
    {"name": "asgd"},
    {"name": "constant", "rate": 0.1},
    {"name": OWN_CODE[0], "rate": 0.2, "size": 4},
    {"name": OWN_CODE[1], "rate": 0.05},
    {"name": "fedasync", "rate": 0.2, "mix": "model", "mixing": 0.5},
    {"name": "fedbuff", "rate": 0.2, "buffer": 7, "staleness_scaling": True},
    {"name": "trimmed-mean", "rate": 0.2, "buffer": 3},
    {"name": "delay-adaptive", "rate": 0.2, "concurrency": 1},
    {"name": "momentum", "rate": 0.2, "average": "ema"},
    {"name": "adam", "rate": 0.01, "average": "tail"},
)
SHUFFLED = {**PRIVATE, "data": {"sampler": "shuffled"}}
UNLOGGED: dict[str, Any] = {"keep": False, "records": {"keep_gradients": False}}
LOGGED_RUNS: dict[str, dict[str, Any]] = {
    "seeded": {"seed": 3},
    "not private": {"algorithm": {"name": "asgd"}},
    "shared records": {"data": {"sampler": "poisson", "partition": "shared"}},
    "local steps": {"local": {"steps": 3, "rate": 0.1}},
    "diagnostics": {"records": {**LOGGED, "diagnostics": True}},
    "no events, logged": {"records": {**LOGGED, "events": False}},
    "tail that never began": {
        "delays": TIMED,
        "time_limit": 0.02,
        "algorithm": {"name": "constant", "rate": 0.1, "average": "tail"},
    },
    "devices that are away": {"delays": TIMED, "devices": [DEVICE]},
    "time limit": {"delays": TIMED, "time_limit": 0.1},
    "diverged": {"algorithm": {"name": "constant", "rate": 1e38, "first_clip": 2.0}},
    "budget spent": {"privacy": {**GAUSSIAN, "total_epsilon": 0.5}},
    "paced": {
        **PACED,
        "delays": {**TIMED, "speeds": [1.0, 2.0, 4.0]},
        "privacy": {"total_epsilon": 3.0, "pace": "own"},
    },
}
Maker = Callable[[Path], Path]
RUNS: dict[str, Maker] = {
    **{
        f"simulated, {engine}": partial(simulated, engine=engine, delays=delays)
        for engine, delays in (
            *((engine, {"kind": "cyclic"}) for engine in ("events", "vectorised", "block")),
            ("synchronous", TIMED),
        )
    },
    **{f"law {name}": partial(simulated, privacy=of_law(name), records=LOGGED) for name in law_names()},
    **{
        f"sampler {one}": partial(
            simulated,
            records=LOGGED,
            data={"sampler": one, **({"largest_batch": 9} if one == "truncated-poisson" else {})},
        )
        for one in SAMPLERS.names
    },
    **{
        f"clipping {one}": partial(
            simulated,
            records=LOGGED,
            algorithm={"name": "quantile" if one == "quantile" else "constant", "rate": 0.1},
            privacy={**GAUSSIAN, "noise_multiplier": 40.0, "clipping": one},
        )
        for one in CLIPPINGS.names
    },
    **{f"network, {one['name']}": partial(logged_run, share=0.1, algorithm=one) for one in ALGORITHMS},
    "network, λ": partial(
        logged_run, model={"name": "softmax", "regularization": 0.01}, data={"sampler": "shuffled"}
    ),
    "local data, simulated": local,
    **{name: partial(simulated, **{"records": LOGGED, **changes}) for name, changes in LOGGED_RUNS.items()},
    "no events, unlogged": partial(simulated, records={"events": False}),
    "devices that are away, unlogged": partial(simulated, delays=TIMED, devices=[DEVICE]),
    "time limit, synchronous": partial(simulated, engine="synchronous", delays=TIMED, time_limit=0.1),
    "interrupted, events": partial(interrupted, engine="events", records=LOGGED),
    "interrupted, unlogged": partial(interrupted, engine="events"),
    "interrupted, block": partial(interrupted, engine="block"),
    "network, lossy": partial(logged_run, share=0.2),
    "network, shuffled": partial(logged_run, **SHUFFLED),
    "network, unlogged": partial(logged_run, share=0.2, **UNLOGGED, **PRIVATE),
    "network, shuffled, unlogged": partial(logged_run, **UNLOGGED, **SHUFFLED),
    "network, no events": partial(logged_run, records={"events": False}, **PRIVATE),
    "network, a refused edge": partial(logged_run, before=one_refuses, **PRIVATE),
    "network, a refused edge, unlogged": partial(logged_run, before=one_refuses, **UNLOGGED, **PRIVATE),
    "network, interrupted": partial(logged_run, first=in_the_middle, **PRIVATE),
    "network, paced, a gradient beyond R_k": partial(logged_run, first=beyond_the_cap, **PACED),
    "network, unlogged, a gradient beyond R_k": partial(
        logged_run, first=beyond_the_cap, **UNLOGGED, **PACED
    ),
}


def wrong(checks: list[Check]) -> list[str]:
    return [
        f"{one.name} of {one.part}: {one.status.value}: {one.detail}"
        for one in checks
        if one.status in (Status.FAILED, Status.NOT_CHECKED)
    ]


@pytest.mark.parametrize("kind", RUNS)
def test_an_honest_run_is_verified(kind: str, tmp_path: Path) -> None:
    path = RUNS[kind](tmp_path)
    logged = (path / "log").exists()
    checks = verify(path, OWN_CODE, unlogged=not logged)
    assert is_verified(checks), wrong(checks)
    assert {"ε", "releases", "end", "summary"} <= {one.name for one in checks if one.status is Status.PASSED}
    if logged:
        assert any("bit for bit" in one.detail for one in checks if one.name == "model")
    else:  # and not without the caller's word
        assert [one.name for one in verify(path, ()) if one.status is Status.NOT_CHECKED] == ["log"]


def test_a_new_key_of_the_records_is_added_where_it_is_written_and_nowhere_in_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("mapa.recording.random_stream", lambda *_: "dice")
        newer.setattr("mapa.recording.noise_of", lambda _: {"colour": "white"})
        path = simulated(tmp_path, records=LOGGED)
        assert json.loads((path / "summary.json").read_text())["noise"] == {"colour": "white"}
        assert is_verified(checks := verify(path, ())), wrong(checks)
    failed = {one.name for one in verify(path, ()) if one.status is Status.FAILED}
    assert failed == {"fields", "summary"}


def shortened(name: str) -> tuple[dict[str, Any], int]:
    """Return a shipped scenario with few updates and whole shards as batches, and how many records it needs."""
    _, values = read_scenario(name)
    values |= {"iterations": 2 * values["edges"], "batch_size": 5}
    values["evaluation"] = {"every": values["edges"]}
    values["records"] = {**values.get("records", {}), **LOGGED}
    if values["data"].get("holdout"):
        values["data"]["holdout"] = 5
    if values["data"].get("largest_batch"):
        values["data"]["largest_batch"] = 5
    privacy = values.get("privacy", {})
    if "total_epsilon" in privacy and privacy.get("pace") != "own":  # z takes its time
        del privacy["total_epsilon"]
        privacy.pop("releases", None)
        privacy["noise_multiplier"] = 4.0
    return values, 5 * values["edges"] + (5 if values["data"].get("holdout") else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_names())
def test_a_shortened_run_of_a_shipped_scenario_is_verified(name: str, tmp_path: Path) -> None:
    values, rows = shortened(name)
    [known] = [one for one in describe(Path()) if one.name == values["data"]["set"]]
    rng = np.random.default_rng(0)

    def samples(count: int) -> Samples:
        images = rng.random((count, int(np.prod(known.shape)))).astype(np.float32)
        return Samples(images, (np.arange(count) % known.classes).astype(np.int64))

    dataset = Dataset(known.name, known.shape, known.classes, samples(rows), samples(5), "0" * 64)
    world = World.on(parse_scenario(values), dataset)
    path = Path(record_simulation(world, name=name, runs=tmp_path)["path"])
    checks = verify(path, ())
    assert is_verified(checks), wrong(checks)


# -- the log of a simulation, and one count of refusals --------------------------------------------------------


@pytest.mark.parametrize("engine", ["vectorised", "block", "synchronous"])
def test_an_engine_without_a_log_refuses_to_keep_gradients(engine: str) -> None:
    delays = TIMED if engine == "synchronous" else {"kind": "cyclic"}
    with pytest.raises(ConfigurationError, match=r"records\.keep_gradients = true: .*--engine events"):
        check_engine(small_scenario(records=LOGGED, delays=delays), engine)


def test_what_arrives_after_the_summary_is_in_no_record(tmp_path: Path) -> None:
    """Edges go on sending while the cloud takes its leave: events.jsonl had more refusals than the summary."""
    told: list[int] = []

    def late(talk: Talk) -> None:
        service = talk.service
        told.append(service.tally.refused["after-halt"])
        [account, *_] = service.server.edges.values()
        zeros = NoisyGradient(np.zeros(service.server.model.size, np.float32))
        forged = GradientArrived(account.edge_id, 1, 1, 1.0, zeros, service.server.incarnation)
        topic = edge_topic(talk.run_id, account.edge_id, EdgeTopic.GRADIENT)
        for _ in range(3):
            service.on_gradient(topic, encode_gradient(forged))
        service.records.write()
        told.append(service.tally.refused["after-halt"])

    path = logged_run(tmp_path, afterwards=late, **PRIVATE)
    assert told[0] == told[1], "what a view shows is the summary's count"
    summary = json.loads((path / "summary.json").read_text())
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    refusals = [
        line for line in lines if line["event"] == "gradient_refused" and line["reason"] == "after-halt"
    ]
    assert len(refusals) == summary["refused"].get("after-halt", 0)
    checks = verify(path, ())
    assert is_verified(checks), wrong(checks)
