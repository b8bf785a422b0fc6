"""MqttChannel: a `Channel` over MQTT 3.1.1; the only paho import."""

from __future__ import annotations

import random
import ssl
import threading
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from common.channel import Timer
from common.connection import MqttOptions, open_socket
from common.errors import BrokerUnavailableError, ConfigurationError, LocalProtocolError, RemoteProtocolError
from common.loop import READ, WRITE, SelectorLoop
from common.routing import OnMessage, OnViolation, Routes, ignore_violation
from common.stream import PacketStream, publish_head

_DENIED = ("Bad user name or password", "Not authorized")


class _StreamClient(paho.Client):
    """paho on a PacketStream. `_create_socket` is the one private hook that we use."""

    open_stream: Callable[[], PacketStream]

    def _create_socket(self) -> Any:
        return self.open_stream()


class MqttChannel:
    """A connection that comes back: subscriptions are renewed, QoS 1 is delivered, QoS 0 may be lost.

    What the loop's thread publishes arrives in that order, whatever the QoS.
    Callbacks run in the loop's thread. A RemoteProtocolError from one is counted and reported to
    on_violation; any other exception ends the loop and is raised from its `run`.
    """

    def __init__(
        self,
        options: MqttOptions,
        loop: SelectorLoop,
        *,
        on_connected: Callable[[], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
        on_violation: OnViolation = ignore_violation,
    ) -> None:
        self.options = options
        self.connected = False
        self.last_error = "never connected"
        self._loop = loop
        self._on_connected, self._on_lost = on_connected, on_lost
        self._routes = Routes(on_violation)
        self._stream: PacketStream | None = None
        self._mask = 0  # what the loop waits for
        self._in_paho = False  # its callbacks hold locks that its writing takes
        self._greeted = False  # CONNACK came, on_connected is still to be told
        self._was_connected = False
        self._refusal: str | None = None  # what the operator must mend
        self._attempts = 0
        self._retry: Timer | None = None
        self._upkeep: Timer | None = None
        self._handed = self._acknowledged = 0  # QoS 1 messages
        self._unacknowledged: set[int] = set()  # QoS 0 messages that wait behind them in paho
        self._handing = threading.Lock()
        self._closing = False
        self._closed = threading.Event()
        self._client = self._make_client()

    @property
    def violations(self) -> int:
        """Messages that broke the protocol."""
        return self._routes.violations

    def connect(self, timeout: float) -> None:
        """Connect within `timeout` seconds, retrying; later losses are mended by the loop."""
        if self._loop.here:
            raise LocalProtocolError("connect waits for the loop; a callback must use open")
        until = self._loop.now() + timeout
        arrived = threading.Event()

        def settled() -> bool:
            if self.connected or self._refusal is not None:
                arrived.set()
            return arrived.is_set()

        if self._loop.serving:

            def poll() -> None:
                if not settled() and self._loop.now() < until:
                    self._loop.call_later(0.01, poll)

            self.open()
            self._loop.post(poll)
            arrived.wait(timeout)
        else:
            self.open()
            self._loop.serve(settled, until=until)
        if self._refusal is not None:
            self.close()
            raise ConfigurationError(f"broker {self.options.address}: {self._refusal}")
        if not self.connected:
            self.close()
            raise BrokerUnavailableError(
                f"broker {self.options.address}: no connection within {timeout:g} s ({self.last_error})"
            )

    def open(self) -> None:
        """Begin to connect and go on trying, without waiting; `refusal` says what no retry can mend."""
        self._loop.post(self._attempt)

    @property
    def refusal(self) -> str | None:
        """What the operator must mend: credentials or certificates; None: nothing."""
        return self._refusal

    @property
    def closed(self) -> bool:
        """Whether the connection has ended for good."""
        return self._closed.is_set()

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        """Hand a message over; False: it is lost (QoS 0 without a connection, or a full queue)."""
        if qos:
            return self._publish_acknowledged(topic, payload, qos, retain)
        stream = self._stream
        if stream is None or not self.connected:
            return False
        if self._client.want_write() and self._loop.here:  # never overtake a QoS 1 message of ours
            self._unacknowledged.add(self._client.publish(topic, payload, 0, retain).mid)
            self._loop.post(self._write_paho)
            return True
        try:
            taken = stream.write(publish_head(topic, len(payload), retain), payload)
        except OSError:
            return False  # the loop sees the end of the connection by itself
        if stream.unsent:
            self._soon(self._mind_writing)
        return taken

    def subscribe(self, topic_filter: str, callback: OnMessage, *, qos: int = 0) -> None:
        """Have messages delivered, now and after every reconnect; the first filter that matches gets one."""
        self._routes.add(topic_filter, callback, qos)
        if self.connected:
            self._client.subscribe(topic_filter, qos)
            self._soon(self._write_paho)

    def close(self, timeout: float = 5.0) -> None:
        """Deliver what QoS 1 still owes, say goodbye and end.

        From a callback it only begins; it ends while the loop goes on.
        """
        if self._closing:
            return
        self._closing = True
        until = self._loop.now() + timeout
        self._loop.post(lambda: self._end(until))
        if self._loop.here:
            return
        if self._loop.serving:
            self._closed.wait(timeout + 1)
        else:
            self._loop.serve(self._closed.is_set, until=until + 1)

    def abort(self) -> None:
        """Drop the connection without a goodbye, as a crash would: the last will goes out.

        In the loop's thread, or while it does not serve.
        """
        self._closing = True
        self._cancel_timers()
        stream = self._stream
        self._client.on_disconnect = None
        if stream is not None:
            self._socket_closing()
            stream.close()
        self._closed.set()

    # connecting

    def _make_client(self) -> _StreamClient:
        options = self.options
        client = _StreamClient(
            CallbackAPIVersion.VERSION2,
            client_id=options.client_id,
            clean_session=True,
            protocol=paho.MQTTv311,
            reconnect_on_failure=False,
        )
        client.open_stream = self._open_stream
        client.max_inflight_messages_set(options.max_inflight)
        client.max_queued_messages_set(options.max_queued)
        if options.username is not None:
            client.username_pw_set(options.username, options.password)
        if options.will is not None:
            will = options.will
            client.will_set(will.topic, will.payload, will.qos, will.retain)
        if options.tls is not None:
            options.tls.context()  # a wrong file is the operator's to mend, before anything connects
        client.on_connect = self._greet
        client.on_subscribe = self._subscribed
        client.on_message = self._paho_message
        client.on_publish = self._published
        client.on_disconnect = self._disconnected
        client.on_socket_close = lambda *_: self._socket_closing()
        # Its presence keeps paho from writing in the publisher's thread, where packets could mix.
        client.on_socket_register_write = lambda *_: None
        client.connect_async(options.address.host, options.address.port, options.keepalive)
        return client

    def _open_stream(self) -> PacketStream:
        options = self.options
        return PacketStream(
            open_socket(options), max_packet=options.max_packet, max_unsent=options.max_unsent
        )

    def _attempt(self) -> None:
        self._retry = None
        if self._closing or self._stream is not None:
            return
        try:
            self._client.reconnect()  # blocks for TCP and TLS, at most connect_timeout each
        except ssl.SSLCertVerificationError as error:
            self._refusal = f"its certificate is not trusted ({error.verify_message}); see --tls-ca"
            self._later(str(error))
            return
        except (OSError, ValueError) as error:
            self._later(str(error) or type(error).__name__)
            return
        stream = self._client.socket()
        assert isinstance(stream, PacketStream)
        self._stream = stream
        self._mask = READ
        self._loop.watch(stream.fileno(), READ, self._ready)
        self._upkeep = self._loop.call_later(self.options.connect_timeout, self._no_greeting)
        self._write_paho()

    def _later(self, reason: str) -> None:
        """Try again after a while; the jitter keeps a fleet from knocking all at once."""
        self.last_error = reason
        ceiling = min(self.options.max_backoff, self.options.min_backoff * 2**self._attempts)
        self._attempts = min(self._attempts + 1, 16)
        self._retry = self._loop.call_later(ceiling * random.uniform(0.5, 1.0), self._attempt)

    def _no_greeting(self) -> None:
        self._drop(f"no MQTT greeting within {self.options.connect_timeout:g} s")

    def _drop(self, reason: str) -> None:
        stream = self._stream
        if stream is not None:
            stream.ended = True
            self.last_error = reason
            self._read_paho()  # paho reads the end, and closes

    def _greet(self, _client: Any, _userdata: Any, _flags: Any, code: ReasonCode, _properties: Any) -> None:
        if code.is_failure:
            self.last_error = f"refused: {code}"
            if str(code) in _DENIED:
                self._refusal = f"refused user {self.options.username!r}: {str(code).lower()}"
            return
        for topic_filter, (_callback, qos) in self._routes.filters.items():
            self._client.subscribe(topic_filter, qos)
        self._refusal = None
        self._attempts = 0
        self.connected = self._greeted = self._was_connected = True

    def _subscribed(self, _client: Any, _userdata: Any, _mid: int, codes: list[ReasonCode], *_: Any) -> None:
        if any(code.is_failure for code in codes):
            raise ConfigurationError(
                f"broker {self.options.address}: refused a subscription of {self.options.client_id!r}; see its ACL"
            )

    def _disconnected(self, _client: Any, _userdata: Any, _flags: Any, code: ReasonCode, *_: Any) -> None:
        if not self._closing and self._was_connected:
            self.last_error = str(code)

    def _socket_closing(self) -> None:
        if self._stream is not None:
            self._loop.unwatch(self._stream.fileno())
        self._stream = None
        self._unacknowledged.clear()
        self.connected = self._greeted = False

    # the loop's calls

    def _ready(self, mask: int) -> None:
        stream = self._stream
        if stream is None:
            return
        if mask & WRITE:
            try:
                stream.flush()
            except OSError:
                stream.ended = True
            self._mind_writing()
        if mask & READ or stream.ended:
            more = True
            while more:
                more = stream.fill()
                while True:
                    packet = stream.take_publish()
                    if packet is not None:
                        self._routes.deliver(*packet)
                        if self._stream is not stream:
                            return
                    elif stream.for_paho:
                        self._read_paho()
                        if self._stream is not stream:
                            return
                    else:
                        break
            if stream.skipped:
                self._note_skipped(stream)
        if self._client.want_write():
            self._write_paho()

    def _paho_message(self, _client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic.encode()
        except UnicodeDecodeError:
            self._routes.violated("?", RemoteProtocolError("a topic that is not UTF-8"))
            return
        self._routes.deliver(topic, bytes(message.payload))

    def _note_skipped(self, stream: PacketStream) -> None:
        count, stream.skipped = stream.skipped, 0
        for _ in range(count):
            self._routes.violated(
                "?", RemoteProtocolError(f"a packet of more than {self.options.max_packet} bytes")
            )

    def _read_paho(self) -> None:
        self._in_paho = True
        try:
            self._client.loop_read()
        finally:
            self._in_paho = False
        self._after_paho()

    def _after_paho(self) -> None:
        """Tell the service what paho has learnt, outside paho's own locks."""
        if self._greeted:
            self._greeted = False
            self._cancel_timers()
            self._upkeep = self._loop.call_later(self._upkeep_period, self._keep_alive)
            self._client.loop_write()  # subscriptions go before whatever on_connected publishes
            if self._on_connected is not None and self._stream is not None:
                self._on_connected()
        if self._stream is None and self._retry is None and not self._closing:
            self._cancel_timers()
            lost, self._was_connected = self._was_connected, False
            self._later(self.last_error)
            if lost and self._on_lost is not None:
                self._on_lost(self.last_error)

    @property
    def _upkeep_period(self) -> float:
        return max(0.1, self.options.keepalive / 4)

    def _keep_alive(self) -> None:
        self._client.loop_misc()
        self._write_paho()
        if self._stream is None:
            self._after_paho()
        else:
            self._upkeep = self._loop.call_later(self._upkeep_period, self._keep_alive)

    def _write_paho(self) -> None:
        if self._client.want_write():
            self._client.loop_write()
        if self._stream is None:
            self._after_paho()
        else:
            self._mind_writing()

    def _mind_writing(self) -> None:
        stream = self._stream
        if stream is not None:
            mask = READ | WRITE if stream.unsent else READ
            if mask != self._mask:
                self._mask = mask
                self._loop.rewatch(stream.fileno(), mask, self._ready)

    def _soon(self, callback: Callable[[], None]) -> None:
        if self._loop.here and not self._in_paho:
            callback()
        else:
            self._loop.post(callback)

    def _cancel_timers(self) -> None:
        for timer in (self._retry, self._upkeep):
            if timer is not None:
                timer.cancel()
        self._retry = self._upkeep = None

    # QoS 1, and the end

    def _publish_acknowledged(self, topic: str, payload: bytes, qos: int, retain: bool) -> bool:
        with self._handing:
            self._handed += 1
        code = self._client.publish(topic, payload, qos, retain).rc
        if code not in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_NO_CONN):
            with self._handing:
                self._handed -= 1
            if code == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
                return False
            raise LocalProtocolError(f"topic {topic!r}: {paho.error_string(code)}")
        self._loop.post(self._write_paho)  # not at once: a callback may hold paho's locks
        return True

    def _published(self, _client: Any, _userdata: Any, mid: int, *_: Any) -> None:
        if mid in self._unacknowledged:
            self._unacknowledged.discard(mid)
        else:
            self._acknowledged += 1

    def _end(self, until: float) -> None:
        stream = self._stream
        owing = self._acknowledged < self._handed or (stream is not None and stream.unsent > 0)
        if self.connected and owing and self._loop.now() < until:
            self._loop.call_later(0.005, lambda: self._end(until))
            return
        self._cancel_timers()
        self._client.disconnect()
        if self._client.want_write():
            self._client.loop_write()
        self._closed.set()
