"""A model, a data set and an algorithm of one's own, named by dotted path in `own.toml` beside this file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from mapa import algorithms, data, models


class SquaredHinge(models.TwoWayModel):
    """F = max(0, 1 − y s)²/2 with the score s = ⟨x, ξ⟩: what its loss and dloss/dscore are is all it says."""

    name = "squared-hinge"

    def losses(self, scores: models.Features, targets: models.Targets) -> models.Features:
        losses: models.Features = np.square(np.maximum(1 - targets * scores[..., 0], 0)) / 2
        return losses

    def score_gradient(self, scores: models.Features, targets: models.Targets) -> models.Features:
        slopes: models.Features = -targets[..., None] * np.maximum(1 - targets[..., None] * scores, 0)
        return slopes


class TwoRings:
    """Dark and bright 8×8 rings in noise, always the same ones: 2,000 to train on and 500 to test."""

    def load(self, data_dir: Path) -> data.Dataset:  # noqa: ARG002 - nothing is stored
        rng, radius = np.random.default_rng(7), np.hypot(*np.mgrid[-3.5:4.5, -3.5:4.5]).reshape(64)
        labels = rng.integers(0, 2, 2500)
        rings = np.where(np.abs(radius - np.where(labels, 1.5, 3.5)[:, None]) < 1, 0.6, 0.4)
        pixels = np.rint(255 * rng.normal(rings, 0.2).clip(0, 1)).astype(np.uint8)
        train, test = (data.Samples(pixels[rows], labels[rows]) for rows in (np.s_[:2000], np.s_[2000:]))
        checksum = hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()
        return data.Dataset("two-rings", (8, 8), 2, train, test, checksum)


@dataclass(frozen=True, slots=True)
class Damped(algorithms.Algorithm):
    """A step of ρ/C that shrinks with the gradient's staleness τ: ρ/C · (1 + τ)^−a."""

    private: ClassVar[bool] = True  # its edges clip and noise: there is no default
    needs_constants: ClassVar[bool] = False
    requires: ClassVar = ("first_clip",)
    rate: float = algorithms.option("ρ", above=0)
    power: float = algorithms.option("a", 0.5, at_least=0)
    sensitivity: float = 0.0  # state: ΔS
    step: float = 0.0  # state: ρ/C

    def begin(self, problem: algorithms.Problem, moment: float) -> Self:  # noqa: ARG002
        bound = algorithms.initial_sensitivity(problem)
        return replace(self, sensitivity=bound, step=2 * self.rate / (bound * problem.batch_size))

    def apply(self, x: algorithms.Vector, update: algorithms.Update) -> tuple[algorithms.Vector, Self]:
        return algorithms.descend(x, update.gradient, self.step * (1 + update.staleness) ** -self.power), self
