"""A broker that is running: really connected to, its round trip measured, and the largest message that it takes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from common.errors import MapaError
from common.quantities import RunId
from common.transport.connection import SIZE_HINT, MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codec import new_nonce
from common.wire.topics import probe_topic, run_id
from mapa.brokers import SizeProbe
from mapa.doctor.finding import Finding, State

PURPOSE = "this-broker"
LARGEST = 1 << 24  # bytes of the largest message that is tried
_FIRST = 1 << 16
_ECHO = 10.0  # seconds for one message to come back
_TRIPS = 9
_FINENESS = 64  # the largest message is found to within one part in so many
_SERVES = frozenset({PURPOSE})


def running_broker(options: MqttOptions, timeout: float, largest: int = LARGEST) -> Iterator[Finding]:
    """Yield what a broker does; nothing is retained there, and nobody but us reads the topic."""
    run, name = run_id(f"doctor-{new_nonce()}"), f"broker {options.address}"
    try:
        with _connected(options, timeout) as (channel, loop):
            trips = _round_trips(run, channel, loop)
    except MapaError as error:
        yield Finding(
            name=name,
            state=State.BROKEN,
            found=str(error),
            needed_for="mapa cloud and mapa edge with this --broker",
            serves=_SERVES,
            mend="is it running, and may this host reach it? `mosquitto -v -p 1883` starts one here",
        )
        return
    if not trips:
        yield Finding(
            name=name,
            state=State.BROKEN,
            found=f"connected, but our own message did not come back within {_ECHO:g} s",
            needed_for="mapa cloud with this --broker",
            serves=_SERVES,
            mend="give the cloud's user: an edge's may neither write nor read mapa/v1/RUN/probe (docker/mosquitto/acl)",
        )
        return
    yield Finding(
        name=name,
        state=State.OK,
        found=f"connected; round trip {statistics.median(trips) * 1e3:.3g} ms (median of {len(trips)},"
        f" largest {max(trips) * 1e3:.3g} ms)",
        needed_for="mapa cloud and mapa edge with this --broker",
        serves=_SERVES,
    )
    yield _size(run, options, timeout, largest)


def _size(run: RunId, options: MqttOptions, timeout: float, largest: int) -> Finding:
    taken, refused = largest_message(run, options, timeout, largest)
    said = f"takes {taken:,} bytes"
    said += f", not {refused:,}" if refused is not None else "; no larger one was tried"
    return Finding(
        name=f"broker {options.address}, message size",
        state=State.BROKEN if not taken else State.OK if refused is None else State.NOTE,
        found=f"{said}: a model of {max(0, taken - 1024) // 4:,} parameters",
        needed_for="models on the wire: 4 bytes a parameter, and a little more",
        serves=_SERVES,
        mend="" if refused is None else SIZE_HINT,
    )


def largest_message(
    run: RunId, options: MqttOptions, timeout: float, largest: int = LARGEST
) -> tuple[int, int | None]:
    """Return the largest size that came back and the smallest that did not; None: every size did."""
    taken, size, refused = 0, min(_FIRST, largest), None
    while refused is None and size <= largest:
        if _comes_back(run, options, timeout, size):
            taken, size = size, min(2 * size, largest) if size < largest else largest + 1
        else:
            refused = size
    while refused is not None and refused - taken > max(64, refused // _FINENESS):
        middle = (taken + refused) // 2
        if _comes_back(run, options, timeout, middle):
            taken = middle
        else:
            refused = middle
    return taken, refused


def _comes_back(run: RunId, options: MqttOptions, timeout: float, size: int) -> bool:
    """Send one message to ourselves on a connection of its own: a broker may close it over the size."""
    try:
        with _connected(options, timeout) as (channel, loop):
            probe = SizeProbe(run, new_nonce(), channel, size)
            probe.begin()
            loop.post(probe.send)
            loop.serve(lambda: probe.settled or not channel.connected, until=loop.now() + _ECHO)
            return probe.passed
    except MapaError:
        return False


def _round_trips(run: RunId, channel: MqttChannel, loop: SelectorLoop) -> list[float]:
    """Return the seconds of some round trips, without the first, which waits for the subscription; none: no echo."""
    topic, heard = probe_topic(run), set[bytes]()

    def hear(topic: str, payload: bytes) -> None:  # noqa: ARG001
        heard.add(payload[:64])

    channel.subscribe(topic, hear)
    trips = []
    for _ in range(_TRIPS + 1):
        mark, began = new_nonce().encode(), loop.now()
        loop.post(partial(_publish, channel, topic, mark))
        if not loop.serve(partial(heard.__contains__, mark), until=began + _ECHO):
            return []
        trips.append(loop.now() - began)
    return trips[1:]


def _publish(channel: MqttChannel, topic: str, payload: bytes) -> None:
    channel.publish(topic, payload)


@contextmanager
def _connected(options: MqttOptions, timeout: float) -> Iterator[tuple[MqttChannel, SelectorLoop]]:
    loop = SelectorLoop()
    try:
        channel = MqttChannel(replace(options, client_id=f"doctor-{new_nonce()}"), loop)
        channel.connect(timeout)
        try:
            yield channel, loop
        finally:
            channel.close(1.0)
    finally:
        loop.close()
