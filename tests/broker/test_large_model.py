"""A million parameters: 4 MB messages through a real Mosquitto whose limit, like ours, follows the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.datasets.catalogue import data_directory
from common.scenario.scenario import parse_scenario
from common.wire.topics import EdgeTopic, edge_topic, run_id
from common.wire.v1 import payload_limit
from experiments.bench.large_model import large_scenario
from mapa.brokers import private_mosquitto
from mapa.cloud_run import Setting
from tests.broker.testbed_support import assert_applied_exactly_once, open_testbed
from tests.program_support import eventually, require_mosquitto

pytestmark = [pytest.mark.broker, pytest.mark.slow]
PARAMETERS = 1_000_000


def test_four_megabyte_messages_train_over_a_broker_sized_for_them(
    tmp_path: Path, connect: Callable[..., Any]
) -> None:
    require_mosquitto()
    values = {
        **large_scenario(edges=2, iterations=100_000),
        "links": [{"delay_ms": 0.0}, {"delay_ms": 1.0}],  # the second connects anew, through a relay
        "evaluation": {"every": 4},
    }
    setting = Setting.of(parse_scenario(values), data_directory(os.environ))
    assert setting.model.dimension == PARAMETERS
    limit = setting.payload_bytes
    assert 4 * PARAMETERS < limit == payload_limit(PARAMETERS) < 4 * PARAMETERS + (1 << 16)
    with (
        private_mosquitto(tmp_path / "broker", max_payload=limit) as broker,
        open_testbed(broker.address, tmp_path, values, edges_at_least=2) as bed,
    ):
        names = ("Quadrants", "Bilinear")
        allowed = [w for name in names for w in ("--allow", f"experiments.bench.large_model:{name}")]
        for k in range(2):
            bed.edge(*allowed, state=f"state-{k}")
        bed.wait(lambda: len(bed.cloud.service.server.edges) == 2)
        stranger = connect(broker, "stranger")
        edges = list(bed.cloud.service.server.edges)
        for edge in edges:  # what the broker takes and no model or gradient fills: read by nobody
            for leaf in (EdgeTopic.MODEL, EdgeTopic.GRADIENT):
                topic = edge_topic(run_id(bed.run), edge, leaf)
                assert stranger.channel.publish(topic, b"\0" * (limit - 8), qos=1)
        service = bed.cloud.service
        bed.wait(lambda: service.server.updates >= 8 and sum(service.dropped.values()) >= len(edges))
        eventually(lambda: "dropped a message" in bed.logs(), "an edge says that it dropped a message")
        bed.cloud.loop.post(lambda: service.halt("interrupted"))
        summary = bed.finish()
        assert summary["reason"] == "interrupted", bed.logs()
        assert summary["parameters"] == PARAMETERS
        assert set(assert_applied_exactly_once(bed, summary["updates"])) == {0, 1}
        assert set(summary["dropped"]) <= {"packet", "gradient"}
        assert [child.returncode for child in bed.edges] == [0, 0]
