"""Secure sums in a cloud's service: helpers, terms and roster before the training, and x moved by every sum."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from cloud.helper_link import HelperLink
from cloud.secure_sums import (
    AnswersDiffer,
    HelperRefuses,
    ReleasesUnfit,
    SecureSums,
    SumEffect,
    SumOpened,
    mean_of,
)
from cloud.server import CloudServer
from common.errors import LocalProtocolError, RemoteProtocolError
from common.messages import Hello
from common.quantities import EdgeId, RunId
from common.scenario.scenario import Scenario
from common.secure.agreement import RosterEntry, Statement
from common.secure.boxes import RunKey
from common.secure.masked import MaskedArrived, parse_masked
from common.secure.terms import KEY_BYTES, HelperKeys, Terms
from common.transport.channel import Channel, Loop

_EARLY = 4096  # edges whose hellos wait for the terms
OnHello = Callable[[str, bytes], None]


@dataclass(slots=True)
class Summing:
    """One run's secure sums, beside its server. Hellos that come before all helpers are here wait for the terms."""

    run: RunId
    scenario: Scenario
    server: CloudServer
    channel: Channel
    loop: Loop
    on_hello: OnHello  # takes a hello that has waited
    on_room: Callable[[EdgeId], None]  # sends the model to an edge that had to wait for a set
    say: Callable[[str], None]
    link: HelperLink = field(init=False)
    held: set[EdgeId] = field(
        default_factory=set
    )  # edges that get no model before one of their releases is opened
    versions: dict[tuple[EdgeId, int], int] = field(default_factory=dict)  # of the releases that wait
    told: set[tuple[int, str]] = field(default_factory=set)  # what the operator was told of helpers
    _early: dict[str, bytes] = field(default_factory=dict)  # by topic

    def __post_init__(self) -> None:
        table, incarnation = self.scenario.secure, self.server.incarnation
        if table is None:
            raise LocalProtocolError("sums for a scenario without [secure]")
        self.link = HelperLink(
            *(self.run, incarnation, table.helpers, self.channel, self.loop, self._agree, self._perform)
        )

    @property
    def sums(self) -> SecureSums | None:
        """The sums; None: helpers are missing, and there are no terms."""
        return self.link.sums

    @property
    def terms(self) -> bytes | None:
        return None if self.sums is None else self.sums.terms.encoded

    def start(self) -> None:
        self.say(f"waiting for {self.link.count} helpers")
        self.link.start()

    def finish(self) -> None:
        """Have the helpers destroy their keys; a set that is under way is not opened any more."""
        if self.sums is not None:
            opened, waiting = self.sums.opened, self.sums.waiting
            self.say(f"{opened:,} sums were opened; {waiting:,} releases are in none")
        self.link.finish()

    def heard(self, topic: str, payload: bytes, hello: Hello) -> Hello | None:
        """Return a hello as the server is to take it; None: it waits for the terms."""
        if self.sums is None:
            if len(self._early) < _EARLY or topic in self._early:
                self._early[topic] = payload
            return None
        if hello.entry is None or hello.entry[1] != self.sums.terms.digest:
            return replace(hello, preparing=True, entry=None)  # it learns the terms first
        return hello

    def admitted(self, hello: Hello) -> None:
        """Take the key of an edge that is welcomed."""
        if self.sums is not None and hello.entry is not None:
            key, terms, *signed = hello.entry
            entry = RosterEntry(hello.edge_id, key, terms, Statement(*signed))
            self.link.carry_out(self.sums.enrol(entry))

    def parse(self, edge_id: EdgeId, payload: bytes) -> MaskedArrived:
        if self.sums is None:
            raise RemoteProtocolError("masked: there are no terms yet")
        terms = self.sums.terms
        return parse_masked(
            edge_id, payload, terms.dimension, terms.modulus_bits, len(terms.helpers), terms.away
        )

    def refusal(self, edge_id: EdgeId) -> str | None:
        """Return why a new release is not taken now; None: it is."""
        sums = self.sums
        if sums is None or not sums.is_enrolled(edge_id):
            return "stranger"
        return None if sums.has_room(edge_id) else "full"

    def take(self, masked: MaskedArrived) -> None:
        """Take a release that the server has counted."""
        if self.sums is not None and self.server.halted is None:
            self.versions[masked.edge_id, masked.sequence] = masked.version
            self.link.carry_out(self.sums.take(masked))

    def holds(self, edge_id: EdgeId, *, taken: bool) -> bool:
        """Return whether an edge waits for a set; `taken`: it has sent one more release."""
        if self.sums is not None and not self.sums.has_room(edge_id, beside=int(taken)):
            self.held.add(edge_id)
        return edge_id in self.held

    def is_starved(self) -> bool:
        """Return whether no set can come about any more: too few edges are there."""
        here = [edge_id for edge_id, account in self.server.edges.items() if account.present]
        return self.sums is not None and self.server.schedule is not None and self.sums.is_starved(here)

    def _agree(self, keys: tuple[HelperKeys, ...]) -> SecureSums:
        scenario, table, key = self.scenario, self.scenario.secure, RunKey(secrets.token_bytes(KEY_BYTES))
        mechanism = scenario.mechanism(scenario.law(0))
        grid, law = mechanism.grid, mechanism.law
        if table is None or table.modulus_bits is None or grid is None or law is None:
            raise LocalProtocolError("[secure] is not filled in")
        terms = Terms(
            run=self.run,
            incarnation=self.server.incarnation,
            at_least=grid.members,
            colluding=grid.colluding,
            away=grid.away,
            helpers=keys,
            cloud=key.public,
            dimension=self.server.model.size,
            scale=grid.scale(grid.clip),
            clip=grid.clip,
            modulus_bits=table.modulus_bits,
            law=law.name,
            noise_multiplier=law.parameters["noise_multiplier"],
        )
        self.say(
            f"{len(keys)} helpers are here: sums of {grid.members} edges, {grid.away} helpers may be away"
        )
        early, self._early = self._early, {}
        for topic, payload in early.items():
            self.loop.post(partial(self.on_hello, topic, payload))
        return SecureSums(terms, key, most_waiting=table.waiting)

    def _perform(self, effect: SumEffect) -> None:
        match effect:
            case SumOpened():
                self._opened(effect)
            case ReleasesUnfit(releases=releases):
                self.server.drop_releases([self._place(release) for release in releases])
                self.say(
                    f"set aside: {', '.join(f'{name} {number}' for name, number in releases)}: bad boxes"
                )
            case AnswersDiffer(subset=subset, helpers=helpers):
                self.say(f"helpers {helpers} answer differently for subset {subset}: one of them is wrong")
            case HelperRefuses(helper=helper, reason=reason, edges=edges):
                if (helper, reason) not in self.told:
                    self.told.add((helper, reason))
                    self.say(f"helper {helper} refuses: {reason} {', '.join(edges)}")
            case _:
                pass  # a set that is named: this run keeps no log
        for edge_id in [one for one in self.held if self.sums is not None and self.sums.has_room(one)]:
            self.held.discard(edge_id)
            self.on_room(edge_id)

    def _place(self, release: tuple[EdgeId, int]) -> tuple[int, int]:
        """Return the index of a release's edge, and the version that it read."""
        return self.server.edges[release[0]].index, self.versions.pop(release)

    def _opened(self, opened: SumOpened) -> None:
        if self.server.halted is None and self.sums is not None:
            mean = mean_of(opened, self.sums.terms.scale * self.scenario.batch_size)
            self.server.open_sum(mean, [self._place(release) for release in opened.releases])
