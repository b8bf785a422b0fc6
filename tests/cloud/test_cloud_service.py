"""CloudService on the in-memory broker, with hellos, leaves and gradients as anybody might send them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.presence import Inquiry
from common.messages import GradientArrived, Halt, Hello, Leave, Presence, Refuse, Welcome
from common.metrics import ACCURACY, LOSS
from common.quantities import EdgeId, NoisyGradient, RunId, Vector
from common.records.recorder import Journal, Recorder
from common.records.tally import Evaluation
from common.transport.channel import Bytes
from common.wire import v1
from common.wire.codec import (
    decode_answer,
    decode_halt,
    decode_model,
    decode_presence,
    encode,
    encode_gradient,
)
from common.wire.codings.registry import EVERY, compress, expand
from common.wire.topics import EdgeTopic, clouds_topic, edge_topic, halt_topic, presence_topic
from edge.session import EdgeSession, Phase
from mapa.run_view import describe
from mapa.simulation.simulator import World
from tests.cloud_support import service_on
from tests.core_support import small_dataset, small_scenario
from tests.memory_broker import MemoryBroker, MemoryChannel

RUN = RunId("service")
OURS, THEIRS = "a" * 16, "f" * 16  # nonces
LIFE = 77  # the run's incarnation


@dataclass
class Bed:
    """A cloud, and one channel that speaks for any edge."""

    changes: dict[str, Any] = field(default_factory=dict)
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    said: list[str] = field(default_factory=list)
    written: io.StringIO = field(default_factory=io.StringIO)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))  # of the hellos

    def __post_init__(self) -> None:
        scenario = small_scenario(**{"evaluation": {"every": 0}, **self.changes})
        world = World.on(scenario, small_dataset())
        self.cloud = MemoryChannel(self.broker, on_connected=lambda: self.service.presence.announce())
        records = Recorder(Journal(self.written))
        self.service = service_on(
            self.cloud, self.broker, world, RUN, self.said, records=records, incarnation=LIFE
        )
        self.cloud.connect()
        self.broker.advance(1.0)  # 0 stands for "never" in a contact
        self.service.start()
        self.edge = MemoryChannel(self.broker)
        self.answers: list[tuple[str, Welcome | Refuse]] = []
        self.edge.subscribe(edge_topic(RUN, EdgeId("+"), EdgeTopic.WELCOME), self._take)
        self.edge.connect()

    def begun(self) -> bool:
        return self.service.server.schedule is not None

    def _take(self, topic: str, payload: bytes) -> None:
        edge_id = topic.split("/")[4]
        self.answers.append((edge_id, decode_answer(EdgeId(edge_id), payload)))

    def hello(self, edge: str, nonce: str = OURS, **fields: Any) -> Welcome | Refuse:
        said = {"number": next(self.numbers), "incarnation": LIFE, **fields}
        hello = Hello(edge_id=EdgeId(edge), nonce=nonce, **said)
        return self.send(edge, EdgeTopic.HELLO, encode(hello))[-1]

    def leave(self, edge: str, reason: str, nonce: str = OURS) -> None:
        self.send(edge, EdgeTopic.LEAVE, encode(Leave(EdgeId(edge), reason, nonce)))

    def gradient(self, edge: str, sequence: int, incarnation: int = LIFE) -> list[Welcome | Refuse]:
        g = NoisyGradient(np.zeros(self.service.server.model.size, np.float32))
        sensitivity = self.service.scenario.problem.first_clip * 2 / self.service.scenario.batch_size  # type: ignore[operator]
        arrived = GradientArrived(EdgeId(edge), sequence, 1, sensitivity, g, incarnation)
        return self.send(edge, EdgeTopic.GRADIENT, encode_gradient(arrived))

    def send(self, edge: str, leaf: EdgeTopic, payload: bytes) -> list[Welcome | Refuse]:
        self.edge.publish(edge_topic(RUN, EdgeId(edge), leaf), payload, qos=1)
        self.broker.settle()
        return [answer for name, answer in self.answers if name == edge]

    def retain(self, topic: str, payload: bytes) -> None:
        """Let another sender write a retained message."""
        self.broker.route(topic, payload, retain=True)
        self.broker.settle()

    def events(self, name: str) -> list[dict[str, Any]]:
        self.service.records.write()
        lines = map(json.loads, self.written.getvalue().splitlines())
        return [event for event in lines if event["event"] == name]


def begun(changes: dict[str, Any] | None = None) -> Bed:
    """Return a cloud that edge a has joined."""
    bed = Bed(changes or {})
    bed.hello("a")
    return bed


# -- who speaks for an edge -------------------------------------------------------------------------------


def test_a_refused_hello_is_answered_and_the_edge_itself_still_heard() -> None:
    bed = Bed({"edges": 1})
    assert isinstance(bed.hello("a"), Welcome)
    bed.gradient("a", 1)
    refusal = bed.hello("a", THEIRS)  # a second process under this id, with an empty ledger
    assert isinstance(refusal, Refuse)
    assert (refusal.reason, refusal.nonce) == ("ledger-lost", THEIRS)
    bed.leave("a", "budget", THEIRS)
    assert bed.service.halted is None
    bed.leave("a", "budget")
    assert bed.service.halted == Halt("no-budget", 1, LIFE)


def test_a_second_process_that_is_welcomed_takes_the_first_ones_place() -> None:
    bed = begun({"edges": 1})
    answer = bed.hello("a", THEIRS)
    assert isinstance(answer, Welcome)
    assert answer.nonce == THEIRS
    assert any("duplicate process" in line for line in bed.said)
    bed.leave("a", "budget")  # of the process that was replaced
    assert bed.service.halted is None
    bed.leave("a", "budget", THEIRS)
    assert bed.service.halted == Halt("no-budget", 0, LIFE)


def test_a_hello_said_again_keeps_the_contact_and_what_it_measured() -> None:
    bed = begun()
    bed.gradient("a", 1)
    contact = bed.service.peers[EdgeId("a")]
    assert contact.turnarounds == 1
    bed.hello("a", last_sequence=1)
    assert bed.service.peers[EdgeId("a")] is contact
    assert bed.said == []


def test_strangers_leave_nothing_behind_but_counts() -> None:
    bed = begun({"edges": 1})
    before = bed.written.tell()
    for number in range(200):
        refusal = bed.hello(f"h{number}", THEIRS)
        assert isinstance(refusal, Refuse)
        assert (refusal.reason, refusal.nonce) == ("fleet-full", THEIRS)
        assert isinstance(bed.gradient(f"h{number}", 1)[-1], Refuse)
    assert list(bed.service.peers) == ["a"]
    assert list(bed.service.server.edges) == ["a"]
    assert len(bed.said) < 60
    assert bed.events("gradient_refused") == []
    assert bed.service.tally.refused == {"stranger": 200}
    assert bed.written.tell() < before + 1000
    bed.gradient("a", 1)
    bed.gradient("a", 1)
    assert [event["reason"] for event in bed.events("gradient_refused")] == ["duplicate"]


def test_refused_gradients_of_one_edge_get_a_hundred_lines_and_are_counted_beyond() -> None:
    bed = Bed({"edges": 2})
    for edge in ("a", "b"):
        bed.hello(edge)
    for edge in ("a", "b"):
        bed.gradient(edge, 1)
    for _ in range(150):
        bed.gradient("a", 1)
        bed.broker.advance(2.0)  # not so often that it gets no answer
    bed.gradient("b", 1)
    lines = [event["edge_id"] for event in bed.events("gradient_refused")]
    assert (lines.count("a"), lines.count("b")) == (100, 1)
    assert bed.service.tally.refused == {"duplicate": 151}
    bed.service.halt("interrupted")
    for number in range(150):
        bed.gradient(f"h{number}", 1)
    assert len(bed.events("gradient_refused")) == 201
    assert bed.service.tally.refused["after-halt"] == 150


# -- evaluation -------------------------------------------------------------------------------------------


class BrokenEvaluator:
    def evaluate(self, x: Vector, updates: int, stage: int) -> Evaluation:  # noqa: ARG002
        raise ZeroDivisionError("the evaluation failed")


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_error_in_the_evaluation_ends_the_cloud_with_it(interrupted: bool) -> None:
    """In a thread of its own a future would keep it, and the halted cloud would wait for ever."""
    bed = Bed({"iterations": 1})
    bed.service.evaluations.evaluator = BrokenEvaluator()  # type: ignore[assignment]
    bed.hello("a")

    def halt() -> None:
        bed.service.halt("interrupted") if interrupted else bed.gradient("a", 1)
        assert bed.service.halted is not None
        bed.service.evaluations.shutdown(wait=True)  # now the error is posted, or it never will be
        bed.broker.settle()

    with pytest.raises(ZeroDivisionError, match="the evaluation failed"):
        halt()


class WaitingEvaluations(ThreadPoolExecutor):
    """Begins none before it is told to."""

    def __init__(self) -> None:
        super().__init__(1)
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        self.held.append((Future(), partial(work, *given, **named)))
        return self.held[-1][0]

    def go_on(self, bed: Bed) -> None:
        while self.held:
            future, work = self.held.pop(0)
            future.set_result(work())
            bed.broker.settle()


def test_evaluations_that_cannot_keep_up_are_left_out_but_never_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bed = Bed({"iterations": 6, "evaluation": {"every": 1}})
    evaluations = bed.service.evaluations.executor = WaitingEvaluations()
    monkeypatch.setattr("cloud.evaluation._WAITING_MODELS", 2 * bed.service.server.model.nbytes)
    bed.hello("a")
    for sequence in range(1, 5):
        bed.gradient("a", sequence)
    assert len(evaluations.held) == 2
    evaluations.go_on(bed)
    bed.gradient("a", 5)
    bed.gradient("a", 6)
    assert bed.service.halted == Halt("finished", 6, LIFE)
    evaluations.go_on(bed)
    assert [evaluation.updates for evaluation in bed.service.tally.evaluations] == [0, 1, 5, 6]
    assert [line for line in bed.said if "evaluation" in line] == [
        "evaluation too slow for evaluation.every; skipped at t = 2"
    ]


# -- the end ----------------------------------------------------------------------------------------------


def test_a_cloud_that_is_over_does_not_announce_itself_to_a_broker_that_comes_back() -> None:
    bed = Bed()
    seen: list[bool] = []
    bed.edge.subscribe(
        presence_topic(RUN),
        lambda _, payload: seen.append(decode_presence(payload).online),
        retained=True,
    )
    bed.hello("a")
    bed.cloud.lose()
    bed.cloud.restore()
    bed.broker.settle()
    assert len(seen) > 1
    assert all(seen)
    seen.clear()
    bed.cloud.lose()
    bed.service.halt("interrupted")
    bed.service.evaluations.shutdown(wait=True)
    bed.broker.settle()
    assert bed.service.halted is not None
    bed.cloud.restore()
    bed.broker.settle()
    assert seen
    assert not any(seen)


class FullChannel(MemoryChannel):
    """Its queue of acknowledged messages may be full, as that of a broker's connection may."""

    full = False

    def publish(self, topic: str, *payload: Bytes, qos: int = 0, retain: bool = False) -> bool:
        if qos and self.full:
            return False
        return super().publish(topic, *payload, qos=qos, retain=retain)


