"""The cloud's side of secure sums: masked releases in, sums of at least m distinct edges out; pure.

Releases wait until helpers have looked at their boxes. The m that have waited longest, of as many edges, make a set:
it is logged, named to the helpers, signed by a quorum of them, and opened by one sum of streams for every subset of
helpers. One set is under way at a time; whatever comes meanwhile waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from common.errors import LocalProtocolError, RemoteProtocolError
from common.quantities import EdgeId
from common.secure import agreement
from common.secure.agreement import (
    Answer,
    Ask,
    Check,
    Checked,
    Finish,
    HelperHello,
    Member,
    Offer,
    Open,
    Propose,
    Refused,
    Reply,
    Roster,
    RosterEntry,
    Signed,
)
from common.secure.boxes import RunKey, open_once, seal_once
from common.secure.masked import MaskedArrived
from common.secure.masks import Integers, Masked, unmasked, words
from common.secure.terms import Terms

MOST_WAITING = 4  # releases of one edge that wait for a set
_MOST_CHECKED = 256  # releases of one ask
_STRANGER_TRIES = 3  # times that a helper is told of an edge

Release: TypeAlias = tuple[EdgeId, int]


# ---- effects, to be performed in their order


class AskHelper(NamedTuple):
    """Send this to a helper."""

    helper: int
    ask: Ask


class SetNamed(NamedTuple):
    """This set must be in the log before anything that follows is sent."""

    releases: tuple[Release, ...]


class SumOpened(NamedTuple):
    """The sum of a set; from the masked releases and `masks`."""

    releases: tuple[Release, ...]
    versions: tuple[int, ...]  # that the edges read
    sensitivity: float  # ΔS
    masks: Masked  # sum of all streams
    total: Integers  # Σ x


class ReleasesUnfit(NamedTuple):
    """These releases are in no set, ever: their boxes are not what they should be."""

    releases: tuple[Release, ...]


class AnswersDiffer(NamedTuple):
    """These helpers answered for one subset of a set, and not all of them truly."""

    subset: int
    helpers: tuple[int, ...]


class HelperRefuses(NamedTuple):
    """A helper will not do what this run needs of it."""

    helper: int
    reason: str
    edges: tuple[EdgeId, ...]


SumEffect: TypeAlias = AskHelper | SetNamed | SumOpened | ReleasesUnfit | AnswersDiffer | HelperRefuses


class _Due(NamedTuple):
    """What an ask is about: it is made once, until it is answered or asked again."""

    kind: type[Check | Propose | Open]
    name: bytes  # of the set
    vectors: tuple[int, ...] = ()
    digests: tuple[int, ...] = ()


@dataclass(slots=True)
class _HelperSeen:
    """What the cloud knows of one helper."""

    pair: bytes  # the secret shared with it
    here: bool = False
    agreed: bool = False  # it goes by the terms
    told: set[EdgeId] = field(default_factory=set)  # of the roster
    strange: dict[EdgeId, int] = field(default_factory=dict)  # times that it did not take an edge
    asked: set[_Due] = field(default_factory=set)  # without an answer yet


@dataclass(slots=True)
class _Batch:
    """Releases whose boxes the helpers look at."""

    releases: tuple[Release, ...]
    name: bytes  # digest
    votes: dict[int, frozenset[EdgeId]] = field(default_factory=dict)  # by helper: boxes that are bad


@dataclass(slots=True)
class _SetUnderWay:
    """A set that is named, and what the helpers have answered."""

    releases: tuple[Release, ...]
    name: bytes  # digest
    signatures: dict[int, bytes] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)  # helpers that will not sign it, or not answer
    asked: list[dict[int, bool]] = field(
        default_factory=list
    )  # by subset: helpers, and whether for the vector
    answers: list[dict[int, bytes]] = field(default_factory=list)  # by subset: each helper's digest
    vectors: list[dict[bytes, Masked]] = field(default_factory=list)  # by subset, then digest
    differ: set[int] = field(default_factory=set)  # subsets


class SecureSums:
    """The buffer of masked releases of one run. Every method returns what must be done next."""

    def __init__(self, terms: Terms, key: RunKey, *, most_waiting: int = MOST_WAITING) -> None:
        if key.public != terms.cloud:
            raise LocalProtocolError("the cloud's key is not that of the terms")
        self.terms, self.most_waiting = terms, most_waiting
        self.opened = 0  # sets so far
        self._helpers = [_HelperSeen(key.pair(one.box)) for one in terms.helpers]
        self._roster: dict[EdgeId, RosterEntry] = {}
        self._waiting: dict[Release, MaskedArrived] = {}  # in the order in which they came
        self._fit: set[Release] = set()  # of them: their boxes were looked at
        self._batch: _Batch | None = None
        self._set: _SetUnderWay | None = None

    # -- what a shell asks ----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Releases that are in no opened sum yet."""
        return len(self._waiting)

    @property
    def named(self) -> tuple[Release, ...]:
        """The set under way; empty: none."""
        return self._set.releases if self._set is not None else ()

    @property
    def awaited(self) -> list[int]:
        """Helpers that owe an answer."""
        return [place for place, one in enumerate(self._helpers) if one.asked]

    @property
    def here(self) -> list[int]:
        """Helpers that were heard of last, and go by the terms."""
        return [place for place, one in enumerate(self._helpers) if one.here and one.agreed]

    @property
    def stuck(self) -> bool:
        """Whether the set under way will never be opened: too many helpers refuse, or no answer can be believed."""
        set_, terms = self._set, self.terms
        if set_ is None:
            return False
        left = set(range(len(terms.helpers))) - set_.refused
        few = any(len(left & set(subset)) < self._believed for subset in terms.subsets)
        return few or len(left) < terms.quorum or bool(set_.differ and self._believed == 1)

    def is_enrolled(self, edge_id: EdgeId) -> bool:
        return edge_id in self._roster

    def has_room(self, edge_id: EdgeId, beside: int = 0) -> bool:
        """Return whether another release of an edge may wait: a fast edge must not fill the memory.

        `beside`: so many that are on their way here.
        """
        return sum(edge_id == one for one, _ in self._waiting) + beside < self.most_waiting

    def is_starved(self, live: Iterable[EdgeId]) -> bool:
        """Return whether no further set can come about while only these edges are there."""
        return (
            self._set is None
            and len({*live, *(edge_id for edge_id, _ in self._waiting)}) < self.terms.at_least
        )

    # -- edges ----------------------------------------------------------------------------------------

    def enrol(self, entry: RosterEntry) -> list[SumEffect]:
        """Take an edge's key; RemoteProtocolError where it accepted other terms."""
        if entry.terms != self.terms.digest:
            raise RemoteProtocolError(f"{entry.edge_id}: its terms are not those of the run")
        if self._roster.get(entry.edge_id) != entry:
            self._roster[entry.edge_id] = entry
            for one in self._helpers:
                one.told.discard(entry.edge_id)
        return self._next()

    def take(self, arrived: MaskedArrived) -> list[SumEffect]:
        """Take a release that the server has judged to be new, and that is in the log."""
        release = arrived.edge_id, arrived.sequence
        if release in self._waiting or arrived.edge_id not in self._roster:
            raise LocalProtocolError(f"{release}: waits already, or its edge has no key")
        self._waiting[release] = arrived
        return self._next()

    def resume(self, waiting: Iterable[MaskedArrived], named: Iterable[Release], opened: int) -> None:
        """Take what the log has: the releases in no opened sum, and the set that was named. Nothing is sent yet."""
        self._waiting = {(one.edge_id, one.sequence): one for one in waiting}
        self.opened = opened
        releases = tuple(named)
        if not set(releases) <= self._waiting.keys():
            raise LocalProtocolError("a named set of releases that are not in the log")
        if releases:
            self._fit.update(releases)
            self._set = self._under_way(releases)

    # -- helpers --------------------------------------------------------------------------------------

    def greeted(self, hello: HelperHello) -> list[SumEffect]:
        """Take a helper's hello: it is here, for the first time or again, and may have forgotten what it was told."""
        place, terms = hello.helper, self.terms
        keys = terms.helpers[place] if place < len(terms.helpers) else None
        if keys is None or (hello.box, hello.signing) != (keys.box, keys.signing):
            raise RemoteProtocolError(f"helper {place}: its keys are not those of the terms")
        one = self._helpers[place]
        one.here, one.agreed = True, hello.terms == terms.digest
        if not one.agreed:
            return [AskHelper(place, Offer(terms.encoded))]
        return self.ask_again(place)

    def answered(self, place: int, reply: Reply) -> list[SumEffect]:
        """Take a helper's reply; one that nothing asked for changes nothing."""
        one = self._helpers[place]
        one.here = True
        match reply:
            case Checked():
                self._checked(place, reply)
            case Signed():
                self._signed(place, reply)
            case Answer():
                return [*self._take_answer(place, reply), *self._next()]
            case Refused():
                return [*self._refused(place, reply), *self._next()]
        return self._next()

    def silent(self, place: int) -> list[SumEffect]:
        """Count a helper as away until it is heard again."""
        self._helpers[place].here = False
        return self._next()

    def ask_again(self, place: int) -> list[SumEffect]:
        """Ask a helper once more for all that it owes: an ask or its answer may be lost, or the helper restarted."""
        one = self._helpers[place]
        one.asked.clear()
        one.told.clear()
        return self._next()

    def finish(self) -> list[SumEffect]:
        """Have every helper destroy its keys."""
        digest = self.terms.digest
        return [
            AskHelper(place, Finish(seal_once(one.pair, agreement.finish_purpose(digest, place), b"")))
            for place, one in enumerate(self._helpers)
        ]

    # -- what follows ---------------------------------------------------------------------------------

    def _next(self) -> list[SumEffect]:
        effects: list[SumEffect] = self._conclude_batch()
        effects += self._conclude_set()
        effects += self._name_set()
        if self._batch is None and self._may_make_a_set():
            unseen = [one for one in self._waiting if one not in self._fit][:_MOST_CHECKED]
            if unseen:
                releases = tuple(sorted(unseen))
                self._batch = _Batch(releases, self._digest(releases))
        for place, one in enumerate(self._helpers):
            if one.here and one.agreed:
                effects += self._due(place, one)
        return effects

    def _may_make_a_set(self) -> bool:
        """Return whether m edges wait: until then boxes need not be looked at, and then they are all at once."""
        named = set(self.named)
        return len({release[0] for release in self._waiting if release not in named}) >= self.terms.at_least

    def _due(self, place: int, one: _HelperSeen) -> list[SumEffect]:
        """Return the asks for a helper that were not made yet, behind the part of the roster that they need."""
        due: dict[_Due, tuple[Release, ...]] = {}
        batch, set_ = self._batch, self._set
        if batch is not None and place not in batch.votes:
            due[_Due(Check, batch.name)] = batch.releases
        if set_ is not None and place not in set_.refused:
            if place not in set_.signatures:
                due[_Due(Propose, set_.name)] = set_.releases
            elif len(set_.signatures) >= self.terms.quorum:
                vectors, digests = self._assigned(set_, place)
                if vectors or digests:
                    due[_Due(Open, set_.name, vectors, digests)] = set_.releases
        new = [ask for ask in due if ask not in one.asked]
        one.asked = set(due)
        untold = sorted({edge_id for ask in new for edge_id, _ in due[ask]} - one.told)
        one.told.update(untold)
        effects: list[SumEffect] = []
        for start in range(0, len(untold), _MOST_CHECKED):
            some = untold[start : start + _MOST_CHECKED]
            effects.append(AskHelper(place, Roster(tuple(self._roster[edge_id] for edge_id in some))))
        return [*effects, *(AskHelper(place, self._ask(ask, due[ask], place)) for ask in new)]

    def _ask(self, due: _Due, releases: tuple[Release, ...], place: int) -> Ask:
        members = self._members(releases, place)
        if due.kind is Check:
            return Check(self.terms.digest, members)
        if due.kind is Propose or self._set is None:
            return Propose(self.terms.digest, members)
        signatures = tuple(sorted(self._set.signatures.items()))[: self.terms.quorum]
        return Open(self.terms.digest, members, signatures, due.vectors, due.digests)

    # -- boxes ----------------------------------------------------------------------------------------

    def _checked(self, place: int, reply: Checked) -> None:
        batch = self._batch
        if batch is not None and reply.set == batch.name:
            batch.votes[place] = frozenset(reply.bad)

    def _conclude_batch(self) -> list[SumEffect]:
        """Sort the releases of a batch once a quorum has looked at them, and every helper that is here.

        Where helpers may lie, t of them are not believed against a quorum; elsewhere one of them is enough.
        """
        batch, terms = self._batch, self.terms
        if batch is None or len(batch.votes) < terms.quorum or not set(self.here) <= batch.votes.keys():
            return []
        self._batch, unfit = None, []
        for release in batch.releases:
            bad = sum(release[0] in vote for vote in batch.votes.values())
            believed = terms.away if terms.bears_liars else 0
            if bad > believed or len(batch.votes) - bad < terms.quorum:
                unfit.append(release)
                del self._waiting[release]
            else:
                self._fit.add(release)
        return [ReleasesUnfit(tuple(unfit))] if unfit else []

    # -- a set ----------------------------------------------------------------------------------------

    def _name_set(self) -> list[SumEffect]:
        if self._set is not None:
            return []
        chosen: dict[EdgeId, Release] = {}
        for release in self._waiting:
            if release in self._fit:
                chosen.setdefault(release[0], release)
                if len(chosen) == self.terms.at_least:
                    releases = tuple(sorted(chosen.values()))
                    self._set = self._under_way(releases)
                    return [SetNamed(releases)]
        return []

    def _under_way(self, releases: tuple[Release, ...]) -> _SetUnderWay:
        set_ = _SetUnderWay(releases, self._digest(releases))
        for _ in self.terms.subsets:
            set_.asked.append({})
            set_.answers.append({})
            set_.vectors.append({})
        return set_

    def _signed(self, place: int, reply: Signed) -> None:
        set_ = self._set
        if set_ is not None and reply.set == set_.name:
            if not agreement.is_signed(self.terms, set_.name, place, reply.signature):
                raise RemoteProtocolError(f"helper {place}: a signature that is not its own")
            set_.signatures[place] = reply.signature

    def _refused(self, place: int, reply: Refused) -> list[SumEffect]:
        one, set_, batch = self._helpers[place], self._set, self._batch
        one.asked = {ask for ask in one.asked if ask.name != reply.set}
        if reply.reason == agreement.STRANGER:
            one.told -= set(reply.edges)
            for edge_id in reply.edges:
                one.strange[edge_id] = one.strange.get(edge_id, 0) + 1
            if all(one.strange[edge_id] < _STRANGER_TRIES for edge_id in reply.edges):
                return []
        if reply.reason == agreement.OTHER_TERMS:
            one.agreed = False  # until it says hello with the terms of this run
        elif batch is not None and reply.set == batch.name:
            if reply.reason == agreement.STRANGER:
                batch.votes[place] = frozenset(reply.edges)
        elif set_ is not None and reply.set == set_.name and reply.reason != agreement.TOO_FEW_SIGNATURES:
            set_.refused.add(place)
        return [HelperRefuses(place, reply.reason, reply.edges)]

    @property
    def _believed(self) -> int:
        """Equal answers for a subset that are believed: among t + 1 helpers one is honest."""
        return self.terms.away + 1 if self.terms.bears_liars else 1

    def _assigned(self, set_: _SetUnderWay, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the subsets whose vector and whose digest a helper still owes."""
        vectors: list[int] = []
        digests: list[int] = []
        for position in self.terms.held(place):
            self._assign(set_, position)
            answer = set_.answers[position].get(place)
            for_vector = set_.asked[position].get(place)
            if for_vector and answer not in set_.vectors[position]:
                vectors.append(position)
            elif for_vector is False and answer is None:
                digests.append(position)
        return tuple(vectors), tuple(digests)

    def _assign(self, set_: _SetUnderWay, position: int) -> None:
        """Choose who answers for a subset: t + 1 of those here, and at least two; one the vector, others its digest.

        Where answers differ all of them answer with the vector.
        """
        asked, answers = set_.asked[position], set_.answers[position]
        able = [
            place
            for place in self.terms.subsets[position]
            if place in set_.signatures and place not in set_.refused and self._helpers[place].here
        ]
        for place in [place for place in asked if place not in able and place not in answers]:
            del asked[place]  # it went away: another answers in its stead
        if position in set_.differ:
            asked.update(dict.fromkeys(able, True))
            return
        load = [sum(place in one for one in set_.asked) for place in range(len(self.terms.helpers))]
        free = sorted((place for place in able if place not in asked), key=lambda place: (load[place], place))
        if not set_.vectors[position] and not any(asked[place] for place in asked if place in able):
            chosen = free[0] if free else next((place for place in asked if place in able), None)
            if chosen is not None:
                asked[chosen] = True
        for place in free:
            if len(asked) < max(self._believed, 2):
                asked.setdefault(place, False)

    def _take_answer(self, place: int, reply: Answer) -> list[SumEffect]:
        set_, terms, position = self._set, self.terms, reply.subset
        if set_ is None or reply.set != set_.name or position not in terms.held(place):
            return []
        purpose = agreement.answer_purpose(set_.name, position, place, digest=reply.digest)
        digest = content = open_once(self._helpers[place].pair, purpose, reply.sealed)
        if not reply.digest:
            if len(content) != terms.dimension * terms.modulus_bits // 8:
                raise RemoteProtocolError(f"helper {place}: {len(content)} bytes of a sum")
            digest = agreement.sum_digest(set_.name, position, content)
        answers = set_.answers[position]
        if answers.setdefault(place, digest) != digest:
            return []  # a helper has one answer
        if not reply.digest:
            set_.vectors[position][digest] = words(content, terms.modulus_bits)
        if len(set(answers.values())) == 1 or position in set_.differ:
            return []
        set_.differ.add(position)
        return [AnswersDiffer(position, tuple(sorted(answers)))]

    def _believed_sum(self, set_: _SetUnderWay, position: int) -> Masked | None:
        """Return the sum of a subset's streams; None: too few have answered, or they differ."""
        asked, answers = set_.asked[position], set_.answers[position]
        for digest, vector in set_.vectors[position].items():
            said = sum(answer == digest for answer in answers.values())
            if self._believed > 1:
                if said >= self._believed:
                    return vector
            elif said == len(answers) and asked.keys() <= answers.keys():
                return vector
        return None

    def _conclude_set(self) -> list[SumEffect]:
        set_ = self._set
        if set_ is None or len(set_.signatures) < self.terms.quorum:
            return []
        sums = []
        for position in range(len(self.terms.subsets)):
            self._assign(set_, position)
            found = self._believed_sum(set_, position)
            if found is None:
                return []
            sums.append(found)
        masks = sums[0].copy()
        for one in sums[1:]:
            masks += one
        members = [self._waiting.pop(release) for release in set_.releases]
        self._fit -= set(set_.releases)
        self._set = None
        self.opened += 1
        total = unmasked((one.masked for one in members), [masks])
        versions = tuple(one.version for one in members)
        return [SumOpened(set_.releases, versions, members[0].sensitivity, masks, total)]

    # -- names ----------------------------------------------------------------------------------------

    def _members(self, releases: tuple[Release, ...], helper: int) -> tuple[Member, ...]:
        arrived = (self._waiting[release] for release in releases)
        return tuple(
            Member(
                one.edge_id,
                one.sequence,
                one.envelope.salt,
                one.envelope.commitments,
                one.envelope.boxes[helper],
            )
            for one in arrived
        )

    def _digest(self, releases: tuple[Release, ...]) -> bytes:
        return agreement.set_digest(self.terms.digest, self._members(releases, 0))


def mean_of(opened: SumOpened, scale: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return the mean release of a set: Σ x divided by m and by the grid steps of a unit."""
    return (opened.total / (scale * len(opened.releases))).astype(np.float32)
