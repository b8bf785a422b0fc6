"""Helpers and a cloud on a channel: keys, terms, sets and sums, with helpers and the cloud killed at any time."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cloud.helper_link import PATIENCE, HelperLink
from cloud.secure_sums import SecureSums, SetNamed, SumEffect, SumOpened
from common.messages import Presence
from common.quantities import EdgeId
from common.secure.agreement import Offer, RosterEntry, Statement
from common.secure.boxes import RunKey, new_seeds, seal
from common.secure.masked import MaskedArrived
from common.secure.masks import Integers, mask
from common.secure.terms import HelperKeys, Terms
from common.wire.codec import encode
from common.wire.secure_codec import encode_ask
from common.wire.topics import HelperTopic, helper_topic, presence_topic
from mapa.helper.service import HelperService
from tests.memory_broker import Faults, MemoryBroker, MemoryChannel
from tests.secure_support import LIFE, RUN

C, T, M, N = 4, 1, 3, 5
NAMES = [f"helper-{place}" for place in range(C)]


class Testbed:
    """A broker in memory, helpers with their folders, and a cloud's link with what its log has."""

    __test__ = False

    def __init__(self, folder: Path, faults: Faults | None = None) -> None:
        self.folder, self.broker = folder, MemoryBroker(faults)
        self.key, self.terms = RunKey(secrets.token_bytes(32)), None
        self.edges: dict[EdgeId, RunKey] = {}
        self.x: dict[tuple[EdgeId, int], Integers] = {}
        self.log: list[MaskedArrived] = []
        self.named: tuple[tuple[EdgeId, int], ...] = ()
        self.opened: list[SumOpened] = []
        self.others: list[SumEffect] = []
        self.codes: dict[int, int] = {}
        self.services: dict[int, tuple[HelperService, MemoryChannel]] = {}
        self.clouds = 0
        self.start_cloud()
        for place in range(C):
            self.start_helper(place)

    def start_helper(self, place: int) -> None:
        channel = MemoryChannel(self.broker)
        service = HelperService(
            RUN,
            NAMES[place],
            place,
            self.folder / NAMES[place],
            channel,
            say=lambda _: None,
            on_stop=lambda code: self.codes.setdefault(place, code),
        )
        channel.on_connected = service.on_connected
        self.services[place] = service, channel
        service.start()
        channel.open()

    def kill_helper(self, place: int) -> None:
        service, channel = self.services.pop(place)
        channel.abort()
        service.close()

    def start_cloud(self) -> None:
        self.clouds += 1
        self.channel = MemoryChannel(self.broker)
        self.link = HelperLink(RUN, LIFE, C, self.channel, self.broker, self.agree, self.perform)
        if self.terms is not None:
            self.link.sums = self.sums_again()
        self.link.start()
        self.channel.open()
        here = Presence(online=True, over=False, nonce=f"{self.clouds:016x}", incarnation=LIFE)
        self.channel.publish(presence_topic(RUN), encode(here), qos=1, retain=True)

    def kill_cloud(self) -> None:
        self.channel.abort()
        self.link.perform = lambda _: None

    def agree(self, keys: tuple[HelperKeys, ...]) -> SecureSums:
        self.terms = Terms(
            run=RUN,
            incarnation=LIFE,
            at_least=M,
            colluding=M - 1,
            away=T,
            helpers=keys,
            cloud=self.key.public,
            dimension=N,
            scale=1.0,
            clip=1.0,
            modulus_bits=32,
            law="gaussian",
            noise_multiplier=1.0,
        )
        return SecureSums(self.terms, self.key)

    def sums_again(self) -> SecureSums:
        assert self.terms is not None
        sums = SecureSums(self.terms, self.key)
        for edge_id in self.edges:
            sums.enrol(self.entry(edge_id))
        sums.resume(self.log, self.named, len(self.opened))
        return sums

    def entry(self, edge_id: EdgeId) -> RosterEntry:
        assert self.terms is not None
        return RosterEntry(edge_id, self.edges[edge_id].public, self.terms.digest, Statement(b"", b""))

    def perform(self, effect: SumEffect) -> None:
        if isinstance(effect, SetNamed):
            self.named = effect.releases
        elif isinstance(effect, SumOpened):
            self.opened.append(effect)
            self.named = ()
            self.log = [one for one in self.log if (one.edge_id, one.sequence) not in effect.releases]
        else:
            self.others.append(effect)

    def release(self, k: int) -> bool:
        """Have an edge release where it may."""
        edge_id, terms, sums = EdgeId(f"e{k}"), self.terms, self.link.sums
        if terms is None or sums is None or not sums.has_room(edge_id):
            return False
        key = self.edges.setdefault(edge_id, RunKey(secrets.token_bytes(32)))
        sequence = 1 + sum(one == edge_id for one, _ in self.x)
        x = np.random.default_rng([k, sequence]).integers(-1000, 1000, N)
        self.x[edge_id, sequence] = x
        seeds = new_seeds(terms, secrets.token_bytes)
        pairs = [key.pair(one.box) for one in terms.helpers]
        envelope = seal(seeds, terms, edge_id, sequence, pairs, secrets.token_bytes)
        arrived = MaskedArrived(edge_id, sequence, 1, 1.0, mask(x, seeds, 32), LIFE, envelope)
        self.link.carry_out(sums.enrol(self.entry(edge_id)))
        self.log.append(arrived)
        self.link.carry_out(sums.take(arrived))
        return True

    def check(self) -> None:
        counts = Counter(release for one in self.opened for release in one.releases)
        assert not counts or max(counts.values()) == 1
        for one in self.opened:
            assert (one.total == sum(self.x[release] for release in one.releases)).all()
            assert len({edge_id for edge_id, _ in one.releases}) == M


