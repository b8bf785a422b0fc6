"""A torch module of one's own: its gradients against autograd, one sample at a time, and what is refused."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from common.errors import ConfigurationError, LocalProtocolError
from common.models import torch_gradients
from common.models.gradients import even_parts
from common.models.registry import make_model
from common.models.torch_model import TorchModel, torch_model

ROOT = Path(__file__).parents[2]


def mlp(shape: tuple[int, ...], classes: int, width: int = 5) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), width), nn.Tanh(), nn.Linear(width, classes or 1)
    )


def group_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(shape[0], 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.LazyLinear(classes or 1)),
    )


class Residual(nn.Module):
    """A layer norm, a skip connection and a weight that is used twice."""

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.norm, self.inner, self.head = nn.LayerNorm(size), nn.Linear(size, size), nn.Linear(size, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs.flatten(1)
        hidden = hidden + functional.gelu(self.inner(self.norm(hidden)))
        return self.head(hidden + self.inner(hidden))  # type: ignore[no-any-return]


def residual(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Residual(math.prod(shape), classes or 1)


def batch(model: TorchModel, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    size = (count, math.prod(model.shape))
    inputs = rng.random(size, np.float32) if model.tokens is None else rng.integers(0, model.tokens, size)
    labels: Any = rng.integers(0, model.classes, count) if model.classes else rng.normal(size=count)
    return model.initial(rng), model.features(inputs.astype(np.float32)), model.targets(labels)


def one_by_one(model: TorchModel, x: np.ndarray, features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the gradients by plain autograd through the module itself, with x put into it, a sample at a time."""
    module, rows = model._module, []
    with torch.no_grad():
        for block in model.layout:
            module.get_parameter(block.name).copy_(torch.tensor(x[block.slice]).view(block.shape))
    trained = [module.get_parameter(block.name) for block in model.layout]
    for feature, target in zip(features, targets, strict=True):
        loss = model._losses(module(torch.tensor(feature[None])), torch.tensor(target[None])).sum()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)]).numpy())
    return np.array(rows)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 7),
    factory=st.sampled_from([mlp, group_cnn, residual]),
    shape=st.sampled_from([(2, 4, 4), (3, 6, 4)]),
    classes=st.sampled_from([0, 2, 12]),
)
def test_per_sample_gradients_equal_autograd_on_single_samples(
    seed: int, count: int, factory: Callable[..., nn.Module], shape: tuple[int, ...], classes: int
) -> None:
    model = TorchModel(factory, shape=shape, classes=classes)
    x, features, targets = batch(model, count, seed)
    gradients = model.gradients(x, features, targets)
    expected = one_by_one(model, x, features, targets)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(gradients.norms(), np.linalg.norm(expected, axis=1), rtol=1e-4, atol=1e-6)
    for i in range(count):
        alone = np.eye(count, dtype=np.float32)[i]
        np.testing.assert_allclose(gradients.weighted_sum(alone), expected[i], rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("loss", ["mse", "huber", lambda outputs, targets: (outputs[:, 0] - targets).abs()])
def test_losses_of_real_targets(loss: Any) -> None:
    model = TorchModel(mlp, loss, shape=(6,), classes=0)
    x, features, targets = batch(model, 5, 0)
    expected = one_by_one(model, x, features, targets)
    np.testing.assert_allclose(
        model.gradients(x, features, targets).weighted_sum(None), expected.sum(axis=0), rtol=1e-4, atol=1e-5
    )
    with torch.no_grad():
        outputs = model._module(torch.tensor(features))[:, 0].numpy()
    evaluated = model.evaluate(x, features, targets)
    assert list(evaluated) == ["rmse", "loss"]
    assert evaluated["rmse"] == pytest.approx(np.sqrt(np.mean((outputs - targets) ** 2)), rel=1e-5)
    losses = {"mse": (outputs - targets) ** 2}.get(loss if isinstance(loss, str) else "")
    if losses is not None:
        assert evaluated["loss"] == pytest.approx(losses.mean(), rel=1e-5)


@pytest.mark.parametrize("kept", [torch_gradients.ROWS_BYTES, 0])
def test_chunks_change_nothing_beyond_float32(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    model = TorchModel(group_cnn, shape=(2, 8, 8), classes=3)
    arguments = batch(model, 23, 1)
    whole, evaluated = model.gradients(*arguments), model.evaluate(*arguments)
    monkeypatch.setattr(torch_gradients, "CHUNK_BYTES", 5 * 12 * model.dimension)
    monkeypatch.setattr(torch_gradients, "ROWS_BYTES", kept)
    assert 1 <= torch_gradients.chunk_size(model.dimension, model._activations) < 5
    cut = model.gradients(*arguments)
    assert isinstance(cut, torch_gradients.RepeatedGradients) is (kept == 0)
    weights = np.random.default_rng(0).random(23, dtype=np.float32)
    np.testing.assert_allclose(cut.norms(), whole.norms(), rtol=1e-5)
    np.testing.assert_allclose(cut.l1_norms(), whole.l1_norms(), rtol=1e-5)
    np.testing.assert_allclose(cut.weighted_sum(None), whole.weighted_sum(None), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(cut.weighted_sum(weights), whole.weighted_sum(weights), rtol=1e-4, atol=1e-5)
    lost = np.arange(23) % 3 == 0
    kept_rows = cut.nulled(lost).weighted_sum(weights)
    np.testing.assert_allclose(kept_rows, whole.nulled(lost).weighted_sum(weights), rtol=1e-4, atol=1e-5)
    assert model.evaluate(*arguments) == pytest.approx(evaluated, rel=1e-5)


def test_rows_that_are_made_twice_must_be_the_same_both_times() -> None:
    """Clipping goes by the norms of the first time."""
    times = iter([1.0, 1.0, 2.0])

    def rows_of(part: slice) -> Any:
        return np.full((part.stop - part.start, 3), next(times), np.float32)

    gradients = torch_gradients.RepeatedGradients(rows_of, [slice(0, 2)], 3, np.zeros(2, np.bool_))
    gradients.norms()
    assert gradients.weighted_sum(None).tolist() == [2, 2, 2]
    with pytest.raises(LocalProtocolError, match="another gradient"):
        gradients.nulled(np.array([True, False])).weighted_sum(None)


@given(count=st.integers(0, 2000), most=st.integers(1, 300))
def test_a_batch_is_cut_into_even_parts(count: int, most: int) -> None:
    cuts = list(even_parts(count, most))
    assert [row for cut in cuts for row in range(cut.start, cut.stop)] == list(range(count))
    sizes = {cut.stop - cut.start for cut in cuts}
    assert max(sizes, default=0) <= most
    assert len(sizes) <= 2
    assert len(cuts) == -(-count // most)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), other=st.integers(0, 2**32 - 1))
def test_no_samples_gradient_depends_on_another_sample(seed: int, other: int) -> None:
    """To the bit: the chunk's size is the same, and that is all the samples share."""
    model = TorchModel(group_cnn, shape=(2, 4, 4), classes=3)
    x, features, targets = batch(model, 4, seed)
    _, others, labels = batch(model, 4, other)
    others[0], labels[0] = features[0], targets[0]
    first = np.eye(4, dtype=np.float32)[0]
    np.testing.assert_array_equal(
        model.gradients(x, features, targets)._x[0],  # type: ignore[attr-defined]
        model.gradients(x, others, labels)._x[0],  # type: ignore[attr-defined]
    )
    assert model.gradients(x, others, labels).weighted_sum(first).dtype == np.float64


# -- weights ------------------------------------------------------------------------------------------


def test_the_initial_weights_are_the_generators_alone_and_torchs_own_state_stays() -> None:
    model = TorchModel(group_cnn, shape=(2, 8, 8), classes=3)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    x = model.initial(np.random.default_rng(7))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    again = TorchModel(group_cnn, shape=(2, 8, 8), classes=3)
    np.testing.assert_array_equal(x, again.initial(np.random.default_rng(7)))
    assert not np.array_equal(x, model.initial(np.random.default_rng(8)))
    assert x.dtype == np.float32


def test_the_layout_has_the_modules_names_and_leads_back_to_its_weights() -> None:
    model = TorchModel(residual, shape=(3,), classes=2)
    names = ["norm.weight", "norm.bias", "inner.weight", "inner.bias", "head.weight", "head.bias"]
    assert [block.name for block in model.layout] == names
    x = np.arange(model.dimension, dtype=np.float32)
    parameters = model._parameters(x)
    flat = np.concatenate([parameters[name].numpy().ravel() for name in names])
    np.testing.assert_array_equal(flat, x)
    assert model.first_layer == slice(0, 6)
    assert model.layout[-1].slice.stop == model.dimension == 6 + 12 + 8


def test_frozen_parameters_are_used_and_not_trained() -> None:
    whole = TorchModel(mlp, shape=(4,), classes=3)
    model = TorchModel(mlp, shape=(4,), classes=3, freeze=["1.*"])
    assert [block.name for block in model.layout] == ["3.weight", "3.bias"]
    _, features, targets = batch(model, 5, 0)
    x = np.concatenate([whole._module.get_parameter(b.name).detach().numpy().ravel() for b in whole.layout])
    tail = x[-model.dimension :]
    assert model.evaluate(tail, features, targets) == pytest.approx(whole.evaluate(x, features, targets))
    np.testing.assert_allclose(
        model.gradients(tail, features, targets).weighted_sum(None),
        whole.gradients(x, features, targets).weighted_sum(None)[-model.dimension :],
        rtol=1e-5,
        atol=1e-6,
    )
    again = TorchModel(mlp, shape=(4,), classes=3, freeze=["1.*"])
    assert torch.equal(model._module.get_parameter("1.weight"), again._module.get_parameter("1.weight"))
    assert len(model.initial(np.random.default_rng(0))) == model.dimension
    for patterns, said in ((["9.*"], "9.*"), (["*"], "no parameter left"), ("1.*", "list of patterns")):
        with pytest.raises(ConfigurationError) as caught:
            TorchModel(mlp, shape=(4,), classes=3, freeze=patterns)
        assert said in str(caught.value)


def stored(folder: Path, weights: dict[str, torch.Tensor], name: str = "w.safetensors") -> dict[str, str]:
    save_file(weights, folder / name)
    return {"file": name, "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest()}


def test_pretrained_weights_come_from_a_checked_file(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    weights = {"1.weight": torch.randn(5, 4, generator=generator), "1.bias": torch.randn(5)}
    option = stored(tmp_path, weights)
    model = TorchModel(mlp, shape=(4,), classes=3, pretrained=option, data_dir=tmp_path)
    first, second = (model.initial(np.random.default_rng(seed)) for seed in (1, 2))
    np.testing.assert_array_equal(first[:20], weights["1.weight"].numpy().ravel())
    np.testing.assert_array_equal(first[:25], second[:25])
    assert not np.array_equal(first[25:], second[25:])  # the head is new
    frozen = TorchModel(mlp, shape=(4,), classes=3, pretrained=option, freeze=["1.*"], data_dir=tmp_path)
    assert torch.equal(frozen._module.get_parameter("1.weight"), weights["1.weight"])
    assert frozen.dimension == 18


def test_a_pretrained_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    good = stored(tmp_path, {"1.bias": torch.zeros(5)})
    (tmp_path / "text.safetensors").write_text("nonsense")
    text = {
        "file": "text.safetensors",
        "sha256": hashlib.sha256((tmp_path / "text.safetensors").read_bytes()).hexdigest(),
    }
    large = stored(tmp_path, {"1.bias": torch.zeros(5), "more": torch.zeros(1 << 19)}, "large.safetensors")
    cases: list[tuple[Any, str]] = [
        ("w.safetensors", "must read {file"),
        ({"file": "w.safetensors"}, "must read {file"),
        ({}, "must read {file"),
        ({**good, "sha256": "0" * 64}, "is another file"),
        ({**good, "sha256": "abc"}, "64 digits"),
        ({**good, "file": "../w.safetensors"}, "below the data directory"),
        ({**good, "file": str(tmp_path / "w.safetensors")}, "below the data directory"),
        ({**good, "file": "records.csv"}, "below the data directory"),
        ({**good, "file": "none.safetensors"}, "cannot be read"),
        (text, "no safetensors file"),
        (large, "larger than the module"),
        (stored(tmp_path, {"9.bias": torch.zeros(5)}, "a.safetensors"), "no such weights"),
        (stored(tmp_path, {"1.bias": torch.zeros(6)}, "b.safetensors"), "of (6,)"),
        (stored(tmp_path, {"1.bias": torch.full((5,), math.nan)}, "c.safetensors"), "not finite"),
    ]
    for option, said in cases:
        with pytest.raises(ConfigurationError, match=r"model\.options\.pretrained") as caught:
            TorchModel(mlp, shape=(4,), classes=3, pretrained=option, data_dir=tmp_path)
        assert said in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"lacks '1\.weight', which is frozen"):
        TorchModel(mlp, shape=(4,), classes=3, pretrained=good, freeze=["1.*"], data_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="no data directory"):
        TorchModel(mlp, shape=(4,), classes=3, pretrained=good)


# -- refusals -----------------------------------------------------------------------------------------


class Subtract(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs - inputs.mean(dim=0, keepdim=True)


class Noise(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + torch.randn_like(inputs)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += inputs.detach().sum()
        return inputs


class Branching(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs if inputs.abs().max().item() < 1e6 else -inputs


def with_layer(layer: Callable[[], nn.Module], size: int = 8) -> Callable[..., nn.Module]:
    def factory(shape: tuple[int, ...], classes: int) -> nn.Module:
        convolution = nn.Conv2d(shape[0], size, 3)
        return nn.Sequential(
            nn.Sequential(convolution, layer()), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes)
        )

    return factory


REFUSED: list[tuple[Callable[[], nn.Module], str, str]] = [
    (lambda: nn.BatchNorm2d(8), "layer '0.1' (BatchNorm2d) mixes samples", "GroupNorm"),
    (lambda: nn.BatchNorm2d(8, track_running_stats=False).eval(), "(BatchNorm2d) mixes samples", "GroupNorm"),
    (lambda: nn.SyncBatchNorm(8), "layer '0.1' (SyncBatchNorm) mixes samples", "GroupNorm"),
    (lambda: nn.LazyBatchNorm2d(), "layer '0.1' (BatchNorm2d) mixes samples", "GroupNorm"),
    (
        lambda: nn.InstanceNorm2d(8, track_running_stats=True),
        "layer '0.1' (InstanceNorm2d) keeps statistics",
        "track_running_stats=False",
    ),
    (lambda: nn.Dropout(0.5), "layer '0.1' (Dropout) draws random numbers", "replay"),
    (lambda: nn.Dropout2d(0.1), "layer '0.1' (Dropout2d) draws random numbers", "replay"),
    (lambda: nn.RReLU(), "layer '0.1' (RReLU) draws random numbers", "replay"),
    (Subtract, "layer '0.1' (Subtract) mixes samples", "GroupNorm"),
    (Noise, "layer '0.1' (Noise) gives other outputs for the same inputs", "replay"),
    (Counting, "buffer '0.1.seen' changes", "records"),
]


class Recurrent(nn.Module):
    """A recurrent layer of torch's, or a cell of it in a loop, and a full connection."""

    def __init__(self, layer: nn.Module, classes: int) -> None:
        super().__init__()
        self.layer, self.full = layer, nn.Linear(5, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if isinstance(self.layer, nn.RNNBase):
            return self.full(self.layer(inputs)[0][:, -1])
        state = None
        for step in inputs.unbind(1):
            state = self.layer(step, state)
        return self.full(state[0] if isinstance(state, tuple) else state)


BY_ITSELF: dict[str, Callable[..., nn.Module]] = {
    "lstm": lambda _, classes: Recurrent(nn.LSTM(3, 5, num_layers=2, batch_first=True), classes),
    "gru": lambda _, classes: Recurrent(nn.GRU(3, 5, batch_first=True), classes),
    "rnn": lambda _, classes: Recurrent(nn.RNN(3, 5, batch_first=True), classes),
    "lstm-cell": lambda _, classes: Recurrent(nn.LSTMCell(3, 5), classes),
    "branch": lambda _, classes: nn.Sequential(Branching(), nn.Flatten(), nn.LazyLinear(classes)),
}


@pytest.mark.parametrize("kind", BY_ITSELF)
def test_what_vmap_cannot_run_gets_its_gradients_sample_by_sample(kind: str) -> None:
    model = TorchModel(BY_ITSELF[kind], shape=(4, 3), classes=2)
    rng = np.random.default_rng(3)
    x = model.initial(rng)
    features = model.features(rng.normal(size=(3, 12)).astype(np.float32))
    targets = model.targets(np.array([0, 1, 1]))
    gradients = model.gradients(x, features, targets)
    for i, weights in enumerate(np.eye(3)):
        alone = model.gradients(x, features[i : i + 1], targets[i : i + 1]).weighted_sum(None)
        np.testing.assert_allclose(gradients.weighted_sum(weights), alone, rtol=1e-5, atol=1e-7)
        assert alone.any()
    lower = model.evaluate(x - 0.1 * gradients.weighted_sum(None), features, targets)["loss"]
    assert lower < model.evaluate(x, features, targets)["loss"]


@pytest.mark.parametrize(("layer", "said", "remedy"), REFUSED, ids=[said for _, said, _ in REFUSED])
def test_what_mixes_samples_keeps_state_or_is_random_is_refused(
    layer: Callable[[], nn.Module], said: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TorchModel(with_layer(layer), shape=(3, 8, 8), classes=4)
    assert said in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.GroupNorm(2, 8),
        lambda: nn.InstanceNorm2d(8),
        lambda: nn.LocalResponseNorm(2),
        lambda: nn.Dropout(0.0),
        lambda: nn.Dropout(0.5).eval(),
        lambda: nn.BatchNorm2d(8).eval(),
    ],
)
def test_what_treats_each_sample_by_itself_is_taken(layer: Callable[[], nn.Module]) -> None:
    model = TorchModel(with_layer(layer), shape=(3, 8, 8), classes=4)
    arguments = batch(model, 3, 0)
    np.testing.assert_allclose(
        model.gradients(*arguments).weighted_sum(None),
        one_by_one(model, *arguments).sum(axis=0),
        rtol=1e-3,
        atol=1e-5,
    )


class Shared(nn.Module):
    """A layer that is used twice and has two names, and a weight that is at two places."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(4, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.tied(torch.tanh(self.again(torch.tanh(self.first(inputs))))))


def test_shared_weights_are_trained_as_one_and_the_module_stays_whole() -> None:
    model = TorchModel(lambda _, classes: Shared(classes), shape=(4,), classes=3)
    assert model.dimension == 16 + 4 + 4 + 15
    for seed in (0, 1):  # a second time: the first put all tensors back
        x, features, targets = batch(model, 5, seed)
        module, parameters = Shared(3), {}
        for block in model.layout:
            end = block.start + math.prod(block.shape)
            parameters[block.name] = torch.from_numpy(x[block.start : end].reshape(block.shape).copy())
        module.load_state_dict(parameters, strict=False)
        loss = functional.cross_entropy(
            module(torch.from_numpy(features.reshape(-1, 4))), torch.from_numpy(targets), reduction="sum"
        )
        own = dict(module.named_parameters())
        found = torch.autograd.grad(loss, [own[block.name] for block in model.layout])
        expected = torch.cat([gradient.flatten() for gradient in found]).numpy()
        summed = model.gradients(x, features, targets).weighted_sum(None)
        np.testing.assert_allclose(summed, expected, rtol=1e-4, atol=1e-5)
        assert model.evaluate(x, features, targets)["loss"] == pytest.approx(
            float(loss.detach()) / 5, rel=1e-4
        )


class Masking(nn.Module):
    """Gives −∞ in places, as masks of attention do."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.masked_fill(torch.arange(inputs.shape[-1]) < 3, -math.inf)


class MaskingMixture(Masking):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs - inputs.mean(dim=0, keepdim=True))


def test_infinite_values_between_layers_are_no_mixing_and_hide_none() -> None:
    def of(layer: type[nn.Module]) -> TorchModel:
        return TorchModel(
            lambda _, classes: nn.Sequential(layer(), nn.Softmax(1), nn.Linear(8, classes)),
            shape=(8,),
            classes=3,
        )

    assert of(Masking).dimension == 27
    with pytest.raises(ConfigurationError, match=r"layer '0' \(MaskingMixture\) mixes samples"):
        of(MaskingMixture)


def unseeded(shape: tuple[int, ...], classes: int) -> nn.Module:
    module = nn.Linear(math.prod(shape), classes)
    with torch.no_grad():
        module.bias.copy_(torch.from_numpy(np.random.default_rng().normal(size=classes)))
    return module


@pytest.mark.parametrize(
    ("factory", "loss", "classes", "said"),
    [
        (lambda _, __: 3, None, 2, "the factory returns int"),
        (lambda _, c: nn.Linear(4, c + 1), None, 3, "returns 3 × 4 for 3 inputs"),
        (lambda _, c: nn.Linear(5, c), None, 3, "fails on made-up inputs of 3 × 4"),
        (lambda _, c: nn.Linear(4, c).double(), None, 3, "parameter 'weight': torch.float64"),
        (lambda _, __: nn.Linear(4, 2), None, 0, "must be 3 or 3 × 1"),
        (lambda _, __: nn.LSTM(4, 2, batch_first=True), None, 2, "returns tuple"),
        (unseeded, None, 2, "'bias' differs when the factory is called again"),
        (mlp, "mse", 2, "loss = 'mse': with classes = 2 allowed are cross-entropy"),
        (mlp, "cross-entropy", 0, "allowed are mse, huber"),
        (mlp, lambda o, t: functional.cross_entropy(o, t), 2, "loss returns a single number"),
        (mlp, lambda o, t: o[:, 0] - o[:, 0].mean() + t, 2, "loss mixes samples"),
        (mlp, lambda o, t: o[:, 0] * t * math.nan, 2, "the loss of a made-up sample is not finite"),
        (mlp, None, 1, "classes = 1"),
    ],
)
def test_what_cannot_be_a_model_is_refused(factory: Any, loss: Any, classes: int, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TorchModel(factory, loss, shape=(4,), classes=classes)
    assert said in str(caught.value)


def test_the_checks_use_made_up_inputs_and_never_records() -> None:
    seen: list[int] = []

    class Watching(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            seen.append(len(inputs))
            return super().forward(inputs)

    model = TorchModel(lambda _, classes: Watching(4, classes), shape=(4,), classes=2)
    made = len(seen)
    assert made > 0
    model.features(np.zeros((9, 4), np.float32))
    model.targets(np.zeros(9, np.int64))
    model.initial(np.random.default_rng(0))
    assert len(seen) == made


# -- inputs, metrics, options -------------------------------------------------------------------------


def words(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(4 * shape[0], classes))


def test_tokens_are_whole_numbers_of_a_stated_vocabulary() -> None:
    model = TorchModel(words, shape=(6,), classes=3, tokens=11)
    x, features, targets = batch(model, 4, 0)
    assert features.dtype == np.int32
    expected = one_by_one(model, x, features, targets).sum(axis=0)
    found = model.gradients(x, features, targets).weighted_sum(None)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    for wrong in (11, -1, 0.5, math.nan):
        with pytest.raises(ConfigurationError, match="whole numbers from 0 to 10"):
            model.features(np.full((2, 6), wrong, np.float32))


def test_inputs_and_targets_of_another_kind_are_refused() -> None:
    model = TorchModel(mlp, shape=(2, 3), classes=3)
    with pytest.raises(ConfigurationError, match=r"made for \(2, 3\)"):
        model.features(np.zeros((1, 7), np.float32))
    with pytest.raises(ConfigurationError, match="0 … 2"):
        model.targets(np.array([3]))
    real = TorchModel(mlp, shape=(2, 3), classes=0)
    with pytest.raises(ConfigurationError, match="finite"):
        real.targets(np.array([math.inf]))  # type: ignore[arg-type]


def test_metrics_follow_the_outputs() -> None:
    def names(**more: Any) -> list[str]:
        return [metric.name for metric in TorchModel(mlp, shape=(4,), **more).metrics]

    assert names(classes=3) == ["accuracy", "loss"]
    assert names(classes=10) == ["accuracy", "top5", "loss"]
    assert names(classes=0) == ["rmse", "loss"]
    model = TorchModel(mlp, shape=(4,), classes=12)
    x, features, targets = batch(model, 40, 0)
    scores = model._module  # with x put in below
    one_by_one(model, x, features, targets)
    with torch.no_grad():
        order = scores(torch.tensor(features)).numpy().argsort(axis=1)[:, ::-1]
    evaluated = model.evaluate(x, features, targets)
    assert evaluated["accuracy"] == np.mean(order[:, 0] == targets)
    assert evaluated["top5"] == np.mean((order[:, :5] == targets[:, None]).any(axis=1))


OWN = """
import torch.nn as nn
import mapa

def net(shape, classes, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], width), nn.ReLU(), nn.Linear(width, classes))

def mixing(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(shape[0] * shape[1]), nn.LazyLinear(classes))

Net = mapa.torch_model(net, "cross-entropy")
Mixing = mapa.torch_model(mixing)
"""


def test_a_file_of_ones_own_names_a_model_and_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_torch_module.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    small = {"shape": (2, 2), "classes": 2}
    model = make_model("own_torch_module:Net", options={"width": 7}, **small)  # type: ignore[arg-type]
    assert model.name == "net"
    assert model.layout[0].shape == (7, 4)
    refusals: list[tuple[str, dict[str, object], str]] = [
        (
            "Net",
            {"witdh": 7},
            "model.options.witdh = 7: unknown to model 'own_torch_module:Net'; allowed are",
        ),
        ("Net", {"data_dir": "/etc"}, "model.options.data_dir = '/etc': unknown"),
        ("Net", {"pretrained": "w"}, "model.options.pretrained = 'w'"),
        ("net", {}, "mapa.torch_model(function)"),
        (
            "Mixing",
            {},
            "model.name = 'own_torch_module:Mixing': layer '1' (BatchNorm1d) mixes samples; use GroupNorm",
        ),
    ]
    for name, options, said in refusals:
        with pytest.raises(ConfigurationError) as caught:
            make_model(f"own_torch_module:{name}", options=options, **small)  # type: ignore[arg-type]
        assert said in str(caught.value)


def test_a_factory_may_not_use_the_names_of_the_models_own_options() -> None:
    def factory(shape: tuple[int, ...], classes: int, freeze: int = 1) -> nn.Module:  # noqa: ARG001
        return nn.Linear(4, classes)

    with pytest.raises(ConfigurationError, match="'freeze' must have another name"):
        torch_model(factory)


def test_a_torch_cut_down_for_the_built_in_cnn_names_the_image_to_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("common.models.torch_model.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="take the image mapa-edge-torch"):
        TorchModel(mlp, shape=(4,), classes=2)


def test_an_edges_memory_counts_rows_activations_and_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TorchModel(mlp, shape=(4,), classes=2)
    frozen = TorchModel(mlp, shape=(4,), classes=2, freeze=["1.*"])
    one, two = model.batch_bytes(1), model.batch_bytes(2)
    assert two - one >= 4 * 4 * model.dimension  # a copy, a gradient, a row; and the row that is kept
    module = 4 * sum(block.size for block in model.layout)
    assert one > module
    assert frozen.batch_bytes(1) > module  # frozen weights take memory too
    monkeypatch.setattr(torch_gradients, "CHUNK_BYTES", 0)
    monkeypatch.setattr(torch_gradients, "ROWS_BYTES", 0)
    assert model.batch_bytes(10_000) == model.batch_bytes(1)
