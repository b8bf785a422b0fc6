"""paho's client on our own socket, and pending QoS 1 messages; the only paho import."""

from __future__ import annotations

import random
import ssl
import threading
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from common.errors import BrokerUnavailableError, ConfigurationError, LocalProtocolError, RemoteProtocolError
from common.transport.channel import UNREAD, Bytes, OnMessage, OnViolation, Routes, Timer, ignore_violation
from common.transport.connection import (
    SIZE_HINT,
    MqttOptions,
    advised,
    open_socket,
    still_trying,
    unreachable,
)
from common.transport.loop import READ, WRITE, SelectorLoop
from common.transport.stream import PacketStream, publish_head

_DENIED = ("Bad user name or password", "Not authorized")
_UNEXPLAINED = "Unspecified error"  # of a connection that the other side closed
_TAKEN = (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_NO_CONN)  # without a connection it waits
_NEXT_LOOK = 0.005  # seconds between two looks at what a closing channel owes
_LARGE = 512  # bytes; no broker refuses less
_READS = (
    8  # in a row, while there is something to read: then the loop's other sockets and timers have their turn
)
_LAST_BACKOFF = 1.0  # seconds at most between two tries where only the final messages remain


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
        self.max_inflight_messages_set(options.max_queued)  # one that paho holds back would be overtaken
        self.max_queued_messages_set(options.max_queued)
        given = options.credentials
        if given.username is not None:
            self.username_pw_set(given.username, given.password)
        if (will := options.will) is not None:
            self.will_set(will.topic, will.payload, will.qos, will.retain)
        if given.tls is not None:
            given.tls.context()  # a wrong file is the operator's to fix, before anything connects
        self.on_publish = self._published
        # Its presence keeps paho from writing in the publisher's thread, where packets could mix.
        self.on_socket_register_write = lambda *_: None
        self.connect_async(options.address.host, options.address.port, options.keepalive)

    @property
    def owed(self) -> int:
        """QoS 1 messages that the broker has not acknowledged, those that wait for it included."""
        return self._handed - self._acknowledged

    def publish_acknowledged(self, topic: str, payload: bytes, retain: bool) -> bool:
        """Queue a QoS 1 message, with a connection or without; False: the queue is full."""
        with self._handing:
            self._handed += 1
        code = self.publish(topic, payload, 1, retain).rc
        if code in _TAKEN:
            return True
        with self._handing:
            self._handed -= 1
        if code == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
            return False
        raise LocalProtocolError(f"topic {topic!r}: {paho.error_string(code)}")

    def _published(self, *_: Any) -> None:
        self._acknowledged += 1

    def _create_socket(self) -> Any:
        return self._open_stream()


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
        self.last_error = "not tried yet"
        self._loop = loop
        self.on_connected, self.on_lost, self.on_violation = on_connected, on_lost, on_violation
        self._guard = options.guard
        self._routes = Routes(lambda topic, error: self.on_violation(topic, error), options.guard)
        self._stream: PacketStream | None = None
        self._mask = 0  # what the loop waits for
        self._greeted = False  # CONNACK came, on_connected is still to be told
        self._was_connected = False
        self._explained = False  # why the attempt under way fails is known
        self.refusal: str | None = None  # what the operator must fix
        self._attempts = 0
        self._retry: Timer | None = None
        self._upkeep: Timer | None = None
        self._closing = False
        self._hasty = False  # only the final messages remain: try often
        self._until = 0.0  # when closing: no longer than this
        self.closed = False
        self._max_packet = options.max_packet
        self._upkeep_period = max(0.1, options.keepalive / 4)  # seconds
        self._last_size = 0  # bytes of the last message on this connection
        self._lost_behind = (0, 0)  # that size when the last connection was lost, and how often in a row
        self._client = StreamClient(options, self._open_stream)
        self._client.on_connect = self._greet
        self._client.on_subscribe = self._subscribed
        self._client.on_message = self._paho_message
        self._client.on_disconnect = self._disconnected
        self._client.on_socket_close = lambda *_: self._socket_closing()

    @property
    def violations(self) -> int:
        """Messages that violated the protocol."""
        return self._routes.violations

    def connect(self, timeout: float, say: Callable[[str], None] | None = None) -> None:
        """Serve the loop until there is a connection, at most `timeout` seconds; retries are said.

        Later losses are repaired by the loop. A callback, and a thread beside the loop's, must use `open`.
        """
        until = self._loop.now() + timeout
        self.open()
        self._loop.serve(lambda: self.connected or self.failed or self.refusal is not None, until=until)
        if say is not None and self.failed and self.refusal is None:
            say(still_trying(self.options.address, timeout, self.last_error))
        self._loop.serve(lambda: self.connected or self.refusal is not None, until=until)
        if self.refusal is not None:
            self.close(0)
            raise ConfigurationError(f"broker {self.options.address}: {self.refusal}")
        if not self.connected:
            self.close(0)
            raise BrokerUnavailableError(unreachable(self.options.address, timeout, self.last_error))

    def open(self) -> None:
        """Start connecting and keep trying, without waiting; `refusal` says what no retry can fix."""
        self._loop.post(self._attempt)

    @property
    def failed(self) -> bool:
        return not self.connected and self._attempts > 0

    @property
    def owing(self) -> bool:
        stream = self._stream
        return self._client.owed > 0 or (stream is not None and stream.unsent > 0)

    def allow(self, max_packet: int) -> None:
        self._max_packet = max_packet
        if self._stream is not None:
            self._stream.max_packet = max_packet

    def publish(self, topic: str, *payload: Bytes, qos: int = 0, retain: bool = False) -> bool:
        if self._guard is not None:
            sealed = self._guard.seal(topic, *payload)
            if sealed is None:
                return False
            payload = sealed
        self._last_size = size = len(payload[0]) if len(payload) == 1 else sum(map(len, payload))
        if qos:
            taken = self._client.publish_acknowledged(topic, b"".join(payload), retain)
            self._push()
            return taken
        stream = self._stream
        if stream is None or not self.connected:
            return False
        try:
            taken = stream.write(publish_head(topic, size, retain), *payload)
        except OSError:
            return False  # the loop sees the end of the connection by itself
        if stream.unsent:
            self._push()
        return taken

    def subscribe(
        self, topic_filter: str, callback: OnMessage, *, qos: int = 0, retained: bool = False
    ) -> None:
        self._routes.add(topic_filter, callback, qos, retained=retained)
        if self.connected:
            self._client.subscribe(topic_filter, qos)
            self._push()

    def close(self, timeout: float = 5.0) -> None:
        """Deliver pending QoS 1 messages, disconnect and end; meanwhile wait for a broker that is unreachable.

        From a callback it only begins; it ends while the loop serves. Called again, it can only end sooner.
        """
        until = self._loop.now() + timeout
        if self._closing:
            self._until = min(self._until, until)
            return
        self._closing, self._until = True, until
        if self.owing:
            self._loop.post(self.hasten)
        self._loop.post(self._end)
        if not self._loop.here:
            self._loop.serve(lambda: self.closed, until=until + 1)

    def abort(self) -> None:
        """Drop the connection without a DISCONNECT, as a crash would: the last will is published.

        In the loop's thread, or while it does not serve.
        """
        self._closing = True
        self._cancel_timers()
        stream = self._stream
        self._client.on_disconnect = None
        if stream is not None:
            self._socket_closing()
            stream.close()
        self.closed = True

    # connecting

    def _open_stream(self) -> PacketStream:
        options = self.options
        return PacketStream(open_socket(options), max_packet=self._max_packet, max_unsent=options.max_unsent)

    def _attempt(self) -> None:
        self._retry = None
        if self._ending or self._stream is not None:
            return
        self._explained = False
        try:
            self._client.reconnect()  # blocks for TCP and TLS, at most connect_timeout each
        except ssl.SSLCertVerificationError as error:
            self.refusal = f"its certificate is not trusted ({error.verify_message}); see --tls-ca"
            self._later(str(error))
            return
        except (OSError, ValueError) as error:
            self._later(advised(error, tls=self.options.credentials.tls is not None))
            return
        stream = self._client.socket()
        assert isinstance(stream, PacketStream)
        self._stream = stream
        self._mask = READ
        self._loop.watch(stream.fileno(), READ, self._ready)
        self._upkeep = self._loop.call_later(self.options.connect_timeout, self._no_greeting)
        self._settle()

    @property
    def _ending(self) -> bool:
        """Whether no connection is wanted any more."""
        return self.closed or (self._closing and not self.owing)

    def _later(self, reason: str) -> None:
        """Try again later; the jitter keeps a fleet from reconnecting all at once."""
        self.last_error = reason
        longest = _LAST_BACKOFF if self._hasty else self.options.max_backoff
        ceiling = min(longest, self.options.min_backoff * 2**self._attempts)
        self._attempts = min(self._attempts + 1, 16)
        self._retry = self._loop.call_later(ceiling * random.uniform(0.5, 1.0), self._attempt)

    def _no_greeting(self) -> None:
        if self._stream is not None:
            self._stream.ended = True
            waited, self._explained = f"{self.options.connect_timeout:g} s", True
            self.last_error = (
                f"no MQTT CONNACK within {waited}: is this port an MQTT broker's?{self._tls_hint}"
            )
            self._read_paho()  # paho reads the end, and closes

    def _greet(self, _client: Any, _userdata: Any, _flags: Any, code: ReasonCode, _properties: Any) -> None:
        if code.is_failure:
            self.last_error, self._explained = f"refused: {code}", True
            if str(code) in _DENIED:
                user = self.options.credentials.username
                self.refusal = f"refused user {user!r}: {str(code).lower()}"
            return
        for topic_filter, (_callback, qos) in self._routes.filters.items():
            self._client.subscribe(topic_filter, qos)
        self.refusal = None
        self._attempts = self._last_size = 0
        self.connected = self._greeted = self._was_connected = True

    def _subscribed(self, _client: Any, _userdata: Any, _mid: int, codes: list[ReasonCode], *_: Any) -> None:
        if any(code.is_failure for code in codes):
            raise ConfigurationError(
                f"broker {self.options.address}: refused a subscription of {self.options.client_id!r}; see its ACL"
            )

    def _disconnected(self, _client: Any, _userdata: Any, _flags: Any, code: ReasonCode, *_: Any) -> None:
        if self._closing:
            return
        if self._was_connected:
            self.last_error = self._loss(code)
        elif not self._explained:
            self.last_error = f"the other side ended the connection before MQTT's CONNACK{self._tls_hint}"

    @property
    def _tls_hint(self) -> str:
        """What a failure may mean where this side speaks no TLS."""
        plain = self.options.credentials.tls is None and not self.options.address.is_unix
        return "; if it is a TLS port, connect with --tls-ca CA (or --tls)" if plain else ""

    def _loss(self, code: ReasonCode) -> str:
        """Describe why the connection was lost; an MQTT 3.1.1 broker gives no reason.

        One that ends connection after connection behind a message of the same size may not take such messages.
        """
        size, former = self._last_size, self._lost_behind[0]
        self._lost_behind = (size, self._lost_behind[1] + 1 if size == former else 1)
        if str(code) != _UNEXPLAINED:
            return str(code)
        if size >= _LARGE and self._lost_behind[1] > 1:
            return (
                f"disconnected by the broker, again right after a message of {size} bytes:"
                f" it may refuse messages of that size; {SIZE_HINT}"
            )
        return "disconnected by the broker: it has stopped, or another client uses this client id"

    def _socket_closing(self) -> None:
        if self._stream is not None:
            self._loop.unwatch(self._stream.fileno())
        self._stream = None
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
            for _ in range(_READS):
                if not stream.fill() and not stream.ended:
                    break
                packets = 0
                while True:
                    packet = stream.take_publish()
                    if stream.skipped:
                        self._count_skipped(stream)
                    if packet is not None:
                        packets += 1
                        if self._last_size >= _LARGE:
                            self._lost_behind = (0, 0)  # the broker went on after a message of that size
                        self._routes.deliver(*packet, retained=stream.retained)
                        if self._stream is not stream:
                            return
                    elif stream.for_paho:
                        self._read_paho()
                        if self._stream is not stream:
                            return
                    else:
                        break
                if packets < 2 and not stream.decrypted and (packets or not stream.framed):
                    break  # a read that finds nothing costs as much as a turn of the loop
            else:
                if stream.decrypted:  # which no selector sees
                    self._loop.post(lambda: self._ready(READ))

    def _count_skipped(self, stream: PacketStream) -> None:
        skipped, stream.skipped = stream.skipped, 0
        for _ in range(skipped):
            self._routes.violated(
                UNREAD, RemoteProtocolError(f"a packet of more than {self._max_packet} bytes")
            )

    def _paho_message(self, _client: Any, _userdata: Any, message: MQTTMessage) -> None:
        try:
            topic = message.topic.encode()
        except UnicodeDecodeError:
            self._routes.violated(UNREAD, RemoteProtocolError("a topic that is not UTF-8"))
            return
        if message.topic != UNREAD:  # the stand-in of a skipped packet: acknowledged, and no more
            self._routes.deliver(topic, bytes(message.payload), retained=message.retain)

    def _read_paho(self) -> None:
        self._client.loop_read()
        self._settle()

    def _push(self) -> None:
        """Have the socket take what waits: at once in the loop's thread, so that nothing published later overtakes it.

        From a callback of paho's, too, whose locks allow it: no QoS 0 message, which would be told of, is in its queue.
        """
        if self._loop.here:
            self._client.loop_write()
            self._mind_writing()
        else:
            self._loop.post(self._settle)

    def _settle(self) -> None:
        """Write what paho has queued, and report its events to the service, outside paho's own locks."""
        self._client.loop_write()  # subscriptions go before whatever on_connected publishes
        self._mind_writing()
        if self._greeted:
            self._greeted = False
            self._cancel_timers()
            self._upkeep = self._loop.call_later(self._upkeep_period, self._keep_alive)
            # a channel that closes has sent its final messages: to announce itself again would contradict them
            if self.on_connected is not None and self._stream is not None and not self._closing:
                self.on_connected()
        if self._stream is None and self._retry is None and not self._ending:
            self._cancel_timers()
            lost, self._was_connected = self._was_connected, False
            self._later(self.last_error)
            if lost and self.on_lost is not None:
                self.on_lost(self.last_error)

    def _keep_alive(self) -> None:
        self._client.loop_misc()
        self._settle()
        if self._stream is not None:
            self._upkeep = self._loop.call_later(self._upkeep_period, self._keep_alive)

    def _mind_writing(self) -> None:
        stream = self._stream
        if stream is not None:
            mask = READ | WRITE if stream.unsent else READ
            if mask != self._mask:
                self._mask = mask
                self._loop.rewatch(stream.fileno(), mask, self._ready)

    def _cancel_timers(self) -> None:
        for timer in (self._retry, self._upkeep):
            if timer is not None:
                timer.cancel()
        self._retry = self._upkeep = None

    def hasten(self) -> None:
        """Try to reconnect at once, and from now on every second: the next try may be due too late."""
        self._hasty = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = self._loop.call_later(0.0, self._attempt)

    def _end(self) -> None:
        if self.closed:
            return
        if self.owing and self._loop.now() < self._until:
            self._loop.call_later(_NEXT_LOOK, self._end)
            return
        self._cancel_timers()
        self._client.disconnect()
        if self._client.want_write():
            self._client.loop_write()
        self.closed = True
