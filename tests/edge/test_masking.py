"""Edges that mask, helpers and a cloud: a set's mean is the mean of what the same edges would have released singly."""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np
import pytest

from cloud.secure_sums import AskHelper, SecureSums, SumEffect, SumOpened, mean_of
from common.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from common.messages import SendModel
from common.quantities import EdgeId, RunId, Vector
from common.secure.agreement import STRANGER, HelperHello, Offer, Refused, Roster, Statement
from common.secure.boxes import RunKey
from common.secure.masked import parse_masked
from common.secure.terms import HelperKeys, Terms
from common.wire.signatures import EDGES, SERVICES
from edge.masking import Masking, accepted
from mapa.authority import Authority, Role
from mapa.helper.helper import Helper, HelperSecrets
from tests.core_support import small_world
from tests.guard_support import Members
from tests.secure_support import new_key

RUN, LIFE = RunId("r1"), 3
C, T, M = 4, 1, 3


SCENARIO = {
    "edges": 4,
    "iterations": 40,
    "batch_size": 8,
    "seed": 1,
    "model": {"name": "softmax", "regularization": 0.01},
    "algorithm": {"name": "constant", "first_clip": 1.0, "rate": 0.5},
    "privacy": {"noise_multiplier": 2.0, "colluding": 1},
    "secure": {"at_least": M, "helpers": C, "away": T},
}


class Training:
    """Edges of a world, helpers and a cloud, which carry out what they say to each other at once."""

    def __init__(self) -> None:
        self.world = small_world(**SCENARIO)
        self.workers = self.world.workers()
        self.key = RunKey(secrets.token_bytes(32))
        made = [
            HelperSecrets(RUN, LIFE, place, secrets.token_bytes(32), secrets.token_bytes(32))
            for place in range(C)
        ]
        self.helpers = [Helper(one, authority=lambda *_: True) for one in made]
        self.terms = self.agreed()
        self.sums = SecureSums(self.terms, self.key)
        self.opened: list[SumOpened] = []
        self.maskings = [self.masking(worker.edge_id) for worker in self.workers]
        for helper in self.helpers:
            self.perform(self.sums.greeted(helper.hello))
        for one in self.maskings:
            self.perform(self.sums.enrol(one.entry))

    def agreed(self, **changes: object) -> Terms:
        scenario, hellos = self.world.scenario, [one.hello for one in self.helpers]
        grid = self.workers[0].mechanism.grid
        assert grid is not None
        assert scenario.secure is not None
        values: dict[str, object] = {
            "run": RUN,
            "incarnation": LIFE,
            "at_least": M,
            "colluding": 1,
            "away": T,
            "helpers": tuple(HelperKeys(one.box, one.signing) for one in hellos),
            "cloud": self.key.public,
            "dimension": self.world.model.dimension,
            "scale": grid.scale(grid.clip),
            "clip": grid.clip,
            "modulus_bits": scenario.secure.modulus_bits,
            "law": "gaussian",
            "noise_multiplier": 2.0,
        }
        return Terms(**{**values, **changes})  # type: ignore[arg-type]

    def accepted(self, content: bytes, **more: object) -> Terms:
        return accepted(
            content,
            run=RUN,
            incarnation=LIFE,
            mechanism=self.workers[0].mechanism,
            dimension=self.world.model.dimension,
            modulus_bits=self.terms.modulus_bits,
            **more,  # type: ignore[arg-type]
        )

    def masking(self, edge_id: EdgeId) -> Masking:
        terms = self.accepted(self.terms.encoded)
        return Masking(terms, edge_id, secrets.token_bytes(32), entropy=secrets.token_bytes)

    def perform(self, effects: list[SumEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SumOpened):
                self.opened.append(effect)
            elif isinstance(effect, AskHelper):
                for reply in self.helpers[effect.helper].receive(effect.ask).replies:
                    if isinstance(reply, HelperHello):
                        self.perform(self.sums.greeted(reply))
                    else:
                        self.perform(self.sums.answered(effect.helper, reply))

    def model(self, x: Vector) -> SendModel:
        scenario, grid = self.world.scenario, self.workers[0].mechanism.grid
        assert grid is not None
        return SendModel(EdgeId("any"), 1, 2 * grid.clip / scenario.batch_size, 0, x, LIFE)

    def release(self, k: int, x: Vector) -> None:
        """Have edge k release over the wire's bytes."""
        worker, masking, received = self.workers[k], self.maskings[k], self.model(x)
        payload = masking.masked(worker.sequence + 1, received, worker.integers(received))
        parts = self.terms.dimension, self.terms.modulus_bits, C, T
        self.perform(self.sums.take(parse_masked(worker.edge_id, payload, *parts)))


def test_the_mean_of_a_set_is_the_mean_of_what_its_edges_would_have_released_singly() -> None:
    training, singly = Training(), small_world(**SCENARIO).workers()
    rng, regularization = np.random.default_rng(0), np.float32(0.01)
    for _ in range(4):
        x = rng.normal(size=training.world.model.dimension).astype(np.float32)
        for k in range(M):
            training.release(k, x)
        (opened,) = training.opened
        training.opened.clear()
        released = [worker.receive(training.model(x)).gradient for worker in singly[:M]]
        mean = mean_of(opened, training.terms.scale * training.world.scenario.batch_size)
        assert mean + regularization * x == pytest.approx(np.mean(released, axis=0), rel=1e-5, abs=1e-5)
        assert [edge_id for edge_id, _ in opened.releases] == [worker.edge_id for worker in singly[:M]]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"at_least": 2}, "at_least = 2, and this edge accounts for 3"),
        ({"colluding": 0}, "colluding"),
        ({"run": "r2"}, "run"),
        ({"incarnation": LIFE + 1}, "incarnation"),
        ({"away": 0}, "away"),
        ({"noise_multiplier": 1.0}, "noise_multiplier = 1.0"),
        ({"scale": 1.0}, "scale"),
        ({"clip": 2.0}, "clip = 2.0"),
        ({"modulus_bits": 64}, "modulus_bits"),
        ({"dimension": 3}, "dimension = 3"),
        ({"law": "laplace"}, "law"),
    ],
)
def test_terms_that_say_otherwise_than_an_edge_accounts_for_are_refused_by_name(
    changes: dict[str, object], named: str
) -> None:
    training = Training()
    with pytest.raises(RemoteProtocolError, match=named):
        training.accepted(training.agreed(**changes).encoded)


