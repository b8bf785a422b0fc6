"""Parts of release mechanisms by short names, for tests that go through all of them."""

from __future__ import annotations

from common.accounting.releases import ReleaseKind
from common.mechanism.clipping import Clipping, check_bound
from common.mechanism.clippings.batch_mean import BatchMean
from common.mechanism.clippings.normalised import Normalised
from common.mechanism.clippings.per_sample import PerSample
from common.mechanism.clippings.quantile import QuantileClipping
from common.mechanism.guarantee import Norm, Scope
from common.mechanism.local_work import LocalWork
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.mechanism.samplers.poisson import Poisson
from common.mechanism.samplers.shuffled import Shuffled
from common.mechanism.samplers.truncated_poisson import TruncatedPoisson
from common.mechanism.samplers.with_replacement import WithReplacement
from common.mechanism.work.local_steps import LocalSteps
from common.mechanism.work.single_step import SingleStep
from common.noise.law import NoiseLaw
from common.quantities import ClippedGradient, PerSampleGradients

POISSON, SHUFFLED, WITH_REPLACEMENT = Poisson(), Shuffled(), WithReplacement()
PER_SAMPLE, NORMALISED, QUANTILE, BATCH_MEAN = PerSample(), Normalised(), QuantileClipping(), BatchMean()
EVERY_CLIPPING: tuple[Clipping, ...] = (PER_SAMPLE, NORMALISED, QUANTILE, BATCH_MEAN)


def every_sampler(largest_batch: int) -> tuple[Sampler, ...]:
    """Return all samplers; truncated batches have this B_max."""
    return POISSON, truncated(largest_batch), SHUFFLED, WITH_REPLACEMENT


def truncated(largest_batch: int) -> Sampler:
    return TruncatedPoisson(largest_batch=largest_batch)


def work_of(steps: int) -> LocalWork:
    """Return the work of E releases in a message."""
    return SingleStep() if steps == 1 else LocalSteps(steps=steps)


def release_kind(
    law: NoiseLaw | None,
    batch_size: int = 12,
    shard_size: int = 1200,
    sampler: Sampler = POISSON,
    clipping: Clipping = PER_SAMPLE,
    *,
    steps: int = 1,
    scope: Scope = Scope.ALL,
) -> ReleaseKind:
    """Return one way of releasing gradients of a shard."""
    return ReleaseKind(Mechanism(law, batch_size, sampler, clipping, work_of(steps), scope=scope), shard_size)


def clip(
    gradients: PerSampleGradients, how: Clipping, bound: float, batch_size: int, norm: Norm = Norm.L2
) -> ClippedGradient:
    """Clip as an edge does, which checks C first."""
    check_bound(bound)
    return how.clip(gradients, bound, batch_size, norm)
