"""What this edge's operator permits. Pure: whether a welcome may be followed is decided here and nowhere else.

What a budget still permits is the ledger's business; that no two edges spend it at once is decided here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from common.accounting.releases import Budget, ReleaseKind
from common.datasets.source import DECLARED, LOCAL
from common.errors import ConfigurationError, require
from common.mechanism.guarantee import MOST_STEPS, Adjacency
from common.noise.law import NoiseLaw
from common.noise.registry import describe_law, implied_law, noise_law, paced_law
from common.own_code import is_dotted
from common.transport.link import LinkProfile
from common.wire.codings.registry import CODINGS
from edge.ledger import ShardIdentity

_ROUNDING = 1e-9  # z·(1/b)·b is not z to the last bit
# Of one release: weaker noise counts as none, or a cloud could ask for z = 1e-9 instead. At either bound a single
# release may show, with an error below 1e-6, whether a record of its batch is in it.
LEAST_MULTIPLIER, MOST_EPSILON = 0.1, 20.0
_REMEDY = (
    "privacy.clipping = 'per-sample' with data.sampler = 'poisson' or 'shuffled' gives what was asked for"
)


class PolicyError(ConfigurationError):
    """The operator does not permit what a run asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPolicy:
    """What this edge's operator decided. What is left open the run's scenario decides.

    The parameters are also a floor: every single release guarantees at least what they promise, under zero-out
    adjacency (a sample's contribution set to zero) and before amplification by sampling. The budget is a ceiling on
    what all releases of a record cost it, whichever edges of this state directory made them.
    """

    noise: str | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)  # of the law: ε_k, z_k
    budget: Budget | None = None  # (ε, δ) of the records
    replace_budget: bool = False  # it replaces earlier budgets for these records
    link: LinkProfile | None = None
    coding: str | None = None  # that it asks for, both ways: a run need not offer it
    allowed: frozenset[str] = field(default_factory=frozenset)  # dotted paths that a run may name
    allow_seed: bool = False  # the run may be seeded, and is then not private
    allow_unprotected: bool = False  # releases of the owner's records may have no noise that protects them
    least_in_sums: float | None = (
        None  # z of a sum at least; its own floor `parameters` are for releases on their own
    )
    most_steps: int = MOST_STEPS  # local steps that a run may ask for: so long this edge works on one message
    data_name: str | None = None  # of the records that this edge brings itself; None: it brings none

    def __post_init__(self) -> None:
        allowed = f"one of {', '.join(CODINGS)}"
        require(self.coding is None or self.coding in CODINGS, "coding", self.coding, allowed)

    @property
    def law(self) -> str | None:
        """Name the law: an ε alone asks for gamma-norm noise, a z alone for gaussian; None: no word on noise."""
        return implied_law(self.parameters) if self.noise is None and self.parameters else self.noise

    @property
    def asks_for_a_guarantee(self) -> bool:
        """Tell whether releases must be private at all: the paper's law, asked for by its name, never is."""
        return self.law is not None and describe_law(self.law).made.protects


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a welcome would have this edge do with its records."""

    kind: ReleaseKind  # its law is None where the run neither clips nor noises
    owned: bool  # the records are the owner's (`is_owned`), not a public data set that is known by its name
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A shard that a living edge of the same state directory may release."""

    slot: str  # its directory's name
    shard: ShardIdentity
    budgeted: bool  # an operator's budget is in force for it


def law_for(
    policy: OperatorPolicy, of_run: NoiseLaw | None, *, paced: bool = False, summed: bool = False
) -> NoiseLaw | None:
    """Return how this edge noises: by its operator's word, else as the run does; None: the run never noises.

    Where it has a pace of its own (`paced`), z_k is the run's or its operator's, whichever is larger. Where releases
    are `summed`, all edges have equal shares: the operator's parameters are a floor alone.
    """
    if of_run is None or policy.law is None or summed:
        return of_run
    if paced:
        return paced_law(of_run, policy.law, policy.parameters)
    if not policy.parameters and policy.law == of_run.name:
        return of_run
    return noise_law(policy.law, policy.parameters)