def test_a_halt_that_finds_the_queue_full_is_said_again_until_it_is_taken() -> None:
    bed = Bed({"iterations": 1})
    full = FullChannel(bed.broker)
    full.connect()
    bed.service.channel = bed.service.presence.channel = full
    bed.hello("a")
    full.full = True
    bed.gradient("a", 1)
    bed.service.evaluations.shutdown(wait=True)
    bed.broker.advance(5.0)
    assert bed.service.halted == Halt("finished", 1, LIFE)
    assert bed.service.presence.owing
    assert not bed.broker.retained.get(halt_topic(RUN))
    assert decode_presence(bed.broker.retained[presence_topic(RUN)]).online
    full.full = False
    bed.broker.advance(1.0)
    assert not bed.service.presence.owing
    assert decode_halt(bed.broker.retained[halt_topic(RUN)]) == Halt("finished", 1, LIFE)
    assert not decode_presence(bed.broker.retained[presence_topic(RUN)]).online


def test_refusals_need_no_place_in_the_queue() -> None:
    bed = Bed({"edges": 1})
    full = FullChannel(bed.broker)
    full.connect()
    bed.service.channel = bed.service.presence.channel = full
    bed.hello("a")
    full.full = True
    assert isinstance(bed.hello("b"), Refuse)
    assert isinstance(bed.gradient("c", 1)[-1], Refuse)


