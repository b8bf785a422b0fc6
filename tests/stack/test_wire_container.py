"""The wire against a Mosquitto container, by testcontainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.transport.connection import BrokerAddress
from tests.broker.testbed_support import assert_applied_exactly_once, open_testbed, scenario
from tests.stack.compose_support import MARKS

pytestmark = MARKS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_over_a_mosquitto_container(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
    from testcontainers.community.mqtt import MosquittoContainer

    assert engine.images.get("eclipse-mosquitto:2")
    with MosquittoContainer("eclipse-mosquitto:2") as container:
        address = BrokerAddress(container.get_container_host_ip(), int(container.get_exposed_port(1883)))
        with open_testbed(address, tmp_path, scenario(iterations=400), edges_at_least=2) as bed:
            for _ in range(2):
                bed.edge()
            summary = bed.finish()
            per_edge = assert_applied_exactly_once(bed, 400)
    assert summary["reason"] == "finished"
    assert set(per_edge) == {0, 1}
