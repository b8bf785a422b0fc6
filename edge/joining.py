"""Joining a run: the hello, and from an untrusted welcome to a worker: shard, mechanism, account, memory."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from common.accounting.releases import Budget, ReleaseKind
from common.datasets.dataset import Dataset, Samples
from common.datasets.source import Source
from common.errors import ConfigurationError, LedgerUnavailableError, MapaError, require
from common.messages import Hello, Welcome
from common.models.features import features_of, user_cache
from common.models.linear import LinearModel
from common.models.model import Images, Model
from common.quantities import Indices, RunId
from common.randomness import streams_for
from common.scenario.parts import dataset_for, least_records, model_for, own_schema
from common.scenario.scenario import Scenario, parse_welcome
from common.transport.link import LinkProfile
from common.wire.codings.registry import PLAIN, Marked, marked
from common.wire.v1 import WELCOME_LIMIT, packet_limit
from edge import policy as permitted
from edge.device import EmulatedDevice, emulated
from edge.ledger import MOST_RELEASES, Account, Ledger, OtherShardError, ShardIdentity
from edge.own_data import OwnData
from edge.policy import OperatorPolicy, Proposal
from edge.session import EXIT_FAILED, EXIT_REFUSED, Ending, Prepared, SayHello, Signal
from edge.shards import shard_for
from edge.worker import EdgeWorker, Shard, known_powers_of, worker_for

if TYPE_CHECKING:
    from edge.masking import Masking

MEMORY_LIMIT_MB = 1024  # the largest scenario that is shipped takes 360 MB
MEMORY_VARIABLE = "MAPA_EDGE_MEMORY_MB"  # the operator's own limit
_COPIES = 8  # of x and of the gradient under way at once: received, clipped, noised, encoded, in the outbox
_STEP_COPIES = 5  # more of them with local steps: x on its way, the step, and a sum in float64
_FLOAT = 4  # bytes
Followed = Prepared | Signal | Ending  # of following a welcome


@dataclass(frozen=True, slots=True)
class Preparation:
    """An edge ready to train."""

    worker: EdgeWorker
    scenario: Scenario
    link: LinkProfile | None
    device: EmulatedDevice | None = None
    exposure: str = ""  # why what this edge releases is not protected; '': it is
    coding: str = PLAIN  # of its gradients
    masking: Masking | None = None  # with secure sums
    of_models: Marked = field(default_factory=dict)  # their coding, by its marks; none: they come as they are

    @property
    def largest_packet(self) -> int:
        """How many bytes the run's models and welcomes have at most: nothing larger is read."""
        return packet_limit(self.worker.model.dimension, WELCOME_LIMIT)


