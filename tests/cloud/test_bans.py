"""A ban for the rest of a run: only for what is proven to be the edge's own, told to all who need it, and kept."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cloud.admission import BANS
from cloud.server import JudgedGradient
from common.messages import GradientArrived, Hello, Leave, Refuse
from common.quantities import EdgeId, NoisyGradient
from common.records.directory import RunDirectory
from common.wire.codec import encode, encode_gradient
from common.wire.topics import EdgeTopic, edge_topic
from tests.cloud.test_cloud_service import LIFE, OURS, THEIRS, Bed
from tests.cloud.test_resume import RUN as RESUMED
from tests.cloud.test_resume import Cloud

Deed = Callable[[Bed], object]
GRADIENT, HELLO, LEAVE, WILL = EdgeTopic.GRADIENT, EdgeTopic.HELLO, EdgeTopic.LEAVE, EdgeTopic.WILL
NAN = np.full(4096, np.nan, np.float32).tobytes()


def bed(*, authentic: bool = True) -> Bed:
    """Return a run of two edges in which `a` has made a gradient."""
    made = Bed({"edges": 2})
    made.service.authentic = authentic
    for edge in "ab":
        made.hello(edge)
    for edge in "ab":
        made.gradient(edge, 1)
    return made


def long(made: Bed) -> bytes:
    arrived = GradientArrived(EdgeId("a"), 2, 1, 0.8, NoisyGradient(np.zeros(0, np.float32)), LIFE)
    size = made.service.server.model.size
    return encode_gradient(arrived._replace(gradient=NoisyGradient(np.full(size, 1e30, np.float32))))


def infinite(made: Bed) -> bytes:
    return long(made)[:40] + NAN[: 4 * made.service.server.model.size]


DEEDS: dict[str, tuple[str, Deed]] = {
    "wrong length": ("banned-malformed", lambda made: made.send("a", GRADIENT, long(made)[:-4])),
    "not finite": ("banned-malformed", lambda made: made.send("a", GRADIENT, infinite(made))),
    "no leave": ("banned-malformed", lambda made: made.send("a", LEAVE, b"x")),
    "the cloud's word": (
        "banned-malformed",
        lambda made: made.send("a", LEAVE, encode(Leave(EdgeId("a"), "banned-sequence", OURS))),
    ),
    "a sequence that no ledger has": ("banned-sequence", lambda made: made.gradient("a", 9)),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_a_proven_message_that_breaks_the_protocol_bans_its_edge(deed: str) -> None:
    made = bed()
    reason, do = DEEDS[deed]
    do(made)
    (gone,) = made.events("edge_gone")
    assert (gone["edge_id"], gone["reason"]) == ("a", reason)
    assert made.service.tally.edges[0].gone == reason
    assert [f"a: banned for the rest of the run: {BANS[reason]}" in line for line in made.said].count(
        True
    ) == 1
    for nonce in (OURS, THEIRS):  # no other process of the same edge comes back either
        answer = made.hello("a", nonce)
        assert isinstance(answer, Refuse)
        assert (answer.reason, BANS[reason] in answer.detail) == ("banned", True)
    refused = made.gradient("a", 2)[-1]
    assert isinstance(refused, Refuse)
    assert refused.reason == "stranger"  # so it says hello, and hears why
    assert made.service.server.updates == 2
    made.gradient("b", 2)
    assert made.service.server.updates == 3


@pytest.mark.parametrize("deed", DEEDS)
def test_what_another_client_may_have_sent_bans_nobody(deed: str) -> None:
    made = bed(authentic=False)
    DEEDS[deed][1](made)
    assert not made.events("edge_gone")
    made.gradient("a", 2)
    assert made.service.server.updates == 3


def flood(made: Bed) -> None:
    for _ in range(100):
        made.gradient("a", 1)
        made.hello("a")


HARMLESS: dict[str, Deed] = {
    "repeats": flood,
    "longer than an honest gradient": lambda made: made.send("a", GRADIENT, long(made)),
    "a will, which the broker sends": lambda made: made.send("a", WILL, b"x"),
    "another's hello": lambda made: made.send("c", HELLO, b"x"),
    "a message of nobody that takes part": lambda made: made.send("c", GRADIENT, b"x"),
    "a late hello": lambda made: made.send(
        "a", HELLO, encode(Hello(edge_id=EdgeId("a"), nonce=OURS, incarnation=LIFE))
    ),
}


@pytest.mark.parametrize("deed", HARMLESS)
def test_these_are_no_ground_for_a_ban(deed: str) -> None:
    made = bed()
    HARMLESS[deed](made)
    assert not [gone for gone in made.events("edge_gone") if gone["reason"] in BANS]
    assert not any("banned" in line for line in made.said)


def test_refused_gradients_are_answered_and_logged_at_a_bounded_rate() -> None:
    """Each would use up a sequence, be logged whole and be answered with a model."""
    made = bed()
    account, honest = made.service.server.edges[EdgeId("a")], made.service.server.model.size
    flood = NoisyGradient(np.full(honest, 1e30, np.float32))
    for _ in range(300):
        sent = GradientArrived(EdgeId("a"), account.last_sequence + 1, 1, 0.8, flood, LIFE)
        made.send("a", GRADIENT, encode_gradient(sent))
    assert account.last_sequence <= 18
    assert made.service.dropped["too-often"] >= 280
    made.gradient("a", account.last_sequence + 1)
    assert made.service.server.updates == 3  # one that is honest is always taken


def test_a_ban_outlives_the_cloud_that_imposed_it(tmp_path: Path) -> None:
    rng = random.Random(4)
    with RunDirectory(tmp_path / "run") as directory:
        cloud = Cloud(directory, again=False)
        cloud.service.authentic = True
        while cloud.service.server.t < 8:
            cloud.send(rng)
        banned = next(edge for edge, account in cloud.service.server.edges.items() if not account.left)
        topic = edge_topic(RESUMED, banned, LEAVE)
        with pytest.raises(Exception, match="leave"):
            cloud.service.on_leave(topic, b"x")
        for _ in range(30):
            cloud.send(rng)
        assert cloud.service.server.edges[banned].left == "banned-malformed"
        shutil.copytree(tmp_path / "run", tmp_path / "left")
        cloud.service.records.write()
    with RunDirectory(tmp_path / "left", resumed=True) as directory:
        revived = Cloud(directory, again=True).service.server
        assert revived.edges[banned].left == "banned-malformed"
        judged = revived.judge(Hello(edge_id=banned, nonce="c" * 16, incarnation=revived.incarnation))
        assert not isinstance(judged, JudgedGradient)
        assert isinstance(judged[1], Refuse)
        assert judged[1].reason == "banned"