def test_helpers_and_cloud_agree_and_open_sums_over_a_channel(tmp_path: Path) -> None:
    bed = Testbed(tmp_path)
    bed.broker.settle()
    for k in range(4):
        bed.release(k)
        bed.release(k)
    bed.broker.settle()
    bed.check()
    assert len(bed.opened) == 2
    assert not bed.others
    bed.link.finish()
    bed.broker.settle()
    assert bed.codes == dict.fromkeys(range(C), 0)
    for path in tmp_path.rglob("*.sets"):
        assert b"e0" in path.read_bytes()  # who was signed stays to be read


def test_a_helper_that_is_killed_counts_as_away_and_takes_part_again_once_it_is_back(tmp_path: Path) -> None:
    bed = Testbed(tmp_path)
    bed.broker.settle()
    bed.kill_helper(0)
    for k in range(3):
        bed.release(k)
    bed.broker.advance(2 * PATIENCE)
    assert len(bed.opened) == 1
    bed.kill_helper(1)
    for k in range(3):
        bed.release(k)
    bed.broker.advance(10 * PATIENCE)
    assert len(bed.opened) == 1
    bed.start_helper(0)
    bed.broker.advance(4 * PATIENCE)
    assert len(bed.opened) == 2
    bed.check()


def test_terms_wait_for_all_helpers_and_stay_with_a_run_that_is_resumed(tmp_path: Path) -> None:
    bed = Testbed(tmp_path)
    bed.kill_helper(3)
    bed.broker.settle()
    assert not bed.release(0)
    bed.start_helper(3)
    bed.broker.settle()
    terms = bed.terms
    assert terms is not None
    bed.release(0)
    bed.release(1)
    bed.kill_cloud()
    bed.start_cloud()
    bed.release(2)
    bed.broker.advance(4 * PATIENCE)
    assert bed.terms is terms
    assert len(bed.opened) == 1
    bed.check()


@pytest.mark.parametrize("seed", range(6))
def test_whoever_is_killed_nothing_is_opened_twice_and_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    """Helpers and cloud are killed and started at random, on a network that delays and repeats."""
    faults = Faults(seed, late=0.2, replayed=0.1, longest=5.0, most=200)
    bed, rng = Testbed(tmp_path, faults), random.Random(seed)
    bed.broker.advance(30)
    for _ in range(60):
        move, place = rng.random(), rng.randrange(C)
        if move < 0.1 and place in bed.services:
            bed.kill_helper(place)
        elif move < 0.3 and place not in bed.services:
            bed.start_helper(place)
        elif move < 0.35:
            bed.kill_cloud()
            bed.start_cloud()
        else:
            bed.release(rng.randrange(4))
        bed.broker.advance(rng.choice((0.0, 0.01, 1.0)))
        bed.check()
    for place in set(range(C)) - bed.services.keys():
        bed.start_helper(place)
    bed.broker.advance(200)
    bed.check()
    assert len({one.edge_id for one in bed.log}) < M, "m edges had releases, and no set came about"
    assert len(bed.opened) >= 3


def test_what_is_no_message_of_this_run_is_counted_and_changes_nothing(tmp_path: Path) -> None:
    bed = Testbed(tmp_path)
    bed.broker.settle()
    service, _ = bed.services[0]
    stranger = MemoryChannel(bed.broker)
    stranger.open()
    for payload in (b"", b"x" * 50, encode_ask(Offer(b"{}"))[:-1]):
        stranger.publish(helper_topic(RUN, NAMES[0], HelperTopic.ASK), payload)
        stranger.publish(helper_topic(RUN, NAMES[0], HelperTopic.HELLO), payload)
        stranger.publish(helper_topic(RUN, "somebody", HelperTopic.REPLY), payload)
    stranger.publish(presence_topic(RUN), b"nonsense")
    bed.broker.settle()
    assert service.dropped == {"ask": 3, "presence": 1}
    assert bed.link.dropped == {"helper-hello": 3, "helper-reply": 3}
    assert service.helper is not None
    hello = service.helper.hello
    with pytest.raises(Exception, match="another"):
        bed.link._greeted("helper-9", hello)
    with pytest.raises(Exception, match="incarnation"):
        bed.link._greeted(NAMES[0], hello._replace(incarnation=LIFE + 1))
    bed.link.trusted = lambda *_: False
    with pytest.raises(Exception, match="certificate"):
        bed.link._greeted(NAMES[0], hello)


def test_a_helper_whose_disk_fails_ends_and_says_nothing_that_is_not_on_it(tmp_path: Path) -> None:
    bed = Testbed(tmp_path)
    bed.broker.settle()
    service, _ = bed.services[0]
    assert service._sets is not None
    service._sets._failed = True
    for k in range(3):
        bed.release(k)
    bed.broker.advance(4 * PATIENCE)
    assert bed.codes == {0: 1}
    bed.check()
    assert len(bed.opened) == 1  # the others open it
