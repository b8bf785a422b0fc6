"""A million parameters: 4 MB messages through a real Mosquitto whose limit, like ours, follows the model."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.presence import ResendQueue
from common.datasets.catalogue import data_directory
from common.messages import GradientArrived, Hello
from common.quantities import EdgeId, NoisyGradient
from common.scenario.scenario import parse_scenario
from common.transport import mqtt
from common.transport.connection import MqttOptions, open_socket
from common.wire import codec
from common.wire.topics import EdgeTopic, edge_topic, every_edge, parse_edge_topic, run_id
from common.wire.v1 import payload_limit
from experiments.bench.large_model import large_scenario
from mapa import cloud_run
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
        accounts = service.server.edges
        bed.wait(lambda: service.server.updates >= 8 and sum(service.dropped.values()) >= len(edges))
        bed.wait(lambda: all(one.last_sequence > 0 for one in accounts.values()))  # else one may do it all
        eventually(lambda: "dropped a message" in bed.logs(), "an edge says that it dropped a message")
        bed.cloud.loop.post(lambda: service.halt("interrupted"))
        summary = bed.finish()
        assert summary["reason"] == "interrupted", bed.logs()
        assert summary["parameters"] == PARAMETERS
        assert set(assert_applied_exactly_once(bed, summary["updates"])) == {0, 1}
        assert set(summary["dropped"]) <= {"packet", "gradient"}
        assert [child.returncode for child in bed.edges] == [0, 0]


@pytest.mark.usefixtures("mosquitto_installed")
@pytest.mark.parametrize(
    ("edges", "width", "max_unsent", "send_buffer"),
    [
        (12, 500, 3_000_000, 400_000),
        pytest.param(20, 1000, None, None, marks=pytest.mark.extended),  # 80 MB, in limits as they are
        pytest.param(2, 3162, None, None, marks=pytest.mark.extended),  # ten million parameters
    ],
)
def test_first_models_that_the_broker_cannot_take_at_once_wait_and_cost_no_connection(
    tmp_path: Path,
    connect: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    edges: int,
    width: int,
    max_unsent: int | None,
    send_buffer: int | None,
) -> None:
    """All of them leave in one turn of the loop, K·4N bytes, each behind a welcome; then every edge trains."""
    n, held = width * width, list[str]()
    if max_unsent is not None and send_buffer is not None:
        monkeypatch.setattr(cloud_run, "MqttOptions", partial(MqttOptions, max_unsent=max_unsent))

        def opened(options: MqttOptions) -> socket.socket:
            made = open_socket(options)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            return made

        monkeypatch.setattr(mqtt, "open_socket", opened)
        add = ResendQueue.add
        monkeypatch.setattr(
            ResendQueue, "add", lambda queue, topic, message: held.append(topic) or add(queue, topic, message)
        )
    values = large_scenario(edges=edges, iterations=1_000_000)
    values |= {"model": {**values["model"], "options": {"width": width}}, "evaluation": {"every": 0}}
    limit = payload_limit(n)
    with (
        private_mosquitto(tmp_path / "broker", max_payload=limit) as broker,
        open_testbed(broker.address, tmp_path, values, edges_at_least=edges) as bed,
    ):
        run, service, zeros = run_id(bed.run), bed.cloud.service, NoisyGradient(np.zeros(n, np.float32))
        fleet, answered = connect(broker, "fleet"), Counter[str]()

        def answer(topic: str, payload: bytes) -> None:
            edge_id = parse_edge_topic(topic).edge_id
            model = codec.decode_model(edge_id, payload, n)
            answered[edge_id] += 1
            gradient = GradientArrived(
                edge_id, model.acknowledged + 1, model.version, model.sensitivity, zeros, model.incarnation
            )
            fleet.channel.publish(
                edge_topic(run, edge_id, EdgeTopic.GRADIENT), codec.encode_gradient(gradient)
            )

        def begin() -> None:
            fleet.channel.subscribe(every_edge(run, EdgeTopic.MODEL), answer)
            for k in range(edges):
                edge_id = EdgeId(f"edge-{k}")
                hello = Hello(
                    edge_id=edge_id, nonce=codec.new_nonce(), incarnation=service.server.incarnation
                )
                fleet.channel.publish(edge_topic(run, edge_id, EdgeTopic.HELLO), codec.encode(hello), qos=1)

        fleet.loop.post(begin)
        bed.wait(lambda: service.server.updates >= 2 * edges)
        assert service.traffic.lost_connections == 0
        assert len(answered) == edges
        assert len(held) > 0 or max_unsent is None
        bed.cloud.loop.post(lambda: service.halt("interrupted"))
        assert set(assert_applied_exactly_once(bed, bed.finish()["updates"])) == set(range(edges))
