"""Releases of the real EdgeWorker under each law, each ε and each clipping, and what they give away."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.accounting.budget import calibrate
from common.accounting.releases import Budget
from common.errors import ConfigurationError
from common.mechanism.clipping import Clipping
from common.mechanism.clippings.batch_mean import BatchMean
from common.mechanism.clippings.per_sample import PerSample
from common.mechanism.mechanism import Mechanism
from common.mechanism.samplers.shuffled import Shuffled
from common.messages import SendModel
from common.noise.law import NoiseLaw
from common.noise.registry import noise_law
from edge.worker import EdgeWorker
from experiments.attack.inversion import Head, Picture, head_of, infer_target, invert
from experiments.attack.similarity import correlation, psnr, ssim
from experiments.attack.trajectory import models_at
from mapa.simulation.world import World

IN_THE_CLEAR = "none"
LAWS = ("exponential-norm", "gamma-norm", "gaussian")
DELTA = 1e-5
PUBLISHED = (PerSample(), BatchMean())  # of the published tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of the grid: means over several releases, and the picture of one of them."""

    clipping: str
    law: str
    epsilon: float | None  # nominal ε of one release; None: no noise
    t: int
    psnr: float | None  # None: features, not pixels
    ssim: float | None
    correlation: float
    label_accuracy: float
    picture: Picture
    truth: Picture
    correlations: tuple[float, ...]  # |r| of each release


def nominal_law(name: str, epsilon: float, batch_size: int) -> NoiseLaw:
    """Return the law whose single release is ε-DP when one sample is replaced, a move of ΔS.

    exponential-norm is not, but this is what the paper calls ε. The gaussian's z counts from C/b = ΔS/2,
    so it is twice the least noise multiplier for (ε, 1e-5).
    """
    if name != "gaussian":
        return noise_law(name, {"epsilon": epsilon})
    mechanism = Mechanism(None, batch_size, Shuffled())
    z = calibrate(Budget(epsilon, DELTA), mechanism, releases=1, shard_size=batch_size)
    return noise_law("gaussian", {"noise_multiplier": 2 * z})


def attack(
    world: World,
    *,
    epsilons: Sequence[float],
    iterations: Sequence[int],
    batch_size: int = 1,
    releases: int = 10,
    laws: Sequence[str] = LAWS,
    clippings: Sequence[Clipping] = PUBLISHED,
    retrain: bool = False,
) -> list[Cell]:
    """Reconstruct edge 0's images from its gradients at x_t, one cell for each law, ε, t and clipping.

    One training of the scenario gives x_t and the bound C = bΔS/2 at t, the same for all cells, so that
    they differ in the release alone. With `retrain` each ε has a training of its own, as in the paper's figure.
    ΔS is 2C over the batch size of the attack.
    """
    if batch_size < 1 or releases < 1 or batch_size * releases > len(world.rows[0]):
        raise ConfigurationError(
            f"batch_size = {batch_size}, releases = {releases}: edge 0 has {len(world.rows[0])} images"
        )
    head = head_of(world.model)
    trained: dict[float | None, list[SendModel]] = {None: models_at(world, iterations)}
    if retrain:
        trained |= {epsilon: models_at(_trained_with(world, epsilon), iterations) for epsilon in epsilons}
    noised: list[tuple[str, float | None, NoiseLaw | None]] = [(IN_THE_CLEAR, None, None)]
    if world.scenario.private:
        noised += [(name, e, nominal_law(name, e, batch_size)) for e in epsilons for name in laws]
    cells = []
    for clipping in clippings:
        shown = 0  # the same sample in every picture
        for name, epsilon, law in noised:
            rows = []
            for sent in trained.get(epsilon, trained[None]):
                worker = _worker(world, law, clipping, batch_size)
                rows.append([_one(world, head, worker, sent, n) for n in range(1, releases + 1)])
            if law is None:
                # a fitted sample of the SVM has no gradient: show one that has, where there is one
                worst = [min(outcome.correlation for outcome in column) for column in zip(*rows, strict=True)]
                shown = next((n for n, r in enumerate(worst) if r > 0), 0)
            cells += [
                _mean(outcomes, shown, clipping.name, name, epsilon, t)
                for t, outcomes in zip(iterations, rows, strict=True)
            ]
    return cells


