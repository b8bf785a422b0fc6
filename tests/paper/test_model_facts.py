"""PAPER-NOTES, model facts: parameter counts, x₁ and f(x₁)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from common.models.model import Model
from common.models.registry import make_model

MNIST, USPS = (28, 28), (16, 16)


def made(name: str, shape: tuple[int, int]) -> Model:
    return make_model(name, shape=shape, classes=10, options={})


def first_loss(model: Model, shape: tuple[int, int]) -> float:
    rng = np.random.default_rng(0)
    features = model.features(rng.random((200, math.prod(shape)), dtype=np.float32))
    return model.evaluate(model.initial(rng), features, model.targets(rng.integers(0, 10, 200)))["loss"]


@pytest.mark.parametrize(
    ("name", "mnist", "usps"),
    [("lr", 785, 257), ("svm", 7850, 2570), ("softmax", 7850, 2570), ("cnn", 4380, 4380)],
)
def test_parameter_counts(name: str, mnist: int, usps: int) -> None:
    assert (made(name, MNIST).dimension, made(name, USPS).dimension) == (mnist, usps)


@pytest.mark.parametrize("name", ["lr", "svm", "softmax"])
def test_linear_models_start_at_zero(name: str) -> None:
    model = made(name, USPS)
    x = model.initial(np.random.default_rng(0))
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, np.zeros(model.dimension))


@pytest.mark.parametrize("shape", [MNIST, USPS])
@pytest.mark.parametrize(
    ("name", "loss", "tolerance"),
    [("lr", math.log(2), 1e-6), ("svm", 1, 1e-6), ("softmax", math.log(10), 1e-6), ("cnn", 2.3, 0.1)],
)
def test_the_loss_of_the_first_model(
    name: str, loss: float, tolerance: float, shape: tuple[int, int]
) -> None:
    assert first_loss(made(name, shape), shape) == pytest.approx(loss, abs=tolerance)


def test_one_gradient_at_the_start_is_half_the_sample_for_lr_and_root_two_of_it_for_svm() -> None:
    """Whence the table's G: at x₁ = 0 a sample of norm ‖ξ‖ gives ‖ξ‖/2 and √2·‖ξ‖."""
    images = np.random.default_rng(1).random((20, 256), dtype=np.float32)
    norms = np.sqrt(np.sum(images.astype(np.float64) ** 2, axis=1) + 1)
    for name, factor in (("lr", 0.5), ("svm", math.sqrt(2))):
        model = made(name, USPS)
        gradients = model.gradients(
            model.initial(np.random.default_rng(0)), model.features(images), model.targets(np.arange(20) % 10)
        )
        np.testing.assert_allclose(gradients.norms(), factor * norms, rtol=1e-5)
