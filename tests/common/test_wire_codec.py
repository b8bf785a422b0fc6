"""Bytes ↔ events: round trips, and hostile bytes that can only be refused."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.errors import LocalProtocolError, RemoteProtocolError
from common.messages import GradientArrived, Halt, Hello, Leave, Presence, Refuse, SendModel, Welcome
from common.quantities import EdgeId, NoisyGradient, is_finite, length
from common.wire import codec, v1

EDGE = EdgeId("e1")
NONCE = "0123456789abcdef"
LIFE = 2**62 + 5  # an incarnation
COUNTS = st.integers(0, 2**63 - 1)
WORDS = st.from_regex(r"\A[a-z0-9-]{1,32}\Z")
NONCES = st.from_regex(r"\A[0-9a-f]{16}\Z")
POSITIVE = st.floats(min_value=1e-300, allow_nan=False, allow_infinity=False)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VECTORS = hnp.arrays(
    np.float32, st.integers(1, 50), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)


def gradient(vector: object = (1.0, -2.0), sequence: int = 7, sensitivity: float = 0.5) -> GradientArrived:
    values = np.asarray(vector, np.float32)
    return GradientArrived(EDGE, sequence, 3, sensitivity, NoisyGradient(values), LIFE)


DECODERS: dict[str, Callable[[bytes], object]] = {
    "gradient": lambda payload: codec.decode_gradient(EDGE, payload, 2),
    "model": lambda payload: codec.decode_model(EDGE, payload, 2),
    "hello": lambda payload: codec.decode_hello(EDGE, payload),
    "answer": lambda payload: codec.decode_answer(EDGE, payload),
    "leave": lambda payload: codec.decode_leave(EDGE, payload),
    "halt": codec.decode_halt,
    "presence": codec.decode_presence,
}
HELLO = Hello(edge_id=EDGE, noise="gaussian", parameters={"noise_multiplier": 1.5}, nonce=NONCE)
ADMISSION = Welcome(
    edge_id=EDGE,
    index=2,
    last_sequence=9,
    edges=5,
    scenario={"model": {"name": "lr"}},
    seed=None,
    nonce=NONCE,
    number=3,
    incarnation=LIFE,
)
VALID = {
    "gradient": codec.encode_gradient(gradient()),
    "model": codec.encode_model(SendModel(EDGE, 4, 0.5, 7, np.array([1, 2], np.float32), LIFE)),
    "hello": codec.encode(HELLO),
    "answer": codec.encode(ADMISSION),
    "leave": codec.encode(Leave(EDGE, "budget", NONCE)),
    "halt": codec.encode(Halt("finished", 100, LIFE)),
    "presence": codec.encode(Presence(True, NONCE, LIFE)),
}
KINDS = sorted(DECODERS)


@given(VECTORS, st.integers(1, 2**63 - 1), COUNTS, COUNTS, st.floats(0, 1e300))
def test_a_gradient_arrives_as_it_was_sent(
    vector: np.ndarray, sequence: int, version: int, incarnation: int, sensitivity: float
) -> None:
    sent = GradientArrived(EDGE, sequence, version, sensitivity, NoisyGradient(vector), incarnation)
    payload = codec.encode_gradient(sent)
    came = codec.decode_gradient(EDGE, payload, vector.size)
    assert (came.sequence, came.version, came.incarnation, came.sensitivity) == (
        sequence,
        version,
        incarnation,
        sensitivity,
    )
    assert codec.incarnation_of(payload) == incarnation
    assert came.gradient.tobytes() == vector.tobytes()
    assert len(payload) == v1.HEADER_BYTES + 4 * vector.size


@given(VECTORS, COUNTS, COUNTS, COUNTS, st.floats(0, 1e300))
def test_a_model_arrives_as_it_was_sent(
    vector: np.ndarray, version: int, incarnation: int, acknowledged: int, sensitivity: float
) -> None:
    sent = SendModel(EDGE, version, sensitivity, acknowledged, vector, incarnation)
    came = codec.decode_model(EDGE, codec.encode_model(sent), vector.size)
    assert (came.version, came.incarnation, came.acknowledged) == (version, incarnation, acknowledged)
    assert came.sensitivity == sensitivity
    assert came.model.tobytes() == vector.tobytes()


@given(
    WORDS | st.just("package.module:Class") | st.none(),
    st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True), FINITE, max_size=8),
    COUNTS,
    COUNTS | st.none(),
    NONCES,
    st.integers(1, 2**63 - 1),
)
def test_a_hello_arrives_as_it_was_sent(
    noise: str | None,
    parameters: dict[str, float],
    last: int,
    index: int | None,
    nonce: str,
    number: int,
) -> None:
    sent = Hello(
        edge_id=EDGE,
        noise=noise,
        parameters=parameters,
        last_sequence=last,
        index=index,
        nonce=nonce,
        number=number,
        incarnation=last,
        preparing=number % 2 == 0,
    )
    assert codec.decode_hello(EDGE, codec.encode(sent)) == sent


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4), COUNTS | st.none(), st.integers(0, 2**63 - 2))
def test_a_welcome_arrives_as_it_was_sent(scenario: dict[str, object], seed: int | None, last: int) -> None:
    sent = Welcome(
        edge_id=EDGE,
        index=3,
        last_sequence=last,
        edges=4,
        scenario=scenario,
        seed=seed,
        nonce=NONCE,
        number=last + 1,
        incarnation=last,
    )
    if v1.bounded(scenario):
        assert codec.decode_answer(EDGE, codec.encode(sent)) == sent
    else:  # deeper than the cap
        with pytest.raises(LocalProtocolError):
            codec.encode(sent)


def test_refuse_leave_halt_and_presence_arrive_as_they_were_sent() -> None:
    for answered in ((None, None), (NONCE, 2**40)):
        refuse = Refuse(EDGE, "fleet-full", "5 of 5 shards are dealt", *answered, LIFE)
        assert codec.decode_answer(EDGE, codec.encode(refuse)) == refuse
        lost = replace(refuse, reason="ledger-lost", last_sequence=57)
        assert codec.decode_answer(EDGE, codec.encode(lost)) == lost
    leave = Leave(EDGE, "budget", NONCE)
    assert codec.decode_leave(EDGE, codec.encode(leave)) == leave
    halt = Halt("no-budget", 12, LIFE)
    assert codec.decode_halt(codec.encode(halt)) == halt
    for online in (True, False):
        presence = Presence(online, codec.new_nonce(), LIFE)
        assert codec.decode_presence(codec.encode(presence)) == presence


def test_the_decoded_vector_is_an_aligned_view_without_a_copy() -> None:
    payload = codec.encode_gradient(gradient(np.arange(100)))
    vector = codec.decode_gradient(EDGE, payload, 100).gradient
    assert vector.base is payload
    assert vector.flags.aligned
    assert not vector.flags.writeable


def test_the_header_of_a_hot_message_is_plain_msgpack() -> None:
    header = VALID["gradient"][: v1.HEADER_BYTES]
    assert msgpack.unpackb(header) == [1, "g", 7, 3, LIFE, 0.5]
    assert msgpack.unpackb(VALID["model"][: v1.HEADER_BYTES]) == [1, "m", 4, LIFE, 7, 0.5]


# ---- hostile bytes


def refuse_or_return(kind: str, payload: bytes) -> None:
    """Let nothing but RemoteProtocolError come out."""
    with contextlib.suppress(RemoteProtocolError):
        DECODERS[kind](payload)


@pytest.mark.parametrize("kind", KINDS)
@given(payload=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_and_nothing_worse(kind: str, payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        DECODERS[kind](payload)


@pytest.mark.parametrize("kind", KINDS)
@given(packed=JSON | st.binary(max_size=8) | st.dictionaries(st.integers() | st.binary(max_size=3), JSON))
def test_other_msgpack_is_refused_and_nothing_worse(kind: str, packed: object) -> None:
    try:
        payload = msgpack.packb(packed)
    except OverflowError:
        return
    with pytest.raises(RemoteProtocolError):
        DECODERS[kind](payload)


@pytest.mark.parametrize("kind", KINDS)
@given(
    position=st.integers(0, 2000),
    octet=st.integers(0, 255),
    cut=st.integers(0, 2000) | st.none(),
    tail=st.binary(max_size=4),
)
def test_a_mutated_message_is_read_or_refused(
    kind: str, position: int, octet: int, cut: int | None, tail: bytes
) -> None:
    payload = bytearray(VALID[kind])
    payload[position % len(payload)] = octet
    refuse_or_return(kind, bytes(payload[:cut]) + tail)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_message_is_read_on_its_own_topic_alone(kind: str, other: str) -> None:
    if kind == other:
        DECODERS[kind](VALID[kind])
    else:
        with pytest.raises(RemoteProtocolError):
            DECODERS[kind](VALID[other])


@pytest.mark.parametrize("kind", ["gradient", "model"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_a_number_that_is_not_finite_is_refused(kind: str, bad: float, place: int) -> None:
    payload = bytearray(VALID[kind])
    struct.pack_into("<f", payload, v1.HEADER_BYTES + 4 * place, bad)
    with pytest.raises(RemoteProtocolError, match="not finite"):
        DECODERS[kind](bytes(payload))


def test_large_finite_numbers_whose_squares_overflow_are_accepted() -> None:
    largest = np.finfo(np.float32).max
    came = codec.decode_gradient(EDGE, codec.encode_gradient(gradient((largest, -largest))), 2)
    assert came.gradient.tolist() == [largest, -largest]


@given(hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32)))
def test_the_quick_test_of_finiteness_is_exact(vector: np.ndarray) -> None:
    finite = bool(np.isfinite(vector).all())
    assert is_finite(vector) == math.isfinite(length(vector)) == finite
    if finite:
        assert length(vector) == pytest.approx(np.linalg.norm(vector.astype(np.float64)), rel=1e-5, abs=1e-18)


def test_a_decoded_gradient_brings_its_length_and_a_sender_cannot_name_another() -> None:
    sent = gradient((3.0, -4.0))._replace(norm=0.0)
    assert codec.decode_gradient(EDGE, codec.encode_gradient(sent), 2).norm == 5.0


@pytest.mark.parametrize("kind", ["gradient", "model"])
@pytest.mark.parametrize("change", [-4, -1, 1, 4])
def test_a_vector_of_another_length_is_refused(kind: str, change: int) -> None:
    payload = VALID[kind] + b"\0" * change if change > 0 else VALID[kind][:change]
    with pytest.raises(RemoteProtocolError, match="N = 2"):
        DECODERS[kind](payload)


@pytest.mark.parametrize("place", [5, 14, 23])
def test_an_integer_of_two_to_the_63_is_refused(place: int) -> None:
    payload = bytearray(VALID["gradient"])
    struct.pack_into(">Q", payload, place, 2**63)
    with pytest.raises(RemoteProtocolError, match=r"2\^63"):
        codec.decode_gradient(EDGE, bytes(payload), 2)


@pytest.mark.parametrize("sensitivity", [-1.0, np.nan, np.inf])
def test_a_sensitivity_that_is_none_is_refused(sensitivity: float) -> None:
    payload = bytearray(VALID["gradient"])
    struct.pack_into(">d", payload, 32, sensitivity)
    with pytest.raises(RemoteProtocolError, match="sensitivity"):
        codec.decode_gradient(EDGE, bytes(payload), 2)
    with pytest.raises(LocalProtocolError):
        codec.encode_gradient(gradient(sensitivity=sensitivity))


def test_sequence_zero_is_refused() -> None:
    payload = bytearray(VALID["gradient"])
    struct.pack_into(">Q", payload, 5, 0)
    with pytest.raises(RemoteProtocolError, match="sequence 0"):
        codec.decode_gradient(EDGE, bytes(payload), 2)


WRONG_FIELDS: list[tuple[str, dict[str, object]]] = [
    ("hello", {"preparing": False}),
    ("hello", {"preparing": "yes"}),
    ("hello", {"v": 2}),
    ("hello", {"v": True}),
    ("hello", {"kind": "leave"}),
    ("hello", {"epsilon": 1.0}),  # a field of its own before the map
    ("hello", {"noise": "a b"}),
    ("hello", {"noise": "a" * 129}),
    ("hello", {"parameters": None}),
    ("hello", {"parameters": [1.0]}),
    ("hello", {"parameters": {"epsilon": float("nan")}}),
    ("hello", {"parameters": {"epsilon": float("inf")}}),
    ("hello", {"parameters": {"epsilon": "1"}}),
    ("hello", {"parameters": {"epsilon": True}}),
    ("hello", {"parameters": {"Epsilon": 1.0}}),
    ("hello", {"parameters": {"": 1.0}}),
    ("hello", {"parameters": {"e" * 33: 1.0}}),
    ("hello", {"parameters": {f"p{i}": 1.0 for i in range(9)}}),
    ("hello", {"last_sequence": -1}),
    ("hello", {"last_sequence": 2**63}),
    ("hello", {"last_sequence": 1.0}),
    ("hello", {"last_sequence": True}),
    ("hello", {"noise": "x" * 33}),
    ("hello", {"noise": "\x1b[31m"}),
    ("hello", {"noise": "gaussian\n"}),
    ("hello", {"nonce": "short"}),
    ("hello", {"number": 0}),
    ("hello", {"sampler": None}),
    ("answer", {"number": 2**63}),
    ("answer", {"incarnation": -1}),
    ("halt", {"incarnation": None}),
    ("hello", {"more": 1}),
    ("answer", {"index": 5}),
    ("answer", {"edges": 0}),
    ("answer", {"seed": -1}),
    ("answer", {"scenario": [1]}),
    ("answer", {"scenario": {"x": float("inf")}}),
    ("answer", {"scenario": {"x": b"bytes"}}),
    ("answer", {"scenario": {"x": {1: 2}}}),
    ("answer", {"scenario": {"x": 2**63}}),
    ("leave", {"reason": ""}),
    ("halt", {"updates": -1}),
    ("presence", {"online": 1}),
]


@pytest.mark.parametrize(("kind", "change"), WRONG_FIELDS)
def test_a_wrong_field_is_refused_by_name(kind: str, change: dict[str, object]) -> None:
    fields = msgpack.unpackb(VALID[kind])
    DECODERS[kind](msgpack.packb(fields))
    with pytest.raises(RemoteProtocolError) as caught:
        DECODERS[kind](msgpack.packb(fields | change))
    assert next(iter(change)) in str(caught.value) or "not msgpack" in str(caught.value)


@pytest.mark.parametrize("kind", ["hello", "answer", "leave", "halt", "presence"])
def test_a_missing_field_is_refused(kind: str) -> None:
    fields = msgpack.unpackb(VALID[kind])
    for name in fields:
        with pytest.raises(RemoteProtocolError):
            DECODERS[kind](msgpack.packb({key: value for key, value in fields.items() if key != name}))


@pytest.mark.parametrize("kind", ["hello", "answer", "leave", "halt", "presence"])
@pytest.mark.parametrize(
    "payload",
    [
        b"\x81" * 60_000,  # maps in maps in maps
        b"\x91" * 60_000,
        b"\xdf\xff\xff\xff\xff",  # a map of 2^32 − 1 entries
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc7\xff\x05" + b"x" * 255,  # an extension
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\x80" + b"\x80",  # two messages
        b"",
    ],
)
def test_bombs_are_refused_at_once(kind: str, payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        DECODERS[kind](payload)


def test_a_scenario_beyond_a_cap_is_refused_on_both_sides() -> None:
    deep: object = 1
    for _ in range(v1.DEPTH_LIMIT + 1):
        deep = [deep]
    fields = msgpack.unpackb(VALID["answer"])
    too_large = ({"x": deep}, {"x": list(range(v1.ITEMS_LIMIT))}, {"x": "y" * (v1.ITEMS_LIMIT + 1)})
    not_printable = ({"\x1b[2J": 1}, {"x": {"options": {"\x1b]0;owned\x07": 1}}}, {"x": ["\u202e"]})
    for scenario in (*too_large, *not_printable):
        with pytest.raises(RemoteProtocolError, match="scenario"):
            codec.decode_answer(EDGE, msgpack.packb(fields | {"scenario": scenario}))
        with pytest.raises(LocalProtocolError, match="scenario"):
            codec.encode(
                Welcome(
                    edge_id=EDGE, index=0, last_sequence=0, edges=1, scenario=scenario, seed=1, nonce=NONCE
                )
            )


@pytest.mark.parametrize(
    ("reason", "known"), [("ledger-lost", None), ("ledger-lost", -1), ("ledger-lost", 2**63), ("full", 5)]
)
def test_a_refuse_names_the_last_sequence_with_ledger_lost_alone(reason: str, known: int | None) -> None:
    refuse = Refuse(EDGE, reason, "why", NONCE, 1, LIFE, known)
    with pytest.raises(LocalProtocolError, match="last_sequence"):
        codec.encode(refuse)
    fields = msgpack.unpackb(codec.encode(Refuse(EDGE, "ledger-lost", "why", NONCE, 1, LIFE, 7)))
    with pytest.raises(RemoteProtocolError, match="last_sequence"):
        codec.decode_answer(EDGE, msgpack.packb(fields | {"reason": reason, "last_sequence": known}))


def test_a_refuse_cannot_bring_escape_sequences_to_a_terminal() -> None:
    with pytest.raises(LocalProtocolError, match="detail"):
        codec.encode(Refuse(EDGE, "mechanism", "\x1b]0;owned\x07", NONCE, 1))


@pytest.mark.parametrize("vector", [[], [[1.0]], [np.nan]])
def test_our_own_nonsense_is_a_local_error(vector: list[object]) -> None:
    with pytest.raises(LocalProtocolError):
        codec.encode_gradient(gradient(vector))


@pytest.mark.parametrize("sequence", [-1, 2**63, 2**64])
def test_our_own_impossible_sequence_is_a_local_error(sequence: int) -> None:
    with pytest.raises(LocalProtocolError):
        codec.encode_gradient(gradient(sequence=sequence))