@dataclass(slots=True)
class Membership:
    """An edge's part in one run: its ledger, its operator's policy, and the terms of the first welcome it follows."""

    run: RunId
    policy: OperatorPolicy
    ledger: Ledger
    load: Callable[[Source], Dataset]
    own: OwnData | None = None  # records that this edge brings itself
    data_dir: Path | None = None  # where a model may find weights
    preparation: Preparation | None = None
    renewable: bool = True  # False: the id is the name of a user at the broker, and no other may be taken
    state_dir: Path = Path("state")  # where the operator finds this ledger
    identity: Callable[[], bytes] | None = None  # what its keys of secure sums follow from; None: it has none
    _admission: Welcome | None = None  # the welcome that the preparation follows
    _wanted: int | None = None  # the shard that the ledger holds of the run's cut

    def hello(self, effect: SayHello, nonce: str) -> Hello:
        return Hello(
            edge_id=self.ledger.edge_id,
            noise=self.policy.law,
            parameters=self.policy.parameters,
            last_sequence=effect.last_sequence,
            index=self._index(),
            nonce=nonce,
            number=effect.number,
            incarnation=effect.incarnation,
            preparing=self.own is not None and self.preparation is None,
            coding=self.policy.coding,
            entry=self._entry,
        )

    @property
    def _entry(self) -> tuple[bytes, bytes, bytes, bytes] | None:
        """This edge's entry in the roster of secure sums; None: there are none, or their terms are not known yet."""
        masking = None if self.preparation is None else self.preparation.masking
        return None if masking is None else (masking.entry.key, masking.entry.terms, *masking.entry.signed)

    def follow(self, admission: Welcome) -> Followed:
        """Take what the first welcome deals; the later ones must deal the same."""
        if self._admission is not None:  # a restarted cloud may deal otherwise: its terms, or none
            other = _difference(self._admission, admission)
            if other:
                text = f"the cloud now welcomes with {other}; an edge keeps the terms it began with"
                return Ending(EXIT_REFUSED, text, "refused")
            return Prepared(slow=self._slow)
        try:
            self.preparation = self.prepare(admission)
        except OtherShardError as error:
            if self._wanted is not None:
                return Ending(EXIT_REFUSED, str(error), "refused")
            self._wanted = error.held  # only a welcome tells which data it is about: now it can be asked for
            return Signal.OTHER_SHARD_HELD
        except LedgerUnavailableError as error:
            return Ending(EXIT_FAILED, str(error), "failed")
        except (MapaError, MemoryError) as error:  # one edge of a fleet turns it down, the others continue
            text = str(error) or "not enough memory for what the welcome asks for"
            return Ending(EXIT_REFUSED, text, "refused")
        self._admission = admission
        rerouted = self.preparation.link is not None
        announced = self.own is None and self.preparation.masking is None
        return Prepared(rerouted=rerouted, slow=self._slow, announced=announced)

    def prepare(self, admission: Welcome) -> Preparation:
        """Check the scenario, take shard k of K, open the account; raise ConfigurationError if any of it cannot be."""
        policy, own, ledger = self.policy, self.own, self.ledger
        allowed = policy.allowed | {policy.noise or ""}  # a law that --noise names is allowed
        scenario = parse_welcome({**admission.scenario, "seed": admission.seed}, allowed=allowed)
        for key, name in (("model.name", scenario.model.name), ("data.set", scenario.data.set)):
            permitted.check_code(policy, key, name)
        index, edges = admission.index, admission.edges
        if edges != scenario.workers:
            raise ConfigurationError(
                f"welcome: edges = {edges}: must be {scenario.workers}, as its scenario says"
            )
        permitted.check_data(policy, scenario.data.set)
        dealt = _deal(scenario, index, self.load) if own is None else _take(scenario, index, policy, own)
        rows = dealt.rows
        cap = _own_pace(scenario)
        summed = scenario.secure is not None
        law = permitted.law_for(policy, scenario.law(index), paced=cap is not None, summed=summed)
        kind = ReleaseKind(scenario.mechanism(law), len(rows))
        proposal = Proposal(kind, owned=permitted.is_owned(scenario.data.set), seed=admission.seed)
        kept = admission.seed is not None and ledger.keeps_budget(dealt.identity)
        permitted.permit(policy, proposal, budget_kept=kept)
        of_run, of_sums = _budgets(scenario)
        account = Account(
            run=self.run,
            shard=dealt.identity,
            kind=kind,
            budget=policy.budget or of_run,
            own_budget=policy.budget is not None,
            reproducible=admission.seed is not None,
            most_releases=cap,
            sum_budget=of_sums,
        )
        _check_memory(
            scenario, len(rows), len(rows) * math.prod(dealt.shape) * _FLOAT
        )  # before they are unpacked
        images, labels = dealt.samples.values(rows), dealt.samples.labels[rows]
        form = dealt.shape, dealt.classes, dealt.target_range
        del dealt  # the shard is all that an edge keeps; a model may need the room at once
        model = model_for(scenario, *form, self.data_dir)
        check_model(scenario, model, images)
        ledger.open(account, replace_budget=policy.replace_budget)
        if own is not None:
            own.claim()
        cache = user_cache() if own is None else None  # an edge's own records leave no features behind
        features = features_of(model, Samples(images, labels), cache)
        worker = worker_for(
            scenario,
            model,
            law,
            edge_id=admission.edge_id,
            index=index,
            shard=Shard(
                features,
                model.targets(labels),
                np.arange(len(rows), dtype=np.int64),
                known_powers_of(model, law, features),
            ),
            streams=streams_for(admission.seed),
            sequence=ledger.last_sequence(self.run),
        )
        link = policy.link or (scenario.links[0].profile if scenario.links else None)
        masking = self._masking(admission, scenario, worker)
        profile = scenario.device(index)  # the welcome holds this edge's alone
        codings = scenario.codings(index)  # likewise
        return Preparation(
            worker,
            scenario,
            link=None if link is None or link.is_free else link,
            device=None if profile is None else emulated(profile, worker),
            exposure=permitted.exposure(proposal),
            coding=codings.gradients,
            masking=masking,
            of_models=marked([codings.models]),
        )

    def _masking(self, admission: Welcome, scenario: Scenario, worker: EdgeWorker) -> Masking | None:
        """Return this edge's part in secure sums; None: the run has none."""
        table = scenario.secure
        if (table is None) is not (admission.terms is None):
            raise ConfigurationError("welcome: terms of secure sums go with a scenario that has [secure]")
        if table is None or admission.terms is None:
            return None
        from edge.masking import Masking, accepted  # cryptography: an edge of another run does without

        if self.identity is None or table.modulus_bits is None:
            raise ConfigurationError("secure: this edge keeps no key that its masks could be sealed by")
        terms = accepted(
            admission.terms,
            run=self.run,
            incarnation=admission.incarnation,
            mechanism=worker.mechanism,
            dimension=worker.model.dimension,
            modulus_bits=table.modulus_bits,
        )
        return Masking(terms, admission.edge_id, self.identity(), entropy=secrets.token_bytes)

    def renew(self, known: int) -> Signal | Ending:
        """Join as a newcomer: the old id has released `known` gradients, more than this ledger has.

        Not with a copy that has some of them, whose shard the newcomer would leave without charging the rest; nor
        under the operator's budget, which the missing ones count against wherever a record is in both shards.
        """
        account = self.ledger.account(self.run)
        kept = any(standing.account.operator_budget is not None for standing in self.ledger.standings())
        if account is not None or not self.renewable or kept or self.policy.budget is not None:
            return Ending(EXIT_REFUSED, self._behind(known, can_charge=account is not None))
        self.ledger.renew_identity()
        self.preparation = self._admission = self._wanted = None
        return Signal.IDENTITY_RENEWED

    def _behind(self, known: int, *, can_charge: bool) -> str:
        """Tell the operator what the cloud says, what it is worth, and what to do. Nothing is charged by itself."""
        held, edge_id = self.ledger.last_sequence(self.run), self.ledger.edge_id
        problem = (
            f"its ledger is lost or an older copy: it has {held} releases in run {self.run}, and the cloud says that"
            f" it has got {known}. Restore the newest copy"
        )
        if not self.renewable:
            problem = (
                f"another host takes part as {edge_id}, or {problem}. Two hosts cannot share one --accounts folder:"
                " give each of them the password files of its own edges alone"
            )
        if not can_charge:
            return (
                f"{problem}. This one has no account in that run, so what is missing cannot be charged to it"
            )
        if known >= MOST_RELEASES:
            return (
                f"{problem}. No run has {known} releases: that word is forged or wrong, and cannot be charged"
            )
        through = known + 1  # an edge has one gradient under way at a time: that one may have left, too
        which = ["--state", str(self.state_dir), "--run", self.run, "--edge", edge_id]
        command = shlex.join(["mapa", "ledger", "charge", *which, "--through", str(through)])
        return (
            f"{problem}, or charge what is missing and start again:\n{command}\nThat is one more than the cloud has"
            " got, since one more may have left. Nothing was charged: the cloud's word is not authenticated, and any"
            " client of the broker can send it. End whatever uses another copy of this ledger first"
        )

    @property
    def _slow(self) -> bool:
        device = None if self.preparation is None else self.preparation.device
        return device is not None and device.profile.is_slow

    def _index(self) -> int | None:
        """Return the shard to ask for: the one whose records this edge's account is of."""
        if self._wanted is not None:
            return self._wanted
        account = self.ledger.account(self.run)
        if account is None:
            spent = [standing.account for standing in self.ledger.standings() if standing.charges]
            account = spent[-1] if spent else None
        return None if account is None else account.shard.index


