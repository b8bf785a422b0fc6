"""Codings of models and gradients: honest in what they lose, and hostile bytes can only be refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from common.messages import GradientArrived, SendModel
from common.quantities import EdgeId, NoisyGradient, Vector, length
from common.records.gradient_log import Entry, Kind
from common.scenario.scenario import Codings, parse_scenario
from common.wire import codec, v1
from common.wire.codings.coding import (
    BLOCK,
    Coding,
    coded_bytes,
    coded_dimension,
    decode_vector,
    encode_vector,
)
from common.wire.codings.registry import CODINGS, EVERY, PLAIN, compress, expand, marked
from edge.policy import OperatorPolicy
from tests.core_support import small_scenario

ALL = pytest.mark.parametrize("coding", CODINGS.values(), ids=CODINGS)
VECTORS = hnp.arrays(
    np.float32,
    st.integers(1, 2 * BLOCK + 3),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
TAME = hnp.arrays(np.float32, st.integers(1, BLOCK + 9), elements=st.floats(-(2.0**99), 2.0**99, width=32))
SEEDS = st.integers(0, 2**32 - 1)


def there_and_back(coding: Coding, vector: Vector, seed: int) -> Vector:
    payload = encode_vector(coding, vector, np.random.default_rng(seed))
    assert len(payload) == coded_bytes(coding, vector.size)
    return decode_vector(coding, payload, 0, vector.size)


def steps(coding: Coding, vector: Vector) -> Vector:
    """Return by how much each number may be off."""
    padded = np.zeros(-(-vector.size // BLOCK) * BLOCK)
    padded[: vector.size] = np.abs(vector)
    largest = np.repeat(padded.reshape(-1, BLOCK).max(axis=1), BLOCK)[: vector.size]
    if coding.name == "int8":
        return 1.0001 * largest / 127 + 1e-42
    return np.abs(vector) * 2.0**-11 + largest * 2.0**-39 + 1e-45


@ALL
@given(vector=VECTORS, seed=SEEDS)
def test_no_number_is_off_by_more_than_its_step_and_none_overflows(
    coding: Coding, vector: Vector, seed: int
) -> None:
    decoded = there_and_back(coding, vector, seed)
    assert np.isfinite(decoded).all()
    assert (np.abs(decoded.astype(np.float64) - vector) <= steps(coding, vector)).all()


@given(vector=TAME, seed=SEEDS)
def test_int8_is_the_value_on_average(vector: Vector, seed: int) -> None:
    """Hoeffding: a mean of 256 draws is off by more than a quarter of a step with a probability below 10⁻¹³."""
    coding, rng = CODINGS["int8"], np.random.default_rng(seed)
    draws = [
        decode_vector(coding, encode_vector(coding, vector, rng), 0, vector.size).astype(np.float64)
        for _ in range(256)
    ]
    assert (np.abs(np.mean(draws, axis=0) - vector) <= 0.25 * steps(coding, vector)).all()


@ALL
@given(vector=TAME, seed=SEEDS)
def test_what_was_decoded_is_coded_as_it_was(coding: Coding, vector: Vector, seed: int) -> None:
    decoded = there_and_back(coding, vector, seed)
    again = there_and_back(coding, decoded, seed + 1)
    np.testing.assert_allclose(again, decoded, rtol=1e-6, atol=1e-42)


@ALL
@given(vector=TAME, seed=SEEDS)
def test_a_vector_is_lengthened_by_its_stretch_at_most(coding: Coding, vector: Vector, seed: int) -> None:
    decoded = there_and_back(coding, vector, seed)
    assert length(decoded) <= coding.stretch * length(vector) * (1 + 1e-6) + 1e-40


@ALL
def test_the_number_of_parameters_follows_from_the_bytes(coding: Coding) -> None:
    sizes = {coded_bytes(coding, n): n for n in range(3 * BLOCK)}
    assert len(sizes) == 3 * BLOCK
    for size in range(max(sizes)):
        assert coded_dimension(coding, size) == sizes.get(size)


def test_int8_takes_a_quarter_of_the_bytes_and_float16_half() -> None:
    plain = v1.HEADER_BYTES + 4 * 7850
    shares = {name: plain / (v1.HEADER_BYTES + coded_bytes(coding, 7850)) for name, coding in CODINGS.items()}
    assert shares["int8"] > 3.9
    assert shares["float16"] > 1.98


# -- messages -----------------------------------------------------------------------------------------------

EDGE = EdgeId("e1")
VECTOR = np.array([1.0, -2.0, 0.5], np.float32)
GRADIENT = codec.encode_gradient(GradientArrived(EDGE, 7, 3, 0.5, NoisyGradient(VECTOR), 11))
MODEL = codec.encode_model(SendModel(EDGE, 7, 0.5, 3, VECTOR, 11))


def coded(plain: bytes, name: str) -> bytes:
    return compress(plain, name, np.random.default_rng(0))


@pytest.mark.parametrize("name", CODINGS)
@pytest.mark.parametrize("plain", [GRADIENT, MODEL], ids=["gradient", "model"])
def test_a_coded_message_has_the_header_of_the_plain_one(plain: bytes, name: str) -> None:
    payload = coded(plain, name)
    assert payload[4 : v1.HEADER_BYTES] == plain[4 : v1.HEADER_BYTES]
    assert payload[:3] == plain[:3]
    assert payload[3] != plain[3]
    back = expand(payload, EVERY, 3)
    assert back[: v1.HEADER_BYTES] == plain[: v1.HEADER_BYTES]
    np.testing.assert_allclose(np.frombuffer(back, "<f4", offset=v1.HEADER_BYTES), VECTOR, atol=2 / 127)
    assert expand(payload, EVERY) == back
    assert (codec.incarnation_of(payload) == 11) is (plain is GRADIENT)


def test_the_bytes_of_coded_messages_last() -> None:
    """The header is as in tests/golden; these three numbers need no draw."""
    exact = np.array([127.0, -2.0, 0.0], np.float32)
    plain = codec.encode_gradient(GradientArrived(EDGE, 7, 3, 0.5, NoisyGradient(exact), 11))
    bodies = {name: coded(plain, name)[v1.HEADER_BYTES :].hex() for name in CODINGS}
    assert bodies == {
        "float16": "0000803b" + "f077" + "00e0" + "0000",
        "int8": "0000803f" + "7f" + "fe" + "00",
    }
    marks = {name: (coded(GRADIENT, name)[3:4], coded(MODEL, name)[3:4]) for name in CODINGS}
    assert marks == {"float16": (b"h", b"H"), "int8": (b"q", b"Q")}


def test_without_a_coding_nothing_changes() -> None:
    assert compress(GRADIENT, PLAIN) is GRADIENT
    assert expand(GRADIENT, EVERY, 3) is GRADIENT
    payload = coded(GRADIENT, "int8")
    assert expand(payload, marked([PLAIN, "float16"])) is payload  # and is refused where it is decoded
    with pytest.raises(RemoteProtocolError):
        codec.decode_gradient(EDGE, payload, 3)


@pytest.mark.parametrize("name", CODINGS)
def test_a_log_reads_what_came_and_the_header_alone_of_what_came_again(name: str) -> None:
    payload = coded(GRADIENT, name)
    for kind, body, size in ((Kind.GRADIENT, payload, 3), (Kind.REPEAT, payload[: v1.HEADER_BYTES], 0)):
        arrived = Entry(kind, 1, 0.0, EDGE, body).arrived
        assert (arrived.sequence, arrived.version, arrived.gradient.size) == (7, 3, size)


@given(body=st.binary(max_size=40), name=st.sampled_from(list(CODINGS)), dimension=st.integers(0, 20))
def test_hostile_bytes_are_refused_or_finite(body: bytes, name: str, dimension: int) -> None:
    payload = CODINGS[name].gradient_mark + GRADIENT[4 : v1.HEADER_BYTES] + body
    for count in (dimension, None):
        try:
            plain = expand(payload, EVERY, count)
        except RemoteProtocolError:
            continue
        vector = np.frombuffer(plain, "<f4", offset=v1.HEADER_BYTES)
        assert np.isfinite(vector).all()
        assert len(body) == coded_bytes(CODINGS[name], vector.size)


@pytest.mark.parametrize(
    ("name", "scale", "items", "why"),
    [
        ("int8", np.nan, b"\0\0\0", "scale"),
        ("int8", np.inf, b"\0\0\0", "scale"),
        ("int8", -1.0, b"\0\0\0", "scale"),
        ("int8", 3e38, b"\x7f\0\0", "not finite"),
        ("int8", 1.0, b"\x80\0\0", "−128"),
        ("int8", 1.0, b"\0\0", "7 bytes"),
        ("float16", np.nan, bytes(6), "scale"),
        ("float16", 1.0, b"\0\x7c" + bytes(4), "not finite"),
        ("float16", 1.0, bytes(8), "10 bytes"),
    ],
)
def test_what_no_coding_writes_is_refused(name: str, scale: float, items: bytes, why: str) -> None:
    body = np.array([scale], "<f4").tobytes() + items
    with pytest.raises(RemoteProtocolError, match=why.replace("7 b", "6 b").replace("10 b", "12 b")):
        expand(CODINGS[name].gradient_mark + GRADIENT[4 : v1.HEADER_BYTES] + body, EVERY, 3)


def test_our_own_nonsense_is_not_coded() -> None:
    coding = CODINGS["int8"]
    with pytest.raises(LocalProtocolError, match="no generator"):
        encode_vector(coding, VECTOR, None)
    for vector in (np.array([np.nan], np.float32), np.zeros(0, np.float32), np.zeros((2, 2), np.float32)):
        with pytest.raises(LocalProtocolError, match="vector of shape"):
            encode_vector(coding, vector, np.random.default_rng(0))


# -- what a scenario says -----------------------------------------------------------------------------------


def test_a_link_says_how_its_edges_code_and_the_run_says_the_rest() -> None:
    links = [{"name": "4g", "gradients": "int8"}, {"name": "lan"}]
    scenario = small_scenario(edges=4, links=links, compression={"models": "float16", "offered": ["int8"]})
    assert [scenario.codings(k) for k in range(4)] == 2 * [
        Codings("int8", "float16"),
        Codings(PLAIN, "float16"),
    ]
    assert scenario.codings(1, asked="int8") == Codings("int8", "int8")
    assert scenario.codings(1, asked="float16") == scenario.codings(1)  # not offered
    assert scenario.every_coding == {PLAIN, "float16", "int8"}
    for k in (0, 1):
        told = parse_scenario_of_a_welcome(scenario.for_edge(k))
        assert told == scenario.codings(k)
    assert small_scenario(edges=4).for_edge(0).keys().isdisjoint({"compression"})


def parse_scenario_of_a_welcome(values: dict[str, object]) -> Codings:
    assert "gradients" not in str(values["links"])
    return Codings(**values["compression"])  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["compression", "links"])
def test_an_unknown_coding_is_refused_with_what_is_allowed(place: str) -> None:
    table = {"gradients": "int4"}
    values = small_scenario().resolved() | {
        place: table if place == "compression" else [{"name": "4g"} | table]
    }
    with pytest.raises(ConfigurationError, match=r"gradients = 'int4': .*'float32', 'float16' or 'int8'"):
        parse_scenario(values)


def test_an_operator_asks_for_a_coding_that_there_is() -> None:
    assert OperatorPolicy(coding="int8").coding == "int8"
    with pytest.raises(ConfigurationError, match="coding = int4: must be one of float16, int8"):
        OperatorPolicy(coding="int4")
