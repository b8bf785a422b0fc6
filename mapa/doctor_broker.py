"""Measure a running broker: connect to it, its round trip, and the largest message that it takes."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, takewhile

from cloud.probe import SizeProbe
from common.errors import MapaError
from common.transport.connection import SIZE_HINT, MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codec import new_nonce
from common.wire.topics import run_id
from mapa.doctor import BROKEN, NOTE, OK, MachineCheck

PURPOSE = "this-broker"
LARGEST = 1 << 24  # bytes of the largest message that is tried
_FIRST, _STEP = 1 << 10, 1.015  # the smallest, and what each next one is larger by
_ECHO = 10.0  # seconds for one message to come back
_TRIPS = 9
_SMALL = 64  # bytes of a message whose round trip is measured


def check_broker(options: MqttOptions, timeout: float, largest: int = LARGEST) -> Iterator[MachineCheck]:
    """Yield what a broker does; nothing is retained there, and only this program reads the topic."""
    name = f"broker {options.address}"
    trips: list[float] = []
    try:
        with _connected(options, timeout) as (channel, loop):
            while len(trips) < _TRIPS and (seconds := _echo(channel, loop, _SMALL)) is not None:
                trips.append(seconds)
        found = f"connected, but our own message did not come back within {_ECHO:g} s"
        fix = "give the cloud's user: an edge's may neither write nor read mapa/v1/RUN/probe (docker/mosquitto/acl)"
    except MapaError as error:
        found = str(error)
        fix = "is it running, and may this host reach it? `mosquitto -v -p 1883` starts one here"
    if trips:
        median, longest = 1e3 * statistics.median(trips), 1e3 * max(trips)
        found = f"connected; round trip {median:.3g} ms (median of {len(trips)}, largest {longest:.3g} ms)"
    state = OK if trips else BROKEN
    yield MachineCheck(name, state, found, "mapa cloud and mapa edge with this --broker", {PURPOSE}, fix)
    if not trips:
        return
    taken, refused = _largest_message(options, timeout, largest)
    limit = "; no larger one was tried" if refused is None else f", not {refused:,}"
    yield MachineCheck(
        f"{name}, message size",
        BROKEN if not taken else OK if refused is None else NOTE,
        f"takes {taken:,} bytes{limit}: a model of {max(0, taken - 1024) // 4:,} parameters",
        "models on the wire: 4 bytes a parameter, and a little more",
        {PURPOSE},
        SIZE_HINT,
    )


def _largest_message(options: MqttOptions, timeout: float, largest: int) -> tuple[int, int | None]:
    """Return the largest size that came back and the smallest that did not; None: every size did."""
    sizes = [*takewhile(lambda size: size < largest, (int(_FIRST * _STEP**k) for k in count())), largest]
    refused = bisect_left(sizes, True, key=lambda size: not _comes_back(options, timeout, size))
    return sizes[refused - 1] if refused else 0, sizes[refused] if refused < len(sizes) else None


def _comes_back(options: MqttOptions, timeout: float, size: int) -> bool:
    """Send one message on a connection of its own: a broker may close it over the size."""
    try:
        with _connected(options, timeout) as (channel, loop):
            return _echo(channel, loop, size) is not None
    except MapaError:
        return False


def _echo(channel: MqttChannel, loop: SelectorLoop, size: int) -> float | None:
    """Send one message to ourselves; return the seconds until it came back, None if it did not."""
    probe = SizeProbe(run_id(f"doctor-{new_nonce()}"), new_nonce(), channel, size)
    probe.begin()
    began = loop.now()
    loop.post(probe.send)
    loop.serve(lambda: probe.settled or not channel.connected, until=began + _ECHO)
    return loop.now() - began if probe.passed else None


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
