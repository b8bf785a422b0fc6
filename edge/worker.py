"""The edge side of algorithm:MAPA: a model in, a noisy gradient out, nothing performed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from common.errors import LocalProtocolError, RemoteProtocolError
from common.mechanism.clipping import check_bound
from common.mechanism.grid import Integers
from common.mechanism.guarantee import Norm
from common.mechanism.mechanism import Mechanism
from common.mechanism.part import check_vector
from common.mechanism.sampler import check_draw
from common.messages import GradientMade, ModelReceived, quick
from common.models.gradients import L1, L2, Powers, known_powers
from common.models.linear import LinearModel
from common.models.model import Features, Model, Targets, feature_length
from common.noise.law import NoiseLaw
from common.quantities import (
    ClippedGradient,
    EdgeId,
    Indices,
    NoisyGradient,
    PerSampleGradients,
    Vector,
    is_finite,
)
from common.randomness import CounterStreams, Purpose
from common.scenario.parts import noised_slice
from common.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Shard:
    """D_k: rows of a pool in the model's own form. In a simulation all edges share one pool."""

    features: Features
    targets: Targets
    rows: Indices
    powers: Powers | None = None  # of the features, by `known_powers_of`; None: they are found batch by batch

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True)
class EdgeWorker:
    """Edge k: its shard, its release mechanism, and how many gradients it has made."""

    edge_id: EdgeId
    index: int  # k
    model: Model
    shard: Shard
    mechanism: Mechanism
    noised: slice  # coordinates that η covers
    regularization: float  # λ
    streams: CounterStreams
    sequence: int = 0  # of the last gradient made
    diagnose: Callable[[int, float], None] | None = None  # takes the draw and ‖g‖ unclipped: NOT private

    def check(self, received: ModelReceived) -> None:
        """Raise RemoteProtocolError where no release could be private under the ΔS that was received."""
        if self.mechanism.law is not None:
            self._check_bound(self.mechanism.batch_size * received.sensitivity / 2)

    def _check_bound(self, bound: float) -> None:
        """Refuse a C that no noise follows, or with sums another than the agreed one: theirs is for that alone."""
        check_bound(bound)
        grid = self.mechanism.grid
        if grid is not None and grid.clip and not math.isclose(bound, grid.clip, rel_tol=1e-9):
            raise RemoteProtocolError(
                f"clipping bound bΔS/2 = {bound:g}: the terms of this run's sums say {grid.clip:g}"
            )

    def receive(self, received: ModelReceived) -> GradientMade:
        """Lines 3-8: make the next gradient on the model that was received."""
        self.sequence += 1
        gradient = self.gradient(received.model, received.sensitivity, self.sequence)
        _, version, sensitivity, _, _, incarnation, _ = received
        made = (self.edge_id, self.sequence, version, sensitivity, gradient, incarnation, None)
        return quick(GradientMade, made)

    @np.errstate(over="ignore", invalid="ignore")  # a hostile x may overflow; clipping minds it
    def gradient(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        """Return message n, made on x of the releases that the mechanism's work asks for; C = bΔS/2.

        Release e of message n has the draws (n−1)·E + e. One beyond E, which nothing was charged for, is not made.
        """
        mechanism = self.mechanism
        bound, steps = mechanism.batch_size * sensitivity / 2, mechanism.steps
        if mechanism.law is not None:
            self._check_bound(bound)
        last = n * steps
        draw = last - steps

        def release(x: Vector) -> NoisyGradient:
            nonlocal draw
            draw += 1
            if draw > last:
                raise LocalProtocolError(
                    f"local.work = {mechanism.work.name!r}: asks for more releases than the {steps} it is charged for"
                )
            return self._release(x, sensitivity, draw)

        made = mechanism.work.message(x, release, bound, self.regularization)
        if ":" in mechanism.work.name:  # of the user's own; no work is at fault for a hostile x
            finite = is_finite(np.float32(self.regularization) * x)
            check_vector(mechanism.work, "local.work", made, x.size, finite=finite)
        return made

    def integers(self, received: ModelReceived) -> Integers:
        """Return the next release as the integers that secure sums mask; λx is public, and the cloud's to add."""
        self.sequence += 1
        x, sensitivity, law = received.model, received.sensitivity, self.mechanism.law
        self._check_bound(self.mechanism.batch_size * sensitivity / 2)
        if law is None or self.mechanism.grid is None or self.mechanism.steps != 1:
            raise LocalProtocolError("integers of a release that has no noise, no grid, or several steps")
        with np.errstate(over="ignore", invalid="ignore"):
            clipped = self._clipped(x, sensitivity, self.sequence, law)
            rng = self.streams.at(self.index, Purpose.NOISE, self.sequence)
            return integers(clipped, self.mechanism, law, sensitivity, rng)

    def _release(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        """Return g̃ at x, with the n-th batch and noise."""
        mechanism = self.mechanism
        b, law = mechanism.batch_size, mechanism.law
        if law is None:
            mean = self._gradients(x, n).weighted_sum(None)
            mean /= np.float32(b)
            mean += np.float32(self.regularization) * x
            return NoisyGradient(mean)
        clipped = self._clipped(x, sensitivity, n, law)
        rng = self.streams.at(self.index, Purpose.NOISE, n)
        if mechanism.grid is not None:
            released = on_grid(clipped, mechanism, law, sensitivity, rng)
        else:
            released = perturb(clipped, law, sensitivity, self.noised, rng)
        # It depends on no sample (D-06). Before the noise, a huge x would round the samples' part to steps
        # that the noise is too small to hide.
        released += np.float32(self.regularization) * x
        return released

    def _gradients(self, x: Vector, n: int) -> PerSampleGradients:
        """Return the gradients of the n-th batch at x."""
        mechanism, shard = self.mechanism, self.shard
        b, sampler = mechanism.batch_size, mechanism.sampler
        drawn = sampler.draw(self.streams, self.index, n, len(shard), b)
        if ":" in sampler.name:  # of one's own: its statement is checked against what it draws
            check_draw(sampler, drawn, len(shard), b)
        rows = shard.rows[drawn]
        # take: the same rows as by indexing, at half its cost
        batch: Any = (shard.features.take(rows, axis=0), shard.targets[rows])
        if shard.powers is not None:
            power, of_features = shard.powers
            batch += ((power, of_features[rows]),)
        gradients = self.model.gradients(x, *batch)
        if self.diagnose is not None:
            self.diagnose(n, float(np.linalg.norm(gradients.weighted_sum(None))) / b)
        return gradients

    def _clipped(self, x: Vector, sensitivity: float, n: int, law: NoiseLaw) -> ClippedGradient:
        """Return the clipped mean of the n-th batch at x."""
        b, clipping = self.mechanism.batch_size, self.mechanism.clipping
        clipped = clipping.clip(self._gradients(x, n), b * sensitivity / 2, b, law.norm)
        if ":" in clipping.name:
            check_vector(clipping, "privacy.clipping", clipped, self.model.dimension)
        return clipped


def perturb(
    gradient: ClippedGradient | Vector,
    law: NoiseLaw,
    sensitivity: float,
    noised: slice,
    rng: np.random.Generator,
) -> NoisyGradient:
    """Add η to the coordinates `noised`; in float64, so that rounding to float32 comes after the noise."""
    start, stop, _ = noised.indices(gradient.size)
    eta = law.draw(sensitivity, stop - start, rng)
    if ":" in law.name:
        check_vector(law, "privacy.noise", eta, stop - start)
    if stop - start == gradient.size:
        eta += gradient
        return NoisyGradient(eta.astype(np.float32))
    released = gradient.astype(np.float32)
    released[start:stop] = (eta + gradient[start:stop]).astype(np.float32)
    return NoisyGradient(released)


def known_powers_of(model: Model, law: NoiseLaw | None, features: Features) -> Powers | None:
    """Return what the gradients of a linear model are measured by, of each row; None: they are another's, or hard.

    Nothing of a user's own sees the features on their way into the gradients, so they are what was measured.
    """
    if law is None or not isinstance(model, LinearModel):
        return None
    if type(model).gradients is not LinearModel.gradients or type(model).scores is not LinearModel.scores:
        return None
    return known_powers(features, L2 if law.norm is Norm.L2 else L1)


def integers(
    gradient: ClippedGradient,
    mechanism: Mechanism,
    law: NoiseLaw,
    sensitivity: float,
    rng: np.random.Generator,
) -> Integers:
    """Return rint(s·Σ clipped g) + noise, what is released on a grid; with sums, what is masked."""
    grid, b = mechanism.grid, mechanism.batch_size
    assert grid is not None
    total = np.multiply(gradient, b, dtype=np.float64)
    return grid.release(total, law.parameters["noise_multiplier"], b * sensitivity / 2, rng)


def on_grid(
    gradient: ClippedGradient,
    mechanism: Mechanism,
    law: NoiseLaw,
    sensitivity: float,
    rng: np.random.Generator,
) -> NoisyGradient:
    """Return the same as a mean in float32: of the integers alone, so whatever is rounded here tells nothing more."""
    made, grid, b = integers(gradient, mechanism, law, sensitivity, rng), mechanism.grid, mechanism.batch_size
    assert grid is not None
    return NoisyGradient((made / (grid.scale(b * sensitivity / 2) * b)).astype(np.float32))


def worker_for(
    scenario: Scenario,
    model: Model,
    law: NoiseLaw | None,
    *,
    edge_id: EdgeId,
    index: int,
    shard: Shard,
    streams: CounterStreams,
    sequence: int = 0,
) -> EdgeWorker:
    """Return the edge that a scenario describes; `law` is its own where it has one."""
    mechanism = scenario.mechanism(law)
    clipping = mechanism.clipping.fitted(feature_length(model) or 0.0)
    return EdgeWorker(
        edge_id=edge_id,
        index=index,
        model=model,
        shard=shard,
        mechanism=replace(mechanism, clipping=clipping),
        noised=noised_slice(scenario, model),
        regularization=scenario.model.regularization,
        streams=streams,
        sequence=sequence,
    )
