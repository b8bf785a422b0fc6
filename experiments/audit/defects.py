"""Defects, each planted in a real edge: in its law, its streams, its gradients, its mechanism or its release.

One list: every defect names the mechanism that is claimed, and is put to the battery of that mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from common.mechanism.clippings.batch_mean import BatchMean
from common.mechanism.clippings.normalised import Normalised
from common.mechanism.clippings.quantile import QuantileClipping
from common.mechanism.guarantee import Norm
from common.mechanism.mechanism import Mechanism
from common.mechanism.samplers.shuffled import Shuffled
from common.mechanism.samplers.truncated_poisson import TruncatedPoisson
from common.mechanism.samplers.with_replacement import WithReplacement
from common.mechanism.work.local_steps import LocalSteps
from common.models.gradients import Matrix, RowGradients
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.laplace import Laplace
from common.noise.law import Noise
from common.quantities import Floats, NoisyGradient, PerSampleGradients, Vector
from common.randomness import CounterStreams, Purpose
from edge.worker import EdgeWorker, perturb
from experiments.audit.battery import battery
from experiments.audit.design import CLIP, Altered, Plant, silent, written
from experiments.audit.game import Game

ROUNDS = 8000
SHARD = 800  # n_k, as quickstart's
LOCAL_STEPS = 4
_S = 0.28  # s of normalised gradients
_B = 4

# What no observer of the releases could see, each with the reason.
INVISIBLE: dict[str, str] = {}


# ---- the mechanism


def on(part: str, change: Callable[[Any], Any]) -> Plant:
    def plant(worker: EdgeWorker) -> EdgeWorker:
        setattr(worker, part, change(getattr(worker, part)))
        return worker

    return plant


def mechanism(**changes: Any) -> Plant:
    """Return a plant of a mechanism that has other parts than are claimed."""
    return on("mechanism", lambda claimed: replace(claimed, **changes))


def noise(change: Callable[[Noise], Noise]) -> Plant:
    """Return a plant of noise that is not what the law draws."""
    return on("mechanism", lambda claimed: replace(claimed, law=Altered(claimed.law, change)))


def muted(coordinates: Callable[[int], slice]) -> Plant:
    """Return a plant of noise that misses some coordinates, given N."""

    def silenced(eta: Noise) -> Noise:
        eta[coordinates(eta.size)] = 0
        return eta

    return noise(silenced)


class InL2(Laplace):
    """Laplace noise whose gradients are clipped in the wrong norm."""

    norm: ClassVar[Norm] = Norm.L2


def twice_the_steps(claimed: Mechanism) -> Mechanism:
    steps = claimed.steps
    return claimed if steps == 1 else replace(claimed, work=LocalSteps(steps=2 * steps).audited())


# ---- gradients, as clipping measures and sums them

_C = np.float32(CLIP)


def gradients(form: Callable[[Matrix, int], PerSampleGradients]) -> Plant:
    """Return a plant between model and clipping, given the rows and b."""

    def plant(worker: EdgeWorker) -> EdgeWorker:
        b = worker.mechanism.batch_size
        written(worker.model).form = lambda rows: form(rows, b)
        return worker

    return plant


class Measured(RowGradients):
    """Gradients whose norm, in either sense, is measured wrongly."""

    def __init__(self, rows: Matrix, wrong: Callable[[Floats, Matrix], Floats]) -> None:
        super().__init__(rows)
        self._wrong = wrong

    def norms(self) -> Floats:
        return self._wrong(super().norms(), self._x)

    def l1_norms(self) -> Floats:
        return self._wrong(super().l1_norms(), self._x)


def measured(wrong: Callable[[Floats, Matrix], Any]) -> Plant:
    """Return a plant of gradients that are measured wrongly, given their norms and the rows."""
    return gradients(lambda rows, _: Measured(rows, wrong))


class Scaled(RowGradients):
    """A sum that is to be divided by b, made so that something else comes out."""

    def __init__(self, rows: Matrix, factor: float) -> None:
        super().__init__(rows)
        self._factor = np.float32(factor)

    def weighted_sum(self, weights: Floats | None) -> Floats:
        return super().weighted_sum(weights) * self._factor


def by_realised_size(rows: Matrix, batch_size: int) -> PerSampleGradients:
    """Divide by the number of samples at hand; a zeroed record is none."""
    return Scaled(rows, batch_size / max(1, int(rows.any(axis=1).sum())))


def each_layer(rows: Matrix, _: int) -> PerSampleGradients:
    """Clip each of four layers to the whole bound C, and nothing else."""
    layers = rows.reshape(len(rows), 4, rows.shape[1] // 4)
    norms = np.linalg.norm(layers, axis=2, keepdims=True)
    clipped = (layers * (CLIP / np.maximum(norms, CLIP))).reshape(rows.shape).astype(np.float32)
    return Measured(clipped, lambda norms, _: np.minimum(norms, np.float32(CLIP / 2)))


# ---- streams

At = Callable[[Purpose, int], np.random.Generator]  # of honest streams


class Redirected(CounterStreams):
    def __init__(self, honest: CounterStreams, answer: Callable[[At, Purpose, int], Any]) -> None:
        super().__init__(honest._key, reproducible=honest.reproducible)
        self._answer = answer

    def at(self, edge: int, purpose: Purpose, n: int) -> Any:
        return self._answer(partial(super().at, edge), purpose, n)


def streams(answer: Callable[[At, Purpose, int], Any]) -> Plant:
    """Return a plant of other streams of the same key."""
    return on("streams", lambda honest: Redirected(honest, answer))


def noise_number(number: Callable[[int], int]) -> Plant:
    """Return a plant of noise that is of another release."""
    return streams(lambda at, purpose, n: at(purpose, number(n) if purpose is Purpose.NOISE else n))


def one_batch(at: At, purpose: Purpose, n: int) -> np.random.Generator:
    return at(purpose, {Purpose.BATCH: 1, Purpose.EPOCH: 0}.get(purpose, n))


def doubled_rate(at: At, purpose: Purpose, n: int) -> Any:
    rng = at(purpose, n)
    if purpose is not Purpose.BATCH:
        return rng
    return SimpleNamespace(
        choice=rng.choice, binomial=lambda trials, rate: int(rng.binomial(trials, min(1.0, 2 * rate)))
    )


class _Including:
    row = 2

    def __init__(self, rng: np.random.Generator, batch_size: int) -> None:
        self._rng, self._batch_size = rng, batch_size
        self.binomial = rng.binomial

    def choice(self, size: int, count: int, **how: Any) -> npt.NDArray[np.int64]:
        chosen = self._rng.choice(size, count, **how)
        if self.row < size and self.row not in chosen:
            chosen = np.append(chosen[1:], self.row)
        return chosen

    def permutation(self, size: int) -> npt.NDArray[np.int64]:
        order = self._rng.permutation(size)
        if self.row < size and size > self._batch_size:
            order[:: self._batch_size] = self.row
        return order


def always_there(worker: EdgeWorker) -> EdgeWorker:
    """Plant one record, not the first of the shard, into every batch."""
    b = worker.mechanism.batch_size

    def including(at: At, purpose: Purpose, n: int) -> Any:
        draws = purpose in (Purpose.BATCH, Purpose.EPOCH)
        return _Including(at(purpose, n), b) if draws else at(purpose, n)

    return streams(including)(worker)


# ---- releases


def edge(kind: type[EdgeWorker]) -> Plant:
    return lambda worker: kind(**{field.name: getattr(worker, field.name) for field in fields(worker)})


def bare(where: Callable[[int, int], bool]) -> Plant:
    """Return a plant of some releases without noise, given n and the local steps of a message."""

    class SometimesBare(EdgeWorker):
        def _release(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
            whole = self.mechanism
            if whole.law is not None and where(n, whole.steps):
                self.mechanism = replace(whole, law=silent(whole.law))
            try:
                return EdgeWorker._release(self, x, sensitivity, n)
            finally:
                self.mechanism = whole

    return edge(SometimesBare)


class _OwnRelease(EdgeWorker):
    def _of_batch(self, x: Vector, n: int) -> PerSampleGradients:
        shard, b = self.shard, self.mechanism.batch_size
        rows = shard.rows[self.mechanism.sampler.draw(self.streams, self.index, n, len(shard), b)]
        return self.model.gradients(x, shard.features[rows], shard.targets[rows])

    def _noised(self, gradient: Vector, sensitivity: float, n: int) -> NoisyGradient:
        assert self.mechanism.law is not None
        rng = self.streams.at(self.index, Purpose.NOISE, n)
        return perturb(gradient, self.mechanism.law, sensitivity, self.noised, rng)


class ClipsAfterNoise(_OwnRelease):
    """Noise first, then clip the noisy mean: what is released is bounded, what one sample does is not."""

    def gradient(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        mean = self._of_batch(x, n).weighted_sum(None)
        mean /= np.float32(self.mechanism.batch_size)
        noisy = self._noised(mean, sensitivity, n)
        return NoisyGradient(noisy / np.float32(max(1.0, float(np.linalg.norm(noisy)) / CLIP)))


class CountsTenfold(_OwnRelease):
    """Count each sample ten times as long as its part of C allows."""

    def gradient(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        planned = self.mechanism
        assert planned.law is not None
        counted = planned.clipping.clip(self._of_batch(x, n), CLIP, planned.batch_size, planned.law.norm)
        counted[-1] *= 10
        return self._noised(counted, sensitivity, n)


class ClipsInFloat32(_OwnRelease):
    """Measure in float32 whatever ΔS is: where squares leave it, every norm is 0 and nothing is clipped."""

    def gradient(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        tiny = np.float32(1e-30)
        small = self._of_batch(tiny * x, n)
        assert isinstance(small, RowGradients)
        bound = np.float32(CLIP) * tiny
        norms = np.sqrt(np.vecdot(small._x, small._x))
        clipped = (bound / np.maximum(norms, bound)) @ small._x / np.float32(self.mechanism.batch_size)
        return self._noised(clipped / tiny, sensitivity, n)


# ---- the list

# Of every mechanism with sampled batches of clipped samples.
MUTATIONS: dict[str, Plant] = {
    "half of the coordinates without noise": muted(lambda _: slice(0, None, 2)),
    "one coordinate without noise": muted(lambda _: slice(0, 1)),
    "one layer of four without noise": muted(lambda size: slice(size // 2, size // 2 + size // 4)),
    "one release in 50 without noise": bare(lambda n, _: n % 50 == 0),
    "half the noise": noise(lambda eta: eta / 2),
    "noise repeated every 100 releases": noise_number(lambda n: (n - 1) % 100 + 1),
    "noise reused for two releases": noise_number(lambda n: (n + 1) // 2),
    "noise drawn from the batch's stream": streams(
        lambda at, purpose, n: at(Purpose.BATCH if purpose is Purpose.NOISE else purpose, n)
    ),
    "one key for all secure streams": on(
        "streams", lambda own: own if own.reproducible else CounterStreams((1, 2), reproducible=False)
    ),
    "norms between C and 20 C unclipped": measured(
        lambda norms, _: np.where(norms < 20 * CLIP, np.minimum(norms, _C), norms)
    ),
    "clipped at 1.5 C": measured(lambda norms, _: norms / np.float32(1.5)),
    "clipped by the largest coordinate": measured(lambda _, rows: np.abs(rows).max(axis=1, initial=0)),
    "one sample of each batch unclipped": measured(
        lambda norms, _: np.append(norms[:-1], np.minimum(norms[-1:], _C))
    ),
    "clipped after the noise": edge(ClipsAfterNoise),
    "sum not divided by b": gradients(Scaled),
    "divided by the realised batch size": gradients(by_realised_size),
    "sampling rate doubled": streams(doubled_rate),
    "one batch reused for ever": streams(one_batch),
    "a record other than the first in every batch": always_there,
}
_COUNTED, _NORMALISED = QuantileClipping(), Normalised().fitted(28.0)  # ℓ = √784
_STEPS = LocalSteps(steps=LOCAL_STEPS)
MUTATED: dict[str, Mechanism] = {
    "gaussian, z = 1": Mechanism(Gaussian(1.0), _B),
    "gaussian, z = 4": Mechanism(Gaussian(4.0), _B),
    "laplace, ε = 2": Mechanism(Laplace(2.0), _B),
    "laplace, ε = 0.5": Mechanism(Laplace(0.5), _B),
    "quantile, z = 1": Mechanism(Gaussian(1.0), _B, clipping=_COUNTED),
    "quantile, z = 4": Mechanism(Gaussian(4.0), _B, clipping=_COUNTED),
}


@dataclass(frozen=True, slots=True, eq=False)
class Defect:
    """A defect, and the mechanism that its author claims to have."""

    name: str
    claimed: Mechanism
    plant: Plant
    dimension: int | None = None  # None: the law's own

    def games(self, rounds: int = ROUNDS) -> list[Game]:
        """Return the battery of what is claimed, on an edge with the defect, cheap games first."""
        assert self.claimed.law is not None
        games = battery(
            self.claimed,
            shard_size=SHARD,
            dimension=self.dimension or self.claimed.law.audit_dimension,
            rounds=rounds,
            plant=self.plant,
        )
        return sorted(games, key=lambda game: game.cost)


def planted() -> list[Defect]:
    mutated = [
        Defect(f"{name}: {mutation}", claimed, plant)
        for mutation, plant in MUTATIONS.items()
        for name, claimed in MUTATED.items()
    ]
    others = [
        Defect(f"{name}: {mutation}", claimed, MUTATIONS[mutation])
        for name, claimed in _OTHER_KINDS.items()
        for mutation in ("half the noise", "one coordinate without noise", "one key for all secure streams")
    ]
    always = "a record other than the first in every batch"
    drawn = [
        Defect(f"{name}: {always}", _OTHER_KINDS[name], MUTATIONS[always])
        for name in ("truncated-poisson", "shuffled")
    ]
    return [*mutated, *others, *drawn, *_of_one_kind()]


_OTHER_KINDS = {
    "gamma-norm": Mechanism(GammaNorm(4.0), _B),
    "normalised": Mechanism(Gaussian(1.0), _B, clipping=_NORMALISED),
    "batch-mean": Mechanism(Gaussian(8.0), _B, clipping=BatchMean()),
    "shuffled": Mechanism(Gaussian(1.0), _B, sampler=Shuffled()),
    "with-replacement": Mechanism(Gaussian(4.0), _B, sampler=WithReplacement()),
    "truncated-poisson": Mechanism(Gaussian(1.0), _B, sampler=TruncatedPoisson(largest_batch=7)),
    "local steps": Mechanism(Gaussian(1.0), _B, work=_STEPS),
}


def _of_one_kind() -> Iterable[Defect]:
    """Yield what only one law, clipping or sampler, or only local work, can get wrong."""
    plain, gamma, normalised = (
        MUTATED["gaussian, z = 1"],
        _OTHER_KINDS["gamma-norm"],
        _OTHER_KINDS["normalised"],
    )
    tenfold, laplace = "the count ten times as long", MUTATED["laplace, ε = 2"]
    # a step of a message is bare, and none of a single release
    one_step = bare(lambda n, steps: steps > 1 and n % steps == 2 % steps)
    for z in (1.0, 4.0):
        counted, steps = MUTATED[f"quantile, z = {z:g}"], Mechanism(Gaussian(z), _B, work=_STEPS)
        yield Defect(f"quantile, z = {z:g}: {tenfold}", counted, edge(CountsTenfold))
        yield Defect(f"local steps, z = {z:g}: one of four without noise", steps, one_step)
        charged = replace(steps, work=LocalSteps(steps=LOCAL_STEPS // 2))
        twice = on("mechanism", twice_the_steps)
        yield Defect(f"local steps, z = {z:g}: four charged as two", charged, twice)
    yield Defect(f"quantile, laplace: {tenfold}", replace(laplace, clipping=_COUNTED), edge(CountsTenfold))
    yield Defect("normalised: to 1.5 C", normalised, MUTATIONS["clipped at 1.5 C"])
    unmeasured = measured(lambda norms, _: np.full_like(norms, CLIP))
    yield Defect("normalised: not at all", normalised, unmeasured)
    # ‖g‖ − s where it should be ‖g‖ + s
    less = measured(lambda norms, _: np.maximum(norms - np.float32(2 * _S), 0))
    yield Defect("normalised: the stabiliser taken off", normalised, less)
    yield Defect("gaussian: each of four layers clipped to C", plain, gradients(each_layer))
    first_layer = muted(lambda size: slice(size // 2, None))
    yield Defect("gaussian: noise on the first layer only", plain, first_layer)
    yield Defect("gaussian: a ΔS whose squares leave float32", plain, edge(ClipsInFloat32))
    for name, claimed in (("gaussian", plain), ("gamma-norm", gamma)):
        yield Defect(f"{name}: batch-mean accounted with ΔS", claimed, mechanism(clipping=BatchMean()))
    singular = mechanism(law=ExponentialNorm(1.0))
    yield Defect("gamma-norm: exponential-norm accounted as ε", Mechanism(GammaNorm(1.0), _B), singular, 32)
    yield Defect("laplace: clipped in L2", laplace, mechanism(law=InL2(2.0)))
    weak, replaced = Mechanism(Gaussian(0.65), 8), mechanism(sampler=WithReplacement())
    yield Defect("gaussian: with-replacement accounted as poisson", weak, replaced)
