"""An edge's part in secure sums: the terms that it accepts, its key for the run, and what it masks; pure.

Nothing of a release leaves but its masked integers and the sealed seeds of its masks. Needs the package cryptography.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from common.errors import RemoteProtocolError, require
from common.mechanism.mechanism import Mechanism
from common.messages import ModelReceived
from common.quantities import EdgeId, RunId
from common.secure.agreement import HelperHello, RosterEntry, Statement, hello_statement, roster_statement
from common.secure.boxes import Entropy, RunKey, new_seeds, seal
from common.secure.masked import MaskedArrived, masked_bytes
from common.secure.masks import Integers, mask
from common.secure.terms import Terms
from common.wire.secure_codec import decode_terms

# Whether a statement was signed under a certificate of a helper, by an authority that is not the cloud's.
Vouched = Callable[[HelperHello, bytes], bool]


def accepted(
    content: bytes,
    *,
    run: RunId,
    incarnation: int,
    mechanism: Mechanism,
    dimension: int,
    modulus_bits: int,
    hellos: Iterable[HelperHello] = (),
    vouched: Vouched | None = None,
) -> Terms:
    """Return terms that say what this edge accounts for; RemoteProtocolError names what they say otherwise.

    With `vouched` each helper's keys must be signed as its own; without it the cloud's word counts, and the edge can
    count on no helper that the cloud did not choose.
    """
    terms, grid, law = decode_terms(content), mechanism.grid, mechanism.law
    if grid is None or law is None:
        raise RemoteProtocolError("terms of secure sums for a run without them")
    said: dict[str, tuple[object, object]] = {
        "run": (terms.run, run),
        "incarnation": (terms.incarnation, incarnation),
        "at_least": (terms.at_least, grid.members),
        "colluding": (terms.colluding, grid.colluding),
        "helpers": (len(terms.helpers), grid.helpers),
        "away": (terms.away, grid.away),
        "dimension": (terms.dimension, dimension),
        "scale": (terms.scale, grid.scale(grid.clip)),
        "clip": (terms.clip, grid.clip),
        "modulus_bits": (terms.modulus_bits, modulus_bits),
        "law": (terms.law, law.name),
        "noise_multiplier": (terms.noise_multiplier, law.parameters["noise_multiplier"]),
    }
    for key, (theirs, ours) in said.items():
        if theirs != ours:
            raise RemoteProtocolError(f"terms: {key} = {theirs}, and this edge accounts for {ours}")
    if vouched is not None:
        by_place = {hello.helper: hello for hello in hellos}
        for place, keys in enumerate(terms.helpers):
            hello = by_place.get(place)
            ours_too = hello is not None and (hello.box, hello.signing) == (keys.box, keys.signing)
            if hello is None or not ours_too or hello.incarnation != incarnation:
                raise RemoteProtocolError(f"terms: keys of helper {place} that it has not signed")
            if not vouched(hello, hello_statement(run, hello)):
                raise RemoteProtocolError(f"terms: helper {place} is not vouched for")
    return terms


class Masking:
    """One edge under the terms of a run; its key follows from its identity and is the same after a restart."""

    def __init__(
        self,
        terms: Terms,
        edge_id: EdgeId,
        identity: bytes,
        *,
        entropy: Entropy,
        sign: Callable[[bytes], Statement] = lambda _: Statement(b"", b""),
    ) -> None:
        require(len(identity) >= 32, "identity", len(identity), "at least 32 secret bytes")
        self.terms, self.edge_id = terms, edge_id
        self._key = RunKey.derived(identity, terms.run, terms.incarnation)
        self._pairs = [self._key.pair(one.box) for one in terms.helpers]
        self._entropy, self._sign = entropy, sign

    @property
    def entry(self) -> RosterEntry:
        """This edge's key, signed."""
        unsigned = RosterEntry(self.edge_id, self._key.public, self.terms.digest, Statement(b"", b""))
        statement = roster_statement(self.terms.run, self.terms.incarnation, unsigned)
        return unsigned._replace(signed=self._sign(statement))

    def masked(self, sequence: int, received: ModelReceived, x: Integers) -> bytes:
        """Return a release as it is sent, and sent again: fresh seeds each time, so never call it twice for one x."""
        terms, seeds = self.terms, new_seeds(self.terms, self._entropy)
        envelope = seal(seeds, terms, self.edge_id, sequence, self._pairs, self._entropy)
        y = mask(x, seeds, terms.modulus_bits)
        arrived = (
            self.edge_id,
            sequence,
            received.version,
            received.sensitivity,
            y,
            terms.incarnation,
            envelope,
        )
        return masked_bytes(MaskedArrived(*arrived))
