"""The scattering features: against sums written out, and what they are good for."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.datasets.catalogue import load_dataset
from common.models.landmarks import draw_strokes
from common.models.linear import LinearModel
from common.models.scattering import ANGLES, CHANNELS, Scattering, group_normalised, morlet
from common.models.scattering_softmax import ScatteringSoftmax

Plane = npt.NDArray[np.float64]


def transformed(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    chunks = list(Scattering(images.shape[1:])(images.reshape(len(images), -1)))
    return np.concatenate([coefficients for _, coefficients in chunks])


@functools.cache
def made(shape: tuple[int, int], landmarks: int) -> ScatteringSoftmax:
    return ScatteringSoftmax(shape=shape, classes=10, landmarks=landmarks)


def circular_convolution(plane: Plane, kernel: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
    """Σ_v u(v) ψ(p − v), sum by sum."""
    height, width = plane.shape
    out = np.zeros(plane.shape, np.complex128)
    for y in range(height):
        for x in range(width):
            out += plane[y, x] * np.roll(kernel, (y, x), axis=(0, 1))
    return out


def smoothed(plane: Plane, shape: tuple[int, int], step: int) -> Plane:
    """The Gaussian mean around the middle of every 4×4 pixels, place by place."""
    out = np.zeros((shape[0] // 4, shape[1] // 4))
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            weights = np.array(
                [
                    [
                        math.exp(
                            -((step * y - 2 - 4 * i - 1.5) ** 2 + (step * x - 2 - 4 * j - 1.5) ** 2) / 5.12
                        )
                        for x in range(plane.shape[1])
                    ]
                    for y in range(plane.shape[0])
                ]
            )
            out[i, j] = (weights * plane).sum() / weights.sum()
    return out


def slow_scattering(image: Plane) -> Plane:
    """Order 0, then |x ∗ ψ_jℓ| ∗ φ, then ||x ∗ ψ_0ℓ| ∗ ψ_1m| ∗ φ; scale 1 at every second pixel."""
    shape = (image.shape[0], image.shape[1])
    padded = np.pad(image, 2, mode="reflect")
    fine = [np.abs(circular_convolution(padded, morlet(padded.shape, 0, a))) for a in range(ANGLES)]
    coarse = [
        np.abs(circular_convolution(u, morlet(padded.shape, 1, a)))[::2, ::2]
        for u in (padded, *fine)
        for a in range(ANGLES)
    ]
    order = [smoothed(padded, shape, 1), *(smoothed(u, shape, 1) for u in fine)]
    return np.stack([*order, *(smoothed(u, shape, 2) for u in coarse)])


def test_the_transform_equals_convolutions_that_are_summed_term_by_term() -> None:
    images = np.random.default_rng(3).random((2, 8, 12), dtype=np.float32)
    fast = transformed(images)
    assert fast.dtype == np.float32
    assert fast[:, 17:].mean() > 1e-3  # order 2 is there to be compared
    for image, coefficients in zip(images, fast, strict=True):
        np.testing.assert_allclose(coefficients, slow_scattering(image.astype(np.float64)), atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "landmarks", "inputs"),
    [((28, 28), 0, 81 * 49 + 1), ((16, 16), 0, 81 * 16 + 1), ((28, 28), 60, 61), ((16, 16), 60, 61)],
)
def test_shapes_and_parameter_counts(shape: tuple[int, int], landmarks: int, inputs: int) -> None:
    model = made(shape, landmarks)
    assert isinstance(model, LinearModel)  # so that the vectorised engine takes it
    images = np.random.default_rng(0).random((5, math.prod(shape)), dtype=np.float32)
    features = model.features(images)
    assert (features.shape, features.dtype, model.dimension) == ((5, inputs), np.float32, 10 * inputs)
    np.testing.assert_array_equal(features[:, -1], 1)
    assert model.features(images[:0]).shape == (0, inputs)


@pytest.mark.parametrize("scale", [0, 1])
@pytest.mark.parametrize("angle", range(ANGLES))
def test_a_wavelet_sums_to_zero_and_has_a_real_spectrum(scale: int, angle: int) -> None:
    psi = morlet((24, 20), scale, angle)
    assert abs(psi.sum()) < 1e-12
    assert np.abs(np.fft.fft2(psi).imag).max() < 1e-12
    assert np.abs(psi).sum() > 0.3


@pytest.mark.parametrize("landmarks", [0, 60])
def test_an_image_is_transformed_by_itself_whatever_stands_beside_it(landmarks: int) -> None:
    model = made((16, 16), landmarks)
    images = np.random.default_rng(5).random((300, 256), dtype=np.float32)
    together = model.features(images)
    for row in (0, 127, 128, 299):
        np.testing.assert_allclose(model.features(images[row : row + 1])[0], together[row], atol=1e-3)


@given(st.sampled_from([1, 3, 9, 27, 81]), st.integers(0, 1000))
def test_every_group_of_every_image_has_mean_zero_and_at_most_variance_one(groups: int, seed: int) -> None:
    coefficients = np.random.default_rng(seed).random((3, CHANNELS, 2, 2), dtype=np.float32)
    grouped = group_normalised(coefficients, groups).reshape(3, groups, -1).astype(np.float64)
    np.testing.assert_allclose(grouped.mean(axis=2), 0, atol=1e-5)
    assert (grouped.var(axis=2) <= 1 + 1e-5).all()
    assert grouped.var(axis=2).max() > 0.9


@pytest.mark.parametrize("landmarks", [0, 60])
def test_no_feature_vector_is_longer_than_the_root_of_their_number(landmarks: int) -> None:
    """Whence the bound of a gradient: √2·‖ξ‖."""
    model = made((16, 16), landmarks)
    features = model.features(np.random.default_rng(6).random((20, 256), dtype=np.float32))
    norms, most = np.linalg.norm(features, axis=1), math.sqrt(features.shape[1])
    assert (norms <= most * (1 + 1e-6)).all()
    if landmarks:
        np.testing.assert_allclose(norms, most, rtol=1e-5)


def test_likeness_to_strokes_is_the_power_of_their_products_whatever_eigenvectors_say() -> None:
    """(SSᵀ)^−¾ S φ by an independent route: singular values of S."""
    shape, landmarks = (16, 16), 40
    images = np.random.default_rng(7).random((6, 256), dtype=np.float32)
    plain = made(shape, 0)
    strokes = plain.features(draw_strokes(landmarks, shape))[:, :-1].astype(np.float64)
    centre = strokes.mean(axis=0)
    left, values, right = np.linalg.svd(strokes - centre, full_matrices=False)
    floor = 0.01 * (values**2).mean()
    seen = (plain.features(images)[:, :-1] - centre) @ right.T
    seen = seen * (values * (values**2 + floor) ** -0.75) @ left.T
    seen *= math.sqrt(landmarks) / np.linalg.norm(seen, axis=1, keepdims=True)
    np.testing.assert_allclose(made(shape, landmarks).features(images)[:, :-1], seen, atol=2e-3)


def test_seen_from_the_strokes_images_have_less_in_common() -> None:
    """What all images share is what noise drowns first: the reason for the landmarks."""
    dataset = load_dataset("mnist-5k", Path("nowhere"))
    images = dataset.train.values(np.arange(0, 4000, 20))

    def common(landmarks: int) -> float:
        features = made((28, 28), landmarks).features(images)[:, :-1].astype(np.float64)
        return float(np.sum(features.mean(axis=0) ** 2) / np.mean(np.sum(features**2, axis=1)))

    assert common(0) > 0.4
    assert common(200) < 0.2