# -- other clouds -----------------------------------------------------------------------------------------


def ask(bed: Bed) -> Inquiry:
    channel = MemoryChannel(bed.broker)
    channel.connect()
    inquiry = Inquiry(RUN, THEIRS, channel)
    inquiry.begin()
    bed.broker.settle()
    return inquiry


def test_a_second_cloud_finds_the_one_that_serves() -> None:
    bed = Bed()
    inquiry = ask(bed)
    assert inquiry.answered
    assert inquiry.settled
    assert not bed.said


def test_a_presence_without_anybody_behind_it_is_not_an_answer() -> None:
    bed = Bed()
    bed.cloud.close()  # no last will, as where the broker has not noticed the end
    inquiry = ask(bed)
    assert (inquiry.online, inquiry.asked, inquiry.answered, inquiry.settled) == (True, True, False, False)
    bed.retain(
        presence_topic(RUN), encode(Presence(False, bed.service.presence.nonce, LIFE))
    )  # the last will, at last
    assert inquiry.settled


def test_where_nobody_was_there_is_nothing_to_wait_for() -> None:
    bed = Bed()
    bed.broker.settle()
    bed.cloud.close()
    bed.broker.retained.clear()
    inquiry = ask(bed)
    assert inquiry.settled
    assert not inquiry.answered


