"""A blind helper: what it signs and answers, what it refuses, what its disk keeps; rows of the threat table."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigurationError, RecordsError
from common.quantities import EdgeId, RunId
from common.secure import agreement
from common.secure.agreement import (
    Answer,
    Check,
    Checked,
    Finish,
    HelperHello,
    Offer,
    Open,
    Propose,
    Refused,
    Roster,
    Signed,
    Statement,
    finish_purpose,
    set_digest,
)
from common.secure.boxes import open_once, seal_once
from common.secure.masks import unmasked, words
from mapa.helper.helper import Helper, KeysDestroyed, SetSigned, TermsTaken
from mapa.helper.signed_sets import SignedSets
from tests.secure_support import LIFE, RUN, Parties, new_key

Release = tuple[EdgeId, int]


def enrolled(parties: Parties, place: int = 0, edges: int = 5) -> Helper:
    """Return a helper that knows the edges, each with releases 1 and 2."""
    for k in range(edges):
        for sequence in (1, 2):
            if (EdgeId(f"e{k}"), sequence) not in parties.released:
                parties.release(f"e{k}", sequence)
    helper = parties.helper(place)
    assert helper.receive(Roster(tuple(map(parties.entry, parties.edges)))) == ((), ())
    return helper


def releases(*names: str) -> list[Release]:
    """Return releases from `edge:sequence`."""
    return [(EdgeId(name.partition(":")[0]), int(name.partition(":")[2])) for name in names]


THREE = releases("e0:1", "e1:1", "e2:1")


def propose(parties: Parties, chosen: list[Release], place: int = 0) -> Propose:
    return Propose(parties.terms.digest, parties.members(chosen, place))


def opening(parties: Parties, chosen: list[Release], place: int, signers: list[int], subset: int = 0) -> Open:
    members = parties.members(chosen, place)
    name = set_digest(parties.terms.digest, members)
    return Open(parties.terms.digest, members, parties.signatures(name, signers), (subset,), ())


def reason(helper: Helper, ask: agreement.Ask) -> str:
    """Return why a helper refuses; it keeps nothing of such an ask."""
    records, replies = helper.receive(ask)
    assert not records
    assert len(replies) == 1
    assert isinstance(replies[0], Refused), replies
    return replies[0].reason


# ---- what it does


def test_a_set_is_on_disk_before_its_signature_leaves_and_the_signature_is_the_same_each_time() -> None:
    parties = Parties()
    helper = enrolled(parties)
    records, replies = helper.receive(propose(parties, THREE))
    name = set_digest(parties.terms.digest, parties.members(THREE, 0))
    assert records == (SetSigned(name, tuple(THREE)),)
    assert isinstance(replies[0], Signed)
    assert agreement.is_signed(parties.terms, name, 0, replies[0].signature)
    assert helper.receive(propose(parties, THREE)) == ((), replies)
    again = Helper(parties.secrets(0), records=[TermsTaken(parties.terms.encoded), *records])
    again.receive(Roster(tuple(map(parties.entry, parties.edges))))
    assert again.receive(propose(parties, THREE)) == ((), replies)


def test_answers_are_the_sums_of_streams_sealed_for_the_cloud_and_the_same_bytes_each_time() -> None:
    parties = Parties()
    members, sums = parties.terms.subsets, {}
    for place in range(3):
        helper = enrolled(parties, place)
        helper.receive(propose(parties, THREE, place))
        for subset in parties.terms.held(place):
            ask = opening(parties, THREE, place, [1, 2, 3], subset)
            (answer,) = helper.receive(ask).replies
            assert helper.receive(ask).replies == (answer,)
            assert isinstance(answer, Answer)
            purpose = agreement.answer_purpose(answer.set, subset, place, digest=False)
            pair = parties.cloud.pair(parties.boxes[place].public)
            content = open_once(pair, purpose, answer.sealed)
            assert sums.setdefault(subset, content) == content
    assert len(sums) == len(members)
    total = unmasked((parties.released[one][0] for one in THREE), (words(one, 32) for one in sums.values()))
    assert (total == parties.total(THREE)).all()


def test_a_helper_says_which_boxes_are_bad_and_signs_nothing_by_that() -> None:
    parties = Parties()
    helper = enrolled(parties)
    members = parties.members(THREE, 0)
    spoiled = (members[0]._replace(box=bytes(len(members[0].box))), *members[1:])
    records, (reply,) = helper.receive(Check(parties.terms.digest, spoiled))
    assert not records
    assert isinstance(reply, Checked)
    assert reply.bad == (EdgeId("e0"),)
    assert not helper.signed


# ---- the threat table of docs/secure-aggregation.md: what a cloud, an edge or a helper may try


def test_fewer_than_m_edges_are_not_opened() -> None:
    parties = Parties()
    assert reason(enrolled(parties), propose(parties, THREE[:2])) == agreement.TOO_FEW


def test_two_releases_of_one_edge_do_not_count_as_two_edges() -> None:
    parties = Parties()
    twice = releases("e0:1", "e0:2", "e1:1", "e2:1")
    assert reason(enrolled(parties), propose(parties, twice)) == agreement.EDGE_TWICE


@pytest.mark.parametrize(
    "other", [("e0:1", "e1:1", "e3:1"), ("e0:1", "e1:1", "e2:1", "e3:1"), ("e2:1", "e3:1", "e4:1")]
)
def test_a_set_that_shares_a_release_with_a_signed_one_is_refused_also_after_a_restart(
    other: tuple[str, ...],
) -> None:
    parties = Parties()
    helper = enrolled(parties)
    records, _ = helper.receive(propose(parties, THREE))
    assert reason(helper, propose(parties, releases(*other))) == agreement.SIGNED_BEFORE
    again = parties.helper(0, [TermsTaken(parties.terms.encoded), *records])
    again.receive(Roster(tuple(map(parties.entry, parties.edges))))
    assert reason(again, propose(parties, releases(*other))) == agreement.SIGNED_BEFORE


def test_an_edge_that_seals_two_contents_under_one_sequence_is_in_one_set() -> None:
    parties = Parties()
    helper = enrolled(parties)
    helper.receive(propose(parties, THREE))
    parties.release("e0", 1)  # other seeds
    assert reason(helper, propose(parties, THREE)) == agreement.SIGNED_BEFORE


def test_an_edge_that_the_cloud_invents_is_not_on_the_roster() -> None:
    parties = Parties()
    helper = enrolled(parties)
    parties.release("forged", 1)
    entry = parties.entry(EdgeId("forged"))
    for signed in (Statement(b"", b""), Statement(b"e0", entry.signed.signature)):
        assert reason(helper, Roster((entry._replace(signed=signed),))) == agreement.STRANGER
    assert reason(helper, propose(parties, [*THREE, (EdgeId("forged"), 1)])) == agreement.STRANGER


def test_an_edges_key_cannot_be_replaced_by_one_of_the_clouds() -> None:
    parties = Parties()
    helper = enrolled(parties)
    forged = parties.entry(EdgeId("e0"))._replace(key=new_key().public)
    assert reason(helper, Roster((forged,))) == agreement.STRANGER
    assert helper.receive(propose(parties, THREE)).records


def test_without_an_authority_of_edges_a_helper_takes_no_terms_but_those_where_all_others_collude() -> None:
    parties = Parties()
    blind = Helper(parties.secrets(0))
    assert reason(blind, Offer(parties.terms.encoded)) == agreement.NO_AUTHORITY
    alone = parties.agreed(colluding=2)
    assert blind.receive(Offer(alone.encoded)).records == (TermsTaken(alone.encoded),)


def test_boxes_that_were_sealed_under_other_terms_do_not_open_so_the_cloud_cannot_lower_m() -> None:
    parties = Parties()
    lower = parties.agreed(at_least=2)
    helper = parties.helper(0, [TermsTaken(lower.encoded)])
    for k in range(3):
        parties.release(f"e{k}", 1)  # under the terms with m = 3
    entries = (parties.entry(edge_id)._replace(terms=lower.digest) for edge_id in parties.edges)
    assert reason(helper, Roster(tuple(entries))) == agreement.STRANGER  # their signatures are of other terms
    helper._authority = None
    helper.receive(Roster(tuple(parties.entry(e)._replace(terms=lower.digest) for e in parties.edges)))
    assert reason(helper, Propose(lower.digest, parties.members(THREE[:2], 0))) == agreement.BAD_BOX


def test_terms_are_taken_once_and_must_be_lawful_and_this_helpers() -> None:
    parties = Parties()
    helper = parties.helper(0, agreed=False)
    for other in (
        parties.agreed(run=RunId("r2")),
        parties.agreed(incarnation=LIFE + 1),
        parties.agreed(helpers=tuple(reversed(parties.terms.helpers))),
        Parties(c=1, t=0).agreed(),
    ):
        assert reason(helper, Offer(other.encoded)) == agreement.OTHER_TERMS
    for unlawful in (b"{}", parties.terms.encoded[:-1], parties.agreed(cloud=bytes(32)).encoded):
        assert reason(helper, Offer(unlawful)) == agreement.UNLAWFUL_TERMS
    assert reason(helper, propose(parties, [])) == agreement.OTHER_TERMS  # it has none yet
    records, (hello,) = helper.receive(Offer(parties.terms.encoded))
    assert records == (TermsTaken(parties.terms.encoded),)
    assert isinstance(hello, HelperHello)
    assert hello.terms == parties.terms.digest
    assert helper.receive(Offer(parties.terms.encoded)) == ((), (hello,))
    assert reason(helper, Offer(parties.agreed(at_least=2).encoded)) == agreement.OTHER_TERMS
    other = parties.agreed(at_least=2).digest
    assert reason(helper, Propose(other, ())) == agreement.OTHER_TERMS


def test_a_release_of_another_incarnation_does_not_open() -> None:
    parties = Parties()
    for k in range(2):
        parties.release(f"e{k}", 1)
    parties.release("e2", 1, terms=parties.agreed(incarnation=LIFE + 1))
    helper = parties.helper(0)
    helper.receive(Roster(tuple(map(parties.entry, parties.edges))))
    assert reason(helper, propose(parties, THREE)) == agreement.BAD_BOX


def test_a_set_that_this_helper_did_not_sign_is_not_answered_though_a_quorum_signed_it() -> None:
    parties = Parties()
    helper = enrolled(parties)
    assert reason(helper, opening(parties, THREE, 0, [0, 1, 2, 3])) == agreement.NOT_SIGNED


@pytest.mark.parametrize("signers", [[], [1], [0, 0, 0]])
def test_fewer_signatures_than_a_quorum_open_nothing(signers: list[int]) -> None:
    parties = Parties()
    helper = enrolled(parties)
    helper.receive(propose(parties, THREE))
    assert reason(helper, opening(parties, THREE, 0, signers)) == agreement.TOO_FEW_SIGNATURES


def test_signatures_of_another_set_or_by_another_key_do_not_count() -> None:
    parties = Parties()
    helper = enrolled(parties)
    helper.receive(propose(parties, THREE))
    good = opening(parties, THREE, 0, [1, 2])
    other = opening(parties, releases("e0:2", "e1:2", "e2:2"), 0, [1, 2, 3])
    swapped = tuple((place, good.signatures[0][1]) for place in (1, 2, 3))
    for signatures in (other.signatures, swapped, ((6, bytes(64)), *good.signatures[:1])):
        assert reason(helper, good._replace(signatures=signatures)) == agreement.TOO_FEW_SIGNATURES


def test_a_subset_without_this_helper_is_not_answered() -> None:
    parties = Parties()
    helper = enrolled(parties)
    helper.receive(propose(parties, THREE))
    others = set(range(4)) - set(parties.terms.held(0))
    assert others
    for subset in others:
        assert reason(helper, opening(parties, THREE, 0, [1, 2], subset)) == agreement.NO_MEMBER


def test_keys_are_destroyed_by_the_cloud_alone_and_then_nothing_is_answered() -> None:
    parties = Parties()
    helper = enrolled(parties)
    helper.receive(propose(parties, THREE))
    pair = parties.cloud.pair(parties.boxes[0].public)
    seal = seal_once(pair, finish_purpose(parties.terms.digest, 0), b"")
    other = seal_once(pair, finish_purpose(parties.terms.digest, 1), b"")
    for forged in (bytes(16), other):
        assert reason(helper, Finish(forged)) == agreement.NOT_THE_CLOUD
    assert helper.receive(Finish(seal)) == ((KeysDestroyed(),), ())
    assert reason(helper, opening(parties, THREE, 0, [1, 2, 3])) == agreement.OTHER_TERMS
    assert reason(helper, Offer(parties.terms.encoded)) == agreement.OTHER_TERMS


@settings(max_examples=40, deadline=None)
@given(drawn=st.data())
def test_a_cloud_that_asks_for_anything_with_a_helper_on_its_side_opens_no_two_sets_that_overlap(
    drawn: st.DataObject,
) -> None:
    """The cloud shows helpers different sets, collects what signatures it can; one helper signs whatever it likes."""
    parties = Parties(c=4, t=1, m=2)
    liar = drawn.draw(st.integers(0, 3))
    honest = {place: enrolled(parties, place, edges=3) for place in range(4) if place != liar}
    names = [f"e{k}:{n}" for k in range(3) for n in (1, 2)]
    wanted = drawn.draw(
        st.lists(
            st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True), min_size=2, max_size=5
        )
    )
    sets = [releases(*sorted(one)) for one in wanted]
    signed: dict[int, set[int]] = {at: {liar} for at in range(len(sets))}
    asked = [(at, place) for at in range(len(sets)) for place in honest]
    for at, place in drawn.draw(st.permutations(asked)):
        if any(
            isinstance(one, Signed)
            for one in honest[place].receive(propose(parties, sets[at], place)).replies
        ):
            signed[at].add(place)
    opened = []
    for at, chosen in enumerate(sets):
        known = set(parties.terms.held(liar))
        for place, helper in honest.items():
            for subset in parties.terms.held(place):
                ask = opening(parties, chosen, place, sorted(signed[at]), subset)
                known |= {one.subset for one in helper.receive(ask).replies if isinstance(one, Answer)}
        if len(known) == len(parties.terms.subsets):
            opened.append(chosen)
    for chosen in opened:
        assert len({edge_id for edge_id, _ in chosen}) == len(chosen) >= 2
    for one, other in combinations({tuple(chosen) for chosen in opened}, 2):
        assert not set(one) & set(other)


# ---- its disk


def disk(folder: Path, run: str = RUN, place: int = 0) -> SignedSets:
    return SignedSets(folder, RunId(run), LIFE, place, secrets.token_bytes)


RECORDS = [
    TermsTaken(b"terms"),
    *(SetSigned(bytes([n]) * 32, ((EdgeId("e"), n), (EdgeId("f" * 64), 9))) for n in range(3)),
]


def test_what_was_signed_is_read_again_from_disk(tmp_path: Path) -> None:
    first = disk(tmp_path)
    for record in RECORDS:
        first.append(record)
    first.close()
    again = disk(tmp_path)
    assert again.records == RECORDS
    assert again.secrets == first.secrets
    assert disk(tmp_path, "other").secrets.box != first.secrets.box
    assert oct(first.path.stat().st_mode)[-3:] == "600"


def test_a_file_that_ends_anywhere_holds_what_was_whole_and_is_written_on(tmp_path: Path) -> None:
    first = disk(tmp_path)
    sizes = [first.path.stat().st_size]
    for record in RECORDS:
        first.append(record)
        sizes.append(first.path.stat().st_size)
    first.close()
    content = first.path.read_bytes()
    for end in range(sizes[0], len(content)):
        first.path.write_bytes(content[:end])
        cut = disk(tmp_path)
        whole = sum(size <= end for size in sizes[1:])
        assert cut.records == RECORDS[:whole]
        cut.append(RECORDS[-1])
        cut.close()
        again = disk(tmp_path)
        assert again.records == [*RECORDS[:whole], RECORDS[-1]]
        again.close()


def test_a_file_that_is_damaged_before_its_end_is_refused(tmp_path: Path) -> None:
    first = disk(tmp_path)
    for record in RECORDS:
        first.append(record)
    first.close()
    content = bytearray(first.path.read_bytes())
    for at in (0, 20, len(content) - 140):
        spoiled = content[:]
        spoiled[at] ^= 1
        first.path.write_bytes(spoiled)
        with pytest.raises(RecordsError, match=r"damaged|not a helper's file"):
            disk(tmp_path)


def test_one_process_has_the_file_and_for_one_place(tmp_path: Path) -> None:
    first = disk(tmp_path)
    with pytest.raises(RecordsError, match="another process"):
        disk(tmp_path)
    first.close()
    with pytest.raises(ConfigurationError, match="helper 0, not of helper 1"):
        disk(tmp_path, place=1)


def test_destroyed_keys_are_on_disk_no_more_also_where_the_helper_was_killed_between_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = disk(tmp_path)
    box, signing = first.secrets[3:]
    with monkeypatch.context() as killed:
        killed.setattr(SignedSets, "_destroy_keys", lambda _: None)
        first.append(RECORDS[1], KeysDestroyed())
    first.close()
    assert box in first.path.read_bytes()
    again = disk(tmp_path)
    assert again.records == [RECORDS[1], KeysDestroyed()]
    content = first.path.read_bytes()
    assert box not in content
    assert signing not in content


def test_after_an_error_of_the_disk_nothing_is_written_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = disk(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(RecordsError, match="No space"):
            first.append(RECORDS[1])
    with pytest.raises(RecordsError, match="earlier"):
        first.append(RECORDS[1])


SIGNS = """
import secrets, sys
from pathlib import Path
from common.quantities import EdgeId, RunId
from mapa.helper.helper import SetSigned
from mapa.helper.signed_sets import SignedSets
sets = SignedSets(Path(sys.argv[1]), RunId("r1"), 5, 0, secrets.token_bytes)
number = len(sets.records)
while True:
    number += 1
    sets.append(SetSigned(number.to_bytes(32, "big"), ((EdgeId("e"), number),)))
    print(number, flush=True)
"""


@pytest.mark.slow
def test_what_a_helper_said_is_on_disk_however_often_it_is_killed(tmp_path: Path) -> None:
    said = 0
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-c", SIGNS, tmp_path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            said = int(line)
            if said % 7 == 6:
                break
        process.kill()
        process.wait()
        process.stdout.close()
        again = disk(tmp_path)
        assert [one.set for one in again.records if isinstance(one, SetSigned)][:said] == [
            number.to_bytes(32, "big") for number in range(1, said + 1)
        ]
        again.close()
