"""Linear regression: gradients, units, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from common.errors import ConfigurationError
from common.models.registry import make_model

MODEL = make_model("least-squares", shape=(2, 2), classes=0, options={}, target_range=(100.0, 300.0))


def batch(rows: int = 7) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    rng = np.random.default_rng(2)
    inputs, labels = rng.uniform(0, 1, (rows, 4)), rng.uniform(100, 300, rows)
    return MODEL.features(inputs.astype(np.float32)), MODEL.targets(labels.astype(np.float32))


def test_the_gradient_is_that_of_the_loss() -> None:
    features, targets = batch()
    x = np.random.default_rng(3).normal(0, 1, MODEL.dimension).astype(np.float32)
    found = MODEL.gradients(x, features, targets).weighted_sum(None) / len(targets)
    for place in range(MODEL.dimension):
        step = np.zeros_like(x)
        step[place] = 1e-2  # the loss is a parabola: the central difference is exact
        up, down = (MODEL.evaluate(x + sign * step, features, targets)["loss"] for sign in (1, -1))
        assert found[place] == pytest.approx((up - down) / 2e-2, abs=1e-3)


def test_rmse_is_in_the_units_of_the_target() -> None:
    features, targets = batch()
    zero = np.zeros(MODEL.dimension, np.float32)
    expected = float(np.sqrt(np.mean((targets.astype(np.float64) * 100) ** 2)))
    assert MODEL.evaluate(zero, features, targets)["rmse"] == pytest.approx(expected, rel=1e-5)
    assert MODEL.targets(np.float32([100, 200, 300])).tolist() == [-1, 0, 1]
    assert np.isnan(MODEL.evaluate(zero, features[:0], targets[:0])["rmse"])


def test_models_refuse_data_that_they_cannot_take_naming_both() -> None:
    for name, shape, classes in (
        ("least-squares", (4,), 3),
        ("softmax", (4,), 0),
        ("lr", (3, 32, 32), 0),
        ("cnn", (3, 32, 32), 10),
        ("scattering", (16,), 10),
        ("cnn", (28, 28), 0),
    ):
        with pytest.raises(ConfigurationError) as caught:
            make_model(name, shape=shape, classes=classes, options={})
        assert f"shape = {shape}" in str(caught.value)
        assert f"classes = {classes}" in str(caught.value)
    with pytest.raises(ConfigurationError, match="target_range"):
        make_model("least-squares", shape=(4,), classes=0, options={})
    assert make_model("softmax", shape=(3, 32, 32), classes=10, options={}).dimension == 10 * 3073