def test_an_edges_key_is_the_same_after_a_restart_and_its_bytes_differ_each_time() -> None:
    training = Training()
    masking, again = (
        Masking(training.terms, EdgeId("e"), b"i" * 32, entropy=secrets.token_bytes) for _ in range(2)
    )
    assert masking.entry == again.entry
    received = training.model(np.zeros(training.terms.dimension, np.float32))
    x = np.zeros(training.terms.dimension, np.int64)
    assert masking.masked(1, received, x) != masking.masked(1, received, x)
    with pytest.raises(ConfigurationError, match="identity"):
        Masking(training.terms, EdgeId("e"), b"short", entropy=secrets.token_bytes)
    plain = {key: value for key, value in SCENARIO.items() if key not in ("secure", "privacy")}
    worker = small_world(**plain, privacy={"noise_multiplier": 2.0}).workers()[0]
    with pytest.raises(LocalProtocolError, match="no grid"):
        worker.integers(received)


def test_helpers_keys_and_edges_keys_are_vouched_for_by_their_own_authorities(tmp_path: Path) -> None:
    """Certificates: an edge's entry under that of edges, a helper's hello under that of services, neither the other."""
    members = Members(Authority.create(tmp_path / "ca", ["localhost"]))
    training, trust = Training(), members.trust()
    edge, helper = members.signer("e1"), members.signer("h0", Role.HELPER)
    masking = Masking(
        training.terms,
        EdgeId("e1"),
        b"i" * 32,
        entropy=secrets.token_bytes,
        sign=lambda content: Statement(*edge.statement(content)),
    )

    def of_edges(signed: Statement, content: bytes, name: str) -> bool:
        return trust.vouches(EDGES, name, signed.certificate, content, signed.signature)

    strict = Helper(training.helpers[0].secrets, authority=of_edges)
    strict.receive(Offer(training.terms.encoded))
    assert strict.receive(Roster((masking.entry,))).replies == ()
    posing = masking.entry._replace(edge_id=EdgeId("e2"))
    other_key = masking.entry._replace(key=new_key().public)
    by_service = masking.entry._replace(signed=Statement(*helper.statement(b"x")))
    for forged in (posing, other_key, by_service):
        (refused,) = strict.receive(Roster((forged,))).replies
        assert isinstance(refused, Refused)
        assert refused.reason == STRANGER

    def vouched(hello: HelperHello, content: bytes) -> bool:
        return trust.vouches(SERVICES, "h0", hello.signed.certificate, content, hello.signed.signature)

    sealed = [
        Helper(one.secrets, seal=lambda content: Statement(*helper.statement(content))).hello
        for one in training.helpers
    ]
    assert training.accepted(training.terms.encoded, hellos=sealed, vouched=vouched) == training.terms
    unsigned = [one.hello for one in training.helpers]
    for wrong, why in (
        (unsigned, "not vouched"),
        (sealed[1:], "has not signed"),
        ([sealed[0]._replace(box=bytes(32)), *sealed[1:]], "has not signed"),
    ):
        with pytest.raises(RemoteProtocolError, match=why):
            training.accepted(training.terms.encoded, hellos=wrong, vouched=vouched)
