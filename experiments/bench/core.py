"""Speed of the simulator: event-driven against bare arithmetic, vectorised against a torch loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from common.models.cnn import Cnn
from common.models.model import Images, Labels, Model
from common.models.torch_model import TorchModel
from common.quantities import Vector
from common.randomness import streams_for
from common.scenario.scenario import Scenario, parse_scenario
from experiments.bench.ratios import Ratio, compare, work
from mapa.simulation.simulator import World, simulate
from mapa.simulation.vectorised import simulate_many, simulate_rounds

_BATCH = 12
_SWEEP_BAR = (
    6.5  # 20,000 updates/s over the loop's 3,090/s on a machine that did little else (docs/performance.md)
)


def core_ratios(data_dir: Path) -> Iterator[Ratio]:
    torch.set_num_threads(1)
    five, ten, hundred, thousand = (World.of(_scenario(k, 20_000), data_dir) for k in (5, 10, 100, 1000))
    short = replace(five, scenario=_scenario(5, 3000))
    sweep = sweep_worlds(data_dir, edges=100, iterations=4000)
    cnn, module = Cnn(shape=(28, 28), classes=10), TorchModel(paper_module, shape=(28, 28), classes=10)
    rng = np.random.default_rng(0)
    x = cnn.initial(rng)
    images, labels = rng.random((64, 784), dtype=np.float32), rng.integers(0, 10, 64)
    few = images[:_BATCH], labels[:_BATCH]

    bare = work(bare_arithmetic(five, 3000), 3000)
    loop = work(autograd_loop(hundred, 2000), 2000)
    small, large = (work(lambda w=w: simulate_rounds(w, blocks=True), 20_000) for w in (ten, thousand))  # type: ignore[misc]
    rounds = work(lambda: simulate_rounds(hundred, blocks=True), 20_000)
    swept = work(lambda: simulate_many(sweep, blocks=True), 4000 * len(sweep))
    events = work(lambda: simulate(short), 3000)
    clipped, plain = work(_clipped(cnn, x, *few, 100), 100), work(_plain_cnn(cnn, x, *few, 100), 100)
    ours, built_in = (work(_clipped(model, x, images, labels, 20), 20) for model in (module, cnn))
    yield compare("event-driven LR / bare numpy", 4.0, events, bare, "bare", at_most=True)
    yield compare("vectorised LR, K = 100 / torch-autograd loop", 2.5, rounds, loop, "torch loop")
    name = "vectorised sweep of 8 LR runs, K = 100 / torch-autograd loop"
    yield compare(name, _SWEEP_BAR, swept, loop, "torch loop")
    yield compare("vectorised LR, K = 1,000 / K = 10", 1.3, large, small, "K = 10", at_most=True)
    yield compare(
        "CNN per-sample clipping / plain batch gradient", 2.0, clipped, plain, "plain", at_most=True
    )
    name = "the CNN as a TorchModel, b = 64 / the built-in one"
    yield compare(name, 1.5, ours, built_in, "built-in", at_most=True)


def _scenario(edges: int, iterations: int, *, seed: int = 1, epsilon: float = 0.5) -> Scenario:
    return parse_scenario(
        {
            "edges": edges,
            "iterations": iterations,
            "batch_size": _BATCH,
            "seed": seed,
            "data": {"set": "mnist-5k", "sampler": "with-replacement", "partition": "shared"},
            "model": {"name": "lr"},
            "algorithm": {"name": "mapa", "first_clip": 17.2},
            "privacy": {"noise": "exponential-norm", "epsilon": epsilon},
            "evaluation": {"every": 0},
        }
    )


def sweep_worlds(data_dir: Path, *, edges: int, iterations: int) -> list[World]:
    """Return runs that differ in seed and ε alone and share their features, as the figures sweep them."""
    first = World.of(_scenario(edges, iterations), data_dir)
    return [
        replace(
            first,
            scenario=_scenario(edges, iterations, seed=seed, epsilon=epsilon),
            streams=streams_for(seed),
        )
        for seed in range(4)
        for epsilon in (0.1, 0.5)
    ]


def bare_arithmetic(world: World, iterations: int) -> Callable[[], None]:
    """Return the sums of an LR run with no server, no worker, no streams: what nothing can be faster than."""
    features, targets = world.features, world.targets.astype(np.float32)
    rng = np.random.default_rng(0)
    count, dimension = len(features), int(features.shape[1])
    bound, scale = np.float32(17.2), 2 * 17.2 / _BATCH / 0.5

    def bare() -> None:
        x = np.zeros(dimension, np.float32)
        for _ in range(iterations):
            rows = (rng.random(_BATCH) * count).astype(np.int64)
            batch, y = features[rows], targets[rows]
            d: Vector = (np.tanh((batch @ x) * np.float32(0.5)) - y) * np.float32(0.5)
            norms = np.sqrt(np.vecdot(batch, batch)) * np.abs(d)
            d *= bound / np.maximum(norms, bound)
            gradient: Vector = (d @ batch) / np.float32(_BATCH)
            gradient += np.float32(1e-4) * x
            eta = rng.standard_normal(dimension)
            eta *= rng.standard_exponential() * scale / np.sqrt(eta @ eta)
            eta += gradient
            x -= np.float32(1e-3) * eta.astype(np.float32)

    return bare


def autograd_loop(world: World, iterations: int) -> Callable[[], None]:
    """Return LR by torch's autograd, without delay, clip or noise."""
    features = torch.from_numpy(world.features)
    targets = torch.from_numpy(world.targets.astype(np.float32))
    generator = torch.Generator().manual_seed(0)

    def loop() -> None:
        x = torch.zeros(features.shape[1], requires_grad=True)
        for _ in range(iterations):
            rows = torch.randint(len(features), (_BATCH,), generator=generator)
            scores = features[rows] @ x
            loss = torch.nn.functional.softplus(-targets[rows] * scores).mean() + 5e-5 * (x @ x)
            (gradient,) = torch.autograd.grad(loss, x)
            with torch.no_grad():
                x -= 0.01 * gradient

    return loop


def _clipped(model: Model, x: Vector, images: Images, labels: Labels, iterations: int) -> Callable[[], None]:
    """Return gradients with per-sample clipping."""
    features, targets = model.features(images), model.targets(labels)

    def clipped() -> None:
        for _ in range(iterations):
            gradients = model.gradients(x, features, targets)
            norms = gradients.norms()
            np.maximum(norms, 1, out=norms)
            gradients.weighted_sum(np.divide(1, norms, out=norms))

    return clipped


def _plain_cnn(model: Cnn, x: Vector, batch: Images, classes: Labels, iterations: int) -> Callable[[], None]:
    parameters = [
        torch.from_numpy(x[block.slice].reshape(block.shape).copy()).requires_grad_()
        for block in model.layout
    ]
    images, labels = torch.from_numpy(batch).reshape(-1, 1, 28, 28), torch.from_numpy(classes)
    functional = torch.nn.functional

    def plain() -> None:
        w1, b1, w2, b2, w3, b3 = parameters
        for _ in range(iterations):
            first = functional.max_pool2d(functional.conv2d(images, w1, b1).relu(), 2)
            second = functional.max_pool2d(functional.conv2d(first, w2, b2).relu(), 2)
            scores = functional.linear(second.flatten(1), w3, b3)
            torch.autograd.grad(functional.cross_entropy(scores, labels), parameters)

    return plain


def paper_module(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """Return the paper's CNN for 28×28 images as a user would write it."""
    nn = torch.nn
    first = (nn.Unflatten(1, (1, shape[0])), nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(10, 10, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(160, classes))
    return nn.Sequential(*first, *second)