def newcomer(broker: MemoryBroker, nonce: str) -> Inquiry:
    channel = MemoryChannel(broker)
    channel.connect()
    inquiry = Inquiry(RUN, nonce, channel)
    inquiry.begin()
    return inquiry


@given(st.permutations("abc"), st.lists(st.booleans(), min_size=3, max_size=3))
def test_of_clouds_that_start_together_the_first_to_ask_goes_on_and_the_others_end(
    order: list[str], overlap: list[bool]
) -> None:
    """Whether they hear each other's question live or retained, or everything twice."""
    broker, asking = MemoryBroker(), []
    for name, soon in zip(order, overlap, strict=True):
        asking.append(newcomer(broker, name * 16))
        if not soon:
            broker.settle()
    broker.settle()
    for topic, payload in list(broker.published):
        broker.route(topic, payload, retain=False)
    broker.settle()
    assert [one.answered for one in asking] == [False, True, True]
    assert asking[0].settled


def test_a_question_of_a_cloud_that_died_is_waited_for_and_then_taken_over() -> None:
    broker = MemoryBroker()
    newcomer(broker, OURS).channel.close()
    second = newcomer(broker, THEIRS)
    broker.settle()
    assert (second.earlier, second.asked, second.settled) == (True, True, False)
    begun = encode(Presence(True, "c" * 16, LIFE))  # or another cloud announces itself meanwhile
    broker.route(presence_topic(RUN), begun, retain=True)
    broker.settle()
    assert second.answered


def test_a_cloud_that_starts_leaves_no_question_behind() -> None:
    bed = Bed()
    ask(bed)
    assert not bed.broker.retained.get(clouds_topic(RUN))
    assert not bed.service.dropped


def test_a_goodbye_that_somebody_else_says_is_told_counted_and_taken_back() -> None:
    """Edges end by it and a halt, with 0: without an ACL anybody can do that, and the operator must know."""
    bed = Bed()
    edge = EdgeSession()
    bed.edge.subscribe(presence_topic(RUN), lambda _, payload: edge.receive(decode_presence(payload)))
    forged = Presence(False, bed.service.presence.nonce, LIFE, over=True)
    bed.retain(presence_topic(RUN), encode(forged))
    assert bed.service.dropped == {"presence": 1}
    assert any("another sender has said goodbye in this cloud's name" in line for line in bed.said)
    assert decode_presence(bed.broker.retained[presence_topic(RUN)]).online  # an edge that comes now joins
    edge.receive(Halt("finished", 60, LIFE))
    assert edge.phase is not Phase.DONE  # a halt alone ends nobody
    edge.receive(forged)
    assert edge.phase is Phase.DONE


def test_the_will_of_another_cloud_or_a_late_one_of_ours_does_not_stay_the_last_word() -> None:
    bed = Bed()
    ours = bed.service.presence.nonce
    for will in (Presence(False, THEIRS, 5), Presence(False, ours, LIFE)):
        bed.retain(presence_topic(RUN), encode(will))
        assert decode_presence(bed.broker.retained[presence_topic(RUN)]) == Presence(True, ours, LIFE)
    bed.retain(presence_topic(RUN), encode(Presence(True, THEIRS, 5)))
    assert any("another cloud" in line for line in bed.said)
    bed.broker.route(presence_topic(RUN), b"nonsense", retain=False)
    bed.broker.route(clouds_topic(RUN), b"nonsense", retain=False)
    bed.broker.settle()
    assert bed.service.dropped == {"presence": 2}


