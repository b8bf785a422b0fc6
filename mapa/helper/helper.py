"""A blind helper of secure sums: asks of the cloud in, replies out, and what must be on disk before they leave; pure.

It sees no masked vector. It signs at most one set for each release, and answers for a set alone that a quorum of
helpers signed, by the terms that the edges of the set sealed their seeds under.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias, assert_never

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from common.errors import RemoteProtocolError
from common.quantities import EdgeId, RunId
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
    Statement,
)
from common.secure.boxes import RunKey, open_box, open_once, seal_once
from common.secure.masks import sum_of_streams
from common.secure.terms import HelperKeys, Terms
from common.wire.secure_codec import decode_terms

MOST_EDGES = 100_000  # of a roster
_MOST_KEPT = 4096  # releases whose seeds are kept between the asks about them
_NO_SET = b""

Release: TypeAlias = tuple[EdgeId, int]
# Whether a statement was signed under a certificate of the edges' authority that bears this name.
Authority: TypeAlias = Callable[[Statement, bytes, str], bool]
Seal: TypeAlias = Callable[[bytes], Statement]  # signs under the helper's own certificate


class HelperSecrets(NamedTuple):
    """The private keys of a helper for one incarnation of a run; on disk before their public halves are told."""

    run: RunId
    incarnation: int
    place: int  # among the helpers of the terms, from 0
    box: bytes  # X25519
    signing: bytes  # Ed25519


# ---- what must be on disk before the replies leave


class TermsTaken(NamedTuple):
    """The helper goes by these terms and no others."""

    content: bytes  # canonical


class SetSigned(NamedTuple):
    """No other set with one of these releases is signed, ever."""

    set: bytes  # digest
    releases: tuple[Release, ...]


class KeysDestroyed(NamedTuple):
    """The run is over."""


HelperRecord: TypeAlias = TermsTaken | SetSigned | KeysDestroyed


class Replies(NamedTuple):
    """What follows from an ask. Where the records cannot be written the helper must be begun again from its disk."""

    records: tuple[HelperRecord, ...]
    replies: tuple[Reply | HelperHello, ...]


class _RefusalError(Exception):
    def __init__(self, reason: str, edges: Iterable[EdgeId] = ()) -> None:
        super().__init__(reason)
        self.reason, self.edges = reason, tuple(edges)


class Helper:
    """One helper in one incarnation of a run; only `receive` changes it.

    Without an authority of edges it goes by terms alone that count on every other edge to side with the cloud.
    """

    def __init__(
        self,
        secrets: HelperSecrets,
        *,
        authority: Authority | None = None,
        seal: Seal = lambda _: Statement(b"", b""),
        records: Iterable[HelperRecord] = (),
    ) -> None:
        self.secrets = secrets
        self.terms: Terms | None = None
        self.finished = False
        self.signed: dict[Release, bytes] = {}  # digest of the set that it was signed in
        self._authority, self._seal = authority, seal
        self._key = RunKey(secrets.box)
        self._signing = Ed25519PrivateKey.from_private_bytes(secrets.signing)
        self._cloud = b""  # the secret shared with the cloud
        self._sets: set[bytes] = set()  # signed
        self._edges: dict[EdgeId, RosterEntry] = {}
        self._pairs: dict[EdgeId, bytes] = {}
        self._seeds: dict[Member, dict[int, bytes]] = {}
        for record in records:
            self._take(record)

    @property
    def hello(self) -> HelperHello:
        """This helper's public keys, and the terms that it goes by."""
        run, incarnation, place, *_ = self.secrets
        signing = self._signing.public_key().public_bytes_raw()
        digest = agreement.NO_TERMS if self.terms is None else self.terms.digest
        unsigned = HelperHello(place, incarnation, self._key.public, signing, digest, Statement(b"", b""))
        return unsigned._replace(signed=self._seal(agreement.hello_statement(run, unsigned)))

    def receive(self, ask: Ask) -> Replies:
        """Return what an ask of the cloud brings about."""
        try:
            return self._performed(ask)
        except _RefusalError as refusal:
            return Replies((), (Refused(self._named(ask), refusal.reason, refusal.edges),))

    def _performed(self, ask: Ask) -> Replies:
        if self.finished:
            raise _RefusalError(agreement.OTHER_TERMS)
        match ask:
            case Offer():
                return self._offered(ask.terms)
            case Roster():
                self._enrol(ask.entries)
                return Replies((), ())
            case Check():
                return self._checked(ask)
            case Propose():
                return self._proposed(ask)
            case Open():
                return self._opened(ask)
            case Finish():
                return self._finish(ask.seal)
            case _:
                assert_never(ask)

    def _take(self, record: HelperRecord) -> None:
        """Change by what is on disk, or will be before anything is said."""
        match record:
            case TermsTaken(content=content):
                self.terms = decode_terms(content)
                self._cloud = self._key.pair(self.terms.cloud)
            case SetSigned(set=set_, releases=releases):
                self._sets.add(set_)
                self.signed.update(dict.fromkeys(releases, set_))
            case KeysDestroyed():
                self.finished = True
            case _:
                assert_never(record)

    def _done(self, record: HelperRecord, *replies: Reply | HelperHello) -> Replies:
        self._take(record)
        return Replies((record,), replies)

    # -- terms and roster -----------------------------------------------------------------------------

    def _offered(self, content: bytes) -> Replies:
        if self.terms is not None:
            if self.terms.encoded != content:
                raise _RefusalError(agreement.OTHER_TERMS)
            return Replies((), (self.hello,))
        try:
            terms = decode_terms(content)
        except RemoteProtocolError as error:
            raise _RefusalError(agreement.UNLAWFUL_TERMS) from error
        secrets, hello = self.secrets, self.hello
        place = terms.helpers[secrets.place] if secrets.place < len(terms.helpers) else None
        ours = (terms.run, terms.incarnation) == (secrets.run, secrets.incarnation)
        if not ours or place != HelperKeys(hello.box, hello.signing):
            raise _RefusalError(agreement.OTHER_TERMS)
        if self._authority is None and terms.colluding < terms.at_least - 1:
            raise _RefusalError(agreement.NO_AUTHORITY)
        try:
            self._key.pair(terms.cloud)
        except RemoteProtocolError as error:
            raise _RefusalError(agreement.UNLAWFUL_TERMS) from error
        took = self._done(TermsTaken(content))
        return took._replace(replies=(self.hello,))

    def _enrol(self, entries: Iterable[RosterEntry]) -> None:
        terms, strangers = self._agreed(), []
        for entry in entries:
            known = self._edges.get(entry.edge_id)
            if known == entry:
                continue
            if (known is None and len(self._edges) >= MOST_EDGES) or not self._is_enrolled(entry, terms):
                strangers.append(entry.edge_id)
                continue
            try:
                self._pairs[entry.edge_id] = self._key.pair(entry.key)
            except RemoteProtocolError:
                strangers.append(entry.edge_id)
            else:
                self._edges[entry.edge_id] = entry
        if strangers:
            raise _RefusalError(agreement.STRANGER, strangers)

    def _is_enrolled(self, entry: RosterEntry, terms: Terms) -> bool:
        if entry.terms != terms.digest:
            return False
        statement = agreement.roster_statement(terms.run, terms.incarnation, entry)
        return self._authority is None or self._authority(entry.signed, statement, entry.edge_id)

    def _agreed(self, digest: bytes | None = None) -> Terms:
        """Return the terms, which a digest must be of."""
        if self.terms is None or digest not in (None, self.terms.digest):
            raise _RefusalError(agreement.OTHER_TERMS)
        return self.terms

    # -- sets -----------------------------------------------------------------------------------------

    def _checked(self, ask: Check) -> Replies:
        terms = self._agreed(ask.terms)
        self._known(ask.members)
        bad = tuple(one.edge_id for one in ask.members if self._seeds_of(one, terms) is None)
        return Replies((), (Checked(self._named(ask), bad),))

    def _proposed(self, ask: Propose) -> Replies:
        terms, set_, releases = self._agreed(ask.terms), self._named(ask), _releases(ask.members)
        signed = Signed(set_, self._signing.sign(agreement.set_statement(set_, self.secrets.place)))
        if set_ in self._sets:
            return Replies((), (signed,))
        if len({edge_id for edge_id, _ in releases}) < len(releases):
            raise _RefusalError(agreement.EDGE_TWICE)
        if len(releases) < terms.at_least:
            raise _RefusalError(agreement.TOO_FEW)
        self._known(ask.members)
        if before := [edge_id for edge_id, number in releases if (edge_id, number) in self.signed]:
            raise _RefusalError(agreement.SIGNED_BEFORE, before)
        self._all_seeds(ask.members, terms)
        return self._done(SetSigned(set_, releases), signed)

    def _opened(self, ask: Open) -> Replies:
        terms, set_, place = self._agreed(ask.terms), self._named(ask), self.secrets.place
        if set_ not in self._sets:
            raise _RefusalError(agreement.NOT_SIGNED)
        if not set(ask.vectors) | set(ask.digests) <= set(terms.held(place)):
            raise _RefusalError(agreement.NO_MEMBER)
        signed = {helper for helper, sign in ask.signatures if agreement.is_signed(terms, set_, helper, sign)}
        if len(signed | {place}) < terms.quorum:
            raise _RefusalError(agreement.TOO_FEW_SIGNATURES)
        self._known(ask.members)
        seeds, answers = self._all_seeds(ask.members, terms), []
        for subset in sorted({*ask.vectors, *ask.digests}):
            streams = sum_of_streams((own[subset] for own in seeds), terms.dimension, terms.modulus_bits)
            content = streams.tobytes()
            if subset in ask.vectors:
                answers.append(self._answer(set_, subset, content, digest=False))
            if subset in ask.digests:
                answers.append(
                    self._answer(set_, subset, agreement.sum_digest(set_, subset, content), digest=True)
                )
        for one in ask.members:
            self._seeds.pop(one, None)
        return Replies((), tuple(answers))

    def _answer(self, set_: bytes, subset: int, content: bytes, *, digest: bool) -> Answer:
        purpose = agreement.answer_purpose(set_, subset, self.secrets.place, digest=digest)
        return Answer(set_, subset, digest, seal_once(self._cloud, purpose, content))

    def _known(self, members: Iterable[Member]) -> None:
        """Refuse edges that are not on the roster."""
        if strangers := [one.edge_id for one in members if one.edge_id not in self._edges]:
            raise _RefusalError(agreement.STRANGER, strangers)

    def _all_seeds(self, members: tuple[Member, ...], terms: Terms) -> list[Mapping[int, bytes]]:
        opened = [self._seeds_of(one, terms) for one in members]
        if bad := [one.edge_id for one, seeds in zip(members, opened, strict=True) if seeds is None]:
            raise _RefusalError(agreement.BAD_BOX, bad)
        return [seeds for seeds in opened if seeds is not None]

    def _seeds_of(self, one: Member, terms: Terms) -> dict[int, bytes] | None:
        """Return the seeds in a box, kept until the set is opened; None: it is not what it should be."""
        if (kept := self._seeds.get(one)) is not None:
            return kept
        box = one.salt, one.commitments, one.box
        try:
            seeds = open_box(*box, terms, self.secrets.place, *one.release, self._pairs[one.edge_id])
        except RemoteProtocolError:
            return None
        if len(self._seeds) >= _MOST_KEPT:
            self._seeds.clear()
        self._seeds[one] = seeds
        return seeds

    def _named(self, ask: Ask) -> bytes:
        """Return the digest of an ask's set; of one without a set no bytes."""
        if isinstance(ask, Check | Propose | Open):
            return agreement.set_digest(ask.terms, ask.members)
        return _NO_SET

    # -- the end --------------------------------------------------------------------------------------

    def _finish(self, seal: bytes) -> Replies:
        terms = self._agreed()
        try:
            empty = open_once(self._cloud, agreement.finish_purpose(terms.digest, self.secrets.place), seal)
        except RemoteProtocolError as error:
            raise _RefusalError(agreement.NOT_THE_CLOUD) from error
        if empty:
            raise _RefusalError(agreement.NOT_THE_CLOUD)
        return self._done(KeysDestroyed())


def _releases(members: Iterable[Member]) -> tuple[Release, ...]:
    return tuple(one.release for one in members)
