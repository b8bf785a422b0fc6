"""LR, SVM and softmax against torch's autograd, sample by sample; least squares against differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from common.models.linear import LinearModel, LogisticRegression, Softmax, Svm
from common.models.registry import make_model

SHAPE, CLASSES = (6, 5), 10
KINDS = (LogisticRegression, Svm, Softmax)


def torch_loss(model: LinearModel, scores: torch.Tensor, target: int) -> torch.Tensor:
    """The loss of one sample, written independently of the closed form."""
    if model.name == "lr":
        return torch.nn.functional.softplus(-target * scores[0])
    if model.name == "softmax":
        return torch.logsumexp(scores, 0) - scores[target]
    rivals = torch.cat([scores[:target], scores[target + 1 :]])
    return torch.relu(1 + rivals.max() - scores[target])


def batch(model: LinearModel, b: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = model.features(rng.random((b, math.prod(SHAPE)), dtype=np.float32))
    targets = model.targets(rng.integers(0, CLASSES, b))
    return rng.standard_normal(model.dimension).astype(np.float32) / 2, features, targets


def autograd_rows(model: LinearModel, x: np.ndarray, features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    rows = []
    for feature, target in zip(features, targets, strict=True):
        weight = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        scores = weight.view(model.outputs, model.inputs) @ torch.tensor(feature, dtype=torch.float64)
        (row,) = torch.autograd.grad(torch_loss(model, scores, int(target)), weight)
        rows.append(row.numpy())
    return np.array(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_closed_forms_equal_autograd_sample_by_sample(kind: type[LinearModel], seed: int) -> None:
    model = kind(shape=SHAPE, classes=CLASSES)
    x, features, targets = batch(model, 40, seed)
    rows = autograd_rows(model, x, features, targets)
    assert np.abs(rows).max() > 0.1
    gradients = model.gradients(x, features, targets)
    np.testing.assert_allclose(gradients.norms(), np.linalg.norm(rows, axis=1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradients.weighted_sum(None), rows.sum(axis=0), rtol=1e-4, atol=1e-4)
    for i in (0, 7, 39):
        alone = np.zeros(40, np.float32)
        alone[i] = 1
        np.testing.assert_allclose(gradients.weighted_sum(alone), rows[i], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_is_the_mean_loss_and_the_share_of_right_answers(kind: type[LinearModel]) -> None:
    model = kind(shape=SHAPE, classes=CLASSES)
    x, features, targets = batch(model, 60, 5)
    scores = features.astype(np.float64) @ x.reshape(model.outputs, model.inputs).T
    losses = [float(torch_loss(model, torch.tensor(s), int(t))) for s, t in zip(scores, targets, strict=True)]
    if model.name == "lr":
        right = [(s[0] > 0) == (t == 1) for s, t in zip(scores, targets, strict=True)]
    else:
        right = [int(np.argmax(s)) == t for s, t in zip(scores, targets, strict=True)]
    evaluated = model.evaluate(x, features, targets)
    loss, accuracy = evaluated["loss"], evaluated["accuracy"]
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert accuracy == np.mean(right)
    assert 0 < accuracy < 1


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_edges_give_what_each_gives_alone(kind: type[LinearModel]) -> None:
    model = kind(shape=SHAPE, classes=CLASSES)
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((3, 4, 12, model.outputs)).astype(np.float32)
    targets = model.targets(rng.integers(0, CLASSES, (3, 4, 12)))
    together, losses = model.score_gradient(scores, targets), model.losses(scores, targets)
    assert together.shape == scores.shape
    assert together.dtype == losses.dtype == np.float32
    for place in np.ndindex(3, 4):
        np.testing.assert_array_equal(together[place], model.score_gradient(scores[place], targets[place]))
        np.testing.assert_array_equal(losses[place], model.losses(scores[place], targets[place]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_order_of_the_scores_does_not_matter(kind: type[LinearModel]) -> None:
    model = kind(shape=SHAPE, classes=CLASSES)
    rng = np.random.default_rng(2)
    scores = rng.standard_normal((12, model.outputs)).astype(np.float32)
    targets = model.targets(rng.integers(0, CLASSES, 12))
    before = scores.copy()
    expected = model.score_gradient(scores, targets)
    np.testing.assert_array_equal(model.score_gradient(np.asfortranarray(scores), targets), expected)
    np.testing.assert_array_equal(scores, before)  # the caller's scores are left alone


@pytest.mark.parametrize("score", [-3e38, -1e4, -100.0, 100.0, 1e4, 3e38])
def test_lr_and_softmax_survive_extreme_scores(score: float) -> None:
    lr = LogisticRegression(shape=SHAPE, classes=CLASSES)
    scores, targets = np.array([[score], [score]], np.float32), np.array([1, -1])
    d, losses = lr.score_gradient(scores, targets), lr.losses(scores, targets)
    np.testing.assert_array_equal(d[:, 0], [0, 1] if score > 0 else [-1, 0])
    np.testing.assert_allclose(losses, [max(-score, 0), max(score, 0)], rtol=1e-6, atol=1e-6)
    softmax = Softmax(shape=SHAPE, classes=2)
    pair = np.array([[score, 0], [score, 0]], np.float32)
    d, losses = softmax.score_gradient(pair, np.array([0, 1])), softmax.losses(pair, np.array([0, 1]))
    np.testing.assert_allclose(d[:, 0], [0, 1] if score > 0 else [-1, 0], atol=1e-6)
    np.testing.assert_allclose(losses, [max(-score, 0), max(score, 0)], rtol=1e-6, atol=1e-6)


def test_the_hinge_points_at_the_first_largest_rival_and_is_flat_where_the_margin_is_met() -> None:
    svm = Svm(shape=SHAPE, classes=3)
    scores = np.array([[0, 0, 0], [0, 2, 2], [3, 2, 0], [3, 1, 0], [0, 1.5, 1]], np.float32)
    targets = np.array([1, 0, 0, 0, 1])
    np.testing.assert_array_equal(
        svm.score_gradient(scores, targets),
        [[1, -1, 0], [-1, 1, 0], [0, 0, 0], [0, 0, 0], [0, -1, 1]],
    )
    np.testing.assert_array_equal(svm.losses(scores, targets), [1, 3, 0, 0, 0.5])


def test_lr_takes_any_two_way_split_and_parity_by_default() -> None:
    labels = np.arange(10)
    parity = LogisticRegression(shape=SHAPE, classes=10).targets(labels)
    assert parity.dtype == np.int64
    np.testing.assert_array_equal(parity, [-1, 1] * 5)
    split = LogisticRegression(shape=SHAPE, classes=10, positive=[0, 7]).targets(labels)
    assert np.flatnonzero(split == 1).tolist() == [0, 7]
    assert np.flatnonzero(split == -1).tolist() == [1, 2, 3, 4, 5, 6, 8, 9]


def test_the_constant_feature_comes_last() -> None:
    images = np.random.default_rng(0).random((4, 30), dtype=np.float32)
    features = Svm(shape=SHAPE, classes=10).features(images)
    np.testing.assert_array_equal(features[:, :-1], images)
    np.testing.assert_array_equal(features[:, -1], 1)
    assert features.dtype == np.float32


# -- least squares ------------------------------------------------------------------------------------

LEAST = make_model("least-squares", shape=(2, 2), classes=0, options={}, target_range=(100.0, 300.0))


def targets_of(rows: int = 7) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    rng = np.random.default_rng(2)
    inputs, labels = rng.uniform(0, 1, (rows, 4)), rng.uniform(100, 300, rows)
    return LEAST.features(inputs.astype(np.float32)), LEAST.targets(labels.astype(np.float32))


def test_the_gradient_is_that_of_the_loss() -> None:
    features, targets = targets_of()
    x = np.random.default_rng(3).normal(0, 1, LEAST.dimension).astype(np.float32)
    found = LEAST.gradients(x, features, targets).weighted_sum(None) / len(targets)
    for place in range(LEAST.dimension):
        step = np.zeros_like(x)
        step[place] = 1e-2  # the loss is a parabola: the central difference is exact
        up, down = (LEAST.evaluate(x + sign * step, features, targets)["loss"] for sign in (1, -1))
        assert found[place] == pytest.approx((up - down) / 2e-2, abs=1e-3)


def test_rmse_is_in_the_units_of_the_target() -> None:
    features, targets = targets_of()
    zero = np.zeros(LEAST.dimension, np.float32)
    expected = float(np.sqrt(np.mean((targets.astype(np.float64) * 100) ** 2)))
    assert LEAST.evaluate(zero, features, targets)["rmse"] == pytest.approx(expected, rel=1e-5)
    assert LEAST.targets(np.float32([100, 200, 300])).tolist() == [-1, 0, 1]
    assert np.isnan(LEAST.evaluate(zero, features[:0], targets[:0])["rmse"])
