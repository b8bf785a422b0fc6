"""The whole testbed on a real Mosquitto: every gradient applied exactly once, whatever dies."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path

import pytest

from common.transport.connection import BrokerAddress
from common.wire.codec import decode_presence
from mapa.brokers import Broker
from tests.broker.testbed_support import PATIENCE, assert_applied_exactly_once, open_testbed, scenario

pytestmark = pytest.mark.broker


def test_twenty_edges_train_to_T_with_every_gradient_applied_exactly_once(
    mosquitto: Broker, tmp_path: Path
) -> None:
    values = scenario(edges=20, iterations=3000)
    with open_testbed(mosquitto.address, tmp_path, values, edges_at_least=20) as bed:
        for _ in range(4):
            bed.edge("--count", "5")
        summary = bed.finish()
        per_edge = assert_applied_exactly_once(bed, 3000)
        assert [child.returncode for child in bed.edges] == [0] * 4
    # Nobody waits for anybody: on a busy machine T may come before a slow edge's first gradient.
    assert len(summary["edges"]) == 20 >= len(per_edge) > 5
    assert summary["reason"] == "finished"
    assert summary["updates"] == 3000
    assert summary["final_accuracy"] > 0.6
    assert summary["staleness"]["max"] > 0


@pytest.mark.parametrize("away", [0, pytest.param(30, marks=pytest.mark.extended)])
def test_a_broker_that_is_away_for_a_while_loses_and_doubles_nothing(
    mosquitto: Broker, tmp_path: Path, away: float
) -> None:
    with open_testbed(mosquitto.address, tmp_path, scenario(iterations=3000)) as bed:
        for _ in range(3):
            bed.edge()
        bed.at(lambda: bed.updates > 300, lambda: mosquitto.stop(signal.SIGKILL))
        threading.Event().wait(away)  # nothing happens meanwhile that could be awaited
        before = bed.updates
        mosquitto.start()
        bed.wait(lambda: bed.updates > before + 300)
        summary = bed.finish()
        assert_applied_exactly_once(bed, 3000)
    assert summary["reason"] == "finished"


def test_a_killed_edge_comes_back_with_its_index_and_goes_on(mosquitto: Broker, tmp_path: Path) -> None:
    with open_testbed(mosquitto.address, tmp_path, scenario(iterations=2500), edges_at_least=3) as bed:
        victim = bed.edge(state="victim")
        others = [bed.edge() for _ in range(2)]
        with bed.paused(lambda: bed.updates > 200, *others):
            victim.kill()
            victim.wait(PATIENCE)
            bed.wait(lambda: any(edge.gone == "lost" for edge in bed.cloud.service.tally.edges.values()))
            before = bed.updates
            bed.edge(state="victim")
            bed.wait(lambda: bed.updates > before + 10)
        bed.finish()
        per_edge = assert_applied_exactly_once(bed, 2500)
        joins = bed.events("edge_joined")
    assert len(per_edge) == 3
    (returned,) = [event for event in joins if event["returned"]]
    assert [event["edge"] for event in joins if event["edge_id"] == returned["edge_id"]] == [
        returned["edge"]
    ] * 2


def test_a_late_joiner_with_a_smaller_epsilon_reopens_the_stage(mosquitto: Broker, tmp_path: Path) -> None:
    values = scenario(
        iterations=6000, privacy={"noise": "gamma-norm", "epsilon": 1.0, "noise_multiplier": None}
    )
    with open_testbed(mosquitto.address, tmp_path, values, edges_at_least=2) as bed:
        first = [bed.edge() for _ in range(2)]
        with bed.paused(lambda: bed.updates > 100 and len(bed.cloud.service.server.edges) == 2, *first):
            bed.edge("--epsilon", "0.25")
            bed.wait(lambda: len(bed.cloud.service.server.edges) == 3)
        bed.finish()
        per_edge = assert_applied_exactly_once(bed, 6000)
        (reopened,) = [event for event in bed.events("stage_opened") if event["reopened"]]
        before = [event for event in bed.events("stage_opened") if event["t"] < reopened["t"]][-1]
    assert len(per_edge) == 3
    assert reopened["stage"] == before["stage"]
    assert reopened["sensitivity"] == before["sensitivity"]
    assert reopened["variance"] > before["variance"]


def test_hostile_bytes_on_every_topic_are_counted_and_the_run_goes_on(
    mosquitto: Broker, tmp_path: Path, connect
) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(5)
    leaves = ["hello", "gradient", "leave", "will", "welcome", "model", "nonsense"]
    with open_testbed(mosquitto.address, tmp_path, scenario(iterations=1500)) as bed:
        edges = [bed.edge() for _ in range(2)]
        attacker = connect(mosquitto, "attacker")
        with bed.paused(lambda: bed.updates > 50, *edges):
            victims = [account.edge_id for account in bed.cloud.service.server.edges.values()]
            for _ in range(400):
                edge = rng.choice([*victims, "stranger", "x" * 64, "é"])
                payload = rng.randbytes(rng.choice([0, 1, 39, 40, 44, 40 + 4 * 785, 5000]))
                attacker.channel.publish(f"mapa/v1/test/edge/{edge}/{rng.choice(leaves)}", payload)
            attacker.channel.publish("mapa/v1/test/halt", b"\xc1", qos=1)
            attacker.channel.publish("mapa/v1/test/cloud", b"\x00" * 100, qos=1)
            bed.wait(lambda: sum(bed.cloud.service.dropped.values()) > 50)
        summary = bed.finish()
        assert_applied_exactly_once(bed, 1500)
        assert [child.returncode for child in bed.edges] == [0, 0]
    assert sum(summary["dropped"].values()) > 50


def test_two_runs_on_one_broker_do_not_disturb_each_other(mosquitto: Broker, tmp_path: Path) -> None:
    small, large = scenario(edges=2, iterations=400), scenario(edges=2, iterations=400, model={"name": "svm"})
    with (
        open_testbed(mosquitto.address, tmp_path / "a", small, run="a") as first,
        open_testbed(mosquitto.address, tmp_path / "b", large, run="b") as second,
    ):
        for bed in (first, second):
            bed.edge("--count", "2")
        for bed in (first, second):
            summary = bed.finish()
            assert_applied_exactly_once(bed, 400)
            assert summary["dropped"] == {}


def test_an_edge_that_comes_after_the_halt_ends_at_once_with_0(mosquitto: Broker, tmp_path: Path) -> None:
    with open_testbed(mosquitto.address, tmp_path, scenario(iterations=50)) as bed:
        bed.edge()
        bed.finish()
        late = bed.edge(state="late")
        assert late.wait(PATIENCE) == 0


def test_a_spent_budget_ends_the_run_and_stays_spent(mosquitto: Broker, tmp_path: Path) -> None:
    values = scenario(edges=2, iterations=100_000, privacy={"noise_multiplier": 4.0})
    budget = ("--total-epsilon", "0.5", "--count", "2")
    with open_testbed(mosquitto.address, tmp_path, values, edges_at_least=2) as bed:
        bed.edge(*budget)
        summary = bed.finish()
        assert bed.edges[0].returncode == 0
    assert summary["reason"] == "no-budget"
    assert summary["privacy"]["epsilon"] <= 0.5
    # The same cloud asks again: the ledgers remember.
    with open_testbed(mosquitto.address, tmp_path / "again", values, edges_at_least=2) as again:
        again.directory = tmp_path
        again.edge(*budget)
        repeated = again.finish()
    assert repeated["reason"] == "no-budget"
    assert repeated["updates"] == 0


def test_staleness_follows_the_links_delays(mosquitto: Broker, tmp_path: Path) -> None:
    links = [{"delay_ms": 5.0}, {"delay_ms": 40.0}, {"delay_ms": 200.0}]
    with open_testbed(
        mosquitto.address, tmp_path, scenario(iterations=500, links=links), edges_at_least=3
    ) as bed:
        bed.edge("--count", "3")
        summary = bed.finish()
        per_edge = assert_applied_exactly_once(bed, 500)
    fast, middle, slow = summary["network"]
    for row, asked in zip(summary["network"], (5.0, 40.0, 200.0), strict=True):
        assert row["asked_delay_ms"] == asked
        assert row["round_trip_ms"] >= 2 * asked
    assert per_edge[0] > per_edge[1] > per_edge[2]  # by how much depends on what else the machine does
    assert fast["staleness_mean"] < middle["staleness_mean"] < slow["staleness_mean"]


def test_an_edge_says_when_the_broker_cannot_be_reached(tmp_path: Path, mosquitto: Broker) -> None:
    with open_testbed(mosquitto.address, tmp_path, scenario()) as bed:
        lost = bed.edge("--connect-timeout", "0.5", broker=BrokerAddress("127.0.0.1", 1))
        assert lost.wait(PATIENCE) == 1
        assert "no connection" in bed.logs()


def test_a_cloud_that_ends_by_an_error_is_told_gone_by_its_last_will(
    mosquitto: Broker, tmp_path: Path, connect
) -> None:  # type: ignore[no-untyped-def]
    observer = connect(mosquitto, "observer", "mapa/v1/test/cloud")

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    def serve() -> None:
        with open_testbed(mosquitto.address, tmp_path, scenario()) as bed:
            observer.wait(lambda: decode_presence(observer.seen[-1][1]).online if observer.seen else False)
            bed.cloud.loop.post(fail)
            bed.served.join(PATIENCE)

    with pytest.raises(ZeroDivisionError, match="a bug"):
        serve()
    observer.wait(lambda: not decode_presence(observer.seen[-1][1]).online)


def test_a_packet_larger_than_any_gradient_is_skipped_and_counted(
    mosquitto: Broker, tmp_path: Path, connect
) -> None:  # type: ignore[no-untyped-def]
    with open_testbed(mosquitto.address, tmp_path, scenario(iterations=200)) as bed:
        attacker = connect(mosquitto, "attacker")
        for size in (4 * 785 + 40, 1_000_000, 4096):
            attacker.channel.publish("mapa/v1/test/edge/x/gradient", b"x" * size, qos=1)
        bed.wait(lambda: sum(bed.cloud.service.dropped.values()) == 3)
        bed.edge()
        summary = bed.finish()
    assert summary["dropped"] == {"gradient": 2, "packet": 1}
    assert summary["updates"] == 200
