"""What MqttChannel reads in one turn of its loop, and what it leaves to the next."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest

from common.transport.connection import BrokerAddress, MqttOptions
from common.transport.loop import READ, SelectorLoop
from common.transport.mqtt import MqttChannel
from common.transport.stream import PacketStream


@pytest.mark.parametrize("packets", [0, 1, 5])
@pytest.mark.parametrize("reads", [1, 7, 8, 9, 40])
def test_what_tls_holds_is_read_though_no_selector_tells_of_it(reads: int, packets: int) -> None:
    """The socket is never readable again: all of it has been decrypted already."""
    loop = Mock(spec=SelectorLoop)
    turns: list[Callable[[], None]] = []
    loop.post.side_effect = turns.append
    channel = MqttChannel(MqttOptions(address=BrokerAddress("127.0.0.1", 1), client_id="c"), loop)
    plain = {"ended": False, "skipped": 0, "for_paho": False, "retained": False, "unsent": 0}
    stream = Mock(spec=PacketStream, framed=True, **plain)
    left, waiting, got = reads, 0, []

    def fill() -> bool:
        nonlocal left, waiting
        if not left:
            return False
        left, waiting = left - 1, packets
        stream.decrypted = left > 0
        return True

    def take_publish() -> tuple[bytes, bytes] | None:
        nonlocal waiting
        waiting -= 1
        return (b"t", b"x") if waiting >= 0 else None

    stream.fill, stream.take_publish, stream.decrypted = fill, take_publish, True
    channel.subscribe("t", lambda _topic, payload: got.append(payload))
    channel._stream = stream
    most = left
    turns.append(lambda: channel._ready(READ))
    while turns:
        turns.pop()()
        assert most - left <= 8, "the loop's other sockets and timers must have their turn"
        most = left
    assert not left
    assert got == [b"x"] * (packets * reads)