@dataclass(frozen=True, slots=True)
class Dealt:
    """The records that an edge trains on, and what they are called in its ledger."""

    samples: Samples
    rows: Indices
    shape: tuple[int, ...]
    classes: int
    target_range: tuple[float, float] | None
    identity: ShardIdentity


def _deal(scenario: Scenario, index: int, load: Callable[[Source], Dataset]) -> Dealt:
    """Cut shard k of K from a data set that all hold."""
    dataset = dataset_for(scenario, load, tested=False)
    records, pieces = len(dataset.train), scenario.workers * scenario.data.labels_per_edge
    allowed = f"at most the {records} records"  # before memory is allocated for more
    require(scenario.batch_size <= records, "batch_size", scenario.batch_size, allowed)
    if scenario.data.partition == "label":
        require(pieces <= records, "edges × data.labels_per_edge", pieces, allowed)
    rows = shard_for(scenario, dataset.train, index)
    called = identity(scenario, dataset, scenario.workers, index)
    return Dealt(dataset.train, rows, dataset.shape, dataset.classes, dataset.target_range, called)


def _take(scenario: Scenario, index: int, policy: OperatorPolicy, own: OwnData) -> Dealt:
    """Take all records that this edge brings itself."""
    schema, least = own_schema(scenario), least_records(scenario)
    assert schema is not None  # check_data, and the scenario's own check
    assert least is not None
    samples = own.read(schema, least, memory_limit())
    permitted.check_number(len(samples), at_least=least)
    rows = np.arange(len(samples), dtype=np.int64)
    called = permitted.own_records(policy, index)
    return Dealt(samples, rows, schema.shape, schema.classes, schema.target_range, called)


def _difference(first: Welcome, later: Welcome) -> str:
    """Say in which term a later welcome differs from the first; '' where it deals the same."""
    for key in ("index", "edges", "seed"):
        before, now = getattr(first, key), getattr(later, key)
        if before != now:
            return f"{key} = {now}, not {before}"
    if first.terms != later.terms:
        return "other terms of secure sums"
    return "" if first.scenario == later.scenario else "another scenario"


