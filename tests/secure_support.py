"""Terms, keys and masked releases for tests of secure sums."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud.secure_sums import AskHelper, SecureSums, SetNamed, SumEffect, SumOpened
from common.quantities import EdgeId, RunId
from common.secure.agreement import (
    Ask,
    HelperHello,
    Member,
    Reply,
    RosterEntry,
    Statement,
    roster_statement,
    set_statement,
)
from common.secure.boxes import Envelope, RunKey, new_seeds, seal
from common.secure.masked import MaskedArrived
from common.secure.masks import Integers, Masked, mask
from common.secure.terms import HelperKeys, Terms
from mapa.helper.helper import Helper, HelperRecord, HelperSecrets, TermsTaken

RUN, LIFE = RunId("r1"), 5


def new_key() -> RunKey:
    return RunKey(secrets.token_bytes(32))


@dataclass
class Parties:
    """The keys of a run, and what its edges release."""

    c: int = 4
    t: int = 1
    m: int = 3
    dimension: int = 5
    bits: int = 32
    colluding: int = 0
    box_bytes: list[bytes] = field(init=False)
    boxes: list[RunKey] = field(init=False)
    signing: list[Ed25519PrivateKey] = field(init=False)
    cloud: RunKey = field(default_factory=new_key)
    edges: dict[EdgeId, RunKey] = field(default_factory=dict)
    released: dict[tuple[EdgeId, int], tuple[Masked, Envelope, Integers]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.box_bytes = [secrets.token_bytes(32) for _ in range(self.c)]
        self.boxes = [RunKey(private) for private in self.box_bytes]
        self.signing = [Ed25519PrivateKey.generate() for _ in range(self.c)]
        self.terms = self.agreed()

    def agreed(self, **changes: object) -> Terms:
        keys = zip(self.boxes, self.signing, strict=True)
        terms: dict[str, object] = {
            "run": RUN,
            "incarnation": LIFE,
            "at_least": self.m,
            "colluding": self.colluding,
            "away": self.t,
            "helpers": tuple(
                HelperKeys(box.public, one.public_key().public_bytes_raw()) for box, one in keys
            ),
            "cloud": self.cloud.public,
            "dimension": self.dimension,
            "scale": 65536.0,
            "modulus_bits": self.bits,
            "law": "gaussian",
            "noise_multiplier": 1.5,
            "clip": 1.0,
        }
        return Terms(**{**terms, **changes})  # type: ignore[arg-type]

    def release(self, name: str, sequence: int, *, terms: Terms | None = None) -> tuple[EdgeId, int]:
        """Have an edge mask a vector; it has a key from its first release on."""
        edge_id, terms = EdgeId(name), terms or self.terms
        key = self.edges.setdefault(edge_id, new_key())
        x = np.random.default_rng([sequence, len(self.released)]).integers(-1000, 1000, self.dimension)
        seeds = new_seeds(terms, secrets.token_bytes)
        pairs = [key.pair(one.box) for one in terms.helpers]
        sealed = seal(seeds, terms, edge_id, sequence, pairs, secrets.token_bytes)
        self.released[edge_id, sequence] = mask(x, seeds, self.bits), sealed, x
        return edge_id, sequence

    def member(self, release: tuple[EdgeId, int], helper: int) -> Member:
        envelope = self.released[release][1]
        return Member(*release, envelope.salt, envelope.commitments, envelope.boxes[helper])

    def members(self, releases: list[tuple[EdgeId, int]], helper: int) -> tuple[Member, ...]:
        return tuple(self.member(one, helper) for one in sorted(releases))

    def entry(self, edge_id: EdgeId) -> RosterEntry:
        """Return an edge's entry, "signed" by its name."""
        entry = RosterEntry(edge_id, self.edges[edge_id].public, self.terms.digest, Statement(b"", b""))
        statement = roster_statement(RUN, LIFE, entry)
        return entry._replace(signed=Statement(edge_id.encode(), sha256(statement).digest()))

    def secrets(self, place: int) -> HelperSecrets:
        signing = self.signing[place].private_bytes_raw()
        return HelperSecrets(RUN, LIFE, place, self.box_bytes[place], signing)

    def helper(self, place: int, records: Iterable[HelperRecord] = (), *, agreed: bool = True) -> Helper:
        """Return a helper as it stands after these records, or one that goes by the terms."""
        records = [*records] or ([TermsTaken(self.terms.encoded)] if agreed else [])
        return Helper(self.secrets(place), authority=by_name, records=records)

    def arrived(self, release: tuple[EdgeId, int]) -> MaskedArrived:
        masked, envelope, _ = self.released[release]
        return MaskedArrived(*release, 1, 0.5, masked, LIFE, envelope)

    def total(self, releases: Iterable[tuple[EdgeId, int]]) -> Integers:
        return sum((self.released[one][2] for one in releases), np.zeros(self.dimension, np.int64))

    def signatures(self, set_: bytes, places: Iterable[int]) -> tuple[tuple[int, bytes], ...]:
        return tuple((place, self.signing[place].sign(set_statement(set_, place))) for place in places)


