"""The halt reaches a broker that was away while the queue of acknowledged messages ran full."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from common.datasets.catalogue import data_directory
from common.messages import Halt
from common.records.directory import RunDirectory
from common.scenario.scenario import parse_scenario
from common.transport.connection import Credentials
from common.wire.codec import decode_halt, decode_presence
from common.wire.topics import halt_topic, presence_topic, run_id
from mapa.brokers import Broker
from mapa.cloud_run import Setting, open_cloud
from mapa.run_view import view_for
from tests.broker.testbed_support import scenario

pytestmark = pytest.mark.broker
RUN = run_id("test")


def test_a_halt_is_delivered_though_the_queue_was_full(
    mosquitto: Broker, tmp_path: Path, connect: Callable[..., Any]
) -> None:
    setting = Setting.of(parse_scenario(scenario()), data_directory(os.environ))
    with (
        RunDirectory(tmp_path / "records") as records,
        open_cloud(
            setting,
            run=RUN,
            broker=mosquitto.address,
            credentials=Credentials(),
            directory=records,
            view=view_for(setting.scenario, Console(quiet=True)),
            edges_at_least=1,
        ) as cloud,
    ):
        mosquitto.stop(signal.SIGKILL)
        while cloud.channel.publish("elsewhere", b"x", qos=1):
            pass
        cloud.loop.post(lambda: cloud.service.halt("interrupted"))
        stop = cloud.loop.stop

        def stop_and_start_the_broker() -> None:
            assert cloud.service.presence.owing
            mosquitto.start()
            stop()

        cloud.loop.stop = stop_and_start_the_broker  # type: ignore[method-assign]
        assert cloud.serve() == "interrupted"
        assert not cloud.service.presence.owing
    late = connect(mosquitto, "late", "mapa/v1/test/#")
    late.wait(lambda: len(late.seen) == 2)
    said = dict(late.seen)
    assert decode_halt(said[halt_topic(RUN)]) == Halt("interrupted", 0, cloud.service.server.incarnation)
    assert not decode_presence(said[presence_topic(RUN)]).online
