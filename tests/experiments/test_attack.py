"""A released gradient of a linear model is a combination of its batch's images (figure:DP_protect_gradient)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from common.errors import ConfigurationError, DataUnavailableError
from common.messages import GradientArrived, SendModel
from common.models.registry import make_model
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gaussian import Gaussian
from common.quantities import EdgeId, NoisyGradient
from common.wire.codec import encode_gradient, encode_model
from common.wire.topics import EdgeTopic, edge_topic, run_id
from common.wire.v1 import SEAL_BYTES
from experiments.commands.attack import spread
from experiments.reconstruction import (
    IN_THE_CLEAR,
    PSNR_CEILING,
    Reconstruction,
    attack,
    correlation,
    exchanges,
    head_of,
    models_at,
    nearest_image,
    nominal_law,
    observe,
    observe_directory,
    psnr,
    record_payloads,
    ssim,
)
from mapa.simulation.simulator import World
from tests.core_support import CONSTANTS, SIDE, small_world
from tests.mechanism_support import BATCH_MEAN, NORMALISED, PER_SAMPLE, SHUFFLED, clip
from tests.memory_broker import MemoryBroker, MemoryChannel
from tests.reproduce_support import invoked

pytestmark = pytest.mark.slow  # many images for each case

RUN = run_id("observed")
EDGE = EdgeId("edge-0")


def linear_case(name: str, seed: int, batch: int = 1) -> tuple[Any, Any, Any, Any]:
    """Return a model, a model vector x at which every sample has a gradient, images and targets."""
    rng = np.random.default_rng(seed)
    model = make_model(name, shape=(SIDE, SIDE), classes=10, options={})
    images = rng.random((batch, SIDE * SIDE)).astype(np.float32)
    x = (0.01 * rng.standard_normal(model.dimension)).astype(np.float32)
    return model, x, images, model.targets(rng.integers(10, size=batch))


@pytest.mark.parametrize("name", ["lr", "svm", "softmax"])
@given(seed=st.integers(0, 2**32 - 1))
def test_one_sample_s_gradient_gives_its_image_and_its_target_away(name: str, seed: int) -> None:
    model, x, images, targets = linear_case(name, seed)
    gradients = model.gradients(x, model.features(images), targets)
    for how in (PER_SAMPLE, NORMALISED, BATCH_MEAN):  # scale image and constant alike
        released = clip(gradients, how, 0.01, 1)
        np.testing.assert_allclose(head_of(model).invert(released), images[0], atol=1e-4)
        assert head_of(model).target(released) == targets[0]


@given(seed=st.integers(0, 2**32 - 1))
def test_a_batch_of_lr_gives_a_mean_of_its_images_weighted_by_their_derivatives(seed: int) -> None:
    model, x, images, targets = linear_case("lr", seed, batch=5)
    targets = np.ones_like(targets)  # derivatives of one sign: a true mean
    features = model.features(images)
    weights = model.score_gradient(model.scores(x, features), targets)[:, 0].astype(np.float64)
    expected = weights @ images / weights.sum()
    released = clip(model.gradients(x, features, targets), BATCH_MEAN, 1e6, 5)
    np.testing.assert_allclose(head_of(model).invert(released), expected, atol=1e-4)


def test_the_cnn_gives_labels_and_features_away_where_only_its_first_convolution_is_noised() -> None:
    privacy = {"noise": "exponential-norm", "epsilon": 0.01, "scope": "first-conv"}
    world = small_world(model={"name": "cnn"}, privacy=privacy, iterations=3)
    cells = attack(world, epsilons=[0.01], iterations=[1], releases=4, clippings=[PER_SAMPLE])
    assert {cell.law for cell in cells} == {IN_THE_CLEAR, "exponential-norm", "gamma-norm", "gaussian"}
    for cell in cells:
        assert cell.label_accuracy == 1
        assert cell.correlation == pytest.approx(1, abs=1e-5)
        assert cell.psnr is None


def test_a_fitted_svm_sample_gives_nothing_away_and_a_model_without_a_full_connection_is_refused() -> None:
    model = make_model("svm", shape=(SIDE, SIDE), classes=10, options={})
    assert not head_of(model).invert(np.zeros(model.dimension, np.float32)).any()
    odd: Any = SimpleNamespace(name="odd", dimension=3, layout=(), first_layer=slice(0, 3))
    with pytest.raises(ConfigurationError, match=r"model.name = 'odd'"):
        head_of(odd)


def by_place(cells: list[Reconstruction]) -> dict[tuple[str, float | None, str], Reconstruction]:
    return {(cell.law, cell.epsilon, cell.clipping): cell for cell in cells}


def test_less_noise_gives_better_images_and_the_printed_law_adds_the_least() -> None:
    world = small_world(iterations=20)
    cells = by_place(attack(world, epsilons=[0.01, 100.0], iterations=[1], releases=30))
    assert len(cells) == 2 * (1 + 2 * 3)
    for clipping in ("per-sample", "batch-mean"):
        clear = cells[IN_THE_CLEAR, None, clipping]
        assert clear.correlation == pytest.approx(1, abs=1e-5)
        assert clear.psnr is not None
        assert clear.psnr > 60
        assert clear.label_accuracy == 1
        for law in ("exponential-norm", "gamma-norm", "gaussian"):
            assert cells[law, 0.01, clipping].correlation < cells[law, 100.0, clipping].correlation
        gamma = cells["gamma-norm", 100.0, clipping]
        printed = cells["exponential-norm", 100.0, clipping]
        assert gamma.correlation < printed.correlation


def test_each_epsilon_can_have_a_training_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    world = small_world(privacy={"noise": "exponential-norm", "epsilon": 0.3})
    trained: list[float] = []

    def noted(one: World, updates: Sequence[int]) -> list[SendModel]:
        trained.append(one.scenario.privacy.parameters(0)["epsilon"])
        return models_at(one, updates)

    monkeypatch.setattr("experiments.reconstruction.models_at", noted)
    more: dict[str, Any] = {"iterations": [20], "releases": 3, "clippings": [BATCH_MEAN]}
    more["laws"] = ["exponential-norm"]
    once = by_place(attack(world, epsilons=[0.01, 1.0], **more))
    assert trained == [0.3]
    each = by_place(attack(world, epsilons=[0.01, 1.0], **more, retrain=True))
    assert trained[1:] == [0.3, 0.01, 1.0]
    place = ("exponential-norm", 0.01, "batch-mean")
    assert each[place].correlations != once[place].correlations
    assert each[place].correlation == pytest.approx(sum(each[place].correlations) / 3)


def test_a_law_without_epsilon_cannot_be_trained_with_one() -> None:
    world = small_world(privacy={"noise": "gaussian", "noise_multiplier": 1.0})
    with pytest.raises(ConfigurationError, match=r"privacy.noise = 'gaussian'"):
        attack(world, epsilons=[1.0], iterations=[1], retrain=True)


def test_the_released_gradient_is_the_worker_s_own() -> None:
    """The first picture of a cell is what inverting EdgeWorker's own bytes gives."""
    world = small_world(iterations=5, batch_size=1, model={"name": "lr", "regularization": 0.0})
    sent = models_at(world, [3])[0]
    how: dict[str, Any] = {"laws": ["exponential-norm"], "clippings": [PER_SAMPLE]}
    cell = attack(world, epsilons=[1.0], iterations=[3], releases=1, **how)[1]
    worker = world.workers()[0]
    worker.mechanism = replace(worker.mechanism, sampler=SHUFFLED, law=ExponentialNorm(1.0))
    expected = head_of(world.model).invert(worker.gradient(sent.model, sent.sensitivity, 1))
    np.testing.assert_array_equal(cell.picture, expected)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0])
