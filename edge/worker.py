"""The edge side of algorithm:MAPA: a model in, a noisy gradient out, nothing performed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from common.mechanism.guarantee import Clipping, Sampling
from common.messages import GradientMade, ModelReceived
from common.models.model import Features, Model, Targets
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, Indices, NoisyGradient, Vector, is_finite
from common.randomness import CounterStreams, Purpose
from edge.privacy import check_bound, clip, perturb
from edge.samplers import draw_batch


@dataclass(frozen=True, slots=True)
class Shard:
    """D_k: rows of a pool in the model's own form. In a simulation all edges share one pool."""

    features: Features
    targets: Targets
    rows: Indices

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How an edge turns a batch into a release."""

    batch_size: int  # b
    sampling: Sampling
    clipping: Clipping
    law: NoiseLaw | None  # None: ASGD and CSGD neither clip nor noise
    noised: slice  # coordinates that η covers
    regularization: float  # λ
    stabiliser: float = 0.0  # s of normalised gradients
    steps: int = 1  # E: noised steps, whose mean is one message
    local_rate: float = 0.0  # ρ_local of the steps; γ_local = ρ_local/C
    largest_batch: int | None = None  # B_max of truncated batches


@dataclass(slots=True)
class EdgeWorker:
    """Edge k: its shard, its recipe, and how many gradients it has made."""

    edge_id: EdgeId
    index: int  # k
    model: Model
    shard: Shard
    recipe: Recipe
    streams: CounterStreams
    sequence: int = 0  # of the last gradient made
    diagnose: Callable[[int, float], None] | None = (
        None  # given the draw and ‖g‖ before clipping and noise: NOT private
    )

    def check(self, received: ModelReceived) -> None:
        """Raise RemoteProtocolError where no release could be private under the ΔS that was received."""
        if self.recipe.law is not None:
            check_bound(self.recipe.batch_size * received.sensitivity / 2)

    def receive(self, received: ModelReceived) -> GradientMade:
        """Lines 3-8: make the next gradient on the model that was received."""
        self.sequence += 1
        gradient = self.gradient(received.model, received.sensitivity, self.sequence)
        return GradientMade(
            self.edge_id,
            self.sequence,
            received.version,
            received.sensitivity,
            gradient,
            received.incarnation,
        )

    def gradient(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        """Return message n, made on x: g̃, or with local steps the mean of E of them."""
        with np.errstate(over="ignore", invalid="ignore"):  # a hostile x may overflow; clipping minds it
            if self.recipe.steps == 1:
                return self._release(x, sensitivity, n)
            return self._mean_of_steps(x, sensitivity, n)

    def _mean_of_steps(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        """Return (x⁽⁰⁾ − x⁽ᴱ⁾)/(E·γ_local), where each step is x⁽ᵉ⁾ = x⁽ᵉ⁻¹⁾ − γ_local·g̃_e.

        That is the mean of the g̃_e, and is computed as such. Step e of message n has the draws (n−1)·E + e. All
        that follows a g̃_e is made of it alone, so the E releases are what is charged. A step that would leave
        float32 is not taken: an edge that ended there would tell of releases that nobody was charged for.
        """
        recipe = self.recipe
        bound = recipe.batch_size * sensitivity / 2
        check_bound(bound)
        rate = np.float32(recipe.local_rate / bound)
        first = (n - 1) * recipe.steps + 1
        released = self._release(x, sensitivity, first)
        if not is_finite(released):
            return released  # by λx alone
        total = released.astype(np.float64)
        for draw in range(first + 1, first + recipe.steps):
            there = x - rate * released
            if is_finite(there) and is_finite(np.float32(recipe.regularization) * there):
                x = there
            released = self._release(x, sensitivity, draw)
            total += released
        total /= recipe.steps
        return NoisyGradient(total.astype(np.float32))

    def _release(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        """Return g̃ at x, with the n-th batch and noise."""
        recipe, shard = self.recipe, self.shard
        batch = draw_batch(
            recipe.sampling,
            self.streams,
            self.index,
            n,
            len(shard),
            recipe.batch_size,
            recipe.largest_batch,
        )
        rows = shard.rows[batch]
        # take: the same rows as by indexing, at half its cost
        gradients = self.model.gradients(
            x, shard.features.take(rows, axis=0), shard.targets.take(rows, axis=0)
        )
        if self.diagnose is not None:
            self.diagnose(n, float(np.linalg.norm(gradients.weighted_sum(None))) / recipe.batch_size)
        if recipe.law is None:
            mean = gradients.weighted_sum(None)
            mean /= np.float32(recipe.batch_size)
            mean += np.float32(recipe.regularization) * x
            return NoisyGradient(mean)
        bound = recipe.batch_size * sensitivity / 2
        clipped = clip(
            gradients, recipe.clipping, bound, recipe.batch_size, recipe.law.norm, recipe.stabiliser
        )
        rng = self.streams.at(self.index, Purpose.NOISE, n)
        released = perturb(clipped, recipe.law, sensitivity, recipe.noised, rng)
        # It depends on no sample (D-06). Before the noise, a huge x would round the samples' part to steps
        # that the noise is too small to hide.
        released += np.float32(recipe.regularization) * x
        return released
