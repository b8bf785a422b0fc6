"""Unsound mechanisms with the claims that somebody in error would make: an audit must flag every one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from common.accounting.releases import ReleaseKind
from common.models.gradients import Matrix, RowGradients
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import Noise, NoiseLaw
from common.noise.mechanism import Adjacency, Clipping, Guarantee, Mechanism, Norm, Sampling
from common.quantities import NoisyGradient, PerSampleGradients, Vector
from common.randomness import CounterStreams, Purpose
from edge.privacy import clip_per_sample, perturb
from edge.samplers import draw_batch
from edge.worker import EdgeWorker
from experiments.audit.bounds import Floats
from experiments.audit.canary import CLIP, CanarySetting, GivenGradients, log_likelihood_ratio
from experiments.audit.claims import Claim, claim_for
from experiments.audit.defects import ClippedAtMore, Scaled
from experiments.audit.game import Game, Releases


@dataclass(frozen=True, slots=True)
class HalfScale(NoiseLaw):
    """A law that draws half of what it claims to draw."""

    name: ClassVar[str] = "half-scale"
    law: NoiseLaw

    @property
    def norm(self) -> Norm:  # type: ignore[override]
        return self.law.norm

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        return self.law.draw(sensitivity / 2, dimension, rng)

    def relative_second_moment(self, dimension: int) -> float:
        return self.law.relative_second_moment(dimension)

    def relative_tail(self, dimension: int) -> float:
        return self.law.relative_tail(dimension)

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
        return self.law.guarantee(mechanism, adjacency)


class LargestCoordinate(RowGradients):
    """Clipping that measures a gradient by its largest coordinate."""

    def norms(self) -> npt.NDArray[np.float32]:
        largest: npt.NDArray[np.float32] = np.abs(self._rows).max(axis=1)
        return largest


class NotMeasured(RowGradients):
    """Normalising by a norm that is C whatever the gradient is."""

    def norms(self) -> npt.NDArray[np.float32]:
        return np.full(len(self._rows), CLIP, np.float32)


class EachLayer(RowGradients):
    """Clipping of each of four layers to the whole bound C."""

    def __init__(self, rows: Matrix) -> None:
        layers = rows.reshape(len(rows), 4, -1)
        norms = np.linalg.norm(layers, axis=2, keepdims=True)
        super().__init__((layers * (CLIP / np.maximum(norms, CLIP))).reshape(rows.shape).astype(np.float32))

    def norms(self) -> npt.NDArray[np.float32]:
        return np.zeros(len(self._rows), np.float32)  # clipped already


class RepeatedNoise(CounterStreams):
    """Streams whose noise is the same for two releases in a row."""

    def at(self, edge: int, purpose: Purpose, n: int) -> np.random.Generator:
        return super().at(edge, purpose, (n + 1) // 2 if purpose is Purpose.NOISE else n)


def _of_batch(worker: EdgeWorker, x: Vector, n: int) -> PerSampleGradients:
    """Return the gradients of the worker's n-th batch, before anything is done to them."""
    recipe, shard = worker.recipe, worker.shard
    batch = draw_batch(recipe.sampling, worker.streams, worker.index, n, len(shard), recipe.batch_size)
    rows = shard.rows[batch]
    return worker.model.gradients(x, shard.features[rows], shard.targets[rows])


