"""How near a reconstruction is to an image: PSNR, SSIM, correlation."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError

Image = npt.NDArray[np.float64]  # values in [0, 1]

_WINDOW_STD = 1.5  # Wang et al. 2004: an 11 × 11 Gaussian window
_TRUNCATE = 3.5
_K1, _K2 = 0.01, 0.03
PSNR_CEILING = 100.0  # dB; float32 allows no more, and a mean needs a finite figure


def psnr(truth: Image, guess: Image) -> float:
    """Return the peak signal-to-noise ratio in dB for a peak of 1."""
    error = float(np.mean((truth - guess) ** 2))
    return PSNR_CEILING if error == 0 else min(PSNR_CEILING, -10 * math.log10(error))


def ssim(truth: Image, guess: Image) -> float:
    """Return the mean structural similarity of two images (height × width)."""
    try:
        from scipy.ndimage import gaussian_filter
    except ImportError as error:
        raise ConfigurationError("SSIM needs scipy: pip install 'mapa-testbed[privacy]'") from error

    def smooth(image: Image) -> Image:
        smoothed: Image = gaussian_filter(image, _WINDOW_STD, truncate=_TRUNCATE)
        return smoothed

    mean_a, mean_b = smooth(truth), smooth(guess)
    var_a = smooth(truth * truth) - mean_a * mean_a
    var_b = smooth(guess * guess) - mean_b * mean_b
    cov = smooth(truth * guess) - mean_a * mean_b
    c1, c2 = _K1**2, _K2**2
    similarity = (2 * mean_a * mean_b + c1) * (2 * cov + c2)
    similarity /= (mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2)
    edge = int(_TRUNCATE * _WINDOW_STD + 0.5)  # where the window leaves the image
    inner = similarity[edge:-edge, edge:-edge] if min(similarity.shape) > 2 * edge else similarity
    return float(inner.mean())


def correlation(truth: npt.NDArray[np.floating], guess: npt.NDArray[np.floating]) -> float:
    """Return |r|: a negative shows the digit as well as a positive; 0 where one is constant."""
    a = truth.ravel().astype(np.float64) - truth.mean()
    b = guess.ravel().astype(np.float64) - guess.mean()
    norm = math.sqrt(float(a @ a) * float(b @ b))
    return abs(float(a @ b)) / norm if norm > 0 else 0.0