def test_the_gaussian_at_equal_epsilon_meets_its_delta_when_a_sample_is_replaced(epsilon: float) -> None:
    law = nominal_law("gaussian", epsilon, batch_size=1)
    assert isinstance(law, Gaussian)
    mu = 2 / law.noise_multiplier  # a move of ΔS over a std of zΔS/2
    delta = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)


def test_models_come_from_the_scenario_s_own_training() -> None:
    world = small_world(iterations=12)
    versions = [sent.version for sent, _ in exchanges(world, world.workers())]
    assert max(versions) == 12
    first, later, beyond = models_at(world, [1, 7, 30])  # T is stretched for the attack
    assert (first.version, later.version, beyond.version) == (1, 7, 30)
    assert not np.array_equal(first.model, later.model)
    with pytest.raises(ConfigurationError, match="iterations"):
        models_at(world, [0])
    with pytest.raises(ConfigurationError, match="edge 0 has 60 images"):
        attack(small_world(), epsilons=[1.0], iterations=[1], batch_size=7, releases=10)


def test_similarity_measures_are_perfect_for_the_image_itself_and_fall_with_noise() -> None:
    rng = np.random.default_rng(0)
    image = np.outer(np.hanning(28), np.hanning(28))
    assert psnr(image, image) == PSNR_CEILING
    assert ssim(image, image) == pytest.approx(1)
    assert correlation(image, image) == pytest.approx(1)
    assert correlation(image, 1 - image) == pytest.approx(1)  # a negative shows the digit as well
    assert correlation(image, np.zeros_like(image)) == 0
    assert psnr(image, image + 0.1) == pytest.approx(20)
    noisy = [np.clip(image + s * rng.standard_normal(image.shape), 0, 1) for s in (0.05, 0.2, 0.8)]
    for measure in (psnr, ssim, correlation):
        figures = [measure(image, guess) for guess in noisy]
        assert figures == sorted(figures, reverse=True)
    assert ssim(image, noisy[-1]) < 0.3


