"""The cloud's buffer of masked releases against helpers as values: any order, losses, restarts, lies."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud.secure_sums import MOST_WAITING, AnswersDiffer, HelperRefuses, ReleasesUnfit, SecureSums, mean_of
from common.errors import LocalProtocolError, RemoteProtocolError
from common.quantities import EdgeId
from common.secure import agreement
from common.secure.agreement import Answer, Checked, HelperHello, Refused, Reply, Roster, Signed
from common.secure.boxes import Envelope, seal_once
from tests.secure_support import Parties, SumsRun, new_key

SHAPES = [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (5, 2), (7, 2)]  # c, t


def ready(c: int = 4, t: int = 1, m: int = 3, **more: int) -> SumsRun:
    run = SumsRun(Parties(c=c, t=t, m=m, **more))
    run.settle()
    return run


def check_sums(run: SumsRun) -> None:
    """Every sum is that of its releases, of m distinct edges, and no release is in two."""
    for one in run.opened:
        assert (one.total == run.parties.total(one.releases)).all()
        assert len({edge_id for edge_id, _ in one.releases}) == len(one.releases) == run.parties.m
    counts = Counter(release for one in run.opened for release in one.releases)
    assert not counts or max(counts.values()) == 1


@pytest.mark.parametrize(("c", "t"), SHAPES)
def test_sets_of_m_distinct_edges_are_opened_to_their_exact_sums_with_t_helpers_away(c: int, t: int) -> None:
    run = ready(c, t)
    for place in range(t):
        run.stop(place)
    for sequence in range(1, 4):
        for k in range(4):
            run.release(f"e{k}", sequence)
            run.settle()
    check_sums(run)
    assert len(run.opened) == 4
    assert not run.others
    assert run.sums.waiting == 0


def test_a_mean_is_the_sum_over_m_in_the_units_of_the_gradient() -> None:
    run = ready()
    for k in range(3):
        run.release(f"e{k}", 1)
    run.settle()
    expected = run.parties.total(run.opened[0].releases) / (3 * 65536.0)
    assert mean_of(run.opened[0], 65536.0) == pytest.approx(expected, rel=1e-6)


def test_a_set_is_named_before_any_helper_is_asked_to_sign_it() -> None:
    run = ready()
    for k in range(3):
        run.release(f"e{k}", 1)
    while not run.log or not isinstance(run.log[-1], tuple) or len(run.log) == 3:
        assert not any(isinstance(ask, agreement.Propose) for _, ask in run.asks)
        run.hear() if run.replies else run.answer()
    assert run.log[-1] == (tuple((EdgeId(f"e{k}"), 1) for k in range(3)),)


def test_fewer_than_m_edges_open_nothing_however_often_they_release() -> None:
    run = ready()
    for sequence in range(1, MOST_WAITING + 1):
        for k in range(2):
            run.release(f"e{k}", sequence)
            run.settle()
    assert not run.opened
    assert not run.sums.has_room(EdgeId("e0"))
    assert run.sums.has_room(EdgeId("e2"))
    assert run.sums.is_starved([EdgeId("e1")])
    assert not run.sums.is_starved([EdgeId("e9")])


def test_more_than_t_helpers_away_make_the_cloud_wait_and_their_return_lets_it_go_on() -> None:
    run = ready()
    run.stop(0)
    run.stop(1)
    for k in range(3):
        run.release(f"e{k}", 1)
    run.settle()
    assert not run.opened
    run.restart(0)
    run.settle()
    assert len(run.opened) == 1


@pytest.mark.parametrize("digest", [True, False])
def test_a_helper_that_answers_wrongly_is_found_and_the_sum_is_the_right_one(digest: bool) -> None:
    run = ready()
    wrong = agreement.sum_digest(bytes(32), 0, b"") if digest else np.ones(5, "<u4").tobytes()
    run.lie = lambda place, reply: lying(run, place, reply, wrong, digest=digest)
    for k in range(3):
        run.release(f"e{k}", 1)
    run.settle()
    found = [one for one in run.others if isinstance(one, AnswersDiffer)]
    assert found
    assert all(int(digest) in one.helpers for one in found)
    check_sums(run)
    assert len(run.opened) == 1


def lying(
    run: SumsRun, place: int, reply: Reply | HelperHello, wrong: bytes, *, digest: bool
) -> Reply | HelperHello:
    """Have helper 0 answer with another vector, or helper 1 with another digest."""
    if place != digest or not isinstance(reply, Answer) or reply.digest is not digest:
        return reply
    pair = run.parties.boxes[place].pair(run.parties.cloud.public)
    purpose = agreement.answer_purpose(reply.set, reply.subset, place, digest=digest)
    return reply._replace(sealed=seal_once(pair, purpose, wrong))


def test_where_helpers_must_follow_the_protocol_a_wrong_answer_opens_nothing_and_is_said() -> None:
    run = ready(3, 1)
    run.lie = lambda place, reply: lying(run, place, reply, np.ones(5, "<u4").tobytes(), digest=False)
    for k in range(3):
        run.release(f"e{k}", 1)
    run.settle()
    assert any(isinstance(one, AnswersDiffer) for one in run.others)
    assert not run.opened
    assert run.sums.stuck


def test_a_release_whose_boxes_are_garbage_is_set_aside_and_the_others_are_opened() -> None:
    run = ready()
    for k in range(4):
        edge_id, _ = release = run.parties.release(f"e{k}", 1)
        arrived = run.parties.arrived(release)
        if k == 0:
            boxes = tuple(bytes(len(box)) for box in arrived.envelope.boxes)
            arrived = arrived._replace(envelope=Envelope(*arrived.envelope[:2], boxes))
        run.perform(run.sums.enrol(run.parties.entry(edge_id)))
        run.perform(run.sums.take(arrived))
    run.settle()
    assert [one.releases for one in run.others if isinstance(one, ReleasesUnfit)] == [((EdgeId("e0"), 1),)]
    assert [one.releases for one in run.opened] == [tuple((EdgeId(f"e{k}"), 1) for k in (1, 2, 3))]


def test_a_helper_that_calls_every_box_bad_is_not_believed_where_helpers_may_lie() -> None:
    run = ready()
    run.lie = lambda place, reply: (
        reply._replace(bad=tuple(EdgeId(f"e{k}") for k in range(3)))
        if place == 2 and isinstance(reply, Checked)
        else reply
    )
    for k in range(3):
        run.release(f"e{k}", 1)
    run.settle()
    assert len(run.opened) == 1


def test_a_helper_that_does_not_take_an_edge_is_told_thrice_and_then_passed_over() -> None:
    run = ready()
    run.helpers[3] = run.parties.helper(3)
    run.helpers[3]._authority = lambda *_: False
    for k in range(3):
        run.release(f"e{k}", 1)
    run.settle()
    assert any(isinstance(one, HelperRefuses) and one.helper == 3 for one in run.others)
    check_sums(run)
    assert len(run.opened) == 1


def test_what_a_cloud_names_is_the_same_after_a_restart_and_is_opened_once() -> None:
    run = ready()
    for k in range(5):
        run.release(f"e{k}", 1)
    while not run.sums.named:
        run.hear() if run.replies else run.answer()
    named = run.sums.named
    run.restart_cloud()
    assert run.sums.named == named
    run.settle()
    assert [one.releases for one in run.opened] == [named]
    check_sums(run)


def test_messages_that_are_not_of_this_run_raise_one_error() -> None:
    run = ready()
    helper = run.parties.helper(0)
    for wrong in (
        helper.hello._replace(box=new_key().public),
        helper.hello._replace(helper=6),
    ):
        with pytest.raises(RemoteProtocolError, match="keys"):
            run.sums.greeted(wrong)
    with pytest.raises(LocalProtocolError, match="key"):
        SecureSums(run.parties.terms, new_key())
    entry = run.release("e0", 1) or run.parties.entry(EdgeId("e0"))
    with pytest.raises(RemoteProtocolError, match="terms"):
        run.sums.enrol(entry._replace(terms=bytes(32)))
    with pytest.raises(LocalProtocolError, match="waits already"):
        run.sums.take(run.parties.arrived((EdgeId("e0"), 1)))


def test_replies_that_nothing_asked_for_change_nothing() -> None:
    run = ready()
    for reply in (
        Checked(bytes(32), ()),
        Signed(bytes(32), bytes(64)),
        Answer(bytes(32), 0, False, b""),
        Refused(bytes(32), agreement.TOO_FEW, ()),
    ):
        effects = run.sums.answered(0, reply)
        assert [one for one in effects if not isinstance(one, HelperRefuses)] == []
    for k in range(3):
        run.release(f"e{k}", 1)
    while not run.sums.named:
        run.hear() if run.replies else run.answer()
    name = agreement.set_digest(run.parties.terms.digest, run.parties.members([*run.sums.named], 0))
    with pytest.raises(RemoteProtocolError, match="signature"):
        run.sums.answered(0, Signed(name, bytes(64)))
    with pytest.raises(RemoteProtocolError, match="open"):
        run.sums.answered(0, Answer(name, 0, False, bytes(36)))


def test_a_helper_is_told_of_an_edge_once_and_again_after_its_restart() -> None:
    run = ready()
    told: list[int] = []
    perform = run.perform
    run.perform = lambda effects: (  # type: ignore[method-assign]
        told.extend(one.helper for one in effects if isinstance(getattr(one, "ask", None), Roster)),
        perform(effects),
    )[1]
    for sequence in (1, 2):
        for k in range(3):
            run.release(f"e{k}", sequence)
        run.settle()
    first = len(told)
    run.restart(0)
    for k in range(3):
        run.release(f"e{k}", 3)
    run.settle()
    assert set(told[first:]) == {0}


@settings(max_examples=60, deadline=None)
@given(drawn=st.data())
def test_in_any_history_sums_are_exact_nothing_is_opened_twice_and_nothing_is_lost(
    drawn: st.DataObject,
) -> None:
    """Messages in any order, lost and twice; edges that release; helpers away, back or lying; a cloud killed."""
    c, t = drawn.draw(st.sampled_from(SHAPES))
    run = ready(c, t, m=2)
    liar = drawn.draw(st.integers(0, c - 1)) if c > 3 * t >= 3 else None
    if liar is not None:
        run.lie = lambda place, reply: garbled(run, place, reply, liar)
    sequences: Counter[int] = Counter()
    moves = ["release", "answer", "hear", "lose", "twice", "stop", "restart", "cloud", "again"]
    for _ in range(drawn.draw(st.integers(5, 60))):
        move, which = drawn.draw(st.sampled_from(moves)), drawn.draw(st.integers(0, 30))
        place = which % c
        if move == "release" and run.sums.has_room(EdgeId(f"e{which % 4}")):
            sequences[which % 4] += 1
            run.release(f"e{which % 4}", sequences[which % 4])
        elif move == "answer" and run.asks:
            run.answer(which % len(run.asks))
        elif move == "hear" and run.replies:
            run.hear(which % len(run.replies))
        elif move == "lose" and run.asks:
            run.asks.pop(which % len(run.asks))
        elif move == "lose" and run.replies:
            run.replies.pop(which % len(run.replies))
        elif move == "twice" and run.asks:
            run.asks.append(run.asks[which % len(run.asks)])
        elif move == "twice" and run.replies:
            run.replies.append(run.replies[which % len(run.replies)])
        elif move == "stop":
            run.stop(place)
        elif move == "restart":
            run.restart(place)
        elif move == "cloud":
            run.restart_cloud()
        elif move == "again":
            run.perform(run.sums.ask_again(place))
        check_sums(run)
    for place in range(c):
        run.restart(place)
    run.settle()
    check_sums(run)
    opened = {release for one in run.opened for release in one.releases}
    left = {edge_id for edge_id, number in run.parties.released if (edge_id, number) not in opened}
    assert len(left) < 2, "m edges had releases, and no set came about"
    assert not any(isinstance(one, ReleasesUnfit) for one in run.others)


def garbled(run: SumsRun, place: int, reply: Reply | HelperHello, liar: int) -> Reply | HelperHello:
    """Have one helper call boxes bad and answer with another sum, sealed as it should be."""
    if place != liar:
        return reply
    if isinstance(reply, Checked):
        return reply._replace(bad=(EdgeId("e0"), EdgeId("e1")))
    if isinstance(reply, Answer):
        wrong = bytes(32) if reply.digest else bytes(4 * run.parties.dimension)
        pair = run.parties.boxes[liar].pair(run.parties.cloud.public)
        purpose = agreement.answer_purpose(reply.set, reply.subset, liar, digest=reply.digest)
        return reply._replace(sealed=seal_once(pair, purpose, wrong))
    return reply