# -- old and forged messages ------------------------------------------------------------------------------


def test_a_hello_that_comes_again_is_counted_and_has_no_answer() -> None:
    bed = Bed()
    assert isinstance(bed.hello("a", number=1), Welcome)
    answers = len(bed.answers)
    bed.gradient("a", 1)
    bed.hello("a", number=1)
    assert bed.service.dropped == {"late-hello": 1}
    assert len(bed.answers) == answers
    refuse = bed.hello("a", THEIRS, incarnation=LIFE + 1)
    assert isinstance(refuse, Refuse)
    assert (refuse.reason, refuse.incarnation) == ("incarnation", LIFE)
    assert bed.service.dropped == {"late-hello": 2}
    assert not bed.said


@pytest.mark.parametrize("payload", [encode(Halt("finished", 3, LIFE)), b"nonsense"])
def test_a_halt_that_somebody_else_sends_is_told_and_taken_back(payload: bytes) -> None:
    bed = Bed()
    bed.retain(halt_topic(RUN), payload)
    assert halt_topic(RUN) not in bed.broker.retained
    assert bed.service.dropped["halt"] == 1
    assert any("a halt from another sender was removed" in line for line in bed.said)
    assert bed.service.halted is None
    bed.service.halt("interrupted")
    bed.broker.settle()
    bed.retain(halt_topic(RUN), payload)
    assert decode_halt(bed.broker.retained[halt_topic(RUN)]) == Halt("interrupted", 0, LIFE)


def test_a_retained_hello_gradient_or_leave_is_not_heard() -> None:
    bed = Bed()
    hello = encode(Hello(edge_id=EdgeId("ghost"), nonce=THEIRS, incarnation=LIFE))
    bed.cloud.lose()
    for leaf in (EdgeTopic.HELLO, EdgeTopic.GRADIENT, EdgeTopic.LEAVE, EdgeTopic.WILL):
        bed.broker.route(edge_topic(RUN, EdgeId("ghost"), leaf), hello, retain=True)
    bed.broker.settle()
    bed.cloud.restore()
    bed.broker.settle()
    assert bed.cloud.violations == 4
    assert not bed.service.server.edges


# -- budgets that are spent -------------------------------------------------------------------------------


@pytest.mark.parametrize(("away", "waits"), [(False, 1), (True, 10)])
def test_a_spent_run_ends_once_nobody_has_come_for_a_while(away: bool, waits: int) -> None:
    bed = begun({"edges": 3, "testbed": {"silent_after": 10.0}})
    if away:
        bed.hello("b", THEIRS)
        bed.send("b", EdgeTopic.WILL, encode(Leave(EdgeId("b"), "lost", THEIRS)))
    bed.leave("a", "budget")
    bed.broker.advance(10.0 * waits - 5)
    assert bed.service.halted is None
    bed.broker.advance(20.0)
    assert bed.service.halted == Halt("no-budget", 0, LIFE)


def test_the_line_of_a_run_says_why_edges_are_gone() -> None:
    bed = Bed({"edges": 4, "iterations": 50})
    for edge, reason in (("a", "budget"), ("b", "budget"), ("c", "refused"), ("d", "no-such-word")):
        bed.hello(edge)
        bed.leave(edge, reason)
        line = describe(bed.service)
    assert line.startswith("0/s  edges 0 (left: 2 budget spent, 1 other, 1 refused the run)")


def test_a_newcomer_keeps_a_spent_run_going() -> None:
    bed = begun({"edges": 3, "testbed": {"silent_after": 10.0}})
    bed.leave("a", "budget")
    bed.broker.advance(8.0)
    bed.hello("b", THEIRS)
    for _ in range(5):
        bed.broker.advance(8.0)
        bed.hello("b", THEIRS)
    assert bed.service.halted is None
    bed.leave("b", "refused", THEIRS)
    bed.broker.advance(25.0)
    assert bed.service.halted == Halt("no-budget", 0, LIFE)