def _trained_with(world: World, epsilon: float) -> World:
    """Return the world whose edges spend this ε on each release; refuse where its law has none."""
    scenario = world.scenario
    if scenario.privacy.epsilon is None:
        raise ConfigurationError(f"privacy.noise = {scenario.privacy.noise!r}: has no ε to train with")
    privacy = scenario.privacy.model_copy(update={"epsilon": (epsilon,)})
    return replace(world, scenario=scenario.model_copy(update={"privacy": privacy}))


@dataclass(frozen=True, slots=True)
class _Outcome:
    guess: Picture
    truth: Picture
    label_right: bool
    psnr: float
    ssim: float
    correlation: float


def _worker(world: World, law: NoiseLaw | None, clipping: Clipping, batch_size: int) -> EdgeWorker:
    """Return edge 0 with another mechanism; shuffled, since a Poisson batch of one is empty as often as not."""
    worker = world.workers()[0]
    worker.mechanism = Mechanism(law, batch_size, Shuffled(), clipping)
    return worker


def _one(world: World, head: Head, worker: EdgeWorker, sent: SendModel, n: int) -> _Outcome:
    model, shard, b = world.model, worker.shard, worker.mechanism.batch_size
    bound = world.scenario.batch_size * sent.sensitivity / 2  # C
    worker.sequence = n - 1
    released = worker.receive(replace(sent, sensitivity=2 * bound / b)).gradient
    # the observer knows x_t, which depends on no sample of this batch, and takes λx_t off
    gradient = released - np.float32(worker.regularization) * sent.model
    guess = invert(head, model, gradient)
    target = infer_target(head, model, gradient)
    batch = worker.mechanism.sampler.draw(worker.streams, worker.index, n, len(shard), b)
    rows = shard.rows[batch]
    truths = list(_truths(world, head, sent, rows.tolist()))
    nearest = max(truths, key=lambda truth: correlation(truth, guess))
    right = target in shard.targets[rows]
    if not head.sees_pixels:
        return _Outcome(guess, nearest, right, math.nan, math.nan, correlation(nearest, guess))
    shape = world.dataset.shape
    return _Outcome(
        guess,
        nearest,
        right,
        psnr(nearest, guess),
        ssim(nearest.reshape(shape), guess.reshape(shape)),
        correlation(nearest, guess),
    )


def _truths(world: World, head: Head, sent: SendModel, rows: Sequence[int]) -> Iterator[Picture]:
    """Yield what a perfect inversion of each sample would give: its pixels, or its features."""
    for row in rows:
        if head.sees_pixels:
            yield world.features[row, :-1].astype(np.float64)
        else:
            one = slice(row, row + 1)
            exact = world.model.gradients(sent.model, world.features[one], world.targets[one])
            yield invert(head, world.model, exact.weighted_sum(None))


def _mean(
    outcomes: Sequence[_Outcome], shown: int, clipping: str, law: str, epsilon: float | None, t: int
) -> Cell:
    def mean(name: str) -> float | None:
        value = float(np.mean([getattr(outcome, name) for outcome in outcomes]))
        return None if math.isnan(value) else value

    return Cell(
        clipping=clipping,
        law=law,
        epsilon=epsilon,
        t=t,
        psnr=mean("psnr"),
        ssim=mean("ssim"),
        correlation=mean("correlation") or 0.0,
        label_accuracy=mean("label_right") or 0.0,
        picture=outcomes[shown].guess,
        truth=outcomes[shown].truth,
        correlations=tuple(outcome.correlation for outcome in outcomes),
    )
