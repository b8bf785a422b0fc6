"""EdgeSession: every event in every phase, which answer counts, which halt is believed, what is sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest

from common.errors import LocalProtocolError
from common.messages import Halt, ModelReceived, Presence, Refuse, Welcome
from common.quantities import EdgeId
from edge.session import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_FULL,
    EXIT_REFUSED,
    DropOutbox,
    EdgeSession,
    Ending,
    GradientDebited,
    MakeGradient,
    Phase,
    Prepare,
    Prepared,
    PushOutbox,
    RenewIdentity,
    Reroute,
    SayHello,
    SayLeave,
    SessionEffect,
    SessionEvent,
    Signal,
    Stop,
    TakeTime,
    TimeTaken,
)

EDGE, LIFE, OTHER = EdgeId("a"), 5, 6
CLOUD, RIVAL, MINE = "c" * 16, "d" * 16, "e" * 16

SHUTDOWN = Ending(EXIT_DONE, "left: shutdown", "shutdown")
FAILED = Ending(EXIT_FAILED, "why", "failed")


def online(life: int = LIFE, nonce: str = CLOUD) -> Presence:
    return Presence(True, nonce, life)


def over(life: int = LIFE, nonce: str = CLOUD) -> Presence:
    return Presence(False, nonce, life, over=True)


def away(life: int = LIFE, nonce: str = CLOUD) -> Presence:
    return Presence(False, nonce, life)


def welcome(number: int, life: int = LIFE, applied: int = 0) -> Welcome:
    return Welcome(
        edge_id=EDGE,
        index=0,
        last_sequence=applied,
        edges=1,
        scenario={},
        seed=None,
        nonce=MINE,
        number=number,
        incarnation=life,
    )


def model(acknowledged: int, life: int = LIFE) -> ModelReceived:
    return ModelReceived(EDGE, 1, 1.0, acknowledged, np.zeros(1, np.float32), life)


def refuse(reason: str, number: int | None, **fields: Any) -> Refuse:
    nonce = None if number is None else MINE
    known = {"last_sequence": 9} if reason == "ledger-lost" else {}
    return Refuse(EDGE, reason, "why", nonce, number, **{"incarnation": LIFE, **known, **fields})


def session(**fields: Any) -> EdgeSession:
    """Return one that has said its first hello."""
    made = EdgeSession(**fields)
    assert made.receive(Signal.CONNECTED) == []  # nobody is there yet
    assert names(made.receive(online())) == ["SayHello"]
    return made


def follow(made: EdgeSession, admission: Welcome) -> list[SessionEffect]:
    """Welcome it, have the shell follow the welcome, and return what it does then."""
    assert made.receive(admission) == [Prepare(admission)]
    return made.receive(Prepared())


def waiting() -> EdgeSession:
    """Return one that waits for its first model."""
    made = session()
    assert follow(made, welcome(1)) == []
    return made


def making() -> EdgeSession:
    made = waiting()
    assert names(made.receive(model(0))) == ["MakeGradient"]
    return made


def pushing() -> EdgeSession:
    """Return one whose first gradient is out."""
    made = making()
    assert made.receive(GradientDebited(1)) == [PushOutbox(1)]
    return made


def names(effects: list[SessionEffect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


# -- every event in every phase ---------------------------------------------------------------------------


def begun(*events: SessionEvent) -> Callable[[], EdgeSession]:
    """Return how to make one that has said two hellos and then got these events."""

    def make() -> EdgeSession:
        made = session()
        for event in (Signal.UNANSWERED, *events):
            made.receive(event)
        return made

    return make


FOLLOWED = (welcome(1), Prepared())
IN_PHASE = {
    Phase.GREETING: begun(),
    Phase.PREPARING: begun(welcome(1)),
    Phase.REROUTING: begun(welcome(1), Prepared(rerouted=True)),
    Phase.WAITING: begun(*FOLLOWED),
    Phase.MAKING: begun(*FOLLOWED, model(0)),
    Phase.PUSHING: begun(*FOLLOWED, model(0), GradientDebited(1)),
    Phase.RENEWING: begun(refuse("ledger-lost", 2)),
    Phase.AWAY: begun(*FOLLOWED, Signal.WENT_AWAY),
    Phase.DONE: begun(SHUTDOWN),
}
EVENTS: dict[str, SessionEvent] = {
    "Connected": Signal.CONNECTED,
    "Disconnected": Signal.DISCONNECTED,
    "Unanswered": Signal.UNANSWERED,
    "Ending": SHUTDOWN,
    "WentAway": Signal.WENT_AWAY,
    "CameBack": Signal.CAME_BACK,
    "welcome": welcome(2),
    "stale welcome": welcome(0),
    "refuse mechanism": refuse("mechanism", 2),
    "refuse incarnation": refuse("incarnation", 2, incarnation=OTHER),
    "refuse ledger-lost": refuse("ledger-lost", 2),
    "stale refuse": refuse("mechanism", 1),
    "refuse stranger": refuse("stranger", None),
    "refuse full": refuse("full", None),
    "model": model(1),
    "model of another life": model(1, OTHER),
    "cloud still online": online(),
    "another cloud online": online(OTHER, RIVAL),
    "cloud away": away(),
    "cloud over": over(),
    "Halt": Halt("finished", 9, LIFE),
    "Prepared": Prepared(),
    "Prepared with a link": Prepared(rerouted=True),
    "OtherShardHeld": Signal.OTHER_SHARD_HELD,
    "TimeTaken": TimeTaken(1),
    "GradientDebited": GradientDebited(1),
    "IdentityRenewed": Signal.IDENTITY_RENEWED,
}
# A cell: `.` nothing happens; `!` a mistake of the shell; else the next phase, and the effects behind a colon.
_ = "."
REROUTE, MAKE = "rerouting:Reroute", "making:MakeGradient"
HELLO, PREPARE, LEFT, STOPPED = "greeting:SayHello", "preparing:Prepare", "done:SayLeave,Stop", "done:Stop"
PHASES = (
    Phase.GREETING, Phase.PREPARING, Phase.REROUTING, Phase.WAITING,
    Phase.MAKING, Phase.PUSHING, Phase.RENEWING, Phase.DONE, Phase.AWAY,
)  # fmt: skip
TABLE = {
    #                         greeting   preparing  rerouting  waiting    making     pushing    renewing   done, away
    "Connected":             (HELLO,     _,         HELLO,     HELLO,     _,         HELLO,     _,         _, _),
    "Disconnected":          (_,         _,         _,         _,         _,         _,         _,         _, _),
    "Unanswered":            (HELLO,     _,         _,         "waiting:SayHello", _, "pushing:PushOutbox", _, _, _),
    "Ending":                (LEFT,      LEFT,      LEFT,      LEFT,      LEFT,      LEFT,      LEFT,      _, LEFT),
    "WentAway":              ("away:SayLeave", _, _, "away:SayLeave", _, "away:SayLeave", _, _, _),
    "CameBack":              (_,         _,         _,         _,         _,         _,         _, _, REROUTE),
    "welcome":               (PREPARE,   _,         _,         PREPARE,   _,         PREPARE,   _,         _, _),
    "stale welcome":         (_,         _,         _,         _,         _,         _,         _,         _, _),
    "refuse mechanism":      (STOPPED,   _,         _,         STOPPED,   _,         STOPPED,   _,         _, _),
    "refuse incarnation":    (HELLO,     _,         _,         HELLO,     _,         HELLO,     _,         _, _),
    "refuse ledger-lost":    ("renewing:RenewIdentity", _, _,  "renewing:RenewIdentity", _,
                              "renewing:RenewIdentity", _, _, _),
    "stale refuse":          (_,         _,         _,         _,         _,         _,         _,         _, _),
    "refuse stranger":       (_,         _,         _,         HELLO,     _,         HELLO,     _,         _, _),
    "refuse full":           (_,         _,         _,         _,         _,         _,         _,         _, _),
    "model":                 (_,         _,         _,         MAKE, _, MAKE, _, _, _),
    "model of another life": (_,         _,         _,         _,         _,         _,         _,         _, _),
    "cloud still online":    (_,         _,         _,         _,         _,         _,         _,         _, _),
    "another cloud online":  (HELLO,     _,         _,         HELLO,     _,         HELLO,     _,         _, _),
    "cloud away":            (_,         _,         _,         _,         _,         _,         _,         _, _),
    "cloud over":            (_,         _,         _,         _,         _,         _,         _,         _, _),
    "Halt":                  (HELLO,     _,         _,         HELLO,     _,         HELLO,     _,         _, _),
    "Prepared":              ("!",       "waiting:", "!",      "!",       "!",       "!",       "!",       _, "!"),
    "Prepared with a link":  ("!",       REROUTE, "!", "!",   "!",       "!",       "!",       _, "!"),
    "OtherShardHeld":        ("!",       HELLO,     "!",       "!",       "!",       "!",       "!",       _, "!"),
    "TimeTaken":             ("!",       "!",       "!",       "!",       "!",       "!",       "!",       _, "!"),
    "GradientDebited":       ("!",       "!",       "!",       "!",       "pushing:PushOutbox", "!", "!",  _, "!"),
    "IdentityRenewed":       ("!",       "!",       "!",       "!",       "!",       "!",       REROUTE, _, "!"),
}  # fmt: skip
CELLS = [(phase, name, cell) for name, row in TABLE.items() for phase, cell in zip(PHASES, row, strict=True)]


def test_the_table_has_every_event_and_every_phase() -> None:
    assert set(PHASES) == set(Phase)
    assert set(IN_PHASE) == set(Phase)
    assert set(TABLE) == set(EVENTS)
    assert {type(event) for event in EVENTS.values()} == set(get_args(SessionEvent))
    assert all(signal in EVENTS.values() for signal in Signal)


@pytest.mark.parametrize(("phase", "name", "cell"), CELLS)
def test_an_event_in_a_phase_leads_to_one_phase_and_its_effects(phase: Phase, name: str, cell: str) -> None:
    made = IN_PHASE[phase]()
    assert made.phase is phase
    if cell == "!":
        with pytest.raises(LocalProtocolError, match=f"in phase {phase.value}: nothing asked for it"):
            made.receive(EVENTS[name])
        assert made.phase is phase
        return
    effects = made.receive(EVENTS[name])
    following, _colon, wanted = (f"{phase.value}:" if cell == "." else cell).partition(":")
    assert (made.phase, names(effects)) == (Phase(following), wanted.split(",") if wanted else [])


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.DONE])
def test_a_believed_halt_ends_every_phase(phase: Phase) -> None:
    made = IN_PHASE[phase]()
    made.receive(over())
    assert names(made.receive(Halt("finished", 9, LIFE))) == ["Stop"]
    assert made.phase is Phase.DONE


# -- while the shell is busy ------------------------------------------------------------------------------


NEWS = [Signal.CONNECTED, online(OTHER, RIVAL), Halt("finished", 9, LIFE), refuse("stranger", None)]


@pytest.mark.parametrize("news", NEWS)
def test_a_hello_that_falls_due_while_a_welcome_is_followed_is_said_after_it(news: SessionEvent) -> None:
    made = session()
    made.receive(welcome(1))
    assert made.receive(news) == []
    assert names(made.receive(Prepared())) == ["SayHello"]
    assert made.phase is Phase.GREETING
    assert follow(made, welcome(2)) == []  # and once only


def test_an_edge_that_had_still_to_prepare_says_once_that_it_can_train() -> None:
    made = session()
    made.receive(welcome(1))
    assert names(made.receive(Prepared(announced=False))) == ["SayHello"]
    assert follow(made, welcome(2)) == []


@pytest.mark.parametrize("news", NEWS)
def test_a_gradient_made_meanwhile_is_debited_and_pushed_after_the_next_welcome(news: SessionEvent) -> None:
    made = making()
    assert made.receive(news) == []
    (hello,) = made.receive(GradientDebited(1))
    assert isinstance(hello, SayHello)
    assert (hello.last_sequence, hello.number) == (1, 2)
    assert follow(made, welcome(2)) == [PushOutbox(1)]


# -- endings and identities -------------------------------------------------------------------------------


def test_an_edge_that_never_said_hello_ends_without_a_word_to_the_cloud() -> None:
    before: list[list[SessionEvent]] = [[], [Signal.CONNECTED], [online()]]
    for events in before:
        made = EdgeSession()
        for event in events:
            made.receive(event)
        assert made.receive(FAILED) == [Stop(EXIT_FAILED, "why")]


def test_without_a_connection_a_leave_is_still_said_unless_the_connection_is_the_reason() -> None:
    for leave, said in (("failed", [SayLeave("failed")]), (None, [])):
        made = pushing()
        made.receive(Signal.DISCONNECTED)
        assert made.receive(Ending(EXIT_FAILED, "why", leave)) == [*said, Stop(EXIT_FAILED, "why")]


def test_without_a_connection_nothing_is_said_again() -> None:
    for made in (session(), waiting(), pushing()):
        made.receive(Signal.DISCONNECTED)
        assert made.receive(Signal.UNANSWERED) == []
        assert names(made.receive(Signal.CONNECTED)) == ["SayHello"]


def test_a_newcomer_begins_anew_with_what_is_known_of_the_cloud() -> None:
    made = session(last_sequence=3, pending=3, pending_incarnation=LIFE)
    made.receive(Halt("finished", 9, OTHER))
    made.receive(refuse("ledger-lost", 2))
    assert made.receive(Signal.IDENTITY_RENEWED) == [Reroute()]
    assert made.receive(welcome(3)) == []  # to the id before
    assert made.receive(Signal.CONNECTED) == [SayHello(0, 1, LIFE)]
    assert follow(made, welcome(1)) == []
    (first,) = made.receive(model(0))
    assert isinstance(first, MakeGradient)
    assert first.sequence == 1


def test_a_link_is_in_place_before_anything_is_pushed() -> None:
    made = session(last_sequence=3, pending=3, pending_incarnation=LIFE)
    made.receive(welcome(1, applied=2))
    assert made.receive(Prepared(rerouted=True)) == [Reroute()]
    assert made.receive(Signal.UNANSWERED) == []
    assert made.receive(Signal.CONNECTED) == [SayHello(3, 2, LIFE)]
    assert follow(made, welcome(2, applied=2)) == [PushOutbox(3)]


@pytest.mark.parametrize(
    ("reason", "code"),
    [("fleet-full", EXIT_FULL), ("halted", EXIT_DONE), ("mechanism", EXIT_REFUSED), ("banned", EXIT_REFUSED)],
)
def test_the_reasons_of_a_refuse_have_their_codes(reason: str, code: int) -> None:
    (stop,) = session().receive(refuse(reason, 1))
    assert isinstance(stop, Stop)
    assert stop.code == code


# -- hellos and answers -----------------------------------------------------------------------------------


def test_a_hello_is_meant_for_the_cloud_that_was_heard_of_and_each_has_its_number() -> None:
    made = session()
    assert made.receive(Signal.UNANSWERED) == [SayHello(0, 2, LIFE)]
    assert made.receive(online(OTHER, RIVAL)) == [SayHello(0, 3, OTHER)]
    assert made.receive(online(OTHER, RIVAL)) == []  # no news
    assert made.receive(away(OTHER, RIVAL)) == []
    assert made.receive(online(OTHER, RIVAL)) == [SayHello(0, 4, OTHER)]
    assert made.receive(Signal.CONNECTED) == [SayHello(0, 5, OTHER)]
    assert made.receive(refuse("anything", 5)) == []  # no reason that a cloud gives
    assert made.receive(refuse("incarnation", 5, incarnation=LIFE)) == [SayHello(0, 6, LIFE)]


def test_a_welcome_counts_once_and_none_that_answers_an_older_hello_after_it() -> None:
    made = session()
    made.receive(Signal.UNANSWERED)
    assert follow(made, welcome(2)) == []
    assert made.receive(welcome(2)) == []
    assert made.receive(welcome(1, OTHER)) == []
    assert made.incarnation == LIFE


@pytest.mark.parametrize("reason", ["fleet-full", "mechanism", "halted", "ledger-lost"])
def test_a_refuse_counts_for_the_newest_hello_alone(reason: str) -> None:
    made = session()
    made.receive(Signal.UNANSWERED)
    assert made.receive(refuse(reason, 1)) == []
    assert made.receive(refuse(reason, None)) == []
    assert names(made.receive(refuse(reason, 2))) == ["RenewIdentity" if reason == "ledger-lost" else "Stop"]


@pytest.mark.parametrize("known", [None, 0, 3])
def test_a_ledger_that_lacks_nothing_is_not_lost(known: int | None) -> None:
    made = session(last_sequence=3)
    assert made.receive(refuse("ledger-lost", 1, last_sequence=known)) == []
    assert made.phase is Phase.GREETING
    assert made.receive(refuse("ledger-lost", 1, last_sequence=4)) == [RenewIdentity(4)]


def test_a_refuse_of_a_hello_that_was_welcomed_by_another_cloud_is_not_obeyed() -> None:
    made = waiting()
    assert made.receive(refuse("fleet-full", 1)) == []


# -- gradients and models ---------------------------------------------------------------------------------


def test_a_model_of_another_life_or_of_an_older_gradient_does_not_count() -> None:
    made = pushing()
    assert made.receive(model(1, OTHER)) == []
    assert made.receive(model(0)) == []
    assert names(made.receive(model(1))) == ["MakeGradient"]


def test_the_same_life_gets_the_same_bytes_again_and_another_life_never() -> None:
    made = pushing()
    made.receive(Signal.CONNECTED)
    assert follow(made, welcome(2)) == [PushOutbox(1)]
    made.receive(Signal.CONNECTED)
    assert follow(made, welcome(3, OTHER)) == [DropOutbox(1)]
    (made_next,) = made.receive(model(0, OTHER))
    assert isinstance(made_next, MakeGradient)
    assert made_next.sequence == 2  # the debit of the first stays


def test_an_outbox_of_an_earlier_process_is_sent_where_it_names_this_life_alone() -> None:
    for life, wanted in ((LIFE, PushOutbox(3)), (OTHER, DropOutbox(3))):
        made = session(last_sequence=3, pending=3, pending_incarnation=life)
        assert follow(made, welcome(1, applied=2)) == [wanted]


# -- halts ------------------------------------------------------------------------------------------------


def halted(made: EdgeSession) -> bool:
    return made.phase is Phase.DONE


@pytest.mark.parametrize("life", [LIFE, OTHER])
def test_a_halt_while_the_cloud_is_there_is_asked_about_and_a_welcome_disproves_it(life: int) -> None:
    made = pushing()
    assert names(made.receive(Halt("finished", 9, life))) == ["SayHello"]
    assert made.receive(Halt("finished", 9, life)) == []  # asked already
    assert follow(made, welcome(2)) == [PushOutbox(1)]
    made.receive(over(OTHER))
    made.receive(over())
    assert not halted(made)


def test_a_welcome_to_a_hello_from_before_the_halt_disproves_nothing() -> None:
    made = pushing()
    made.receive(Signal.CONNECTED)
    made.receive(Halt("finished", 9, LIFE))
    follow(made, welcome(2))
    assert names(made.receive(over())) == ["Stop"]


def test_a_halt_counts_once_its_cloud_has_said_goodbye_whichever_comes_first() -> None:
    for events in ([Halt("finished", 9, LIFE), over()], [over(), Halt("finished", 9, LIFE)]):
        made = pushing()
        for event in events:
            assert not halted(made)
            made.receive(event)  # type: ignore[arg-type]
        assert halted(made)


def test_a_cloud_that_is_only_away_has_not_ended_the_run() -> None:
    made = pushing()
    made.receive(away())
    made.receive(Halt("finished", 9, LIFE))
    for _ in range(9):
        made.receive(Signal.UNANSWERED)
    assert not halted(made)


def test_an_edge_that_has_seen_no_cloud_waits_before_it_believes_what_an_earlier_run_left() -> None:
    """Started together with the cloud of a second run of the name, it would else end before that has begun."""
    made = EdgeSession()
    made.receive(Signal.CONNECTED)
    made.receive(over(OTHER))
    made.receive(Halt("finished", 9, OTHER))
    for _ in range(2):
        made.receive(Signal.UNANSWERED)
        assert not halted(made)
    (stop,) = made.receive(Signal.UNANSWERED)
    assert isinstance(stop, Stop)
    assert (stop.code, "had ended before this edge joined" in stop.text) == (EXIT_DONE, True)
    began = EdgeSession()
    began.receive(Signal.CONNECTED)
    began.receive(over(OTHER))
    began.receive(Halt("finished", 9, OTHER))
    assert names(began.receive(online())) == ["SayHello"]
    late = EdgeSession()
    late.receive(Signal.CONNECTED)
    late.receive(online())
    late.receive(over(OTHER))
    late.receive(Halt("finished", 9, OTHER))
    assert not halted(late)  # another life was online: it is asked


def test_a_life_that_came_and_ended_while_the_edge_was_away_is_believed_when_nobody_answers() -> None:
    made = pushing()
    made.receive(Signal.CONNECTED)
    made.receive(over(OTHER, RIVAL))
    made.receive(Halt("interrupted", 3, OTHER))
    for _ in range(2):
        made.receive(Signal.UNANSWERED)
        assert not halted(made)
    assert names(made.receive(Signal.UNANSWERED)) == ["Stop"]


# -- a device that takes its time, and is not always there -------------------------------------------------


def slow() -> EdgeSession:
    """Return one whose device takes its time over the first gradient."""
    made = session()
    made.receive(welcome(1))
    assert made.receive(Prepared(slow=True)) == []
    assert made.receive(model(0)) == [TakeTime(1, 1)]
    assert made.phase is Phase.MAKING
    return made


def test_a_slow_device_makes_its_gradient_once_it_has_taken_its_time() -> None:
    made = slow()
    assert names(made.receive(TimeTaken(1))) == ["MakeGradient"]
    assert made.receive(TimeTaken(1)) == []  # once
    assert made.receive(GradientDebited(1)) == [PushOutbox(1)]
    assert made.receive(model(1)) == [TakeTime(2, 2)]
    assert made.receive(TimeTaken(1)) == []  # of the wait before


@pytest.mark.parametrize(
    "news", [Signal.UNANSWERED, Signal.DISCONNECTED, Signal.CONNECTED, refuse("stranger", None)]
)
def test_what_comes_while_the_device_takes_its_time_does_not_begin_it_again(news: SessionEvent) -> None:
    made = slow()
    assert made.receive(news) == []
    assert names(made.receive(TimeTaken(1))) == ["MakeGradient"]


@pytest.mark.parametrize("news", [online(OTHER, RIVAL), Halt("finished", 9, LIFE)])
def test_nothing_is_made_and_debited_for_a_life_that_ended_while_the_device_took_its_time(
    news: SessionEvent,
) -> None:
    made = slow()
    assert made.receive(news) == []
    assert names(made.receive(TimeTaken(1))) == ["SayHello"]
    assert (made.last_sequence, made.pending) == (0, None)
    made.receive(welcome(2, OTHER))
    assert made.receive(Prepared(slow=True)) == []
    assert made.receive(model(0, OTHER)) == [TakeTime(1, 2)]


@pytest.mark.parametrize("event", [SHUTDOWN, over()])
def test_an_edge_that_ends_while_its_device_takes_its_time_has_debited_nothing(event: SessionEvent) -> None:
    made = slow()
    if isinstance(event, Presence):
        made.receive(Halt("finished", 9, LIFE))
    assert names(made.receive(event))[-1] == "Stop"
    assert made.receive(TimeTaken(1)) == []


def test_a_device_whose_time_ends_pushes_the_gradient_under_way_and_leaves_behind_it() -> None:
    made = slow()
    assert made.receive(Signal.WENT_AWAY) == []
    assert names(made.receive(TimeTaken(1))) == ["MakeGradient"]
    assert made.receive(GradientDebited(1)) == [PushOutbox(1), SayLeave("away")]
    assert made.phase is Phase.AWAY
    assert made.receive(model(1)) == []  # nobody is there to take it


def test_a_device_that_is_back_says_hello_on_a_new_connection_and_sends_what_it_owes() -> None:
    made = pushing()
    assert made.receive(Signal.WENT_AWAY) == [SayLeave("away")]
    assert made.receive(Signal.CAME_BACK) == [Reroute(returned=True)]
    (hello,) = made.receive(Signal.CONNECTED)
    assert isinstance(hello, SayHello)
    assert (hello.last_sequence, hello.number) == (1, 2)
    assert follow(made, welcome(2)) == [
        PushOutbox(1)
    ]  # the same bytes: nothing is lost, nothing is made twice


def test_a_device_that_is_back_before_its_gradient_is_made_never_leaves() -> None:
    made = slow()
    made.receive(Signal.WENT_AWAY)
    assert made.receive(Signal.CAME_BACK) == []
    made.receive(TimeTaken(1))
    assert made.receive(GradientDebited(1)) == [PushOutbox(1)]


def test_whoever_goes_away_without_a_connection_says_nothing() -> None:
    made = waiting()
    made.receive(Signal.DISCONNECTED)
    assert made.receive(Signal.WENT_AWAY) == []
    assert made.receive(Signal.CONNECTED) == []
    assert made.phase is Phase.AWAY


def test_whoever_goes_away_while_it_connects_through_its_link_lets_the_cloud_know() -> None:
    made = IN_PHASE[Phase.REROUTING]()
    assert made.receive(Signal.WENT_AWAY) == []
    assert names(made.receive(Signal.CONNECTED)) == ["SayHello"]
    assert follow(made, welcome(3)) == [SayLeave("away")]
