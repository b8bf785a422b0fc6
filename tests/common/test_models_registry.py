"""Models and custom classes by name."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigurationError
from common.models.model import Model
from common.models.registry import MODELS, make_model
from common.own_code import import_dotted

ROOT = Path(__file__).parents[2]


def made(name: str) -> Model:
    """Return a model for images of 28 × 28; a small module of one's own for "torch"."""
    if name == "torch":
        from torch import nn

        from common.models.torch_model import TorchModel

        return TorchModel(
            lambda _, classes: nn.Sequential(nn.Flatten(), nn.Linear(784, classes)),
            shape=(28, 28),
            classes=10,
        )
    real = name == "least-squares"
    bounds = (0.0, 1.0) if real else None
    return make_model(name, shape=(28, 28), classes=0 if real else 10, options={}, target_range=bounds)


def batch(model: Model, count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    real = model.metrics[0].name == "rmse"
    labels = rng.random(count, np.float32) if real else rng.integers(0, 10, count)
    features = model.features(rng.random((count, 784), dtype=np.float32))
    x = model.initial(rng) + rng.normal(0, 0.1, model.dimension).astype(np.float32)
    return x, features, model.targets(labels)


@pytest.mark.parametrize("name", [*MODELS, "torch"])
def test_every_model_keeps_the_contract(name: str) -> None:
    model = made(name)
    assert name in (model.name, "torch")
    assert model.layout[-1].slice.stop == model.dimension
    for count in (0, 4):
        arguments = batch(model, count, 2)
        before = [array.copy() for array in arguments]
        for array in arguments:
            array.flags.writeable = False  # taken all the same
        gradients, evaluated = model.gradients(*arguments), model.evaluate(*arguments)
        assert gradients.norms().shape == (count,)
        for weights in (None, np.ones(count, np.float32)):
            total = gradients.weighted_sum(weights)
            assert total.shape == (model.dimension,)
            assert total.any() == bool(count)
        assert set(evaluated) == {metric.name for metric in model.metrics}
        assert all(math.isnan(value) == (count == 0) for value in evaluated.values())
        for array, kept in zip(arguments, before, strict=True):
            np.testing.assert_array_equal(array, kept)
        x = before[0].copy()
        gradients = model.gradients(x, *before[1:])
        x[:] = 0  # the cloud updates in place
        np.testing.assert_array_equal(gradients.weighted_sum(np.ones(count, np.float32)), total)
    with pytest.raises(ConfigurationError, match=r"784|28"):
        model.features(np.zeros((2, 785), np.float32))


@pytest.mark.parametrize("name", ["lr", "svm", "softmax", "least-squares", "cnn"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), b=st.integers(0, 6), factor=st.floats(-3, 3, width=32))
def test_the_weighted_sum_is_linear_in_the_weights(name: str, seed: int, b: int, factor: float) -> None:
    gradients = made(name).gradients(*batch(made(name), b, seed))
    first, second = np.random.default_rng(seed).random((2, b), dtype=np.float32)
    combined = gradients.weighted_sum(first + np.float32(factor) * second)
    apart = gradients.weighted_sum(first) + np.float32(factor) * gradients.weighted_sum(second)
    np.testing.assert_allclose(combined, apart, rtol=1e-3, atol=1e-3)
    assert combined.dtype == gradients.norms().dtype == np.float64


@pytest.mark.parametrize("name", ["lr", "svm", "softmax", "least-squares", "cnn"])
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, arguments = made(name), batch(made(name), 23, 1)
    whole, evaluated = model.gradients(*arguments), model.evaluate(*arguments)
    monkeypatch.setattr(f"common.models.{'cnn' if name == 'cnn' else 'linear'}._CHUNK", 5)
    cut = model.gradients(*arguments)
    np.testing.assert_allclose(cut.norms(), whole.norms(), rtol=1e-5)
    np.testing.assert_allclose(cut.weighted_sum(None), whole.weighted_sum(None), rtol=1e-4, atol=1e-5)
    assert model.evaluate(*arguments) == pytest.approx(evaluated, rel=1e-6)


@pytest.mark.parametrize("name", ["svm", "softmax", "cnn"])
@pytest.mark.parametrize("label", [-1, 10])
def test_a_label_outside_the_classes_is_refused(name: str, label: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{label}"):
        made(name).targets(np.array([3, label]))


GREY, COLOUR, LEAVES = (16, 16), (3, 16, 16), {"landmarks_of": "leaves"}
LANDMARKS = "model.options.landmarks"


@pytest.mark.parametrize(
    ("name", "shape", "options", "said"),
    [
        (
            "lr",
            (2, 2),
            {"postive": [1]},
            "model.options.postive = [1]: unknown to model 'lr'; allowed are positive",
        ),
        ("svm", (2, 2), {"shape": (3, 3)}, "allowed are none"),
        *(
            ("lr", (2, 2), {"positive": wrong}, f"model.options.positive = {wrong!r}")
            for wrong in ([], [10], [-1], list(range(10)), ["1"], [True], 3, "odd")
        ),
        (
            "cnn",
            (28, 28),
            {"activation": "gelu"},
            "model.options.activation = 'gelu': allowed are relu, tanh",
        ),
        ("cnn", (3, 16), {}, "3×16"),
        ("cnn", (3, 32, 32), {}, "shape = (3, 32, 32), classes = 10"),
        ("least-squares", (4,), {}, "shape = (4,), classes = 10"),
        ("scattering", (16,), {}, "shape = (16,), classes = 10"),
        ("scattering", (4, 16, 16), {}, "cannot take shape = (4, 16, 16)"),
        *(("scattering", sides, {}, "multiples of 4") for sides in ((27, 28), (4, 4), (16, 18))),
        *(
            ("scattering", GREY, {"landmarks": wrong}, f"{LANDMARKS} = {wrong!r}: must be from 0 to 2000")
            for wrong in (-1, 2001, 4000, True, 2.0)
        ),
        (
            "scattering",
            GREY,
            {"landmarks_of": "faces"},
            "'faces': must be one of 'strokes', 'blobs', 'leaves'",
        ),
        ("scattering", GREY, {"landmarks_of": ["blobs"]}, "landmarks_of = ['blobs']: must be one of"),
        ("scattering", GREY, LEAVES, "'leaves': must be 'strokes' or 'blobs' with images"),
        ("scattering", COLOUR, {}, "landmarks_of = 'strokes': must be 'leaves' with images of (3, 16, 16)"),
        ("scattering", GREY, {"mirror": 1}, "mirror = 1: must be true or false"),
        (
            "scattering",
            GREY,
            {"mirror": True, "landmarks": 0},
            f"mirror = True: must be false with {LANDMARKS} = 0",
        ),
        ("scattering", GREY, {"colour": "yuv"}, "colour = 'yuv': must be absent with grey images"),
        ("scattering", COLOUR, {**LEAVES, "colour": "hsv"}, "colour = 'hsv': must be one of 'yuv', 'rgb'"),
        ("scattering", COLOUR, {**LEAVES, "colour": {}}, "colour = {}: must be one of"),
        ("scattering", GREY, {"bias": -0.1}, "bias = -0.1: must be a number from 0 to 10"),
        ("scattering", GREY, {"bias": math.nan}, "bias = nan: must be a number"),
        ("scattering", GREY, {"bias": True}, "bias = True: must be a number"),
        (
            "scattering",
            GREY,
            {"bias": 0.1, "landmarks": 0},
            f"bias = 0.1: must be absent with {LANDMARKS} = 0",
        ),
    ],
)
def test_a_shape_or_an_option_that_a_model_cannot_take_is_refused_by_key_value_and_range(
    name: str, shape: tuple[int, ...], options: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_model(name, shape=shape, classes=10, options=options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "classes"), [("softmax", 0), ("lr", 0), ("cnn", 0), ("cnn", 1), ("least-squares", 3)]
)
def test_a_model_refuses_targets_that_it_cannot_take(name: str, classes: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"shape = \(28, 28\), classes = {classes}"):
        make_model(name, shape=(28, 28), classes=classes, options={})
    with pytest.raises(ConfigurationError, match="target_range"):
        make_model("least-squares", shape=(4,), classes=0, options={})


def test_options_reach_the_model() -> None:
    lr = make_model("lr", shape=(2, 2), classes=10, options={"positive": [3]})
    assert np.flatnonzero(lr.targets(np.arange(10)) == 1).tolist() == [3]
    assert make_model("softmax", shape=(3, 32, 32), classes=10, options={}).dimension == 10 * 3073


def test_an_unknown_name_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_model("resnet", shape=(28, 28), classes=10, options={})
    for part in ("model.name", "'resnet'", *MODELS, "package.module:Class"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no.such.module:Thing", "cannot import 'no.such.module'"),
        ("common.errors:NoSuchThing", "has no 'NoSuchThing'"),
        ("common.errors:", "package.module:Class"),
        (":Thing", "package.module:Class"),
        ("a b:c", "package.module:Class"),
        (".relative:Thing", "package.module:Class"),
        ("common.models.registry:MODELS", "not a class"),
        ("common.models.model:Block", "model.options.name is missing"),
        ("common.quantities:EdgeId", "not a class"),
        ("builtins:int", "cannot be made (TypeError"),
    ],
)
def test_a_dotted_path_that_leads_nowhere_is_refused(path: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_model(path, shape=(2, 2), classes=2, options={})
    assert reason in str(caught.value)


def test_a_module_that_fails_while_imported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_model_module.py").write_text("raise RuntimeError('no luck')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"data\.set.*RuntimeError: no luck"):
        import_dotted("broken_model_module:Thing", "data.set")


def test_a_class_that_is_no_model_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "class Half:\n    def __init__(self, **options): self.name = 'half'\n"
    (tmp_path / "half_model_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="lacks dimension, layout, first_layer, metrics, initial"):
        make_model("half_model_module:Half", shape=(2, 2), classes=2, options={"any": 1})


OWN = """
import torch.nn as nn
import mapa
Net = mapa.torch_model(lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], classes)))
"""
GRADIENT = """
import numpy as np
m = make_model(name, shape=(8, 8), classes=10, options={})
zeros = np.zeros((40, 64), np.float32)
m.gradients(m.initial(np.random.default_rng(0)), m.features(zeros), m.targets(np.arange(40) % 10)).norms()
print(*sys.modules)
"""
WITHOUT_TORCH = """
sys.modules["torch"] = None
try:
    make_model(name, shape=(28, 28), classes=10, options={})
except Exception as error:
    print(error)
"""


def run_python(folder: Path, name: str, code: str) -> str:
    (folder / "own_torch_module.py").write_text(OWN)
    head = f"import sys; sys.path.append({str(folder)!r}); name = {name!r}\n"
    head += "from common.models.registry import make_model\n"
    command = [sys.executable, "-c", head + code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lr", "cnn", "own_torch_module:Net"])
def test_a_gradient_imports_torch_only_where_it_is_needed_and_no_part_of_its_compiler(
    name: str, tmp_path: Path
) -> None:
    """The compiler would double the memory of an edge, and the images are built without it."""
    imported = set(run_python(tmp_path, name, GRADIENT).split())
    assert ("torch.autograd" in imported) is (name != "lr")
    assert not imported & {"torch._dynamo", "torch._inductor", "torch.onnx", "sympy", "networkx"}


@pytest.mark.parametrize(
    ("name", "remedy"), [("cnn", "mapa-testbed[cnn]"), ("own_torch_module:Net", "mapa-testbed[torch]")]
)
def test_without_torch_a_model_says_what_to_install(name: str, remedy: str, tmp_path: Path) -> None:
    said = run_python(tmp_path, name, WITHOUT_TORCH)
    assert f"model.name = {name!r}" in said
    assert f"pip install '{remedy}'" in said
