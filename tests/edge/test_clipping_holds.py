"""No record moves the clipped sum by more than is charged: hostile models, records and bounds, as an edge meets them.

A model comes as bytes, is decoded and checked, and a worker makes its releases. Wherever it clips, each record of
the batch is nulled in turn, and how far the result moves is compared with the charge for the clipping and the sampler.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.errors import RemoteProtocolError
from common.mechanism.clipping import Clipping
from common.mechanism.guarantee import CLIP_MARGIN, Adjacency, Norm
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.mechanism.samplers.truncated_poisson import TruncatedPoisson
from common.mechanism.work.local_steps import LocalSteps
from common.messages import SendModel
from common.models.gradients import L1, L2, OuterGradients, RowGradients, powers, summed
from common.models.registry import Counted, make_model
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.laplace import Laplace
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, Floats, PerSampleGradients, Vector
from common.randomness import CounterStreams
from common.wire.codec import decode_model, encode_model
from edge.worker import EdgeWorker, Shard
from mapa.simulation.vectorised import _scale
from tests.mechanism_support import (
    BATCH_MEAN,
    EVERY_CLIPPING,
    NORMALISED,
    PER_SAMPLE,
    POISSON,
    QUANTILE,
    SHUFFLED,
    clip,
    every_sampler,
    truncated,
)

MOST = 1 + 1e-6
LAWS: list[NoiseLaw] = [Gaussian(1.0), GammaNorm(1.0), Laplace(1.0), ExponentialNorm(1.0)]
EDGE = EdgeId("edge-0")
INPUTS = 40


class Own:
    """A model of a user's own, whose gradients are what the records say, times x: in rows, or as products."""

    metrics = ()
    feature_length = None
    features = targets = staticmethod(lambda rows: rows)

    def __init__(self, dimension: int, outer: bool) -> None:
        self.name, self.dimension, self.outer = "own", dimension, outer
        self.layout, self.first_layer = (), slice(0, dimension)

    def gradients(self, x: Vector, features: Any, targets: Any) -> PerSampleGradients:
        if not self.outer:
            return RowGradients(features * x)
        slopes = (features[:, :4] * x[:4]).astype(np.float32)
        return OuterGradients(slopes, features[:, 4 : 4 + self.dimension // 4] + 0 * targets[:, None])


def norm_of(moved: Floats, norm: Norm) -> float:
    return float(np.abs(moved).sum() if norm is Norm.L1 else np.sqrt(np.vdot(moved, moved)))


@contextmanager
def clipping_watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Note, for every record of every batch that the worker clips, its zero-out move over its charge."""
    drawn: list[Any] = []
    moves: list[float] = []

    def watched_draw(of: type[Sampler]) -> Any:
        draw = of.draw

        def drawing(self: Sampler, *rest: Any) -> Any:
            drawn.append((self, draw(self, *rest)))
            return drawn[-1][1]

        return drawing

    def watched_clip(of: type[Clipping]) -> Any:
        clip = of.clip

        def clipping(self: Clipping, gradients: Any, bound: float, batch_size: int, norm: Norm) -> Any:
            whole = clip(self, gradients, bound, batch_size, norm)
            sampler, batch = drawn[-1]
            places = sampler.places(batch_size)
            charged = self.sensitivity_over_clip(Adjacency.ZERO_OUT, places, batch_size) * bound
            for record in np.unique(batch):
                null = clip(self, gradients.nulled(batch == record), bound, batch_size, norm)
                moves.append(norm_of(whole - null, norm) / charged)
            assert np.isfinite(whole).all()
            return whole

        return clipping

    with monkeypatch.context() as patch:
        for sampler in every_sampler(1):
            patch.setattr(type(sampler), "draw", watched_draw(type(sampler)))
        for how in EVERY_CLIPPING:
            patch.setattr(type(how), "clip", watched_clip(type(how)))
        yield moves


def hostile(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Any:
    """Return numbers whose sizes lie between 10^low and 10^high, alike in a row or not; some are 0 or the largest."""
    alike = rng.random() < 0.5
    sizes = rng.uniform(low, high, (*shape[:-1], 1) if alike else shape)
    with np.errstate(all="ignore"):
        values = (10.0**sizes * rng.choice([-1.0, 1.0], shape)).astype(np.float32)
    values[rng.random(shape) < rng.choice([0, 0.1, 0.9])] = 0
    values[rng.random(shape) < rng.choice([0, 0, 0.02])] = np.finfo(np.float32).max
    return np.clip(values, -np.finfo(np.float32).max, np.finfo(np.float32).max)


def worst_move(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    law: NoiseLaw,
    how: Clipping,
    *,
    seed: int,
    bound: float,
    batch_size: int,
    sizes: tuple[float, float],
    records: tuple[float, float],
    sampling: Sampler = SHUFFLED,
    steps: int = 1,
    stabiliser: float = 0.0,
) -> float:
    """Return the largest zero-out move of one message, in units of the charge."""
    rng = np.random.default_rng(seed)
    count = batch_size if sampling == SHUFFLED else 2 * batch_size
    model: Any
    if kind.startswith("own"):
        model = Own(INPUTS, outer=kind == "own-outer")
        features = hostile(rng, (count, INPUTS), *records)
        if seed % 3 == 0:  # a record that is no number, beside others
            features[rng.integers(count)] = rng.choice([np.nan, np.inf, -np.inf])
        targets: Any = rng.uniform(-1, 1, count).astype(np.float32)
    else:
        real = kind == "least-squares"
        ranges: dict[str, Any] = {"target_range": (-1.0, 1.0)} if real else {}
        model = make_model(kind, shape=(INPUTS,), classes=0 if real else 3, options={}, **ranges)
        features = model.features(hostile(rng, (count, INPUTS), *records))
        labels = rng.uniform(-1, 1, count).astype(np.float32) if real else rng.integers(0, 3, count)
        targets = model.targets(labels)
    if how == QUANTILE:
        model = Counted(model)
    x = hostile(rng, (model.dimension,), *sizes)
    if isinstance(sampling, TruncatedPoisson):
        sampling = truncated(batch_size + 3)
    if how.bounds_each_sample or sampling.amplification().largest is None:
        work = LocalSteps(steps=steps, rate=0.5)
    else:
        return 0.0  # not to be configured
    mechanism = Mechanism(law, batch_size, sampling, how.fitted(100 * stabiliser), work)
    shard = Shard(features, targets, np.arange(count))
    return largest_move(monkeypatch, model, shard, mechanism, x, bound, seed)


def largest_move(
    monkeypatch: pytest.MonkeyPatch,
    model: Any,
    shard: Shard,
    mechanism: Mechanism,
    x: Vector,
    bound: float,
    seed: int,
) -> float:
    """Send x to a worker as a cloud does; return the largest move in what it clips."""
    everywhere, streams = slice(0, model.dimension), CounterStreams.seeded(seed)
    worker = EdgeWorker(EDGE, 0, model, shard, mechanism, everywhere, 0.0, streams)
    b = mechanism.batch_size
    sensitivity = min(max(2 * bound / b, 2e-9 / b), 2e9 / b)
    payload = encode_model(SendModel(EDGE, 1, sensitivity, 0, x, 7))
    received = decode_model(EDGE, payload, model.dimension)
    try:
        worker.check(received)
    except RemoteProtocolError:  # by a last bit of b·ΔS/2
        return 0.0
    with clipping_watched(monkeypatch) as moves, warnings.catch_warnings():
        warnings.simplefilter("error")
        worker.receive(received)
    return max(moves, default=0.0)


KINDS = ["own-rows", "own-outer", "lr", "svm", "softmax", "least-squares"]
POWERS = st.floats(-45, 38.5)
SPAN = st.tuples(POWERS, POWERS).map(lambda pair: (min(pair), max(pair)))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("how", EVERY_CLIPPING, ids=lambda how: how.name)
@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
    bound=st.one_of(st.sampled_from([1e-9, 2e-7, 1.0, 1e9]), st.floats(-9, 9).map(lambda p: 10.0**p)),
    batch_size=st.sampled_from([1, 2, 5, 12, 32, 33, 70]),
    sizes=SPAN,
    records=st.one_of(st.just((-3.0, 0.0)), SPAN),
    sampling=st.sampled_from(every_sampler(9)),
    steps=st.sampled_from([1, 1, 3]),
    stabiliser=st.sampled_from([0.0, 0.05]),
)
@example(  # the review's: L1 norms near the end of float32, a weight that is denormal
    kind="least-squares",
    seed=1,
    bound=2e-7,
    batch_size=5,
    sizes=(37.0, 38.5),
    records=(-1.0, 0.0),
    sampling=POISSON,
    steps=1,
    stabiliser=0.0,
)
def test_no_record_moves_the_clipped_sum_by_more_than_is_charged(
    law: NoiseLaw, how: Clipping, kind: str, **values: Any
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert worst_move(monkeypatch, kind, law, how, **values) <= MOST


@pytest.mark.parametrize("bits", [0x7FA00000, 0xFFA00001, 0x7FC00000, 0x7F800000])
def test_a_model_with_a_crafted_nan_is_dropped_without_a_warning(bits: int) -> None:
    """A signalling NaN makes numpy warn of its cast, on the terminal of the operator."""
    payload = bytearray(encode_model(SendModel(EDGE, 1, 1.0, 0, np.ones(3, np.float32), 7)))
    payload[-4:] = bits.to_bytes(4, "little")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RemoteProtocolError, match="not finite"):
            decode_model(EDGE, bytes(payload), 3)


@pytest.mark.parametrize("law", [Gaussian(1.0), Laplace(1.0)], ids=lambda law: law.name)
def test_a_number_that_is_none_in_one_record_leaves_the_norms_of_the_others_alone(law: NoiseLaw) -> None:
    """Factors whose squares vanish in float32, beside a row of NaN: the others' norms must still be found."""
    d, x = np.full((3, 1), 1e18, np.float32), np.full((3, 2), 1e-23, np.float32)
    x[1] = np.nan
    gradients = OuterGradients(d, x)
    with np.errstate(over="ignore", invalid="ignore"):
        whole = clip(gradients, PER_SAMPLE, 1e-8, 1, law.norm)
        null = clip(gradients.nulled(np.array([True, False, False])), PER_SAMPLE, 1e-8, 1, law.norm)
    assert norm_of(whole - null, law.norm) <= 1e-8 * MOST


@pytest.mark.parametrize("norm", list(Norm))
def test_a_record_in_a_large_batch_moves_the_sum_no_further_than_in_a_small_one(norm: Norm) -> None:
    """Sums of thousands of equal samples in float32 round by more than a millionth of one of them."""
    rows = np.full((3001, 2), 0.1, np.float32)
    for gradients in (RowGradients(rows), OuterGradients(rows[:, :1], rows)):
        for how in (PER_SAMPLE, NORMALISED):
            whole = clip(gradients, how, 1e-3, 1, norm)
            null = clip(gradients.nulled(np.arange(3001) == 1500), how, 1e-3, 1, norm)
            assert (1 - 2 * CLIP_MARGIN) * 1e-3 <= norm_of(whole - null, norm) <= 1e-3 * MOST


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "law", "how"),
    [
        ("own-rows", Gaussian(1.0), PER_SAMPLE),
        ("own-rows", Laplace(1.0), QUANTILE),
        ("own-rows", Gaussian(1.0), BATCH_MEAN),
        ("own-outer", Gaussian(1.0), NORMALISED),
        ("own-outer", Laplace(1.0), PER_SAMPLE),
    ],
)
def test_ten_million_equal_entries_are_clipped_to_the_bound(
    monkeypatch: pytest.MonkeyPatch, kind: str, law: NoiseLaw, how: Clipping
) -> None:
    """Where float32 adds one by one, it loses a thousandth of their squares."""
    count = 10_000_000
    model: Any = Own(count, outer=kind == "own-outer")
    shard = Shard(np.full((1, count), 0.1, np.float32), np.zeros(1, np.float32), np.arange(1))
    if how == QUANTILE:
        model = Counted(model)
    mechanism = Mechanism(law, 1, SHUFFLED, how)
    x = np.ones(model.dimension, np.float32)
    moved = largest_move(monkeypatch, model, shard, mechanism, x, 1.0, 0)
    assert (0.5 if how == BATCH_MEAN else 1) * 0.99 <= moved <= MOST


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), SPAN, SPAN, st.floats(-9, 9), st.sampled_from([3, 33, 70]), st.booleans())
def test_the_vectorised_engines_clip_as_edges_do(
    seed: int,
    slopes: tuple[float, float],
    records: tuple[float, float],
    power_of_bound: float,
    rows: int,
    normalised: bool,
) -> None:
    rng = np.random.default_rng(seed)
    d, x = hostile(rng, (1, 1, rows, 3), *slopes), hostile(rng, (1, 1, rows, 50), *records)
    bound = 10.0**power_of_bound
    within: npt.NDArray[np.float64] = np.full((1, 1, 1), bound * (1 - CLIP_MARGIN))

    def total(d: Any, power: int) -> Floats:
        scaled = d.copy()
        least = 1e-9 if normalised else within
        apart = _scale(scaled, x, powers(x, power).astype(np.float64), power, within, least, 0.0)
        found = summed(scaled, x)
        for place, gradient in apart:
            found[place] += gradient
        return found[0, 0].ravel()

    with np.errstate(over="ignore", invalid="ignore"):
        for power, norm in ((L1, Norm.L1), (L2, Norm.L2)):
            null = d.copy()
            null[0, 0, seed % rows] = 0
            assert norm_of(total(d, power) - total(null, power), norm) <= bound * MOST
            how = NORMALISED if normalised else PER_SAMPLE
            edge = clip(OuterGradients(d[0, 0], x[0, 0]), how, bound, 1, norm)
            assert norm_of(edge - total(d, power), norm) <= bound * 1e-3