def _budgets(scenario: Scenario) -> tuple[Budget | None, Budget | None]:
    """Return the run's own budgets: of each release on its own, and of sums where releases are summed."""
    privacy, table = scenario.privacy, scenario.secure
    if not scenario.private:
        return None, None
    delta, most = privacy.total_delta, privacy.total_epsilon
    if table is None:
        return (None if most is None else Budget(most, delta)), None
    own = None if table.own_epsilon is None else Budget(table.own_epsilon, delta)
    return own, (None if most is None else Budget(most, delta, in_sums=True))


def _own_pace(scenario: Scenario) -> int | None:
    """Return R_k, where this edge has a pace of its own; without it no release may be made of such a run."""
    privacy = scenario.privacy
    if privacy.pace != "own":
        return None
    if privacy.release_caps is None or len(privacy.release_caps) != 1:
        raise ConfigurationError(
            f"welcome: privacy.release_caps = {privacy.release_caps}: must have the number of this edge's releases,"
            " since privacy.pace = 'own'"
        )
    return privacy.release_caps[0]


def identity(scenario: Scenario, dataset: Dataset, shards: int, index: int) -> ShardIdentity:
    """Name the records of shard k, so that every run on them shares one account."""
    groups = dataset.train.groups
    marked = "" if groups is None else hashlib.sha256(groups.astype("<i8").tobytes()).hexdigest()[:16]
    cut = cut_of(scenario, shards, marked)
    return ShardIdentity(dataset.checksum, cut, index, disjoint=scenario.data.partition != "shared")


def cut_of(scenario: Scenario, shards: int, groups: str) -> str:
    """Name the cut of a data set into shards; `groups` tells one grouping of its records from another."""
    data = scenario.data
    details = {
        "dirichlet": f" α={data.alpha!r}",
        "label": f" labels={data.labels_per_edge}",
        "group": f" groups={groups}",
        "sizes-dirichlet": f" α={data.alpha!r}",
        "sizes-power": f" power={data.power!r}",
    }
    cut = f"{data.partition}{details.get(data.partition, '')} K={shards} seed={scenario.seed or 0}"
    if data.holdout:
        cut += f" holdout={data.holdout}"
    if data.declared is not None:  # it says labels, groups and the order of rows; the checksum is the file's
        cut += f" schema={data.declared.declared.digest[:16]}"
    return cut


@runtime_checkable
class StatesItsMemory(Protocol):
    """A model that says itself what the gradients of a batch take, as torch models do."""

    def batch_bytes(self, batch: int) -> int: ...


@runtime_checkable
class StatesItsFeatures(Protocol):
    """A model that says itself what the features of `rows` records take, and what it takes to make them."""

    def features_bytes(self, rows: int) -> int: ...


def memory_limit(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes a welcome may make this edge take."""
    text = environ.get(MEMORY_VARIABLE, "") or str(MEMORY_LIMIT_MB)
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:12]) <= 1 << 30:
        raise ConfigurationError(
            f"{MEMORY_VARIABLE} = {text!r}: must be a whole number of MB from 1 to {1 << 30}"
        )
    return int(text) << 20


def check_model(scenario: Scenario, model: Model, images: Images) -> None:
    """Refuse a model that takes more than the limit with the features of this shard and with one batch.

    A model may say how large its features are; of any other one record tells. A model that is linear in its
    scores never forms the b × N matrix of a batch's gradients; a torch model says what it takes; of any other
    b × N is assumed.
    """
    rows = len(images)
    batch = min(scenario.sampler.memory_rows(scenario.batch_size), rows)
    copies = _COPIES + (_STEP_COPIES if scenario.work.releases() > 1 else 0)
    vectors = copies * _FLOAT * model.dimension
    _check_memory(scenario, rows, vectors)
    if isinstance(model, StatesItsFeatures):
        features = model.features_bytes(rows + batch)
    else:
        features = (rows + batch) * model.features(images[:1]).nbytes
    if isinstance(model, StatesItsMemory):
        gradients = model.batch_bytes(batch)
    else:
        gradients = 0 if isinstance(model, LinearModel) else batch * _FLOAT * model.dimension
    _check_memory(scenario, rows, images.nbytes + features + gradients + vectors)


def _check_memory(scenario: Scenario, rows: int, needed: int) -> None:
    limit = memory_limit()
    if needed > limit:
        raise ConfigurationError(
            f"model.name = {scenario.model.name!r}, batch_size = {scenario.batch_size}, a shard of {rows} records:"
            f" takes about {needed >> 20} MB; this edge takes at most {limit >> 20} MB ({MEMORY_VARIABLE})"
        )