class ClipsAfterNoise(EdgeWorker):
    """Noise first, then clip the noisy mean: what is released is bounded, what one sample does is not."""

    def gradient(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        recipe = self.recipe
        assert recipe.law is not None
        mean = _of_batch(self, x, n).weighted_sum(None)
        mean /= np.float32(recipe.batch_size)
        noisy = perturb(mean, recipe.law, sensitivity, recipe.noised, self.streams.at(0, Purpose.NOISE, n))
        return NoisyGradient(noisy / np.float32(max(1.0, float(np.linalg.norm(noisy)) / CLIP)))


class CountsInFull(EdgeWorker):
    """Clip each sample to C and count it in steps of C, too, with noise for one of the two."""

    def gradient(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        recipe, gradients = self.recipe, _of_batch(self, x, n)
        assert recipe.law is not None
        clipped = clip_per_sample(gradients, CLIP, recipe.batch_size)
        clipped[-1] = -CLIP * np.count_nonzero(gradients.norms()) / recipe.batch_size
        return perturb(clipped, recipe.law, sensitivity, recipe.noised, self.streams.at(0, Purpose.NOISE, n))


class ClipsWithoutLimits(EdgeWorker):
    """Clip to whatever ΔS the cloud sends: where squares leave float32, every norm is 0 and nothing is clipped."""

    def gradient(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        recipe, gradients = self.recipe, _of_batch(self, x, n)
        assert recipe.law is not None
        clipped = clip_per_sample(gradients, recipe.batch_size * sensitivity / 2, recipe.batch_size)
        return perturb(clipped, recipe.law, sensitivity, recipe.noised, self.streams.at(0, Purpose.NOISE, n))


def planted_games(rounds: int = 3000) -> list[Game]:
    """Return every planted defect; the claim is what the defect's author would print."""
    plain = CanarySetting(law=Gaussian(1.0), batch_size=4, shard_size=4, dimension=16)
    normalised = replace(plain, clipping=Clipping.NORMALISED)
    counted = replace(plain, clipping=Clipping.QUANTILE)
    gamma = replace(plain, law=GammaNorm(4.0), dimension=2)
    exponential = replace(plain, law=ExponentialNorm(1.0), dimension=32)
    crowd = replace(plain, shard_size=5)
    replaced = replace(
        plain, law=Gaussian(0.65), batch_size=8, shard_size=9, sampling=Sampling.WITH_REPLACEMENT
    )
    epoch = replace(plain, shard_size=8, sampling=Sampling.SHUFFLED)
    stepping = replace(plain, steps=4)
    truncated = replace(plain, shard_size=8, sampling=Sampling.TRUNCATED_POISSON, largest_batch=7)
    small = replace(plain, law=Gaussian(0.5), shard_size=8)
    return [
        _game(
            "batch-mean accounted with ΔS, gaussian",
            replace(plain, clipping=Clipping.BATCH_MEAN),
            _claim(plain),
            rounds,
        ),
        _game(
            "batch-mean accounted with ΔS, gamma-norm",
            replace(gamma, clipping=Clipping.BATCH_MEAN),
            _claim(gamma),
            rounds,
        ),
        _game(
            "exponential-norm accounted as ε",
            exponential,
            _claim(replace(exponential, law=GammaNorm(1.0))),
            rounds,
        ),
        _game("noise on the first layer only", replace(plain, first_layer_only=True), _claim(plain), rounds),
        _game(
            "half the noise, gaussian", replace(plain, law=HalfScale(Gaussian(1.0))), _claim(plain), rounds
        ),
        _game(
            "half the noise, gamma-norm", replace(gamma, law=HalfScale(GammaNorm(4.0))), _claim(gamma), rounds
        ),
        _game("half the noise, normalised", _halved(normalised), _claim(normalised), rounds),
        _realised_size("divided by the realised batch size", crowd, rounds),
        _gradients("sum not divided by b", plain, lambda rows: Scaled(rows, plain.batch_size), rounds),
        _gradients("clipped by the largest coordinate", plain, LargestCoordinate, rounds, even=True),
        _gradients("each of four layers clipped to C", plain, EachLayer, rounds, even=True),
        _gradients("normalised to 1.5 C", normalised, ClippedAtMore, rounds),
        _gradients("not normalised", normalised, NotMeasured, rounds),
        _game(
            "half the noise, with a count",
            replace(counted, law=HalfScale(Gaussian(1.0))),
            _claim(counted),
            rounds,
        ),
        _count_beside("a count as long as C beside the gradient", counted, rounds),
        _game(
            "with-replacement accounted as poisson",
            replaced,
            _claim(replace(replaced, sampling=Sampling.POISSON)),
            4 * rounds,
        ),
        _game(
            "rate of the whole data set, not of the shard",
            small,
            _claim(replace(small, shard_size=80)),
            rounds,
        ),
        _game("half the noise, four local steps", _halved(stepping), _claim(stepping), rounds),
        _game("four local steps charged as two", stepping, _claim(replace(stepping, steps=2)), rounds),
        _game("half the noise, truncated batches", _halved(truncated), _claim(truncated), 2 * rounds),
        _repeated_noise("noise reused for two releases", epoch, rounds),
        _known_noise("noise from a seed that the adversary knows", plain, rounds),
        _clips_after_noise("clipped after the noise", plain, rounds),
        _vanishing_squares("a ΔS whose squares leave float32", plain, rounds),
    ]


def _halved(setting: CanarySetting) -> CanarySetting:
    assert setting.law is not None
    return replace(setting, law=HalfScale(setting.law))


def _claim(setting: CanarySetting) -> Claim:
    return claim_for(ReleaseKind(setting.law, setting.mechanism, setting.shard_size))


def _game(name: str, setting: CanarySetting, claim: Claim, rounds: int) -> Game:
    return Game(
        name=name,
        claim=claim,
        worker=setting.worker,
        sensitivity=setting.sensitivity,
        score=_fair(setting).score,
        rounds=rounds,
    )


def _fair(setting: CanarySetting) -> CanarySetting:
    """Return the setting with the law that it claims: its ratio ranks releases as the halved one's does."""
    return replace(setting, law=setting.law.law) if isinstance(setting.law, HalfScale) else setting


def _gradients(
    name: str,
    setting: CanarySetting,
    form: Callable[[Matrix], PerSampleGradients],
    rounds: int,
    *,
    even: bool = False,
) -> Game:
    """Plant a defect between model and clipping; `even` spreads the canary over all coordinates."""

    def worker(there: bool, seed: int) -> EdgeWorker:
        honest = setting.worker(there, seed)
        honest.model = GivenGradients(setting.dimension, form)
        if even:
            honest.shard.features[0] = honest.shard.features[0, -1]
        return honest

    def along(releases: Releases, first: int) -> Floats:  # noqa: ARG001
        total: Floats = releases.sum(axis=(1, 2))
        return total

    return replace(
        _game(name, setting, _claim(setting), rounds),
        worker=worker,
        score=along if even else setting.score,
    )


def _count_beside(name: str, setting: CanarySetting, rounds: int) -> Game:
    """The count in units of C, as if it cost nothing beside a gradient that has the whole bound."""

    def worker(there: bool, seed: int) -> EdgeWorker:
        honest = setting.worker(there, seed)
        return CountsInFull(
            honest.edge_id, honest.index, honest.model, honest.shard, honest.recipe, honest.streams
        )

    def of_both(releases: Releases, first: int) -> Floats:  # noqa: ARG001
        total: Floats = releases[:, 0, -2] - releases[:, 0, -1]
        return total

    return replace(_game(name, setting, _claim(setting), rounds), worker=worker, score=of_both)


def _realised_size(name: str, setting: CanarySetting, rounds: int) -> Game:
    """The others all pull one way, so their mean is C whatever their number; the canary pulls back."""

    def worker(there: bool, seed: int) -> EdgeWorker:
        honest = setting.worker(there, seed)
        honest.model = GivenGradients(
            setting.dimension, lambda rows: Scaled.realised(rows, setting.batch_size)
        )
        honest.shard.features[0] *= -1
        honest.shard.features[1:, -1] = CLIP
        return honest

    def back(releases: Releases, first: int) -> Floats:  # noqa: ARG001
        return -releases[:, 0, -1]

    return replace(_game(name, setting, _claim(setting), rounds), worker=worker, score=back)


def _repeated_noise(name: str, setting: CanarySetting, rounds: int) -> Game:
    def worker(there: bool, seed: int) -> EdgeWorker:
        honest = setting.worker(there, seed)
        honest.streams = RepeatedNoise.seeded(seed)
        return honest

    def difference(releases: Releases, first: int) -> Floats:  # noqa: ARG001
        apart: Floats = np.linalg.norm(releases[:, 0] - releases[:, 1], axis=1)
        return apart

    game = _game(name, setting, _claim(setting), rounds)
    return replace(game, worker=worker, score=difference, releases_per_round=2)


def _known_noise(name: str, setting: CanarySetting, rounds: int) -> Game:
    seeds: list[int] = []

    def worker(there: bool, seed: int) -> EdgeWorker:
        seeds.append(seed)  # published with the scenario
        return setting.worker(there, seed)

    def without_noise(releases: Releases, first: int) -> Floats:
        streams = CounterStreams.seeded(seeds[-1])
        assert setting.law is not None
        for place, release in enumerate(releases[:, 0]):
            rng = streams.at(0, Purpose.NOISE, first + place)
            release -= setting.law.draw(setting.sensitivity, setting.dimension, rng)
        return log_likelihood_ratio(None, setting.sensitivity, releases, *setting.centres())[:, 0]

    return replace(_game(name, setting, _claim(setting), rounds), worker=worker, score=without_noise)


def _clips_after_noise(name: str, setting: CanarySetting, rounds: int) -> Game:
    def worker(there: bool, seed: int) -> EdgeWorker:
        honest = setting.worker(there, seed)
        return ClipsAfterNoise(
            honest.edge_id, honest.index, honest.model, honest.shard, honest.recipe, honest.streams
        )

    return replace(_game(name, setting, _claim(setting), rounds), worker=worker)


def _vanishing_squares(name: str, setting: CanarySetting, rounds: int) -> Game:
    """A hostile model makes gradients of 1e-23, which is 1e7 times the bound and squares to 0."""
    tiny = 1e-30  # of ΔS and C

    def worker(there: bool, seed: int) -> EdgeWorker:
        honest = setting.worker(there, seed)
        honest.shard.features[0] *= np.float32(1e4 * tiny)
        return ClipsWithoutLimits(
            honest.edge_id, honest.index, honest.model, honest.shard, honest.recipe, honest.streams
        )

    def along(releases: Releases, first: int) -> Floats:  # noqa: ARG001
        return releases[:, 0, -1]

    game = _game(name, setting, _claim(setting), rounds)
    return replace(game, worker=worker, sensitivity=tiny * setting.sensitivity, score=along)
