"""A helper as a program: its channel, its signals, its exit code."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common.errors import RemoteProtocolError
from common.health import beat
from common.quantities import RunId
from common.secure.terms import MOST_HELPERS
from common.transport.connection import BrokerAddress, Credentials, MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.secure_v1 import ASK_LIMIT
from common.wire.topics import edge_client_id, edge_id
from mapa.helper.helper import Authority
from mapa.helper.service import HelperService

EXIT_INTERRUPTED = 130
_COMPLAINTS = 50  # lines about messages, of which any client may send any number
_FRONT = 1024  # bytes of a packet beside an ask, with room to spare


def serve_helper(
    run: RunId,
    name: str,
    place: int,
    state: Path,
    broker: BrokerAddress,
    credentials: Credentials,
    *,
    connect_timeout: float,
    say: Callable[[str], None],
    authority: Authority | None = None,
) -> int:
    """Help a run until its keys are destroyed, or a signal; return the exit code."""
    if not 0 <= place < MOST_HELPERS:
        raise ValueError(f"place = {place}")
    loop, codes, complaints = SelectorLoop(), list[int](), list[str]()
    options = MqttOptions(
        address=broker,
        client_id=edge_client_id(run, edge_id(name)),
        credentials=credentials,
        max_packet=ASK_LIMIT + _FRONT,
    )

    def end(code: int) -> None:
        codes.append(code)
        loop.stop()

    def violated(topic: str, error: RemoteProtocolError) -> None:
        complaints.append(topic)
        if len(complaints) <= _COMPLAINTS:
            say(f"{name}: dropped a message on {topic}: {error}")

    channel = MqttChannel(options, loop, on_violation=violated)
    service = HelperService(
        run, name, place, state / name, channel, authority=authority, say=say, on_stop=end
    )
    try:
        channel.connect(connect_timeout, say)
        channel.on_connected = service.on_connected
        service.start()
        beat(loop, lambda: channel.connected)
        former = {
            number: signal.signal(number, lambda *_, code=code: loop.post(partial(end, code)))
            for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, EXIT_INTERRUPTED))
        }
        try:
            loop.run()
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
        channel.close()
    finally:
        service.close()
        loop.close()
    return codes[0]