def permit(policy: OperatorPolicy, proposal: Proposal, *, budget_kept: bool) -> None:
    """Raise PolicyError unless the operator permits it.

    `budget_kept` is what the ledgers say: the operator set a budget for these records in a run without a seed.
    """
    steps, reason = proposal.kind.mechanism.steps, _weakness(proposal.kind)
    if steps > policy.most_steps:
        raise PolicyError(
            f"local.steps = {steps}: every message of this run takes {steps} gradients, each charged as a release, and"
            f" this edge makes at most {policy.most_steps}; permit more with --most-local-steps {steps}"
        )
    _check_noise(policy, proposal.kind)
    _check_sums(policy, proposal.kind)
    if proposal.owned and reason and not policy.allow_unprotected:
        raise PolicyError(
            f"this run would release this edge's own records without protection: {reason}; permit it with"
            " --allow-unprotected"
        )
    _check_seed(policy, proposal, budget_kept=budget_kept)


def exposure(proposal: Proposal) -> str:
    """Say why what leaves this edge would not be protected; '' where noise protects it."""
    if reason := _weakness(proposal.kind):
        return reason
    if proposal.seed is not None:
        return f"seed = {proposal.seed}: anyone who knows it, the cloud for one, can subtract the noise"
    return ""


def is_owned(data_set: str) -> bool:
    """Tell whether a data.set is of records that only their owner may release: files and classes, not a known name."""
    return data_set in DECLARED or is_dotted(data_set)


def check_code(policy: OperatorPolicy, key: str, name: str) -> None:
    """Raise PolicyError where a run names code of its own that the operator did not allow."""
    if is_dotted(name) and name not in policy.allowed:
        raise PolicyError(f"{key} = {name!r}: the run asks for code of its own; allow it with --allow {name}")


def check_data(policy: OperatorPolicy, name: str) -> None:
    """Raise PolicyError unless the run is about this edge's own records, or it brings none."""
    if name == LOCAL and policy.data_name is None:
        raise PolicyError(
            f"data.set = {LOCAL!r}: in this run every edge brings its own records; take part with --data FILE"
        )
    if name != LOCAL and policy.data_name is not None:
        raise PolicyError(
            f"--data: this run is about data.set = {name!r}, not about records that edges bring themselves; take part"
            f" without --data, or in a run with data.set = {LOCAL!r}"
        )


def own_records(policy: OperatorPolicy, index: int) -> ShardIdentity:
    """Name the records of --data: those of one name are one account, whatever is added, removed or changed.

    They count as shards of a cut that share records, so all releases under the name add up for each of them.
    """
    assert policy.data_name is not None  # check_data
    return ShardIdentity(f"{LOCAL}:{policy.data_name}", LOCAL, index, disjoint=False)


def check_number(given: int, *, at_least: int) -> None:
    """Raise PolicyError where this edge has fewer records than the run's noise was computed for."""
    if given < at_least:
        raise PolicyError(
            f"--data: {given} records, and this run needs at least {at_least} of every edge (batch_size,"
            " data.schema.records_at_least): of fewer, each is used more often than the noise was computed for"
        )


def check_claims(mine: Claim, others: Iterable[Claim]) -> None:
    """Raise PolicyError where another edge may release the same records, and a budget is in force for either.

    Each ledger's cap is found once, from what was spent before: two that are spent at the same time could
    together pass the budget.
    """
    for other in others:
        if not (mine.budgeted or other.budgeted) or not mine.shard.overlaps(other.shard):
            continue
        slot = f"the edge in slot {other.slot!r} of this state directory"
        rule = "under --total-epsilon no two edges release the same records at the same time"
        kind, _, name = mine.shard.dataset.partition(":")
        if kind == LOCAL:
            raise PolicyError(
                f"--data: {slot} releases records of --data-name {name}, too, and all records of one name count as the"
                f" same; {rule}. Where these are other records, give each edge its own --state-dir; else take part"
                " after that edge has ended"
            )
        raise PolicyError(
            f"shard {mine.shard.index} ({mine.shard.partition}): {slot} holds shard {other.shard.index}"
            f" ({other.shard.partition}), and a record may lie in both; {rule}. Take part after that edge has ended,"
            " or in a run whose shards are disjoint"
        )


