"""paho's client on our own socket, and pending QoS 1 messages; the only paho import."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from common.errors import LocalProtocolError
from common.transport.connection import MqttOptions
from common.transport.stream import PacketStream

__all__ = ["MQTTMessage", "ReasonCode", "StreamClient", "is_denial", "is_unexplained"]

_DENIED = ("Bad user name or password", "Not authorized")
_TAKEN = (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_NO_CONN)  # without a connection it waits


def is_denial(code: ReasonCode) -> bool:
    """Tell whether a CONNECT was refused for its credentials."""
    return str(code) in _DENIED


def is_unexplained(code: ReasonCode) -> bool:
    """Tell whether a connection ended without a reason: the other side closed it."""
    return str(code) == "Unspecified error"


class StreamClient(paho.Client):
    """paho on a PacketStream. `_create_socket` is the one private hook that we use."""

    def __init__(self, options: MqttOptions, open_stream: Callable[[], PacketStream]) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=options.client_id,
            clean_session=True,
            protocol=paho.MQTTv311,
            reconnect_on_failure=False,
        )
        self._open_stream = open_stream
        self._handing = threading.Lock()
        self._handed = self._acknowledged = 0  # QoS 1 messages
        self._behind: set[int] = set()  # QoS 0 messages that wait behind them
        self.max_inflight_messages_set(options.max_inflight)
        self.max_queued_messages_set(options.max_queued)
        if options.username is not None:
            self.username_pw_set(options.username, options.password)
        if options.will is not None:
            will = options.will
            self.will_set(will.topic, will.payload, will.qos, will.retain)
        if options.tls is not None:
            options.tls.context()  # a wrong file is the operator's to fix, before anything connects
        self.on_publish = self._published
        # Its presence keeps paho from writing in the publisher's thread, where packets could mix.
        self.on_socket_register_write = lambda *_: None
        self.connect_async(options.address.host, options.address.port, options.keepalive)

    @property
    def owed(self) -> int:
        """QoS 1 messages that the broker has not acknowledged, those that wait for it included."""
        return self._handed - self._acknowledged

    def publish_acknowledged(self, topic: str, payload: bytes, qos: int, retain: bool) -> bool:
        """Queue a QoS 1 message, with a connection or without; False: the queue is full."""
        with self._handing:
            self._handed += 1
        code = self.publish(topic, payload, qos, retain).rc
        if code in _TAKEN:
            return True
        with self._handing:
            self._handed -= 1
        if code == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
            return False
        raise LocalProtocolError(f"topic {topic!r}: {paho.error_string(code)}")

    def publish_behind(self, topic: str, payload: bytes, retain: bool) -> None:
        """Queue a QoS 0 message behind what waits; with a connection only."""
        self._behind.add(self.publish(topic, payload, 0, retain).mid)

    def forget_behind(self) -> None:
        """The connection is gone, and with it what waited without acknowledgement."""
        self._behind.clear()

    def _published(self, _client: Any, _userdata: Any, mid: int, *_: Any) -> None:
        if mid in self._behind:
            self._behind.discard(mid)
        else:
            self._acknowledged += 1

    def _create_socket(self) -> Any:
        return self._open_stream()
