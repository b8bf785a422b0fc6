"""Block streams: one generator each for a run's batches, noise and noise norms, drawn in order and in bulk.

Faster than a stream per (seed, k, n), and reproducible from the seed, but tied to the cyclic order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError
from common.noise.law import Noise, NoiseLaw
from common.noise.mechanism import Sampling
from common.quantities import Indices

NAME = "block: SFC64 (seed, 1) for batches, (seed, 2) for noise, (seed, 3) for its norms"


class BlockStreams:
    """The generators of a run. Norms have their own, or else the numbers would depend on how many rows a block has."""

    def __init__(self, seed: int | None) -> None:
        entropy = np.random.SeedSequence().entropy if seed is None else seed
        self._batches = np.random.Generator(np.random.SFC64([_word(entropy), 1]))
        self.noise = np.random.Generator(np.random.SFC64([_word(entropy), 2]))
        self.norms = np.random.Generator(np.random.SFC64([_word(entropy), 3]))

    def batches(self, shard_sizes: Indices, batch_size: int) -> Indices:
        """Return a batch with replacement for each shard; the very numbers that `batch` gives one by one."""
        return self._batches.integers(0, shard_sizes[:, None], (len(shard_sizes), batch_size))

    def batch(self, sampling: Sampling, shard_size: int, batch_size: int) -> Indices:
        if sampling is Sampling.WITH_REPLACEMENT:
            return self._batches.integers(0, shard_size, batch_size)
        if sampling is not Sampling.POISSON:
            raise ConfigurationError(
                f"data.sampler = {sampling.value!r}: block streams know with-replacement and poisson"
            )
        size = int(self._batches.binomial(shard_size, batch_size / shard_size))
        return self._batches.choice(shard_size, size, replace=False, shuffle=False)


def _word(entropy: object) -> int:
    assert isinstance(entropy, int)
    return entropy


def noise_block(
    gradients: Noise,
    laws: Sequence[NoiseLaw],
    sensitivities: npt.NDArray[np.float64],
    streams: BlockStreams,
) -> None:
    """Add a row of noise to each row of the gradients, in place and in float64, as edge/privacy.py does."""
    made = type(laws[0])
    assert all(type(law) is made for law in laws)  # they are the run's own
    eta = made.draw_block(laws, sensitivities, gradients.shape[1], streams.noise, streams.norms)
    if eta.dtype != np.float64:  # the steps of coarser noise would tell what it was added to
        raise ConfigurationError(
            f"privacy.noise = {made.name!r}: draw_block gives {eta.dtype}, must be float64"
        )
    gradients += eta
