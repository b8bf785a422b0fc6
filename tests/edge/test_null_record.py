"""The null record keeps its row: it moves the clipped sum by C, and no other row rounds otherwise."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.mechanism.clipping import Clipping
from common.models.gradients import OuterGradients, RowGradients
from common.models.model import Model
from common.models.registry import make_model
from common.quantities import PerSampleGradients
from tests.mechanism_support import NORMALISED, PER_SAMPLE, clip

pytestmark = pytest.mark.slow  # statistics: seconds each

MODELS = ["lr", "svm", "softmax", "cnn", "scattering"]
B = 12


@functools.cache
def model_of(name: str) -> Model:
    options: dict[str, Any] = {"landmarks": 24} if name == "scattering" else {}
    return make_model(name, shape=(16, 16), classes=10, options=options)


def batch(name: str, seed: int, size: float, spread: float) -> tuple[Any, ...]:
    """Return (model, x, features, targets): weights of 10^size, rows that differ in scale by up to 10^spread."""
    rng, model = np.random.default_rng(seed), model_of(name)
    features = model.features(rng.random((B, 256), np.float32))
    scales = 10.0 ** rng.uniform(-spread, spread, B)
    features = (features * scales.reshape(-1, *[1] * (features.ndim - 1))).astype(np.float32)
    x = (10.0**size * rng.normal(size=model.dimension)).astype(np.float32)
    return model, x, features, model.targets(rng.integers(0, 10, B))


def gradients(model: Model, x: Any, features: Any, targets: Any) -> PerSampleGradients:
    with np.errstate(all="ignore"):
        return model.gradients(x, features, targets)


def clipped_sum(of: PerSampleGradients, bound: float, how: Clipping = PER_SAMPLE) -> np.ndarray:
    with np.errstate(all="ignore"):
        return clip(of, how, bound, 1).astype(np.float64)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.floats(-3, 30),
    st.floats(0, 20),
    st.sampled_from([1e-9, 1e-3, 1.0, 1e9]),
    st.integers(0, B - 1),
    st.sampled_from([PER_SAMPLE, NORMALISED]),
)
def test_a_null_record_moves_the_clipped_sum_by_at_most_c(
    name: str, seed: int, size: float, spread: float, bound: float, row: int, how: Clipping
) -> None:
    model, x, features, targets = batch(name, seed, size, spread)
    whole = gradients(model, x, features, targets)
    chosen = np.arange(B) == row
    null = clipped_sum(whole.nulled(chosen), bound, how)
    assert np.linalg.norm(clipped_sum(whole, bound, how) - null) <= bound * (1 + 1e-6)
    assert np.isfinite(null).all()
    # a record that is no number is that null record, to float64's rounding: no other row has changed
    features[row] = np.nan
    lost = clipped_sum(gradients(model, x, features, targets), bound, how)
    np.testing.assert_allclose(lost, null, rtol=0, atol=1e-12 * bound)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lost", [[0], [11], [3, 4, 8], list(range(B))])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_zeroed_where_they_stand(
    name: str, lost: list[int], value: float
) -> None:
    model, x, features, targets = batch(name, 5, -1.0, 1.0)
    rows = np.isin(np.arange(B), lost)
    expected = clipped_sum(gradients(model, x, features, targets).nulled(rows), 1.0)
    features[lost] = value
    np.testing.assert_array_equal(clipped_sum(gradients(model, x, features, targets), 1.0), expected)
    assert expected.any() == (len(lost) < B)


def test_nulled_gradients_keep_their_shape_and_the_caller_its_own() -> None:
    d, x = np.full((3, 2), 2, np.float32), np.full((3, 4), np.inf, np.float32)
    x[1] = 1
    for of in (OuterGradients(d, x), RowGradients(np.concatenate([d, x], axis=1))):
        nulled = of.nulled(np.array([True, False, True]))
        assert [norm > 0 for norm in nulled.norms()] == [False, True, False]
        assert nulled.norms().shape == (3,)
    assert (d == 2).all()
    assert np.isinf(x[0]).all()