def _check_noise(policy: OperatorPolicy, kind: ReleaseKind) -> None:
    """Refuse a run whose releases guarantee less than the operator asked for."""
    if kind.law is None and policy.law is not None:
        raise PolicyError(
            "work.private = False: this run neither clips nor noises, and this edge's operator asked for noise;"
            " take part without --noise and its parameters, or not at all"
        )
    if not policy.asks_for_a_guarantee:
        return
    given = kind.guarantee(Adjacency.ZERO_OUT)
    if not given.is_private:
        raise PolicyError(
            f"this edge's operator asked for noise, and this run's would not protect: {given.reason}"
        )
    if policy.parameters and policy.law is not None:
        promise = noise_law(policy.law, policy.parameters).promise()
        least, most = promise.noise_multiplier, promise.epsilon
        if most is not None and not (given.epsilon is not None and given.epsilon <= most * (1 + _ROUNDING)):
            raise _below_the_floor(policy, kind, "ε", given.epsilon, f"most {most:g}")
        z = given.noise_multiplier
        if least is not None and not (z is not None and z >= least * (1 - _ROUNDING)):
            raise _below_the_floor(policy, kind, "z", z, f"least {least:g}")


def _check_sums(policy: OperatorPolicy, kind: ReleaseKind) -> None:
    """Refuse sums that hide less than the operator asked for, with t helpers and a edges on the cloud's side."""
    least = policy.least_in_sums
    if least is None or not kind.is_summed:
        return
    z = kind.in_sums.guarantee(Adjacency.ZERO_OUT).noise_multiplier
    if z is None or not z >= least * (1 - _ROUNDING):
        raise PolicyError(
            f"--least-in-sums {least:g}: a sum of this run guarantees z = {z}, with as many edges on the cloud's side"
            " as privacy.colluding says; must be at least that"
        )


def _below_the_floor(
    policy: OperatorPolicy, kind: ReleaseKind, symbol: str, given: float | None, must: str
) -> PolicyError:
    """Refuse a release that guarantees less than was asked for, or something that cannot be compared with it."""
    options = {"epsilon": "--epsilon ", "noise_multiplier": "--noise-multiplier "}
    asked = " ".join(
        f"{options.get(name, f'--noise-parameter {name}=')}{value:g}"
        for name, value in policy.parameters.items()
    )
    has = "no such guarantee" if given is None else f"{symbol} = {given:g}"
    mechanism = kind.mechanism
    return PolicyError(
        f"{asked}: one release of this run guarantees {has} under zero-out adjacency, before"
        f" amplification, with privacy.clipping = {mechanism.clipping.name!r}, data.sampler ="
        f" {mechanism.sampler.name!r} and batch_size = {mechanism.batch_size}; must be at {must}. {_REMEDY}"
    )


def _weakness(kind: ReleaseKind) -> str:
    """Say why one release has no noise that protects it, before amplification; '' where it has."""
    guarantee = kind.guarantee(Adjacency.ZERO_OUT)
    if not guarantee.is_private:
        return guarantee.reason
    epsilon, multiplier = guarantee.epsilon, guarantee.noise_multiplier
    if epsilon is not None and not epsilon <= MOST_EPSILON * (1 + _ROUNDING):
        return f"the noise is as good as none: one release costs ε = {epsilon:g}, more than {MOST_EPSILON:g}"
    if multiplier is not None and not multiplier >= LEAST_MULTIPLIER * (1 - _ROUNDING):
        return f"the noise is as good as none: one release has z = {multiplier:g}, less than {LEAST_MULTIPLIER:g}"
    return ""


def _check_seed(policy: OperatorPolicy, proposal: Proposal, *, budget_kept: bool) -> None:
    """Refuse noise that anybody can subtract from the owner's records, or where the operator asks for protection.

    The operator's budget may be of an earlier run. One that only a scenario set does not count: a seeded run says
    by itself that it is not private.
    """
    if proposal.seed is None or policy.allow_seed:
        return
    if policy.budget is not None or policy.law is not None:
        reason = "this edge's operator set a budget or asked for noise"
    elif budget_kept:
        reason = "this edge's operator has set a budget for these records before"
    elif proposal.owned and proposal.kind.law is not None:
        reason = "these records are this edge's own"
    else:
        return
    raise PolicyError(
        f"seed = {proposal.seed}: whoever knows a run's seed can subtract its noise, and {reason};"
        " allow it with --allow-seed"
    )
