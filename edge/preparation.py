"""From a welcome to a worker: the shard, the recipe, the account. What the cloud says is checked here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from common.accounting.releases import Budget, ReleaseKind
from common.datasets.dataset import Dataset
from common.datasets.holdout import with_holdout
from common.dotted import is_dotted
from common.errors import ConfigurationError, require
from common.link import LinkProfile, link_profile
from common.models.registry import make_model
from common.noise import Adjacency, ExponentialNorm, GammaNorm, Gaussian, NoiseLaw, Sampling, noise_law
from common.quantities import RunId
from common.randomness import streams_for
from common.scenario import Scenario, parse_welcome
from common.wire.codec import Admission
from edge.assembly import recipe_for
from edge.ledger import Account, Ledger, ShardIdentity, Standing
from edge.shards import check_shards, shard_rows
from edge.worker import EdgeWorker, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What this edge's operator decided. What is left open the run's scenario decides."""

    noise: str | None = None
    epsilon: float | None = None  # ε_k
    noise_multiplier: float | None = None  # z_k
    budget: Budget | None = None  # (ε, δ) of the whole account
    replace_budget: bool = False  # it binds instead of whatever was set for these records before
    link: LinkProfile | None = None
    allowed: frozenset[str] = field(default_factory=frozenset)  # dotted paths that a run may name
    allow_seed: bool = False  # the run may have a seed, by which its noise can be taken off again

    @property
    def law(self) -> str | None:
        """Name the law: an ε alone asks for gamma-norm noise, a z alone for gaussian; None: no word on noise."""
        if self.noise is None and self.epsilon is not None:
            return GammaNorm.name
        return Gaussian.name if self.noise is None and self.noise_multiplier is not None else self.noise


@dataclass(frozen=True, slots=True)
class Preparation:
    """An edge ready to train."""

    worker: EdgeWorker
    scenario: Scenario
    link: LinkProfile | None


def prepare(
    admission: Admission, run: RunId, wishes: Wishes, ledger: Ledger, load: Callable[[str], Dataset]
) -> Preparation:
    """Check the scenario, take shard k of K, open the account; ConfigurationError where any of it cannot be."""
    scenario = parse_welcome({**admission.scenario, "seed": admission.seed})
    for key, name in (("model.name", scenario.model.name), ("data.set", scenario.data.set)):
        if is_dotted(name) and name not in wishes.allowed:
            raise ConfigurationError(
                f"{key} = {name!r}: the run asks for code of its own; allow it with --allow {name}"
            )
    index, shards = admission.welcome.index, admission.edges
    if shards != scenario.workers:
        raise ConfigurationError(
            f"welcome: edges = {shards}: must be {scenario.workers}, as its scenario says"
        )
    dataset = with_holdout(load(scenario.data.set), scenario.data.holdout)
    check_sizes(scenario, len(dataset.train))
    rows = shard_rows(
        dataset.train.labels,
        partition=scenario.data.partition if shards > 1 else "shared",
        edges=shards,
        index=index,
        seed=admission.seed or 0,
        alpha=scenario.data.alpha,
        labels_per_edge=scenario.data.labels_per_edge,
    )
    check_shards([len(rows)], scenario.batch_size, Sampling(scenario.data.sampler))
    law = law_for(scenario, wishes, index)
    dealt = identity(scenario, dataset, shards, index)
    if admission.seed is not None and not wishes.allow_seed:
        check_seed(admission.seed, wishes, ledger, dealt)
    account = Account(
        run=run,
        shard=dealt,
        kind=ReleaseKind(law, scenario.mechanism, len(rows)),
        budget=wishes.budget or scenario_budget(scenario),
        own_budget=wishes.budget is not None,
        reproducible=admission.seed is not None,
    )
    images, labels = dataset.train.pixels(rows), dataset.train.labels[rows]
    shape, classes = dataset.shape, dataset.classes
    del dataset  # the shard is all that an edge keeps; a model may need the room at once
    model = make_model(scenario.model.name, shape=shape, classes=classes, options=scenario.model.options)
    ledger.open(account, replace_budget=wishes.replace_budget)
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
    link = wishes.link or (link_profile(scenario.links[0].model_dump()) if scenario.links else None)
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


def law_for(scenario: Scenario, wishes: Wishes, index: int) -> NoiseLaw | None:
    """Return how this edge noises: by its operator's word, else as the scenario says for its index.

    Whoever asks for noise gets what protects, or takes no part; only the paper's law may be had by its name.
    """
    if not scenario.private:
        if wishes.law is not None:
            raise ConfigurationError(
                "work.private = False: this run neither clips nor noises, and this edge's"
                " operator asked for noise; take part without --noise, --epsilon and --noise-multiplier, or not at all"
            )
        return None
    if wishes.law is None:
        return scenario.law(index)
    epsilon, multiplier = wishes.epsilon, wishes.noise_multiplier
    if epsilon is None and multiplier is None and wishes.law == scenario.privacy.noise:
        law = scenario.law(index)
    else:
        law = noise_law(wishes.law, epsilon=epsilon, noise_multiplier=multiplier)
    if law is None or wishes.noise == ExponentialNorm.name:
        return law
    guarantee = law.guarantee(scenario.mechanism, Adjacency.ZERO_OUT)
    if not guarantee.is_private:
        raise ConfigurationError(
            f"this edge's operator asked for noise, and this run's would not protect: {guarantee.reason}"
        )
    return law


def check_seed(seed: int, wishes: Wishes, ledger: Ledger, dealt: ShardIdentity) -> None:
    """Refuse noise that anybody can take off again where the operator asks for protection, now or in an earlier run.

    A budget that only a scenario set does not: a seeded run says by itself that it is not private.
    """
    if wishes.budget is not None or wishes.law is not None:
        reason = "this edge's operator set a budget or asked for noise"
    elif any(_keeps_a_budget(standing, dealt) for standing in ledger.standings()):
        reason = "this edge's ledger keeps its operator's budget for these records"
    else:
        return
    raise ConfigurationError(
        f"seed = {seed}: whoever knows a run's seed takes its noise off again, and {reason};"
        " allow it with --allow-seed"
    )


def _keeps_a_budget(standing: Standing, dealt: ShardIdentity) -> bool:
    """Tell whether the operator set a budget for these records, in a run without a seed."""
    account = standing.account
    kept = account.budget is not None and account.own_budget and not account.reproducible
    return kept and account.shard.overlaps(dealt)


def check_sizes(scenario: Scenario, records: int) -> None:
    """Refuse what no data set of so many records asks for, before memory is taken for it."""
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
