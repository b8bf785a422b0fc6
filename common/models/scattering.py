"""Fixed scattering features of an image: moduli of Morlet wavelets, averaged over 4×4 pixels.

After Bruna and Mallat 2013 with J = 2 scales and L = 8 angles, in the order 0 (1 channel), 1 (2·8) and
2 (8·8): 81 channels at a quarter of the image's side. The filters are constants, and every image is
transformed and normalised by itself: nothing is learnt from data, so the features cost no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError

ANGLES = 8  # L
SCALES = 2  # J
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2
STRIDE = 2**SCALES
_MARGIN = 2  # pixels mirrored around the image, for the filters go round its edges
CHUNK = 128  # images at a time: bounds the memory
_PARTS = 4  # of a chunk, transformed one after the other: about what stays in the cache of a core
_CHUNK_PIXELS = CHUNK * 36**2  # of larger images fewer at a time
_COPIES = 32  # bytes that a pixel takes on the way, for every filter: spectra, products, moduli

Planes = npt.NDArray[np.float32]  # … × height × width
Spectra = npt.NDArray[np.complex64]


class Scattering:
    """The transform for images of one shape."""

    def __init__(self, shape: tuple[int, int]) -> None:
        if any(side % STRIDE or side < 2 * STRIDE for side in shape):
            raise ConfigurationError(
                f"images of {shape[0]}×{shape[1]}: scattering needs sides that are multiples of {STRIDE}, "
                f"at least {2 * STRIDE}"
            )
        self.shape = shape
        self.out = (shape[0] // STRIDE, shape[1] // STRIDE)
        padded = (shape[0] + 2 * _MARGIN, shape[1] + 2 * _MARGIN)
        self.chunk = max(1, min(CHUNK, _CHUNK_PIXELS // math.prod(padded)))
        self.part = -(-self.chunk // _PARTS)
        # every number twice, for the real and the imaginary part of what it is multiplied with
        self._fine, self._coarse = (np.repeat(_filters(padded, scale), 2, axis=-1) for scale in range(SCALES))
        self._inverse = [_inverse_dft(side // 2) for side in padded]
        self._averages = [tuple(_average(side, step) for side in shape) for step in (1, 2)]

    @property
    def chunk_bytes(self) -> int:
        """Estimate the memory that a chunk takes on the way."""
        padded = (self.shape[0] + 2 * _MARGIN) * (self.shape[1] + 2 * _MARGIN)
        coefficients: int = 8 * CHANNELS * math.prod(self.out)
        return self.part * ANGLES * padded * _COPIES + self.chunk * coefficients

    def __call__(self, images: Planes) -> Iterator[tuple[slice, Planes]]:
        """Yield rows and their n × 81 × height/4 × width/4 coefficients, a part of a chunk at a time."""
        for start in range(0, len(images), self.part):
            rows = slice(start, min(start + self.part, len(images)))
            yield rows, self._transform(images[rows].reshape(-1, *self.shape))

    def _transform(self, images: Planes) -> Planes:
        margin = (_MARGIN, _MARGIN)
        padded = np.pad(images.astype(np.float32, copy=False), ((0, 0), margin, margin), mode="reflect")
        first, last = 1 + ANGLES, 1 + SCALES * ANGLES  # where scale 1 and order 2 begin
        coefficients = np.empty((len(images), CHANNELS, *self.out), np.float32)
        coefficients[:, 0] = self._smooth(padded, 1)
        spectrum = _spectra(padded)[:, None]
        fine = np.abs(np.fft.ifft2((spectrum.view(np.float32) * self._fine).view(np.complex64)))
        coefficients[:, 1:first] = self._smooth(fine, 1)
        coefficients[:, first:last] = self._smooth(self._halved_moduli(spectrum), 2)
        spectra = _spectra(fine)
        for angle in range(ANGLES):
            to = slice(last + angle * ANGLES, last + (angle + 1) * ANGLES)
            coefficients[:, to] = self._smooth(self._halved_moduli(spectra[:, angle, None]), 2)
        return coefficients

    def _halved_moduli(self, spectrum: Spectra) -> Planes:
        """Return |u ∗ ψ| of scale 1 at every second pixel: a spectrum folded in half is that of u[::2]."""
        product = spectrum.view(np.float32) * self._coarse
        height, width = (side // 2 for side in product.shape[-2:])
        folded = product[..., :height, :width] + product[..., :height, width:]
        folded += product[..., height:, :width]
        folded += product[..., height:, width:]
        down, across = self._inverse
        return np.abs(down @ (folded.view(np.complex64) @ across))

    def _smooth(self, planes: Planes, step: int) -> Planes:
        """Return u ∗ φ at the middle of every 4×4 pixels; φ is a Gaussian, so rows and columns in turn."""
        down, across = self._averages[step - 1]
        smoothed: Planes = down @ (planes @ across.T)
        return smoothed


def mirrored(out: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Return Π: where each coefficient of an image is found in that of its mirror image, left for right.

    Angle ℓπ/L becomes π − ℓπ/L, and columns change sides. Coefficients are moduli, so signs do not matter.
    """
    turned = -np.arange(ANGLES) % ANGLES
    pairs = (turned[:, None] * ANGLES + turned[None, :]).ravel()
    channels = np.concatenate([[0], *(1 + scale * ANGLES + turned for scale in range(SCALES))])
    channels = np.concatenate([channels, 1 + SCALES * ANGLES + pairs])
    places = np.arange(CHANNELS * math.prod(out)).reshape(CHANNELS, *out)
    found: npt.NDArray[np.int64] = places[channels][:, :, ::-1].ravel().astype(np.int64, copy=False)
    return found


