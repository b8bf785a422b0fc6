"""EdgeSession: which answer counts, which halt is believed, what is sent again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.messages import Halt, Refuse, SendModel, Welcome
from common.quantities import EdgeId
from common.wire.codec import Admission, Presence
from edge.session import (
    EXIT_DONE,
    EXIT_FULL,
    Connected,
    DropOutbox,
    EdgeSession,
    GradientDebited,
    MakeGradient,
    Phase,
    Prepare,
    PushOutbox,
    SayHello,
    SessionEffect,
    Stop,
    Unanswered,
)

EDGE, LIFE, OTHER = EdgeId("a"), 5, 6
CLOUD, RIVAL, MINE = "c" * 16, "d" * 16, "e" * 16


def online(life: int = LIFE, nonce: str = CLOUD) -> Presence:
    return Presence(True, nonce, life)


def over(life: int = LIFE, nonce: str = CLOUD) -> Presence:
    return Presence(False, nonce, life, over=True)


def away(life: int = LIFE, nonce: str = CLOUD) -> Presence:
    return Presence(False, nonce, life)


def welcome(number: int, life: int = LIFE, applied: int = 0) -> Admission:
    return Admission(
        welcome=Welcome(EDGE, 0, applied),
        edges=1,
        scenario={},
        seed=None,
        nonce=MINE,
        number=number,
        incarnation=life,
    )


def model(acknowledged: int, life: int = LIFE) -> SendModel:
    return SendModel(EDGE, 1, 1.0, acknowledged, np.zeros(1, np.float32), life)


def refuse(reason: str, number: int | None, **fields: Any) -> Refuse:
    nonce = None if number is None else MINE
    return Refuse(EDGE, reason, "why", nonce, number, **{"incarnation": LIFE, **fields})


def session(**fields: Any) -> EdgeSession:
    """Return one that has said its first hello."""
    made = EdgeSession(**fields)
    assert made.receive(Connected()) == []  # nobody is there yet
    assert names(made.receive(online())) == ["SayHello"]
    return made


def pushing() -> EdgeSession:
    """Return one whose first gradient is out."""
    made = session()
    made.receive(welcome(1))
    assert names(made.receive(model(0))) == ["MakeGradient"]
    assert made.receive(GradientDebited(1)) == [PushOutbox(1)]
    return made


def names(effects: list[SessionEffect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


# -- hellos and answers -----------------------------------------------------------------------------------


def test_a_hello_is_meant_for_the_cloud_that_was_heard_of_and_each_has_its_number() -> None:
    made = session()
    assert made.receive(Unanswered()) == [SayHello(0, 2, LIFE)]
    assert made.receive(online(OTHER, RIVAL)) == [SayHello(0, 3, OTHER)]
    assert made.receive(online(OTHER, RIVAL)) == []  # no news
    assert made.receive(away(OTHER, RIVAL)) == []
    assert made.receive(online(OTHER, RIVAL)) == [SayHello(0, 4, OTHER)]
    assert made.receive(Connected()) == [SayHello(0, 5, OTHER)]


def test_a_welcome_counts_once_and_none_that_answers_an_older_hello_after_it() -> None:
    made = session()
    made.receive(Unanswered())
    assert names(made.receive(welcome(2))) == ["Prepare"]
    assert made.receive(welcome(2)) == []
    assert made.receive(welcome(1, OTHER)) == []
    assert made.incarnation == LIFE


@pytest.mark.parametrize("reason", ["fleet-full", "mechanism", "halted", "ledger-lost", "anything"])
def test_a_refuse_counts_for_the_newest_hello_alone(reason: str) -> None:
    made = session()
    made.receive(Unanswered())
    assert made.receive(refuse(reason, 1)) == []
    assert made.receive(refuse(reason, None)) == []
    assert names(made.receive(refuse(reason, 2))) == ["NewIdentity" if reason == "ledger-lost" else "Stop"]


def test_a_refuse_of_a_hello_that_was_welcomed_by_another_cloud_is_not_obeyed() -> None:
    made = session()
    made.receive(welcome(1))
    assert made.receive(refuse("fleet-full", 1)) == []


def test_a_full_fleet_ends_with_4_and_a_halt_that_is_told_with_0() -> None:
    for reason, code in (("fleet-full", EXIT_FULL), ("halted", EXIT_DONE)):
        (stop,) = session().receive(refuse(reason, 1))
        assert isinstance(stop, Stop)
        assert stop.code == code


def test_a_hello_for_an_earlier_life_is_said_again_for_this_one() -> None:
    made = session()
    assert made.receive(refuse("incarnation", 1, incarnation=OTHER)) == [SayHello(0, 2, OTHER)]


def test_a_stranger_says_hello_once() -> None:
    made = pushing()
    assert names(made.receive(refuse("stranger", None))) == ["SayHello"]
    assert made.receive(refuse("stranger", None)) == []
    assert pushing().receive(refuse("full", None)) == []


# -- gradients and models ---------------------------------------------------------------------------------


def test_a_model_of_another_life_or_of_an_older_gradient_does_not_count() -> None:
    made = pushing()
    assert made.receive(model(1, OTHER)) == []
    assert made.receive(model(0)) == []
    assert names(made.receive(model(1))) == ["MakeGradient"]


def test_the_same_life_gets_the_same_bytes_again_and_another_life_never() -> None:
    made = pushing()
    made.receive(Connected())
    assert names(made.receive(welcome(2))) == ["Prepare", "PushOutbox"]
    made.receive(Connected())
    effects = made.receive(welcome(3, OTHER))
    assert effects == [Prepare(welcome(3, OTHER)), DropOutbox(1)]
    (made_next,) = made.receive(model(0, OTHER))
    assert isinstance(made_next, MakeGradient)
    assert made_next.sequence == 2  # the debit of the first stays


def test_an_outbox_of_an_earlier_process_is_sent_where_it_names_this_life_alone() -> None:
    for life, wanted in ((LIFE, ["Prepare", "PushOutbox"]), (OTHER, ["Prepare", "DropOutbox"])):
        made = session(last_sequence=3, pending=3, pending_incarnation=life)
        assert names(made.receive(welcome(1, applied=2))) == wanted


# -- halts ------------------------------------------------------------------------------------------------


def halted(made: EdgeSession) -> bool:
    return made.phase is Phase.DONE


@pytest.mark.parametrize("life", [LIFE, OTHER])
def test_a_halt_while_the_cloud_is_there_is_asked_about_and_a_welcome_disproves_it(life: int) -> None:
    made = pushing()
    assert names(made.receive(Halt("finished", 9, life))) == ["SayHello"]
    assert made.receive(Halt("finished", 9, life)) == []  # asked already
    assert names(made.receive(welcome(2))) == ["Prepare", "PushOutbox"]
    made.receive(over(OTHER))
    made.receive(over())
    assert not halted(made)


def test_a_welcome_to_a_hello_from_before_the_halt_disproves_nothing() -> None:
    made = pushing()
    made.receive(Connected())
    made.receive(Halt("finished", 9, LIFE))
    made.receive(welcome(2))
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
        made.receive(Unanswered())
    assert not halted(made)


def test_before_its_welcome_an_edge_believes_the_halt_of_the_only_life_that_it_knows() -> None:
    made = EdgeSession()
    made.receive(Connected())
    made.receive(over(OTHER))
    assert names(made.receive(Halt("finished", 9, OTHER))) == ["Stop"]
    late = EdgeSession()
    late.receive(Connected())
    late.receive(online())
    late.receive(over(OTHER))
    late.receive(Halt("finished", 9, OTHER))
    assert not halted(late)  # another life was online: it is asked


def test_a_life_that_came_and_ended_while_the_edge_was_away_is_believed_when_nobody_answers() -> None:
    made = pushing()
    made.receive(Connected())
    made.receive(over(OTHER, RIVAL))
    made.receive(Halt("interrupted", 3, OTHER))
    for _ in range(2):
        made.receive(Unanswered())
        assert not halted(made)
    assert names(made.receive(Unanswered())) == ["Stop"]
