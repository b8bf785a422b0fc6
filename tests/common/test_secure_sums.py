"""Masks, sealed boxes, terms and messages of secure sums, without a network."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
from collections.abc import Callable

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from common.quantities import EdgeId
from common.secure import agreement
from common.secure.agreement import Statement
from common.secure.boxes import (
    RunKey,
    commitment,
    envelope_bytes,
    new_seeds,
    open_box,
    open_once,
    seal,
    seal_once,
)
from common.secure.masked import MaskedArrived, masked_bytes, parse_masked
from common.secure.masks import mask, stream, sum_of_streams, unmasked
from common.secure.terms import held, subsets
from common.wire.secure_codec import decode_ask, decode_reply, decode_terms, encode_ask, encode_reply
from tests.secure_support import LIFE, RUN, Parties, new_key

EDGE = EdgeId("e1")
GOLDEN_32 = [2114550388, 3696207970, 13681726, 1081840066]


def test_any_t_helpers_lack_one_seed_and_the_others_have_all() -> None:
    for c, t in ((1, 0), (3, 1), (4, 1), (5, 2), (7, 3)):
        everything = set(range(len(subsets(c, t))))
        for away in itertools.combinations(range(c), t):
            known = {position for helper in away for position in held(c, t, helper)}
            rest = {position for helper in set(range(c)) - set(away) for position in held(c, t, helper)}
            assert len(everything - known) == 1
            assert rest == everything


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dimension", [1, 7850, 100_003])
def test_a_sum_of_masked_vectors_opens_to_the_exact_sum_and_wraps_as_it_must(
    bits: int, dimension: int
) -> None:
    rng = np.random.default_rng(0)
    vectors = [rng.integers(-(2**29), 2**29, dimension) for _ in range(3)]
    seeds = [[secrets.token_bytes(16) for _ in range(4)] for _ in vectors]
    masked = [mask(x, own, bits) for x, own in zip(vectors, seeds, strict=True)]
    sums = [sum_of_streams(column, dimension, bits) for column in zip(*seeds, strict=True)]
    assert (unmasked(masked, sums) == sum(vectors)).all()
    assert (masked[0] != vectors[0].astype(masked[0].dtype)).mean() > 0.99 or dimension == 1


def test_a_stream_is_the_same_bytes_for_ever() -> None:
    """Golden: what one version masks, helpers of another version open."""
    assert stream(bytes(range(16)), 4, 32).tolist() == GOLDEN_32
    assert stream(bytes(range(16)), 2, 64).tobytes() == stream(bytes(range(16)), 4, 32).tobytes()


@pytest.mark.parametrize(("c", "most"), [(3, 0.01), (4, 0.016)])
def test_the_envelope_costs_an_edge_a_hundredth_of_its_message_or_little_more(c: int, most: float) -> None:
    parties = Parties(c=c, dimension=7850)
    masked, envelope, _ = parties.released[parties.release("e1", 1)]
    payload = masked_bytes(MaskedArrived(EDGE, 1, 1, 0.5, masked, LIFE, envelope))
    assert len(payload) - (40 + 4 * 7850) == envelope_bytes(c, 1) <= most * 4 * 7850


def test_a_box_opens_for_its_helper_release_and_terms_and_for_no_others() -> None:
    parties = Parties()
    envelope = parties.released[parties.release("e1", 3)][1]
    terms, public = parties.terms, parties.edges[EDGE].public
    pairs = [key.pair(public) for key in parties.boxes]
    parts = envelope.salt, envelope.commitments, envelope.boxes[0]
    seeds = open_box(*parts, terms, 0, EDGE, 3, pairs[0])
    assert tuple(seeds) == terms.held(0)
    for other in (
        lambda: open_box(*parts, terms, 1, EDGE, 3, pairs[1]),
        lambda: open_box(*parts, terms, 0, EDGE, 4, pairs[0]),
        lambda: open_box(*parts, terms, 0, EdgeId("e2"), 3, pairs[0]),
        lambda: open_box(*parts, parties.agreed(at_least=2), 0, EDGE, 3, pairs[0]),
        lambda: open_box(*parts, parties.agreed(incarnation=6), 0, EDGE, 3, pairs[0]),
        lambda: open_box(*parts, parties.agreed(run="r2"), 0, EDGE, 3, pairs[0]),
        lambda: open_box(bytes(12), *parts[1:], terms, 0, EDGE, 3, pairs[0]),
        lambda: open_box(parts[0], bytes(128), parts[2], terms, 0, EDGE, 3, pairs[0]),
        lambda: open_box(parts[0], b"", parts[2], terms, 0, EDGE, 3, pairs[0]),
        lambda: open_box(*parts[:2], b"", terms, 0, EDGE, 3, pairs[0]),
    ):
        with pytest.raises(RemoteProtocolError, match="box"):
            other()


def test_an_edge_that_seals_another_seed_than_it_commits_to_is_found_by_that_helper() -> None:
    parties = Parties()
    terms, key = parties.terms, new_key()
    seeds = new_seeds(terms, secrets.token_bytes)
    pairs = [key.pair(one.box) for one in terms.helpers]
    honest = b"".join(map(commitment, seeds))
    with pytest.MonkeyPatch.context() as edge:
        edge.setattr(
            "common.secure.boxes.commitment", lambda seed: commitment(seed if seed in seeds else seeds[0])
        )
        forged = seal([secrets.token_bytes(16), *seeds[1:]], terms, EDGE, 1, pairs, secrets.token_bytes)
    assert forged.commitments == honest
    parts = forged.salt, forged.commitments
    with pytest.raises(RemoteProtocolError, match="committed"):
        open_box(*parts, forged.boxes[0], terms, 0, EDGE, 1, parties.boxes[0].pair(key.public))
    assert len(open_box(*parts, forged.boxes[3], terms, 3, EDGE, 1, parties.boxes[3].pair(key.public))) == 3


def test_an_edges_key_follows_from_its_identity_run_and_incarnation() -> None:
    key = RunKey.derived(b"private", RUN, 1).public
    assert key == RunKey.derived(b"private", RUN, 1).public
    assert len({key, RunKey.derived(b"private", RUN, 2).public, RunKey.derived(b"other", RUN, 1).public}) == 3


def test_a_key_of_low_order_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="key"):
        new_key().pair(bytes(32))


def test_an_answer_is_sealed_for_the_cloud_by_its_name_and_the_same_each_time() -> None:
    cloud, helper = new_key(), new_key()
    sealed = seal_once(helper.pair(cloud.public), b"a", b"content")
    assert sealed == seal_once(helper.pair(cloud.public), b"a", b"content")
    assert open_once(cloud.pair(helper.public), b"a", sealed) == b"content"
    for pair, purpose in ((cloud.pair(helper.public), b"b"), (new_key().pair(helper.public), b"a")):
        with pytest.raises(RemoteProtocolError, match="does not open"):
            open_once(pair, purpose, sealed)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"at_least": 1}, "at_least = 1"),
        ({"colluding": 3}, "colluding = 3"),
        ({"away": 2}, "away = 2"),
        ({"scale": 65535.0}, "scale = 65535.0"),
        ({"modulus_bits": 31}, "modulus_bits = 31"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier = nan"),
        ({"dimension": 0}, "dimension = 0"),
        ({"helpers": ()}, "helpers = 0"),
        ({"cloud": b""}, "keys"),
    ],
)
def test_terms_that_are_not_lawful_are_refused_by_name(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Parties().agreed(**changes)


def test_any_two_quorums_share_more_helpers_than_may_lie_and_the_helpers_that_are_there_make_one() -> None:
    for c, t in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (5, 2), (6, 1), (6, 2), (7, 2), (7, 3)):
        terms = Parties(c=c, t=t).terms
        liars = t if terms.bears_liars else 0
        assert 2 * terms.quorum - c > liars, (c, t)
        assert terms.quorum <= c - t, (c, t)


def test_terms_travel_in_their_canonical_bytes_and_in_no_others() -> None:
    terms = Parties().terms
    assert decode_terms(terms.encoded) == terms
    fields = json.loads(terms.encoded)
    for content in (
        json.dumps(fields).encode(),
        json.dumps({**fields, "extra": 1}, sort_keys=True, separators=(",", ":")).encode(),
        json.dumps({**fields, "at_least": 1}, sort_keys=True, separators=(",", ":")).encode(),
        json.dumps({**fields, "at_least": True}, sort_keys=True, separators=(",", ":")).encode(),
        json.dumps({**fields, "run": "a/b"}, sort_keys=True, separators=(",", ":")).encode(),
        terms.encoded.upper(),
        b"[" * 100_000,
        b"\xff",
    ):
        with pytest.raises(RemoteProtocolError, match="terms"):
            decode_terms(content)


def test_a_masked_release_travels_and_what_is_none_is_refused() -> None:
    parties = Parties()
    masked, envelope, _ = parties.released[parties.release("e1", 1)]
    event = MaskedArrived(EDGE, 1, 4, 0.5, masked, LIFE, envelope)
    payload = masked_bytes(event)
    read = parse_masked(EDGE, payload, 5, 32, 4, 1)
    assert read._replace(masked=masked) == event
    assert (read.masked == masked).all()
    gradient = payload[:3] + b"g" + payload[4:]
    none = payload[:5] + bytes(8) + payload[13:]
    for wrong in (
        b"",
        payload[:-1],
        payload + b"\0",
        gradient,
        none,
        payload[:4] + b"\xff" * 36 + payload[40:],
    ):
        with pytest.raises(RemoteProtocolError, match="masked"):
            parse_masked(EDGE, wrong, 5, 32, 4, 1)
    with pytest.raises(LocalProtocolError, match="out of range"):
        masked_bytes(event._replace(sequence=2**63))


@given(st.binary(max_size=300))
def test_bytes_that_are_no_masked_release_raise_one_error(payload: bytes) -> None:
    for content in (payload, (b"\x96\x01\xa1s" + payload)[:456].ljust(456, b"\0")):
        with contextlib.suppress(RemoteProtocolError):
            parse_masked(EDGE, content, 5, 32, 4, 1)


def messages() -> list[agreement.Ask | agreement.Reply | agreement.HelperHello]:
    parties = Parties()
    releases = [parties.release(f"e{k}", 1) for k in range(3)]
    members, digest = parties.members(releases, 0), parties.terms.digest
    set_ = agreement.set_digest(digest, members)
    signed = Statement(b"PEM", bytes(64))
    return [
        agreement.Offer(parties.terms.encoded),
        agreement.Roster((agreement.RosterEntry(EDGE, bytes(32), digest, signed),)),
        agreement.Check(digest, members),
        agreement.Propose(digest, members),
        agreement.Open(digest, members, ((0, bytes(64)), (2, bytes(64))), (0, 2), (1,)),
        agreement.Finish(bytes(16)),
        agreement.HelperHello(1, LIFE, bytes(32), bytes(32), agreement.NO_TERMS, signed),
        agreement.Checked(set_, (EDGE,)),
        agreement.Signed(set_, bytes(64)),
        agreement.Refused(set_, agreement.SIGNED_BEFORE, (EDGE,)),
        agreement.Answer(set_, 2, False, bytes(36)),
    ]


def coding(message: object) -> tuple[Callable[..., bytes], Callable[[bytes], object]]:
    replies = (
        agreement.Checked | agreement.Signed | agreement.Refused | agreement.Answer | agreement.HelperHello
    )
    return (encode_reply, decode_reply) if isinstance(message, replies) else (encode_ask, decode_ask)


@pytest.mark.parametrize("message", messages(), ids=lambda message: type(message).__name__)
def test_what_cloud_and_helpers_say_travels(message: agreement.Ask) -> None:
    encode, decode = coding(message)
    assert decode(encode(message)) == message
    assert type(decode(encode(message))) is type(message)


@pytest.mark.parametrize("message", messages(), ids=lambda message: type(message).__name__)
@given(drawn=st.data())
def test_what_is_changed_underway_raises_one_error_or_is_a_message(
    message: agreement.Ask, drawn: st.DataObject
) -> None:
    encode, decode = coding(message)
    fields = msgpack.unpackb(encode(message))
    key = drawn.draw(st.sampled_from(sorted(fields)))
    values = st.none() | st.booleans() | st.integers() | st.binary(max_size=70) | st.text(max_size=9)
    fields[key] = drawn.draw(values | st.lists(values | st.lists(values, max_size=5), max_size=3))
    with contextlib.suppress(RemoteProtocolError, OverflowError):  # msgpack cannot write every integer
        decode(msgpack.packb(fields))
    with contextlib.suppress(RemoteProtocolError):
        decode(drawn.draw(st.binary(max_size=50)))


def test_members_out_of_order_twice_or_without_end_are_refused() -> None:
    parties = Parties()
    members = parties.members([parties.release(f"e{k}", 1) for k in range(2)], 0)
    digest = parties.terms.digest
    for wrong in (
        members[::-1],
        members[:1] * 2,
        (),
        tuple(members[0]._replace(sequence=k) for k in range(1, 1026)),
    ):
        with pytest.raises(LocalProtocolError, match="members"):
            encode_ask(agreement.Propose(digest, wrong))
    assert agreement.set_digest(digest, members) == agreement.set_digest(digest, members[::-1])


def test_a_set_has_another_name_where_anything_of_it_differs() -> None:
    parties = Parties()
    members = parties.members([parties.release(f"e{k}", 1) for k in range(2)], 0)
    names = {
        agreement.set_digest(parties.terms.digest, changed)
        for changed in (
            members,
            members[:1],
            (members[0]._replace(sequence=2), members[1]),
            (members[0]._replace(edge_id=EdgeId("e9")), members[1]),
            (members[0]._replace(commitments=bytes(128)), members[1]),
        )
    } | {agreement.set_digest(bytes(32), members)}
    assert len(names) == 6
