"""A service brought back from its directory: the same state, the same records, and nothing is said twice."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cloud import recovery_log as history_module
from cloud.recovery_log import History
from cloud.resume import begin_history, resume_service, service_state
from common.errors import RecordsError
from common.messages import GradientArrived, Hello, Leave
from common.quantities import EdgeId, NoisyGradient, RunId
from common.records.checkpoint import pack
from common.records.directory import RunDirectory
from common.records.gradient_log import LogDamagedError
from common.records.recorder import Recorder
from common.wire.codec import encode, encode_gradient
from common.wire.topics import EdgeTopic, edge_topic
from mapa.simulation.simulator import World
from tests.cloud_support import service_on
from tests.core_support import small_dataset, small_scenario
from tests.memory_broker import MemoryBroker, MemoryChannel

RUN, LIFE = RunId("revived"), 9
SCENARIO = small_scenario(iterations=400, evaluation={"every": 0})
WORLD = World.on(SCENARIO, small_dataset())


class Cloud:
    """One process's cloud in a run's directory."""

    def __init__(self, directory: RunDirectory, *, again: bool, keep: bool = True) -> None:
        self.broker, self.said = MemoryBroker(), list[str]()
        self.broker.advance(1.0)
        channel = MemoryChannel(self.broker)
        self.directory = directory
        self.history = History(
            directory.path, incarnation=LIFE, dimension=WORLD.model.dimension, keep=keep, say=self.said.append
        )
        self.service = service_on(
            channel,
            self.broker,
            WORLD,
            RUN,
            self.said,
            records=Recorder(directory.journal),
            edges_at_least=2,
            incarnation=LIFE,
        )
        channel.connect()
        (resume_service if again else begin_history)(self.service, self.history, directory)
        self.service.start()

    def state(self) -> tuple[bytes, bytes]:
        """Return all but what a crash may change: the clock, and the size of the file."""
        state = service_state(self.service, self.directory)
        for key in ("time", "events_bytes", "dropped", "first_update", "last_update"):
            del state[key]
        del state["records"]["written"]
        # refusals that changed nothing are in no log, and neither are round trips that were under way
        del state["records"]["tally"]["refused"], state["records"]["refusals"]
        state["contacts"] = [contact[:2] for contact in state["contacts"]]
        return pack(state)

    def send(self, rng: random.Random) -> None:
        """Let one of the edges say anything, right or wrong."""
        self.broker.advance(rng.uniform(0.0, 0.1))
        service, edge = self.service, EdgeId(f"edge-{rng.randrange(4)}")
        account = service.server.edges.get(edge)
        last = 0 if account is None else account.last_sequence
        kind = rng.random()
        if account is None or kind < 0.05:
            nonce, number = rng.choice("ab") * 16, rng.randrange(1, 50)
            hello = Hello(edge_id=edge, nonce=nonce, number=number, last_sequence=last, incarnation=LIFE)
            service.on_hello(edge_topic(RUN, edge, EdgeTopic.HELLO), encode(hello))
        elif kind < 0.1:
            leave = encode(Leave(edge, rng.choice(["lost", "shutdown"]), rng.choice("ab") * 16))
            service.on_leave(edge_topic(RUN, edge, EdgeTopic.LEAVE), leave)
        elif service.server.schedule is not None:
            values = np.full(WORLD.model.dimension, rng.uniform(-0.01, 0.01), np.float32)
            sequence = max(1, last + rng.choice([1, 1, 1, 1, 0, 2]))
            bound = service.server.schedule.sensitivity * rng.choice([1, 1, 1, 1, 2])
            version = max(1, service.server.t - rng.randrange(3))
            arrived = GradientArrived(edge, sequence, version, bound, NoisyGradient(values), LIFE)
            service.on_gradient(edge_topic(RUN, edge, EdgeTopic.GRADIENT), encode_gradient(arrived))


def lines(path: Path) -> list[str]:
    text = (path / "events.jsonl").read_text().splitlines()
    return [line for line in text if json.loads(line)["event"] not in ("resumed", "gradient_refused")]


def refused(path: Path) -> int:
    return (path / "events.jsonl").read_text().count('"gradient_refused"')


@pytest.mark.parametrize("seed", range(6))
def test_a_service_goes_on_with_the_same_state_and_the_same_records(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(history_module, "_SHARE", 0)
    rng = random.Random(seed)
    with RunDirectory(tmp_path / "run") as directory:
        cloud = Cloud(directory, again=False, keep=seed % 2 == 0)
        for _ in range(rng.randrange(20, 200)):
            cloud.send(rng)
            if rng.random() < 0.05:
                cloud.service.records.write()
                directory.events.flush()
            if rng.random() < 0.03:
                cloud.history.checkpoint_if_due()
        shutil.copytree(tmp_path / "run", tmp_path / "left")  # what a SIGKILL leaves
        state, t = cloud.state(), cloud.service.server.t
        cloud.service.records.write()
    assert t > 5
    before = refused(tmp_path / "left")
    (newest,) = sorted((tmp_path / "left" / "checkpoints").iterdir())[-1:]
    if seed >= 3 and int(newest.name) > 1:
        (newest / "state.json").write_bytes(b"{}")
    with RunDirectory(tmp_path / "left", resumed=True) as directory:
        revived = Cloud(directory, again=True)
        assert revived.state() == state
        assert revived.service.server.t == t
    assert any(f"resumed at t = {t}: " in line for line in revived.said)
    assert lines(tmp_path / "left") == lines(tmp_path / "run")
    assert revived.service.tally.refused.total() == refused(tmp_path / "left")
    assert before <= refused(tmp_path / "left") <= refused(tmp_path / "run")


def leave_records(path: Path) -> int:
    """Let a cloud take sixty messages, and end it as if it were killed; return its t."""
    rng = random.Random(1)
    with RunDirectory(path) as directory:
        cloud = Cloud(directory, again=False)
        for _ in range(60):
            cloud.send(rng)
        cloud.service.records.write()
    return cloud.service.server.t


def test_the_clock_goes_on_behind_every_line_that_was_written(tmp_path: Path) -> None:
    leave_records(tmp_path / "run")
    events = tmp_path / "run" / "events.jsonl"
    refusal = {"event": "gradient_refused", "edge_id": "edge-0", "sequence": 1, "t": 3, "reason": "stranger"}
    with events.open("a") as stream:  # later than the log's last record, and in no log
        stream.write(json.dumps({**refusal, "time": 99.5}) + "\n")
    with RunDirectory(tmp_path / "run", resumed=True) as directory:
        Cloud(directory, again=True)
    times = [json.loads(line)["time"] for line in events.read_text().splitlines()]
    assert times[-2:] == [99.5, 99.5]  # the refusal, and `resumed`
    assert times == sorted(times)


def test_a_log_with_a_hole_is_refused(tmp_path: Path) -> None:
    leave_records(tmp_path / "run")
    segment = tmp_path / "run" / "log" / "000001.seg"
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    with (
        RunDirectory(tmp_path / "run", resumed=True) as directory,
        pytest.raises(LogDamagedError, match="is damaged"),
    ):
        Cloud(directory, again=True)


def cut_in_two(segment: Path) -> None:
    os.truncate(segment, segment.stat().st_size // 2)


@pytest.mark.parametrize("damage", [Path.unlink, cut_in_two, lambda segment: os.truncate(segment, 0)])
def test_a_log_that_ends_before_the_events_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """No crash leaves that: a line is written behind its record. To go on would lose updates that were answered."""
    leave_records(tmp_path / "run")
    damage(tmp_path / "run" / "log" / "000001.seg")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with (
        RunDirectory(tmp_path / "run", resumed=True) as directory,
        pytest.raises(LogDamagedError, match="answered would be missing"),
    ):
        Cloud(directory, again=True)
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


@pytest.mark.parametrize("broken", [b"{", b"[]\n", b'{"evant": 1}\n', b"\0" * 512 + b"\n", b"\xff\n"])
def test_events_from_a_broken_line_on_are_written_again(tmp_path: Path, broken: bytes) -> None:
    """The log makes them: a run is not lost for a line of its diary."""
    t = leave_records(tmp_path / "run")
    expected = lines(tmp_path / "run")
    events = tmp_path / "run" / "events.jsonl"
    whole = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join([*whole[:20], broken, *whole[21:]]))
    with RunDirectory(tmp_path / "run", resumed=True) as directory:
        revived = Cloud(directory, again=True)
        assert revived.service.server.t == t
    assert lines(tmp_path / "run") == expected
    assert any("written again from the log" in line for line in revived.said)


@pytest.mark.parametrize("left", [0, 500])
@pytest.mark.parametrize("keep", [True, False])
def test_lost_events_are_written_again_where_the_whole_log_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, keep: bool
) -> None:
    monkeypatch.setattr(history_module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(history_module, "_SHARE", 0)
    rng = random.Random(1)
    with RunDirectory(tmp_path / "run") as directory:
        cloud = Cloud(directory, again=False, keep=keep)
        for _ in range(6):
            for _ in range(20):
                cloud.send(rng)
            cloud.history.checkpoint_if_due()
        cloud.service.records.write()
    expected, events = lines(tmp_path / "run"), tmp_path / "run" / "events.jsonl"
    if left:
        os.truncate(events, left)
    else:
        events.unlink()
    with RunDirectory(tmp_path / "run", resumed=True) as directory:
        if not keep:
            with pytest.raises(RecordsError, match="put the file back"):
                Cloud(directory, again=True)
            return
        revived = Cloud(directory, again=True)
        assert revived.service.server.t == cloud.service.server.t
        assert np.array_equal(revived.service.server.model, cloud.service.server.model)
        revived.service.records.write()
    assert lines(tmp_path / "run") == expected
    assert any("written again from the log" in line for line in revived.said)


def test_a_fleet_that_gathered_goes_on_gathering(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        cloud = Cloud(directory, again=False)
        cloud.service.gather = 5.0
        hello = Hello(edge_id=EdgeId("edge-0"), nonce="a" * 16, incarnation=LIFE)
        cloud.service.on_hello(edge_topic(RUN, EdgeId("edge-0"), EdgeTopic.HELLO), encode(hello))
        cloud.history._begin_segment(2)
    with RunDirectory(tmp_path / "run", resumed=True) as directory:
        revived = Cloud(directory, again=True)
        assert revived.service.server.schedule is None
        revived.broker.advance(6.0)
        assert revived.service.server.schedule is not None


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("power", [True, False])
def test_an_edge_that_leaves_after_the_records_were_written_is_no_fault(
    tmp_path: Path, keep: bool, power: bool
) -> None:
    rng = random.Random(1)
    with RunDirectory(tmp_path / "run") as directory:
        cloud = Cloud(directory, again=False, keep=keep)
        cloud.history.power = power
        for _ in range(60):
            cloud.send(rng)
        service = cloud.service
        service.halt("interrupted")
        cloud.broker.advance(1.0)
        cloud.history.finish()
        here = [account for account in service.server.edges.values() if account.present]
        assert here  # the channel closes only now, and the loop serves meanwhile
        for account in here:
            leave = encode(Leave(account.edge_id, "shutdown", account.nonce))
            service.on_leave(edge_topic(RUN, account.edge_id, EdgeTopic.LEAVE), leave)
        cloud.broker.advance(1.0)
        cloud.history.checkpoint_if_due()
        cloud.history.close()
    assert (tmp_path / "run" / "log").exists() == keep
