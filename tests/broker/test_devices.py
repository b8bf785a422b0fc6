"""Devices on a real Mosquitto: edges that are really slower, edges that really go, and the simulation of both.

No bound here is a time of the wall: shares and staleness are ratios of times that are long against what this machine
does besides, and the bounds are as wide as that noise.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from common.quantities import RunId
from common.scenario.scenario import parse_scenario
from edge.sqlite_ledger import ledger_snapshot
from mapa.brokers import Broker
from mapa.simulation.simulator import World, simulate
from tests.broker.testbed_support import assert_applied_exactly_once, open_testbed, scenario
from tests.program_support import environment

pytestmark = pytest.mark.broker


def on_devices(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    delays = {"kind": "constant", "compute": 0.1, "network": 0.001}
    return scenario(edges=len(devices), devices=list(devices), delays=delays, **changes)


def test_slow_devices_have_the_part_that_their_simulation_foresees(mosquitto: Broker, tmp_path: Path) -> None:
    devices = [
        {"name": f"at {x:g}", "slowdown": x, "jitter": 0.1, "reference_ms": 300.0} for x in (8.0, 4.0, 1.0)
    ]
    values = on_devices(*devices, iterations=66)
    with open_testbed(mosquitto.address, tmp_path, values, edges_at_least=3) as bed:
        for _ in range(3):
            bed.edge()
        summary = bed.finish()
        per_edge = assert_applied_exactly_once(bed, 66)
        joins = {event["edge"]: event["device"] for event in bed.events("edge_joined")}
    assert joins == {0: "at 8", 1: "at 4", 2: "at 1"}
    assert [row["device"]["slowdown"] for row in summary["network"]] == [8.0, 4.0, 1.0]
    world = World.of(parse_scenario({**values, "seed": 1}), Path(environment()["MAPA_DATA_DIR"]))
    virtual = simulate(world).tally.edges
    real = {row["edge"]: row for row in summary["edges"]}
    for k in range(3):
        share, foreseen = real[k]["applied"] / 66, virtual[k].applied / 66
        assert share == pytest.approx(foreseen, abs=0.12), (per_edge, virtual)
        stale = virtual[k].staleness_sum / virtual[k].applied
        assert real[k]["staleness_mean"] == pytest.approx(stale, rel=0.5, abs=1.0)
    assert real[0]["applied"] < real[1]["applied"] < real[2]["applied"]
    assert real[0]["staleness_mean"] > real[2]["staleness_mean"]


def test_edges_that_go_and_come_back_lose_nothing_although_all_are_away_at_times(
    mosquitto: Broker, tmp_path: Path
) -> None:
    device = {"reference_ms": 20.0, "availability": {"period": 3.0, "share": 0.4, "phase": [0.0, 0.2]}}
    with open_testbed(mosquitto.address, tmp_path, on_devices(device, device, iterations=150)) as bed:
        bed.edge("--count", "2")
        summary = bed.finish()
        per_edge = assert_applied_exactly_once(bed, 150)
        gone = Counter(event["reason"] for event in bed.events("edge_gone"))
        returned = [event for event in bed.events("edge_joined") if event["returned"]]
        assert [child.returncode for child in bed.edges] == [0]
        assert "duplicate" not in bed.logs()
    assert summary["reason"] == "finished"
    assert set(gone) == {"away"}
    assert len(returned) >= 2
    debited = []
    for slot in ("0", "1"):
        with ledger_snapshot(tmp_path / "state" / slot) as ledger:
            debited.append(ledger.last_sequence(RunId("test")))
    assert (
        150 == sum(per_edge.values()) <= sum(debited) <= 152
    )  # one each may have been under way at the halt
    assert summary["dropped"] == {}
