"""Auditing with one training run (Steinke, Nasr, Jagielski 2023): many canaries, a coin for each.

The adversary is the cloud: it sees every model and every gradient of the edge, and knows the canaries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cloud.stages import initial_sensitivity
from common.accounting.releases import ReleaseKind, Spent
from common.accounting.total import total
from common.errors import ConfigurationError
from common.messages import SendModel
from common.models.linear import LinearModel
from common.models.model import Features, Model, Targets
from common.quantities import PerSampleGradients, Vector
from common.randomness import Purpose, streams_for
from edge.worker import EdgeWorker, Shard
from experiments.audit.claims import Floats, one_run_epsilon
from experiments.reconstruction import exchanges
from mapa.simulation.simulator import World

_ZEROED = 1_000_000  # added to the target of a sample whose contribution is to be zero
_LOUD = 4.0  # norm of a canary's features in units of the first C: clipped, yet not fitted at once
_CHUNK = 32  # canaries at a time: a sum for each of them costs all of the chunk
_SHARES = (0.1, 0.25, 0.5, 1.0)  # of the canaries that are guessed at; the surest first


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """What one training showed of edge k; with the stated confidence its ε is at least `lower_bound`."""

    canaries: int
    guesses: int
    correct: int
    lower_bound: float  # ε at δ
    claimed: float  # total ε at δ of the releases that were made
    delta: float
    releases: int
    confidence: float

    @property
    def violated(self) -> bool:
        return self.lower_bound > self.claimed


class ZeroingModel:
    """A model that drops the contribution of samples whose target says so."""

    def __init__(self, model: Model) -> None:
        self.name, self.dimension = model.name, model.dimension
        self.layout, self.first_layer, self.metrics = model.layout, model.first_layer, model.metrics
        self.initial, self.evaluate = model.initial, model.evaluate
        self.features, self.targets = model.features, model.targets
        self._model = model

    def gradients(self, x: Vector, features: Features, targets: Targets) -> PerSampleGradients:
        there = targets < _ZEROED
        return self._model.gradients(x, features[there], targets[there])


def audit_one_run(
    world: World,
    *,
    edge: int = 0,
    canaries: int = 1000,
    iterations: int = 500,
    confidence: float = 0.95,
    progress: Callable[[int], None] | None = None,
) -> OneRun:
    """Train once with canaries in edge k's shard and bound its total ε from below."""
    scenario = world.scenario
    if not 0 <= edge < scenario.workers:
        raise ConfigurationError(f"edge = {edge}: must be from 0 to {scenario.workers - 1}")
    if canaries < 1 or iterations < 1:
        raise ConfigurationError(f"canaries = {canaries}, iterations = {iterations}: must be at least 1")
    count = min(canaries, len(world.rows[edge]) // 2)
    if count < 1:
        rows = len(world.rows[edge])
        raise ConfigurationError(f"canaries = {canaries}: edge {edge} has {rows} rows to spare")
    shorter = scenario.model_copy(update={"iterations": min(iterations, scenario.iterations)})
    world = replace(world, scenario=shorter)
    # with secure streams the coins are secure too; a canary's place among the edge's rows is public
    coins = streams_for(scenario.seed).at(edge, Purpose.AUDIT, 0).bit_generator.random_raw(4)
    rng = np.random.default_rng(coins)
    workers = world.workers()
    planted = _plant(world, workers[edge], count, rng)
    scores = np.zeros(count)
    for sent, made in exchanges(world, workers):
        if made.edge_id == workers[edge].edge_id:
            scores += _evidence(world, planted, sent, made.gradient)
            if progress is not None:
                progress(sent.version)
    releases, delta = workers[edge].sequence, scenario.privacy.total_delta
    kind = ReleaseKind(scenario.mechanism(scenario.law(edge)), len(world.rows[edge]))
    guesses, correct, bound = _best(scores, planted.there, delta, 1 - confidence)
    return OneRun(
        canaries=count,
        guesses=guesses,
        correct=correct,
        lower_bound=bound,
        claimed=total([Spent(kind, kind.charges(releases))], delta, replace_one=False).epsilon,
        delta=delta,
        releases=releases,
        confidence=confidence,
    )


@dataclass(frozen=True, slots=True)
class _Planted:
    features: Features
    targets: Targets
    there: np.typing.NDArray[np.bool_]


def _plant(world: World, worker: EdgeWorker, count: int, rng: np.random.Generator) -> _Planted:
    """Put canaries into the last rows of the edge's shard: random directions, so hardly related, random labels."""
    shard = worker.shard
    clip = world.scenario.batch_size * initial_sensitivity(world.scenario.problem) / 2
    shape = world.features.shape[1:]
    directions = rng.standard_normal((count, int(np.prod(shape))))
    directions *= _LOUD * clip / np.linalg.norm(directions, axis=1, keepdims=True)
    features = directions.reshape(count, *shape).astype(np.float32)
    targets = world.targets[rng.integers(len(world.targets), size=count)]
    there = rng.random(count) < 0.5
    own_features, own_targets = shard.features[shard.rows], shard.targets[shard.rows].copy()
    own_features[-count:] = features
    own_targets[-count:] = targets + np.where(there, 0, _ZEROED)
    worker.model = ZeroingModel(world.model)
    worker.shard = Shard(own_features, own_targets, np.arange(len(own_targets)))
    return _Planted(features, targets, there)


def _evidence(world: World, planted: _Planted, sent: SendModel, released: Vector) -> Floats:
    """Return ⟨g̃, c_i⟩/ΔS² for every canary's clipped gradient c_i: the part of the likelihood that tells."""
    bound = world.scenario.batch_size * sent.sensitivity / 2 or 1.0
    gradient = released - np.float32(world.scenario.model.regularization) * sent.model
    products, norms = _products(world.model, sent.model, planted, gradient)
    clipped: Floats = products * np.minimum(1, bound / np.maximum(norms, 1e-12))
    return clipped / bound**2


def _products(model: Model, x: Vector, planted: _Planted, gradient: Vector) -> tuple[Floats, Floats]:
    """Return ⟨g̃, ∇F(x, ξ_i)⟩ and ‖∇F(x, ξ_i)‖ of every canary."""
    if isinstance(model, LinearModel):  # d_i · (G ξ_i): no gradient is formed
        d = model.score_gradient(model.scores(x, planted.features), planted.targets)
        products = np.vecdot(d, model.scores(gradient, planted.features))
        norms = np.linalg.norm(d, axis=1) * np.linalg.norm(planted.features, axis=1)
        return products.astype(np.float64), norms.astype(np.float64)
    along: list[float] = []
    lengths: list[float] = []
    for start in range(0, len(planted.targets), _CHUNK):
        rows = slice(start, start + _CHUNK)
        gradients = model.gradients(x, planted.features[rows], planted.targets[rows])
        lengths += gradients.norms().tolist()
        chosen = np.eye(len(planted.targets[rows]), dtype=np.float32)
        along += [float(gradients.weighted_sum(weights) @ gradient) for weights in chosen]
    return np.array(along), np.array(lengths)


def _best(
    scores: Floats, there: np.typing.NDArray[np.bool_], delta: float, alpha: float
) -> tuple[int, int, float]:
    """Guess "there" for the highest scores and "zeroed" for the lowest; the best of a few numbers of guesses."""
    order = np.argsort(scores)
    results = []
    for share in _SHARES:
        side = max(1, int(len(scores) * share / 2))
        correct = int((~there[order[:side]]).sum() + there[order[-side:]].sum())
        bound = one_run_epsilon(
            canaries=len(scores),
            guesses=2 * side,
            correct=correct,
            delta=delta,
            alpha=alpha / len(_SHARES),
        )
        results.append((bound, 2 * side, correct))
    bound, guesses, correct = max(results)
    return guesses, correct, bound
