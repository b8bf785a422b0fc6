"""What cloud and helpers say to each other about sets, and what of it is signed (docs/secure-aggregation.md); pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from common.quantities import EdgeId, RunId
from common.secure.terms import Terms

NO_TERMS = b""  # digest of terms that a helper does not have


class Statement(NamedTuple):
    """Who signed, by what certificate (PEM; empty: the keys were made for the run), and the signature."""

    certificate: bytes
    signature: bytes


class RosterEntry(NamedTuple):
    """An edge's key for the run, signed under its certificate."""

    edge_id: EdgeId
    key: bytes  # X25519
    terms: bytes  # digest of the terms that it accepted
    signed: Statement


class HelperHello(NamedTuple):
    """A helper's keys for the run, signed under its certificate."""

    helper: int  # its place in the terms, from 0
    incarnation: int
    box: bytes  # X25519
    signing: bytes  # Ed25519, of what this helper signs in the run
    terms: bytes  # digest of those that it has; NO_TERMS: it waits for them
    signed: Statement


class Member(NamedTuple):
    """One release of a set, with the box for the helper that is asked."""

    edge_id: EdgeId
    sequence: int
    salt: bytes
    commitments: bytes
    box: bytes

    @property
    def release(self) -> tuple[EdgeId, int]:
        return self.edge_id, self.sequence


# ---- cloud → helper


class Offer(NamedTuple):
    """The terms of the run: their canonical bytes."""

    terms: bytes


class Roster(NamedTuple):
    """Edges' keys; more may follow."""

    entries: tuple[RosterEntry, ...]


class Check(NamedTuple):
    """Say which of these releases have boxes that do not open; nothing is signed."""

    terms: bytes
    members: tuple[Member, ...]


class Propose(NamedTuple):
    """Sign this set."""

    terms: bytes
    members: tuple[Member, ...]


class Open(NamedTuple):
    """Answer for this set: a vector for each subset of `vectors`, its digest for each of `digests`."""

    terms: bytes
    members: tuple[Member, ...]
    signatures: tuple[tuple[int, bytes], ...]  # by helper
    vectors: tuple[int, ...]
    digests: tuple[int, ...]


class Finish(NamedTuple):
    """The run is over: destroy its keys."""

    seal: bytes  # by the key shared by cloud and helper


Ask = Offer | Roster | Check | Propose | Open | Finish


# ---- helper → cloud


class Checked(NamedTuple):
    """The boxes of a set were looked at."""

    set: bytes  # digest
    bad: tuple[EdgeId, ...]  # edges whose boxes are not what they should be


class Signed(NamedTuple):
    """This helper signs no other set with one of these releases."""

    set: bytes
    signature: bytes


class Refused(NamedTuple):
    """A helper does not do what was asked; `reason` is one of those below."""

    set: bytes  # digest; empty: no set
    reason: str
    edges: tuple[EdgeId, ...]


class Answer(NamedTuple):
    """The sum of a subset's streams over a set, or its digest, sealed for the cloud."""

    set: bytes
    subset: int
    digest: bool
    sealed: bytes


Reply = Checked | Signed | Refused | Answer


# Reasons of a refusal.
OTHER_TERMS = "other-terms"  # not those that this helper goes by, or of another run or incarnation
UNLAWFUL_TERMS = "unlawful-terms"
NO_AUTHORITY = "no-authority"  # of edges; such a run must count on every other edge to collude
TOO_FEW = "too-few"  # edges
EDGE_TWICE = "edge-twice"  # two releases of one edge in a set
STRANGER = "stranger"  # edges that are not on the roster, or not by the authority's word
BAD_BOX = "bad-box"  # of these edges
SIGNED_BEFORE = "signed-before"  # in another set
NOT_SIGNED = "not-signed"  # by this helper
TOO_FEW_SIGNATURES = "too-few-signatures"
NO_MEMBER = "no-member"  # of the subset that is asked for
NOT_THE_CLOUD = "not-the-cloud"


# ---- what is signed


def set_digest(terms: bytes, members: Iterable[Member]) -> bytes:
    """Return the name of a set: SHA-256 of its terms and its releases in order, each with the digest of its seeds'."""
    content = b"mapa/v1 set\0" + terms
    for one in sorted(members, key=lambda one: one.release):
        name = one.edge_id.encode()
        content += len(name).to_bytes(2, "big") + name + one.sequence.to_bytes(8, "big")
        content += hashlib.sha256(one.commitments).digest()
    return hashlib.sha256(content).digest()


def set_statement(set_: bytes, helper: int) -> bytes:
    """Return what a helper signs: that it signs no other set with one of these releases."""
    return b"mapa/v1 signs\0" + bytes([helper]) + set_


def is_signed(terms: Terms, set_: bytes, helper: int, signature: bytes) -> bool:
    """Return whether a helper of the terms has signed a set."""
    if not 0 <= helper < len(terms.helpers):
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(terms.helpers[helper].signing)
        key.verify(signature, set_statement(set_, helper))
    except (InvalidSignature, ValueError):
        return False
    return True


def sum_digest(set_: bytes, subset: int, streams: bytes) -> bytes:
    """Return what another member of a subset answers, so that a wrong sum of its streams is seen."""
    return hashlib.sha256(b"mapa/v1 sum\0" + set_ + bytes([subset]) + streams).digest()


def roster_statement(run: RunId, incarnation: int, entry: RosterEntry) -> bytes:
    """Return what an edge signs under its certificate."""
    return _statement(
        "roster",
        run=run,
        incarnation=incarnation,
        edge=entry.edge_id,
        key=entry.key.hex(),
        terms=entry.terms.hex(),
    )


def hello_statement(run: RunId, hello: HelperHello) -> bytes:
    """Return what a helper signs under its certificate."""
    keys = {"box": hello.box.hex(), "signing": hello.signing.hex()}
    return _statement("helper", run=run, incarnation=hello.incarnation, helper=hello.helper, **keys)


def answer_purpose(set_: bytes, subset: int, helper: int, *, digest: bool) -> bytes:
    """Return what an answer is sealed under: it names one content for ever."""
    return b"answer\0" + bytes([helper, subset, digest]) + set_


def finish_purpose(terms: bytes, helper: int) -> bytes:
    return b"finish\0" + bytes([helper]) + terms


def _statement(kind: str, **names: str | int) -> bytes:
    text = json.dumps(names, sort_keys=True, separators=(",", ":"))
    return f"mapa/v1 {kind}\0{text}".encode()
