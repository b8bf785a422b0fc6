"""EdgeWorker: a model in, a noisy gradient out; batch and noise of (seed, k, n) alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.mechanism.clipping import Clipping
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.messages import SendModel
from common.metrics import LOSS
from common.models.gradients import OuterGradients, RowGradients
from common.models.linear import LogisticRegression, Softmax
from common.models.model import Features, Images, Labels, Targets, layout
from common.models.registry import make_model
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.laplace import Laplace
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, Vector
from common.randomness import CounterStreams, Purpose
from edge.worker import EdgeWorker, Shard, known_powers_of
from tests.mechanism_support import (
    EVERY_CLIPPING,
    NORMALISED,
    PER_SAMPLE,
    POISSON,
    SHUFFLED,
    WITH_REPLACEMENT,
    clip,
    every_sampler,
)

DIMENSION = 6
FIRST_LAYER = slice(0, 2)


class Pull:
    """F(x; ξ) = ‖x − ξ‖²/2, whose gradient is x − ξ; its first two coordinates play the first convolution."""

    name = "pull"
    dimension = DIMENSION
    layout = layout(first=(2,), rest=(4,))
    first_layer = FIRST_LAYER
    metrics = (LOSS,)

    def initial(self, rng: np.random.Generator) -> Vector:  # noqa: ARG002
        return np.zeros(DIMENSION, np.float32)

    def features(self, images: Images) -> Features:
        return images

    def targets(self, labels: Labels) -> Targets:
        return labels

    def gradients(self, x: Vector, features: Features, targets: Targets) -> RowGradients:
        assert len(features) == len(targets)
        return RowGradients(x - features)

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> dict[str, float]:
        raise NotImplementedError


POOL = np.random.default_rng(0).normal(0, 3, (90, DIMENSION)).astype(np.float32)
ROWS = np.arange(10, 70)
X = np.linspace(-1, 1, DIMENSION, dtype=np.float32)


def worker(index: int = 2, streams: CounterStreams | None = None, **changes: Any) -> EdgeWorker:
    given = {"law": Gaussian(1.5), "batch_size": 5, "sampler": WITH_REPLACEMENT, **changes}
    noised, regularization = given.pop("noised", slice(0, DIMENSION)), given.pop("regularization", 0.0)
    return EdgeWorker(
        edge_id=EdgeId(f"edge-{index}"),
        index=index,
        model=Pull(),
        shard=Shard(POOL, np.zeros(len(POOL), np.int64), ROWS),
        mechanism=Mechanism(**given),
        noised=noised,
        regularization=regularization,
        streams=streams or CounterStreams.seeded(11),
    )


LIFE = 12  # an incarnation


def sent(version: int = 1, sensitivity: float = 0.4) -> SendModel:
    return SendModel(EdgeId("edge-2"), version, sensitivity, 0, X, LIFE)


def test_sequences_count_from_one_and_the_answer_says_what_it_was_made_of() -> None:
    edge = worker()
    for n, version in enumerate([1, 4, 9], start=1):
        arrived = edge.receive(sent(version, 0.4 / n))
        assert (arrived.edge_id, arrived.sequence, arrived.version) == ("edge-2", n, version)
        assert (arrived.incarnation, arrived.sensitivity) == (LIFE, 0.4 / n)
        assert arrived.gradient.dtype == np.float32


@pytest.mark.parametrize(
    "law", [ExponentialNorm(0.5), GammaNorm(0.5), Gaussian(2.0)], ids=lambda law: law.name
)
@pytest.mark.parametrize("clipping", EVERY_CLIPPING)
@pytest.mark.parametrize("sampling", every_sampler(6))
def test_a_release_is_the_clipped_mean_the_regulariser_and_one_draw(
    law: NoiseLaw, clipping: Clipping, sampling: Sampler
) -> None:
    if sampling.amplification().largest is not None and not clipping.bounds_each_sample:
        return  # not to be configured
    edge = worker(law=law, clipping=clipping, sampler=sampling, regularization=0.1)
    streams, sensitivity = CounterStreams.seeded(11), 0.4
    for n in range(1, 4):
        batch = ROWS[sampling.draw(streams, 2, n, len(ROWS), 5)]
        mean = clip(RowGradients(X - POOL[batch]), clipping, 5 * sensitivity / 2, 5)
        mean = mean + np.float32(0.1) * X
        eta = law.draw(sensitivity, DIMENSION, streams.at(2, Purpose.NOISE, n))
        np.testing.assert_allclose(edge.receive(sent()).gradient, mean + eta, rtol=1e-6, atol=1e-6)


class Given(Pull):
    """F(x; ξ) = ⟨x, ξ⟩, whose gradient is ξ at every x."""

    def gradients(self, x: Vector, features: Features, targets: Targets) -> RowGradients:  # noqa: ARG002
        return RowGradients(features)


def test_a_huge_model_does_not_round_the_samples_part_before_the_noise_hides_it() -> None:
    """Beside λx = 2²² float32 has steps of 0.5: which one a mean of 0.25 falls to is the noise's to decide."""
    x = np.zeros(DIMENSION, np.float32)
    x[0] = 2.0**22
    upper = []
    for mean in (0.249, 0.251):
        edge = worker(law=Gaussian(0.1), regularization=1.0, sampler=SHUFFLED, batch_size=2)
        edge.model = Given()
        rows = np.zeros((2, DIMENSION), np.float32)
        rows[:, 0] = mean
        edge.shard = Shard(rows, np.zeros(2, np.int64), np.arange(2))
        upper.append(sum(edge.gradient(x, 1.0, n)[0] > x[0] for n in range(1, 201)))
    assert 60 < upper[0] <= upper[1] < 140