def by_name(signed: Statement, statement: bytes, name: str) -> bool:
    """An authority of edges whose certificate is a name."""
    return signed == Statement(name.encode(), sha256(statement).digest())


@dataclass
class SumsRun:
    """A cloud and its helpers with their disks, and messages between them that a test delivers."""

    parties: Parties
    sums: SecureSums = field(init=False)
    helpers: list[Helper | None] = field(init=False)  # None: it is away
    disks: list[list[HelperRecord]] = field(init=False)
    asks: list[tuple[int, Ask]] = field(default_factory=list)  # under way
    replies: list[tuple[int, Reply | HelperHello]] = field(default_factory=list)
    log: list[SetNamed | MaskedArrived] = field(default_factory=list)  # of the cloud, without what was opened
    opened: list[SumOpened] = field(default_factory=list)
    others: list[SumEffect] = field(default_factory=list)  # what the cloud tells its operator
    lie: Callable[[int, Reply | HelperHello], Reply | HelperHello] = lambda _, reply: reply
    roster: set[EdgeId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sums = SecureSums(self.parties.terms, self.parties.cloud)
        self.helpers = [self.parties.helper(place, agreed=False) for place in range(self.parties.c)]
        self.disks = [[] for _ in self.helpers]
        for place in range(self.parties.c):
            self.say_hello(place)

    def say_hello(self, place: int) -> None:
        helper = self.helpers[place]
        if helper is not None:
            self.replies.append((place, helper.hello))

    def perform(self, effects: list[SumEffect]) -> None:
        for effect in effects:
            if isinstance(effect, AskHelper):
                self.asks.append((effect.helper, effect.ask))
            elif isinstance(effect, SetNamed):
                self.log.append(effect)
            elif isinstance(effect, SumOpened):
                self.opened.append(effect)
                gone = set(effect.releases)
                self.log = [
                    one
                    for one in self.log
                    if isinstance(one, MaskedArrived) and (one.edge_id, one.sequence) not in gone
                ]
            else:
                self.others.append(effect)

    def release(self, name: str, sequence: int) -> None:
        """Have an edge release, and the cloud take it."""
        edge_id, _ = release = self.parties.release(name, sequence)
        if edge_id not in self.roster:
            self.roster.add(edge_id)
            self.perform(self.sums.enrol(self.parties.entry(edge_id)))
        self.log.append(arrived := self.parties.arrived(release))
        self.perform(self.sums.take(arrived))

    def answer(self, at: int = 0) -> None:
        """Deliver one ask; its records are on disk before its replies are under way."""
        place, ask = self.asks.pop(at)
        helper = self.helpers[place]
        if helper is not None:
            records, replies = helper.receive(ask)
            self.disks[place] += records
            self.replies += [(place, self.lie(place, reply)) for reply in replies]

    def hear(self, at: int = 0) -> None:
        """Deliver one reply."""
        place, reply = self.replies.pop(at)
        if isinstance(reply, HelperHello):
            self.perform(self.sums.greeted(reply))
        else:
            self.perform(self.sums.answered(place, reply))

    def settle(self) -> None:
        """Deliver all there is, in order."""
        while self.asks or self.replies:
            self.hear() if self.replies else self.answer()

    def stop(self, place: int) -> None:
        """Take a helper away."""
        self.helpers[place] = None
        self.perform(self.sums.silent(place))

    def restart(self, place: int) -> None:
        """Have a helper begin again from its disk."""
        self.helpers[place] = self.parties.helper(place, self.disks[place], agreed=False)
        self.say_hello(place)

    def restart_cloud(self) -> None:
        """Have the cloud begin again from its log; what was under way is lost."""
        waiting = [one for one in self.log if isinstance(one, MaskedArrived)]
        named = next((one.releases for one in self.log if isinstance(one, SetNamed)), ())
        self.sums, self.asks, self.replies = SecureSums(self.parties.terms, self.parties.cloud), [], []
        for edge_id in self.roster:
            self.sums.enrol(self.parties.entry(edge_id))
        self.sums.resume(waiting, named, len(self.opened))
        for place in range(self.parties.c):
            self.say_hello(place)
