"""From a welcome to a worker: the shard, the recipe, the account. What the cloud sends is checked here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.accounting.releases import Budget, ReleaseKind
from common.datasets.dataset import Dataset
from common.dotted import is_dotted
from common.errors import ConfigurationError, require
from common.quantities import RunId
from common.randomness import streams_for
from common.scenario.parts import dataset_for, model_for
from common.scenario.scenario import Scenario, parse_welcome
from common.transport.link import LinkProfile, link_profile
from common.wire.codec import Admission
from edge.assembly import recipe_for, shard_for
from edge.ledger import Account, Ledger, ShardIdentity
from edge.memory import check_model, check_pixels
from edge.policy import OperatorPolicy, Proposal, check_code, law_for, permit
from edge.worker import EdgeWorker, Shard


@dataclass(frozen=True, slots=True)
class Preparation:
    """An edge ready to train."""

    worker: EdgeWorker
    scenario: Scenario
    link: LinkProfile | None


def prepare(
    admission: Admission,
    run: RunId,
    policy: OperatorPolicy,
    ledger: Ledger,
    load: Callable[[str], Dataset],
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
    dataset = dataset_for(scenario, load)
    check_sizes(scenario, len(dataset.train))
    rows = shard_for(scenario, dataset.train.labels, index)
    law = law_for(policy, scenario.law(index))
    kind = ReleaseKind(law, scenario.mechanism, len(rows))
    dealt = identity(scenario, dataset, shards, index)
    proposal = Proposal(kind=kind, shard=dealt, seed=admission.seed)
    permit(policy, proposal, budget_kept=admission.seed is not None and ledger.keeps_budget(dealt))
    account = Account(
        run=run,
        shard=dealt,
        kind=kind,
        budget=policy.budget or scenario_budget(scenario),
        own_budget=policy.budget is not None,
        reproducible=admission.seed is not None,
    )
    check_pixels(scenario, len(rows), math.prod(dataset.shape))
    images, labels = dataset.train.pixels(rows), dataset.train.labels[rows]
    shape, classes = dataset.shape, dataset.classes
    del dataset  # the shard is all that an edge keeps; a model may need the room at once
    model = model_for(scenario, shape, classes, data_dir)
    check_model(scenario, model, images)
    ledger.open(account, replace_budget=policy.replace_budget)
    shard = Shard(model.features(images), model.targets(labels), np.arange(len(rows), dtype=np.int64))
    worker = EdgeWorker(
        edge_id=admission.welcome.edge_id,
        index=index,
        model=model,
        shard=shard,
        recipe=recipe_for(scenario, model, law),
        streams=streams_for(admission.seed),
        sequence=ledger.last_sequence(run),
    )
    link = policy.link or (link_profile(scenario.links[0].model_dump()) if scenario.links else None)
    return Preparation(worker, scenario, None if link is None or link.is_free else link)


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


def scenario_budget(scenario: Scenario) -> Budget | None:
    """Return the budget that the run sets for each edge, if any."""
    privacy = scenario.privacy
    if privacy.total_epsilon is None or not scenario.private:
        return None
    return Budget(privacy.total_epsilon, privacy.total_delta)


def identity(scenario: Scenario, dataset: Dataset, shards: int, index: int) -> ShardIdentity:
    """Name the records of shard k, so that every run on them shares one account."""
    data = scenario.data
    details = {"dirichlet": f" α={data.alpha!r}", "label": f" labels={data.labels_per_edge}"}
    cut = f"{data.partition}{details.get(data.partition, '')} K={shards} seed={scenario.seed or 0}"
    if data.holdout:
        cut += f" holdout={data.holdout}"
    return ShardIdentity(dataset.checksum, cut, index, disjoint=data.partition != "shared")