def group_normalised(coefficients: Planes, groups: int) -> Planes:
    """Bring every group of channels of every image to mean 0 and variance 1, by that image alone.

    After Tramèr and Boneh 2021: statistics over a data set would have to be paid for, these are free.
    """
    grouped = coefficients.reshape(len(coefficients), groups, -1)
    grouped = grouped - grouped.mean(axis=2, keepdims=True)
    variance = np.vecdot(grouped, grouped)[..., None] / np.float32(grouped.shape[2])
    grouped /= np.sqrt(variance + np.float32(1e-5))
    normalised: Planes = grouped.reshape(coefficients.shape)
    return normalised


def _spectra(planes: Planes) -> Spectra:
    """Return û over the number of pixels; the filters make up for it. numpy is quick only where it scales."""
    return np.fft.fft2(planes.astype(np.complex64), norm="forward").astype(np.complex64, copy=False)


def _inverse_dft(side: int) -> Spectra:
    """Return the inverse transform as a matrix: at this size a product is quicker than the fast one."""
    turns = np.outer(np.arange(side), np.arange(side)) % side
    matrix: Spectra = np.exp(2j * math.pi * turns / side).astype(np.complex64)
    matrix /= np.float32(2 * side)  # 2: every second pixel
    return matrix


def _filters(padded: tuple[int, int], scale: int) -> Planes:
    """Return ψ̂ of each angle, times the number of pixels. It is real: ψ(−u) is the conjugate of ψ(u)."""
    spectra = [np.fft.fft2(morlet(padded, scale, angle)).real for angle in range(ANGLES)]
    return (math.prod(padded) * np.stack(spectra)).astype(np.float32)


def morlet(padded: tuple[int, int], scale: int, angle: int) -> npt.NDArray[np.complex128]:
    """Return ψ of scale j and angle ℓπ/L, centred at the origin of a torus.

    A plane wave of frequency ¾π/2ʲ under a Gaussian, σ = 0.8·2ʲ along the wave and twice that across, less
    as much of the Gaussian as makes its sum 0.
    """
    sigma, frequency, theta = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, angle * math.pi / ANGLES
    height, width = padded
    wave = np.zeros(padded, np.complex128)
    envelope = np.zeros(padded)
    for lap_y in (-1, 0, 1):  # once around the torus either way: beyond that nothing is left of the Gaussian
        for lap_x in (-1, 0, 1):
            y = ((np.arange(height) + height // 2) % height - height // 2 + lap_y * height)[:, None]
            x = ((np.arange(width) + width // 2) % width - width // 2 + lap_x * width)[None, :]
            along, across = (
                x * math.cos(theta) + y * math.sin(theta),
                y * math.cos(theta) - x * math.sin(theta),
            )
            gaussian = np.exp(-(along**2 + (across / 2) ** 2) / (2 * sigma**2))
            envelope += gaussian
            wave += gaussian * np.exp(1j * frequency * along)
    wave -= wave.sum() / envelope.sum() * envelope
    wave /= 4 * math.pi * sigma**2
    return wave


def _average(side: int, step: int) -> Planes:
    """Return φ as a matrix from a padded row, of which every `step`-th pixel is there, to side/4 places."""
    pixels = np.arange(-_MARGIN, side + _MARGIN, step)
    middles = STRIDE * np.arange(side // STRIDE) + (STRIDE - 1) / 2
    weights = np.exp(-((pixels[None, :] - middles[:, None]) ** 2) / (2 * (0.8 * 2 ** (SCALES - 1)) ** 2))
    weights /= weights.sum(axis=1, keepdims=True)
    smoothing: Planes = weights.astype(np.float32)
    return smoothing
