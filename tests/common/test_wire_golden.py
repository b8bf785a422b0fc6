"""Bytes that version 1 must read, and write, for ever once it is frozen (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.messages import GradientArrived, Halt, Hello, Leave, Presence, Refuse, SendModel, Welcome
from common.quantities import EdgeId, NoisyGradient
from common.wire import codec

FOLDER = Path(__file__).parent.parent / "golden" / "v1"
EDGE = EdgeId("edge-1")
NONCE = "0123456789abcdef"
VECTOR = np.array([0.0, 1.0, -1.5, 3.4028235e38], np.float32)
LIFE = 8877665544332211  # an incarnation
GRADIENT = GradientArrived(EDGE, 41, 1234567890123, 0.0625, NoisyGradient(VECTOR), LIFE)
MODEL = SendModel(EDGE, 1234567890124, 0.03125, 41, VECTOR, LIFE)
HELLO = Hello(
    edge_id=EDGE,
    noise="gamma-norm",
    parameters={"epsilon": 0.2},
    last_sequence=41,
    index=4,
    nonce=NONCE,
    number=3,
    incarnation=LIFE,
)
ADMISSION = Welcome(
    edge_id=EDGE,
    index=4,
    last_sequence=40,
    edges=20,
    scenario={"batch_size": 12, "model": {"name": "lr", "options": {"positive": [1, 3]}}, "rate": 0.5},
    seed=7,
    nonce=NONCE,
    number=3,
    incarnation=LIFE,
)
REFUSE = Refuse(EDGE, "ledger-lost", "the ledger has 41 releases, but 57 were applied", NONCE, 3, LIFE, 57)
LEAVE = Leave(EDGE, "budget", NONCE)
HALT = Halt("finished", 3000, LIFE)
PRESENCE = Presence(True, NONCE, LIFE)

CASES: dict[str, tuple[bytes, Callable[[bytes], object], object]] = {
    "hello": (codec.encode(HELLO), lambda raw: codec.decode_hello(EDGE, raw), HELLO),
    "welcome": (codec.encode(ADMISSION), lambda raw: codec.decode_answer(EDGE, raw), ADMISSION),
    "refuse": (codec.encode(REFUSE), lambda raw: codec.decode_answer(EDGE, raw), REFUSE),
    "leave": (codec.encode(LEAVE), lambda raw: codec.decode_leave(EDGE, raw), LEAVE),
    "halt": (codec.encode(HALT), codec.decode_halt, HALT),
    "presence": (codec.encode(PRESENCE), codec.decode_presence, PRESENCE),
}


def golden(name: str) -> bytes:
    return (FOLDER / f"{name}.msgpack").read_bytes()


def test_every_golden_file_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.msgpack")} == CASES.keys() | {"gradient", "model"}


@pytest.mark.parametrize("name", sorted(CASES))
def test_golden_bytes_are_read_and_made(name: str) -> None:
    made, decode, event = CASES[name]
    assert decode(golden(name)) == event
    assert made == golden(name)


def test_the_golden_gradient_is_read_and_made() -> None:
    came = codec.decode_gradient(EDGE, golden("gradient"), VECTOR.size)
    assert (came.sequence, came.version, came.incarnation, came.sensitivity) == (
        41,
        1234567890123,
        LIFE,
        0.0625,
    )
    assert came.gradient.tolist() == VECTOR.tolist()
    assert codec.encode_gradient(GRADIENT) == golden("gradient")


def test_the_golden_model_is_read_and_made() -> None:
    came = codec.decode_model(EDGE, golden("model"), VECTOR.size)
    assert (came.version, came.sensitivity, came.acknowledged) == (1234567890124, 0.03125, 41)
    assert came.incarnation == LIFE
    assert came.model.tolist() == VECTOR.tolist()
    assert codec.encode_model(MODEL) == golden("model")
