"""The CNN against torch's autograd on one sample at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from common.models.cnn import Cnn, _parts

MNIST, USPS = (28, 28), (16, 16)


def reference_scores(model: Cnn, x: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """The network as the paper draws it: convolution, activation, pooling, twice, and a full connection."""
    activation = torch.relu if model._activation is torch.relu else torch.tanh
    padding = 0 if model.shape == MNIST else 2
    w1, b1, w2, b2, w3, b3 = (x[block.slice].view(block.shape) for block in model.layout)
    hidden = functional.max_pool2d(activation(functional.conv2d(image, w1, b1, padding=padding)), 2)
    hidden = functional.max_pool2d(activation(functional.conv2d(hidden, w2, b2, padding=padding)), 2)
    return functional.linear(hidden.flatten(1), w3, b3)


def batch(model: Cnn, b: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    images = rng.random((b, math.prod(model.shape)), dtype=np.float32)
    images *= rng.random(images.shape) < 0.3  # mostly background, as digits are
    labels = rng.integers(0, model.classes, b)
    return model.initial(rng) * np.float32(1.5), model.features(images), model.targets(labels)


@pytest.mark.parametrize("shape", [MNIST, USPS])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_per_sample_gradients_equal_autograd_on_single_samples(
    shape: tuple[int, int], activation: str
) -> None:
    model = Cnn(shape=shape, classes=10, activation=activation)
    x, features, targets = batch(model, 9, 0)
    rows, losses, right = [], [], []
    for feature, target in zip(features, targets, strict=True):
        weight = torch.tensor(x, requires_grad=True)
        scores = reference_scores(model, weight, torch.tensor(feature[None]))
        loss = functional.cross_entropy(scores, torch.tensor([target]))
        rows.append(torch.autograd.grad(loss, weight)[0].numpy())
        losses.append(loss.item())
        right.append(int(scores.argmax()) == target)
    expected = np.array(rows)
    gradients = model.gradients(x, features, targets)
    np.testing.assert_allclose(gradients.norms(), np.linalg.norm(expected, axis=1), rtol=1e-4)
    np.testing.assert_allclose(gradients.weighted_sum(None), expected.sum(axis=0), rtol=1e-3, atol=1e-5)
    for i in range(9):
        alone = np.eye(9, dtype=np.float32)[i]
        np.testing.assert_allclose(gradients.weighted_sum(alone), expected[i], rtol=1e-3, atol=1e-5)
    evaluated = model.evaluate(x, features, targets)
    loss, accuracy = evaluated["loss"], evaluated["accuracy"]
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert accuracy == np.mean(right)


def test_the_initial_model_is_uniform_within_the_fan_in_bound_and_the_generators_alone() -> None:
    model = Cnn(shape=MNIST, classes=10)
    x = model.initial(np.random.default_rng(7))
    torch.manual_seed(1)
    np.testing.assert_array_equal(x, model.initial(np.random.default_rng(7)))
    assert not np.array_equal(x, model.initial(np.random.default_rng(8)))
    assert x.dtype == np.float32
    assert model.first_layer == slice(0, 260)
    fan_in = {"conv1": 25, "conv2": 250, "full": 160}
    for block in model.layout:
        bound = 1 / math.sqrt(fan_in[block.name.partition(".")[0]])
        values = np.abs(x[block.slice])
        assert values.max() <= bound * (1 + 1e-6), block.name
        assert values.max() > bound / 2, block.name


@pytest.mark.parametrize(
    ("shape", "padding", "full"), [((32, 28), 0, 200), ((27, 28), 2, 420), ((8, 8), 2, 40), ((4, 5), 2, 10)]
)
def test_padding_is_added_only_where_too_little_would_be_left(
    shape: tuple[int, int], padding: int, full: int
) -> None:
    model = Cnn(shape=shape, classes=3)
    assert model.padding == padding
    assert model.layout[4].shape == (3, full)
    assert model.gradients(*batch(model, 2, 0)).weighted_sum(None).shape == (model.dimension,)


@given(st.integers(0, 2000))
def test_a_batch_is_cut_into_few_sizes_none_of_them_large(count: int) -> None:
    cuts = [(part.start, part.stop) for part in _parts(count)]
    assert [row for start, stop in cuts for row in range(start, stop)] == list(range(count))
    sizes = [stop - start for start, stop in cuts]
    assert max(sizes, default=0) <= 32
    assert sum(size < 16 for size in sizes) <= 1  # what is left over; few samples are rounded otherwise


@pytest.mark.slow
def test_no_layer_sees_more_of_a_batch_at_once_than_fits_the_memory_of_an_edge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Cnn(shape=MNIST, classes=10)
    seen = []
    convolve = functional.conv2d

    def conv2d(images: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return convolve(images, *rest)

    monkeypatch.setattr(functional, "conv2d", conv2d)
    model.gradients(*batch(model, 300, 0))
    assert max(seen) <= 32
    assert sum(seen) == 2 * 300  # two convolutions
