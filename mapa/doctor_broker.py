"""Measure a running broker: connect to it, its round trip, and the largest message that it takes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from cloud.probe import SizeProbe
from common.errors import MapaError
from common.quantities import RunId
from common.transport.connection import SIZE_HINT, MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codec import new_nonce
from common.wire.topics import probe_topic, run_id
from mapa.doctor import CheckState, MachineCheck

PURPOSE = "this-broker"
LARGEST = 1 << 24  # bytes of the largest message that is tried
_FIRST = 1 << 16
_ECHO = 10.0  # seconds for one message to come back
_TRIPS = 9
_FINENESS = 64  # the largest message is found to within one part in so many


def check_broker(options: MqttOptions, timeout: float, largest: int = LARGEST) -> Iterator[MachineCheck]:
    """Yield what a broker does; nothing is retained there, and only this program reads the topic."""
    run, name = run_id(f"doctor-{new_nonce()}"), f"broker {options.address}"
    needed_for = "mapa cloud and mapa edge with this --broker"
    fix = "is it running, and may this host reach it? `mosquitto -v -p 1883` starts one here"
    state, trips = CheckState.BROKEN, list[float]()
    try:
        with _connected(options, timeout) as (channel, loop):
            trips = _round_trips(run, channel, loop)
        found = f"connected, but our own message did not come back within {_ECHO:g} s"
        fix = "give the cloud's user: an edge's may neither write nor read mapa/v1/RUN/probe (docker/mosquitto/acl)"
    except MapaError as error:
        found = str(error)
    if trips:
        state, median = CheckState.OK, statistics.median(trips)
        found = f"connected; round trip {median * 1e3:.3g} ms (median of {len(trips)},"
        found += f" largest {max(trips) * 1e3:.3g} ms)"
    yield MachineCheck(name, state, found, needed_for, {PURPOSE}, fix)
    if not trips:
        return
    taken, refused = _largest_message(run, options, timeout, largest)
    limit = "; no larger one was tried" if refused is None else f", not {refused:,}"
    yield MachineCheck(
        f"{name}, message size",
        CheckState.BROKEN if not taken else CheckState.OK if refused is None else CheckState.NOTE,
        f"takes {taken:,} bytes{limit}: a model of {max(0, taken - 1024) // 4:,} parameters",
        "models on the wire: 4 bytes a parameter, and a little more",
        {PURPOSE},
        "" if refused is None else SIZE_HINT,
    )


def _largest_message(
    run: RunId, options: MqttOptions, timeout: float, largest: int
) -> tuple[int, int | None]:
    """Return the largest size that came back and the smallest that did not; None: every size did."""
    taken, size, refused = 0, min(_FIRST, largest), None
    while refused is None and taken < largest:
        if _comes_back(run, options, timeout, size):
            taken, size = size, min(2 * size, largest)
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
    topic, echoes = probe_topic(run), set[bytes]()
    channel.subscribe(topic, lambda _, payload: echoes.add(payload[:64]))
    trips = []
    for _ in range(_TRIPS + 1):
        mark, began = new_nonce().encode(), loop.now()
        loop.post(partial(channel.publish, topic, mark))
        if not loop.serve(partial(echoes.__contains__, mark), until=began + _ECHO):
            return []
        trips.append(loop.now() - began)
    return trips[1:]


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