def test_without_a_law_nothing_is_clipped_or_noised() -> None:
    edge = worker(law=None, regularization=0.1)
    batch = ROWS[WITH_REPLACEMENT.draw(CounterStreams.seeded(11), 2, 1, len(ROWS), 5)]
    mean = (X - POOL[batch]).mean(axis=0) + 0.1 * X
    np.testing.assert_allclose(edge.receive(sent(sensitivity=0.0)).gradient, mean, rtol=1e-5, atol=1e-6)


def test_only_the_shards_own_rows_are_used() -> None:
    edge = worker(law=None)
    marked = POOL.copy()
    marked[:10] = marked[70:] = np.nan
    edge.shard = Shard(marked, edge.shard.targets, ROWS)
    for _ in range(50):
        assert np.isfinite(edge.receive(sent()).gradient).all()


@pytest.mark.parametrize(
    "law", [ExponentialNorm(0.5), GammaNorm(0.5), Gaussian(2.0)], ids=lambda law: law.name
)
def test_noise_on_the_first_layer_leaves_the_others_in_the_clear(law: NoiseLaw) -> None:
    released = worker(law=law, noised=FIRST_LAYER).gradient(X, 0.4, 1)
    batch = ROWS[WITH_REPLACEMENT.draw(CounterStreams.seeded(11), 2, 1, len(ROWS), 5)]
    clear = clip(RowGradients(X - POOL[batch]), PER_SAMPLE, 1.0, 5)
    np.testing.assert_array_equal(released[2:], clear[2:].astype(np.float32))
    assert (released[:2] != clear[:2]).all()


def test_an_empty_poisson_batch_releases_pure_noise() -> None:
    streams = CounterStreams.seeded(11)
    empty = next(n for n in range(1, 10_000) if not len(POISSON.draw(streams, 2, n, 60, 1)))
    gradient = worker(sampler=POISSON, batch_size=1).gradient(X, 0.4, empty)
    eta = Gaussian(1.5).draw(0.4, DIMENSION, streams.at(2, Purpose.NOISE, empty))
    np.testing.assert_array_equal(gradient, eta.astype(np.float32))


@given(st.permutations([(k, n) for k in range(3) for n in range(1, 4)]))
def test_batch_and_noise_do_not_depend_on_the_order_in_which_edges_ask(order: list[tuple[int, int]]) -> None:
    """One reseated generator serves all edges, as in the simulator; alone, each draws the same."""
    shared = CounterStreams.seeded(11)
    edges = [worker(k, shared) for k in range(3)]
    for k, n in order:
        together = edges[k].gradient(X, 0.4, n)
        np.testing.assert_array_equal(together, worker(k).gradient(X, 0.4, n))


