"""What secure sums cost each side: an edge, the helpers together, the cloud, for one release."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud.secure_sums import AskHelper, SecureSums, SumEffect, SumOpened
from common.quantities import EdgeId, RunId
from common.secure.agreement import HelperHello, RosterEntry, Statement
from common.secure.boxes import RunKey, envelope_bytes, new_seeds, seal
from common.secure.masked import MaskedArrived
from common.secure.masks import Integers, mask
from common.secure.terms import KEY_BYTES, HelperKeys, Terms
from experiments.bench.rounds import Case, Figures, Ratio
from mapa.helper.helper import Helper, HelperSecrets

_RUN, _LIFE = RunId("bench"), 1
_SHAPES = ((7850, 20, 3, 1), (7850, 10, 4, 1), (7850, 20, 5, 2), (1_000_000, 10, 3, 1))  # N, m, c, t
_MOST_EXTRA = {3: 0.01, 4: 0.016}  # bytes beside the vector, by helpers


class _Parties:
    """The keys of a run in which m edges release."""

    def __init__(self, dimension: int, m: int, c: int, t: int) -> None:
        self.helpers = [
            HelperSecrets(
                _RUN,
                _LIFE,
                place,
                secrets.token_bytes(KEY_BYTES),
                Ed25519PrivateKey.generate().private_bytes_raw(),
            )
            for place in range(c)
        ]
        hellos = [Helper(one).hello for one in self.helpers]
        self.cloud = RunKey(secrets.token_bytes(KEY_BYTES))
        self.terms = Terms(
            run=_RUN,
            incarnation=_LIFE,
            at_least=m,
            colluding=m - 1,
            away=t,
            helpers=tuple(HelperKeys(one.box, one.signing) for one in hellos),
            cloud=self.cloud.public,
            dimension=dimension,
            scale=65536.0,
            modulus_bits=32,
            law="gaussian",
            noise_multiplier=1.0,
            clip=1.0,
        )
        self.edges = {EdgeId(f"edge-{k}"): RunKey(secrets.token_bytes(KEY_BYTES)) for k in range(m)}
        self.pairs = {
            edge_id: [key.pair(one.box) for one in self.terms.helpers] for edge_id, key in self.edges.items()
        }

    def release(self, edge_id: EdgeId, x: Integers) -> MaskedArrived:
        """Mask a vector and seal its seeds: an edge's whole work beside its gradient."""
        seeds = new_seeds(self.terms, secrets.token_bytes)
        envelope = seal(seeds, self.terms, edge_id, 1, self.pairs[edge_id], secrets.token_bytes)
        return MaskedArrived(edge_id, 1, 1, 1.0, mask(x, seeds, self.terms.modulus_bits), _LIFE, envelope)


def _a_set(dimension: int, m: int, c: int, t: int) -> Figures:
    """Return the milliseconds that each side takes for one release, with t helpers away."""
    parties, spent = _Parties(dimension, m, c, t), {"edge": 0.0, "helpers": 0.0, "cloud": 0.0}
    helpers = [Helper(one) for one in parties.helpers[: c - t]]
    sums, opened = SecureSums(parties.terms, parties.cloud), list[SumOpened]()
    x = np.arange(dimension, dtype=np.int64) - dimension // 2

    def timed(side: str, began: float) -> None:
        spent[side] += time.process_time() - began

    def perform(effects: list[SumEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SumOpened):
                opened.append(effect)
            if not isinstance(effect, AskHelper) or effect.helper >= len(helpers):
                continue
            began = time.process_time()
            _, replies = helpers[effect.helper].receive(effect.ask)
            timed("helpers", began)
            for reply in replies:
                began = time.process_time()
                if isinstance(reply, HelperHello):
                    following = sums.greeted(reply)
                else:
                    following = sums.answered(effect.helper, reply)
                timed("cloud", began)
                perform(following)

    for helper in helpers:
        perform(sums.greeted(helper.hello))
    for edge_id, key in parties.edges.items():
        sums.enrol(RosterEntry(edge_id, key.public, parties.terms.digest, Statement(b"", b"")))
    for edge_id in parties.edges:
        began = time.process_time()
        arrived = parties.release(edge_id, x)
        timed("edge", began)
        began = time.process_time()
        effects = sums.take(arrived)
        timed("cloud", began)
        perform(effects)
    if not opened or not np.array_equal(opened[0].total, x * m):
        raise AssertionError("the set was not opened, or to another sum")
    extra = envelope_bytes(c, t)
    return {
        **{f"{side}, ms": 1e3 * seconds / m for side, seconds in spent.items()},
        "extra bytes": extra,
        "extra share": extra / (4 * dimension),
    }


def sums_cases() -> Iterator[Case]:
    """Yield a case for each shape; its bar is that of the bytes."""
    for dimension, m, c, t in _SHAPES:
        name = "one release"
        bar = Ratio("extra share", name, at_most=_MOST_EXTRA.get(c))
        turn = partial(_a_set, dimension, m, c, t)
        title = f"secure sums: N = {dimension:,}, m = {m}, c = {c} helpers, t = {t} of them away"
        yield Case(title, {name: turn}, (bar,), rounds=5, warm=True)