# ---- the observer on the wire


def payloads(count: int) -> tuple[Any, list[tuple[SendModel, GradientArrived]]]:
    """Return a world with batches of one, no noise, and what went over its wire."""
    how = {"algorithm": {"name": "asgd", **CONSTANTS}, "model": {"name": "lr", "regularization": 0.1}}
    world = small_world(iterations=count, edges=1, batch_size=1, **how)
    return world, list(exchanges(world, world.workers()))


@pytest.mark.parametrize("seal", [b"", b"\0" * SEAL_BYTES], ids=["plain", "sealed"])
def test_an_observer_reconstructs_the_images_of_a_recorded_run(tmp_path: Path, seal: bytes) -> None:
    world, exchanged = payloads(6)
    broker = MemoryBroker()
    cloud, edge, observer = (MemoryChannel(broker) for _ in range(3))
    for channel in (cloud, edge, observer):
        channel.connect()
    full: list[bool] = []
    recorder = record_payloads(
        observer, RUN, tmp_path / "seen", 4, on_full=lambda: full.append(True), sealed=bool(seal)
    )
    for sent, made in exchanged:
        cloud.publish(edge_topic(RUN, EDGE, EdgeTopic.MODEL), encode_model(sent) + seal)
        bytes_made = encode_gradient(made) + seal
        edge.publish(edge_topic(RUN, EDGE, EdgeTopic.GRADIENT), bytes_made)
        edge.publish(edge_topic(RUN, EDGE, EdgeTopic.GRADIENT), bytes_made)  # resent: seen once
        edge.publish(edge_topic(RUN, EDGE, EdgeTopic.GRADIENT), b"no gradient")
    broker.settle()
    assert len(recorder.kept) == recorder.limit
    assert full == [True]
    assert observer.violations > 0
    files = sorted((tmp_path / "seen").iterdir())
    assert [path.suffix for path in files] == [".gradient", ".model"] * 4
    assert files[0].read_bytes() == encode_gradient(exchanged[0][1])
    sightings = observe_directory(world.model, tmp_path / "seen", regularization=0.1)
    assert [s.arrived.sequence for s in sightings] == [1, 2, 3, 4]
    for sighting in sightings:
        row, r = nearest_image(world.dataset, sighting.picture)
        assert r == pytest.approx(1, abs=1e-5)
        assert sighting.target == world.targets[row]
        np.testing.assert_allclose(sighting.picture, world.features[row, :-1], atol=1e-4)


