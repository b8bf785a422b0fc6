"""From a welcome to a worker: the shard, the mechanism, the account. What the cloud sends is checked here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.accounting.releases import Budget, ReleaseKind
from common.datasets.dataset import Dataset, Samples
from common.datasets.source import Source
from common.dotted import is_dotted
from common.errors import ConfigurationError, require
from common.models.feature_cache import user_cache
from common.models.making import features_of
from common.quantities import Indices, RunId
from common.randomness import streams_for
from common.scenario.parts import dataset_for, least_records, model_for, own_schema
from common.scenario.scenario import Scenario, parse_welcome
from common.transport.link import LinkProfile, link_profile
from common.wire.codec import Admission
from edge.account import Account, ShardIdentity
from edge.assembly import shard_for, worker_for
from edge.device import EmulatedDevice, emulated
from edge.ledger import Ledger
from edge.memory import check_model, check_pixels
from edge.own_data import OwnData
from edge.policy import (
    OperatorPolicy,
    Proposal,
    check_code,
    check_data,
    check_number,
    exposure,
    is_owned,
    law_for,
    own_records,
    permit,
)
from edge.worker import EdgeWorker, Shard


@dataclass(frozen=True, slots=True)
class Preparation:
    """An edge ready to train."""

    worker: EdgeWorker
    scenario: Scenario
    link: LinkProfile | None
    device: EmulatedDevice | None = None
    exposure: str = ""  # why what this edge releases is not protected; '': it is


@dataclass(frozen=True, slots=True)
class Dealt:
    """The records that an edge trains on, and what they are called in its ledger."""

    samples: Samples
    rows: Indices
    shape: tuple[int, ...]
    classes: int
    target_range: tuple[float, float] | None
    identity: ShardIdentity


def prepare(
    admission: Admission,
    run: RunId,
    policy: OperatorPolicy,
    ledger: Ledger,
    load: Callable[[Source], Dataset],
    own: OwnData | None = None,
    *,
    data_dir: Path | None = None,
) -> Preparation:
    """Check the scenario, take shard k of K, open the account; ConfigurationError where any of it cannot be."""
    allowed = policy.allowed | {policy.noise or ""}  # whoever names a law by --noise allows it
    scenario = parse_welcome({**admission.scenario, "seed": admission.seed}, allowed=allowed)
    for key, name in (("model.name", scenario.model.name), ("data.set", scenario.data.set)):
        if is_dotted(name):
            check_code(policy, key, name)
    index, shards = admission.welcome.index, admission.edges
    if shards != scenario.workers:
        raise ConfigurationError(
            f"welcome: edges = {shards}: must be {scenario.workers}, as its scenario says"
        )
    check_data(policy, scenario.data.set)
    dealt = _deal(scenario, shards, index, load) if own is None else _take(scenario, index, policy, own)
    rows, shape = dealt.rows, dealt.shape
    cap = own_pace(scenario)
    law = law_for(policy, scenario.law(index), paced=cap is not None)
    kind = ReleaseKind(scenario.mechanism(law), len(rows))
    proposal = Proposal(
        kind=kind, shard=dealt.identity, owned=is_owned(scenario.data.set), seed=admission.seed
    )
    permit(policy, proposal, budget_kept=admission.seed is not None and ledger.keeps_budget(dealt.identity))
    account = Account(
        run=run,
        shard=dealt.identity,
        kind=kind,
        budget=policy.budget or scenario_budget(scenario),
        own_budget=policy.budget is not None,
        reproducible=admission.seed is not None,
        most_releases=cap,
    )
    check_pixels(scenario, len(rows), math.prod(shape))
    images, labels = dealt.samples.values(rows), dealt.samples.labels[rows]
    classes, target_range = dealt.classes, dealt.target_range
    del dealt  # the shard is all that an edge keeps; a model may need the room at once
    model = model_for(scenario, shape, classes, target_range, data_dir)
    check_model(scenario, model, images)
    ledger.open(account, replace_budget=policy.replace_budget)
    if own is not None:
        own.claim()
    cache = (
        user_cache() if own is None else None
    )  # records that this edge brings itself leave no features behind
    features = features_of(model, Samples(images, labels), cache)
    shard = Shard(features, model.targets(labels), np.arange(len(rows), dtype=np.int64))
    worker = worker_for(
        scenario,
        model,
        law,
        edge_id=admission.welcome.edge_id,
        index=index,
        shard=shard,
        streams=streams_for(admission.seed),
        sequence=ledger.last_sequence(run),
    )
    link = policy.link or (link_profile(scenario.links[0].model_dump()) if scenario.links else None)
    profile = scenario.device(index)  # the welcome holds this edge's alone
    device = None if profile is None else emulated(profile, worker)
    taken = None if link is None or link.is_free else link
    return Preparation(worker, scenario, taken, device, exposure(proposal))


def _deal(scenario: Scenario, shards: int, index: int, load: Callable[[Source], Dataset]) -> Dealt:
    """Cut shard k of K from a data set that all hold."""
    dataset = dataset_for(scenario, load, tested=False)
    check_sizes(scenario, len(dataset.train))
    rows = shard_for(scenario, dataset.train, index)
    called = identity(scenario, dataset, shards, index)
    return Dealt(dataset.train, rows, dataset.shape, dataset.classes, dataset.target_range, called)


def _take(scenario: Scenario, index: int, policy: OperatorPolicy, own: OwnData) -> Dealt:
    """Take all records that this edge brings itself."""
    schema, least = own_schema(scenario), least_records(scenario)
    assert schema is not None  # check_data, and the scenario's own check
    assert least is not None
    samples = own.read(schema, least)
    check_number(len(samples), at_least=least)
    rows = np.arange(len(samples), dtype=np.int64)
    called = own_records(policy, index)
    return Dealt(samples, rows, schema.shape, schema.classes, schema.target_range, called)


def difference(first: Admission, later: Admission) -> str:
    """Say in which term a later welcome differs from the first; '' where it deals the same."""
    terms = (
        ("index", first.welcome.index, later.welcome.index),
        ("edges", first.edges, later.edges),
        ("seed", first.seed, later.seed),
    )
    for key, before, now in terms:
        if before != now:
            return f"{key} = {now}, not {before}"
    return "" if first.scenario == later.scenario else "another scenario"


def check_sizes(scenario: Scenario, records: int) -> None:
    """Refuse sizes that a data set of this many records cannot fill, before memory is allocated for them."""
    require(
        scenario.batch_size <= records, "batch_size", scenario.batch_size, f"at most the {records} records"
    )
    if scenario.data.partition == "label":
        pieces = scenario.workers * scenario.data.labels_per_edge
        require(pieces <= records, "edges × data.labels_per_edge", pieces, f"at most the {records} records")


def own_pace(scenario: Scenario) -> int | None:
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


def scenario_budget(scenario: Scenario) -> Budget | None:
    """Return the budget that the run sets for each edge, if any."""
    privacy = scenario.privacy
    if privacy.total_epsilon is None or not scenario.private:
        return None
    return Budget(privacy.total_epsilon, privacy.total_delta)


def identity(scenario: Scenario, dataset: Dataset, shards: int, index: int) -> ShardIdentity:
    """Name the records of shard k, so that every run on them shares one account."""
    cut = cut_of(scenario, shards, _fingerprint(dataset.train.groups))
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
    if (
        data.declared is not None
    ):  # labels, groups and the order of rows are as declared; the checksum is the file's
        cut += f" schema={data.declared.declared.digest[:16]}"
    return cut


def _fingerprint(groups: Indices | None) -> str:
    """Tell one grouping of the records from another: a data set's checksum may not."""
    return "" if groups is None else hashlib.sha256(groups.astype("<i8").tobytes()).hexdigest()[:16]