def test_a_run_whose_last_loss_is_not_finite_has_diverged() -> None:
    bed = Bed({"iterations": 1})

    class Absurd:
        def evaluate(self, x: Vector, updates: int, stage: int) -> Evaluation:  # noqa: ARG002
            return Evaluation(updates, stage, {ACCURACY: 0.5, LOSS: math.inf})

    bed.service.evaluations.evaluator = Absurd()  # type: ignore[assignment]
    bed.hello("a")
    bed.gradient("a", 1)
    bed.service.evaluations.shutdown(wait=True)
    bed.broker.settle()
    assert bed.service.halted == Halt("diverged", 1, LIFE)
    assert decode_halt(bed.broker.retained[halt_topic(RUN)]) == Halt("diverged", 1, LIFE)
    assert [event["reason"] for event in bed.events("halted")] == ["diverged"]


# -- the time limit ---------------------------------------------------------------------------------------


def test_a_run_ends_at_its_time_limit_which_counts_from_the_first_update() -> None:
    bed = begun({"edges": 1, "time_limit": 20.0})
    bed.broker.advance(25.0)  # nobody has released anything: nothing runs
    assert bed.service.halted is None
    bed.gradient("a", 1)
    bed.broker.advance(19.0)
    assert bed.service.halted is None
    bed.broker.advance(1.5)
    assert bed.service.halted == Halt("time-limit", 1, LIFE)


def test_a_cloud_says_who_is_here_and_edges_that_start_slowly_are_waited_for() -> None:
    bed = Bed()
    bed.service.gather = 5.0
    bed.service.server.terms = replace(bed.service.server.terms, edges_at_least=4)
    bed.broker.advance(20.0)
    bed.hello("a")
    bed.broker.advance(15.0)  # the first took 20 seconds: five without another say nothing
    assert not bed.begun()
    assert "1 of 4 edges are here and can train; the first update waits for the others" in bed.said
    bed.hello("b")
    bed.broker.advance(34.0)
    assert not bed.begun()
    bed.broker.advance(2.0)
    assert bed.begun()
    late = Bed()
    late.service.gather = 0.1
    late.service.server.terms = replace(late.service.server.terms, edges_at_least=4)
    late.broker.advance(20.0)
    late.hello("a")
    late.broker.advance(1.1)  # ten times as long, and no longer
    assert late.begun()


# -- coded messages ---------------------------------------------------------------------------------------


def test_a_coded_gradient_counts_as_one_where_the_run_codes_and_is_dropped_where_it_does_not() -> None:
    for changes, taken in ({"compression": {"gradients": "int8"}}, True), ({}, False):
        bed = begun({"edges": 1, **changes})
        sent = np.full(bed.service.server.model.size, 1e-3, np.float32)
        sensitivity = bed.service.scenario.problem.first_clip * 2 / bed.service.scenario.batch_size  # type: ignore[operator]
        arrived = GradientArrived(EdgeId("a"), 1, 1, sensitivity, NoisyGradient(sent), LIFE)
        payload = compress(encode_gradient(arrived), "int8", np.random.default_rng(0))
        bed.send("a", EdgeTopic.GRADIENT, payload)
        assert (bed.service.server.updates, bed.service.dropped["gradient"]) == ((1, 0) if taken else (0, 1))
        scale = v1.HEADER_BYTES
        bed.send("a", EdgeTopic.GRADIENT, payload[:scale] + b"\xff\xff\xff\xff" + payload[scale + 4 :])
        assert bed.service.dropped["gradient"] == (1 if taken else 2)


def test_a_hello_may_ask_for_a_coding_that_the_run_offers_and_a_version_is_always_the_same_bytes() -> None:
    bed = Bed({"edges": 2, "compression": {"offered": ["int8"]}, "testbed": {"edges_at_least": 2}})
    models: dict[str, list[bytes]] = {"a": [], "b": []}
    for edge, kept in models.items():
        bed.edge.subscribe(
            edge_topic(RUN, EdgeId(edge), EdgeTopic.MODEL), lambda _, p, kept=kept: kept.append(p)
        )
    asked, plain = bed.hello("a", coding="int8"), bed.hello("b")
    assert isinstance(asked, Welcome)
    assert isinstance(plain, Welcome)
    assert asked.scenario["compression"] == {"gradients": "int8", "models": "int8"}
    assert "compression" not in plain.scenario
    bed.hello("a", coding="int8")
    (first, again), (other,) = models["a"], models["b"]
    assert first == again
    assert len(other) / len(first) > 1.5  # a small model
    x = decode_model(EdgeId("a"), expand(first, EVERY), bed.service.server.model.size).model
    np.testing.assert_allclose(x, bed.service.server.model, atol=1e-2)
