"""The models on the wire, watched: how far a run is, and whether a version was ever sent with other bytes."""

from __future__ import annotations

import hashlib
import threading
from typing import Self

from common.quantities import RunId
from common.transport.connection import BrokerAddress, MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.topics import EdgeTopic, every_edge
from common.wire.v1 import HEADER, HEADER_BYTES, MODEL_MARK


class Watch:
    """A client that hears every model. A version that is sent again, also by a resumed cloud, must be the same.

    It speaks to the broker without a relay: faults are others' to have.
    """

    def __init__(self, broker: BrokerAddress, run: RunId, max_packet: int) -> None:
        self._digests: dict[int, bytes] = {}
        self.newest = 0
        self.again = 0  # versions that were sent more than once
        self.reworded: list[int] = []  # and once with other bytes
        self._loop = SelectorLoop()
        options = MqttOptions(
            address=broker, client_id=f"{run}-watch", max_packet=max_packet, min_backoff=0.05, max_backoff=0.2
        )
        self._channel = MqttChannel(options, self._loop)
        self._channel.subscribe(every_edge(run, EdgeTopic.MODEL), self.on_model)
        self._thread = threading.Thread(target=self._loop.run, name="mapa-watch", daemon=True)

    def on_model(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        """Note one model."""
        if len(payload) < HEADER_BYTES or not payload.startswith(MODEL_MARK):
            return
        version = HEADER.unpack_from(payload)[2]
        digest = hashlib.sha256(memoryview(payload)[HEADER_BYTES:]).digest()
        former = self._digests.setdefault(version, digest)
        self.again += former is not digest
        if former != digest:
            self.reworded.append(version)
        self.newest = max(self.newest, version)

    def __enter__(self) -> Self:
        self._channel.connect(60.0)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
        self._thread.join()
        self._channel.abort()
        self._loop.close()
