"""Models and custom classes by name."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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


@pytest.mark.parametrize("name", [*MODELS, "torch"])
def test_every_model_keeps_the_contract(name: str) -> None:
    model, rng = made(name), np.random.default_rng(2)
    assert name in (model.name, "torch")
    assert model.layout[-1].slice.stop == model.dimension
    real = model.metrics[0].name == "rmse"
    for count in (0, 4):
        labels = rng.random(count, np.float32) if real else rng.integers(0, 10, count)
        features = model.features(rng.random((count, 784), dtype=np.float32))
        arguments = model.initial(rng), features, model.targets(labels)
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
    with pytest.raises(ConfigurationError, match=r"784|28"):
        model.features(np.zeros((2, 785), np.float32))


def test_options_reach_the_model() -> None:
    lr = make_model("lr", shape=(2, 2), classes=10, options={"positive": [3]})
    assert np.flatnonzero(lr.targets(np.arange(10)) == 1).tolist() == [3]
    with pytest.raises(ConfigurationError, match="activation = 'gelu'"):
        make_model("cnn", shape=(28, 28), classes=10, options={"activation": "gelu"})


def test_an_unknown_name_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_model("resnet", shape=(28, 28), classes=10, options={})
    for part in ("model.name", "'resnet'", *MODELS, "package.module:Class"):
        assert part in str(caught.value)


def test_an_unknown_option_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(ConfigurationError, match=r"model\.options\.postive = \[1\].*positive"):
        make_model("lr", shape=(2, 2), classes=10, options={"postive": [1]})
    with pytest.raises(ConfigurationError, match=r"model\.options\.shape.*none"):
        make_model("svm", shape=(2, 2), classes=10, options={"shape": (3, 3)})


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


def run_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600).stdout


def test_linear_models_never_import_torch() -> None:
    code = """
import sys
from common.models.registry import make_model
for name in ("lr", "svm", "softmax"):
    print(make_model(name, shape=(28, 28), classes=10, options={}).name)
print("torch" in sys.modules)
"""
    assert run_python(code).split() == ["lr", "svm", "softmax", "False"]


def test_without_torch_the_cnn_says_how_to_install_it() -> None:
    code = """
import sys
sys.modules["torch"] = None
from common.errors import ConfigurationError
from common.models.registry import make_model
try:
    make_model("cnn", shape=(28, 28), classes=10, options={})
except ConfigurationError as error:
    print(error)
"""
    message = run_python(code)
    assert "model.name = 'cnn'" in message
    assert "pip install 'mapa-testbed[cnn]'" in message