def test_an_observer_without_the_model_still_sees_what_the_regulariser_leaves(tmp_path: Path) -> None:
    world, exchanged = payloads(2)
    made = exchanged[0][1]  # at x₁ = 0 the regulariser adds nothing
    sighting = observe(head_of(world.model), EDGE, encode_gradient(made), None, 0.1)
    assert nearest_image(world.dataset, sighting.picture)[1] == pytest.approx(1, abs=1e-5)
    with pytest.raises(ConfigurationError, match=r"no \*\.gradient files"):
        observe_directory(world.model, tmp_path)
    (tmp_path / "edge-0-1.gradient").write_bytes(b"\0" * 17)
    with pytest.raises(ConfigurationError, match="not a gradient of 'lr'"):
        observe_directory(world.model, tmp_path)


# ---- the command


def test_numbers_may_be_listed_after_one_option() -> None:
    written = ["lr-mnist", "--epsilon", "0.01", "0.1", "1", "--json", "--iterations", "2000,3", "9", "x"]
    assert spread(written, ("--epsilon", "--iterations")) == [
        *("lr-mnist", "--epsilon", "0.01", "--epsilon", "0.1", "--epsilon", "1", "--json"),
        *("--iterations", "2000,3", "--iterations", "9", "x"),
    ]


def test_the_command_writes_pictures_and_figures(tmp_path: Path) -> None:
    words = ["quickstart", "--epsilon", "0.1", "1", "--iterations", "1", "--releases", "2", "--json"]
    words += ["--law", "exponential-norm", "--clipping", "per-sample", "--out", str(tmp_path)]
    result = invoked("attack", *words)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [cell["epsilon"] for cell in report["cells"]] == [None, 0.1, 1.0]
    assert report["cells"][0]["psnr"] > 60
    drawn = [f"quickstart-per-sample.{kind}" for kind in ("png", "svg")]
    assert sorted(path.name for path in tmp_path.iterdir()) == drawn
    assert (tmp_path / "quickstart-per-sample.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_inverts_recorded_payloads(tmp_path: Path) -> None:
    model = make_model("lr", shape=(28, 28), classes=10, options={})
    pixels = np.zeros((1, 784), np.float32)
    pixels[0, 300:420] = 1
    gradients = model.gradients(model.initial(np.random.default_rng()), model.features(pixels), np.array([1]))
    made = GradientArrived(EDGE, 3, 1, 1.0, NoisyGradient(gradients.weighted_sum(None)))
    (tmp_path / "edge-0-00000003.gradient").write_bytes(encode_gradient(made))
    words = ["quickstart", "--from-payloads", str(tmp_path), "--out", str(tmp_path / "out"), "--json"]
    result = invoked("attack", *words)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["payloads"]
    assert (row["edge_id"], row["sequence"], row["target"]) == ("edge-0", 3, 1)
    assert 0 < row["correlation"] < 1
    assert (tmp_path / "out" / "quickstart-wire.svg").is_file()


def test_missing_images_are_named_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailableError):
        invoked("attack", "paper-lr-mnist", "--data-dir", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epsilon", "0"], "epsilon = '0'"),
        (["--epsilon", "much"], "epsilon = 'much'"),
        (["--law", "laplace"], "law = 'laplace'"),
        (["--clipping", "none"], "clipping = 'none'"),
    ],
)
def test_the_command_names_what_is_wrong(words: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        invoked("attack", "quickstart", *words)