def test_an_edge_that_returns_goes_on_where_its_sequence_was() -> None:
    steady, returned = worker(), worker()
    releases = [steady.receive(sent()).gradient for _ in range(3)]
    returned.sequence = 2
    np.testing.assert_array_equal(returned.receive(sent()).gradient, releases[2])


def test_secure_streams_never_repeat_a_release() -> None:
    releases = {
        worker(streams=CounterStreams.secure()).gradient(X, 0.4, n).tobytes()
        for n in range(1, 4)
        for _ in range(3)
    }
    assert len(releases) == 9


def test_the_model_that_was_sent_is_left_as_it_was() -> None:
    x = X.copy()
    for law in (None, Gaussian(1.0)):
        worker(law=law, regularization=0.5).gradient(x, 0.4, 1)
    np.testing.assert_array_equal(x, X)


def test_a_torch_model_s_gradients_are_normalised_too() -> None:
    pytest.importorskip("torch")
    model = make_model("cnn", shape=(28, 28), classes=10, options={})
    rng = np.random.default_rng(0)
    features = model.features(rng.random((3, 784), dtype=np.float32))
    gradients = model.gradients(model.initial(rng), features, model.targets(np.array([1, 2, 3])))
    for row in np.eye(3, dtype=bool):
        one = clip(gradients.nulled(~row), NORMALISED, 0.3, 1)
        assert np.linalg.norm(one.astype(np.float64)) == pytest.approx(0.3, rel=3e-4)


@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 7, 40, 1100, 2500]),
    st.sampled_from([LogisticRegression, Softmax]),
    st.sampled_from([Gaussian(1.5), Laplace(0.5)]),
    st.integers(-8, 8),
)
def test_a_release_has_the_same_bytes_whether_its_rows_were_measured_before_or_not(
    seed: int, inputs: int, kind: type[LogisticRegression | Softmax], law: NoiseLaw, size: int
) -> None:
    rng = np.random.default_rng(seed)
    model = kind(shape=(inputs,), classes=3)
    features = model.features((10.0**size * rng.standard_normal((90, inputs))).astype(np.float32))
    targets = model.targets(rng.integers(0, 3, len(features)))
    known = known_powers_of(model, law, features)
    assert known is not None
    x = rng.standard_normal(model.dimension).astype(np.float32)
    made = []
    for powers in (known, None):
        edge = worker(law=law, batch_size=40, sampler=POISSON, noised=slice(0, model.dimension))
        edge.model, edge.shard = model, Shard(features, targets, ROWS, powers)
        made.append([edge.gradient(x, 0.4, n).tobytes() for n in (1, 2)])
    assert made[0] == made[1]


class Scaled(LogisticRegression):
    """Changes the features of its batch."""

    def scores(self, x: Vector, features: Features) -> Features:
        features *= 3
        return super().scores(x, features)


class Other(LogisticRegression):
    def gradients(self, x: Vector, features: Features, targets: Targets, of_features: object = None) -> Any:  # noqa: ARG002
        return OuterGradients(self.score_gradient(self.scores(x, features), targets), 2 * features)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e-20, 1e15, 3e38])
def test_a_pool_with_a_row_that_float32_will_not_do_for_is_measured_batch_by_batch(value: float) -> None:
    model = LogisticRegression(shape=(3,), classes=2)
    features = np.ones((5, 4), np.float32)
    assert known_powers_of(model, Gaussian(1.0), features) is not None
    features[2] = value
    assert known_powers_of(model, Gaussian(1.0), features) is None


def test_what_a_users_own_model_makes_of_features_is_measured_batch_by_batch() -> None:
    features = np.ones((5, 4), np.float32)
    for model in (Scaled(shape=(3,), classes=2), Other(shape=(3,), classes=2), Pull()):
        assert known_powers_of(model, Gaussian(1.0), features) is None
