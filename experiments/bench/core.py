"""Speed of the simulator: event-driven against bare arithmetic, vectorised against a torch loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.datasets.catalogue import load_dataset
from common.models.cnn import Cnn
from common.models.model import Model
from common.models.torch_model import TorchModel
from common.quantities import Vector
from common.randomness import streams_for
from common.scenario.scenario import Scenario, parse_scenario
from experiments.bench.ratios import Ratio, Work, compare
from mapa.simulation.simulator import simulate
from mapa.simulation.vectorised import simulate_many, simulate_rounds
from mapa.simulation.world import World

_BATCH = 12
_SWEEP_BAR = (
    6.5  # 20,000 updates/s over the loop's 3,090/s on a machine that did little else (docs/performance.md)
)


def core_ratios(data_dir: Path) -> Iterator[Ratio]:
    torch.set_num_threads(1)
    yield event_driven(data_dir)
    yield vectorised_against_torch(data_dir)
    yield sweep_against_torch(data_dir)
    yield many_edges(data_dir)
    yield cnn_per_sample()
    yield torch_model_against_cnn()


def _scenario(edges: int, iterations: int, **privacy: Any) -> Scenario:
    return parse_scenario(
        {
            "edges": edges,
            "iterations": iterations,
            "batch_size": _BATCH,
            "seed": 1,
            "data": {"set": "mnist-5k", "sampler": "with-replacement", "partition": "shared"},
            "model": {"name": "lr"},
            "algorithm": {"name": "mapa", "first_clip": 17.2},
            "privacy": privacy or {"noise": "exponential-norm", "epsilon": 0.5},
            "evaluation": {"every": 0},
        }
    )


def event_driven(data_dir: Path) -> Ratio:
    """One LR update through server and worker, over the same gradient, clip and noise done bare."""
    iterations = 3000
    world = World.of(_scenario(5, iterations), data_dir)

    def events() -> int:
        simulate(world)
        return iterations

    ours, bare, ratio = compare(events, bare_arithmetic(world, iterations))
    detail = f"{ours * 1e6:.1f} µs an update, bare {bare * 1e6:.1f} µs"
    return Ratio("event-driven LR / bare numpy", ratio, 4.0, True, detail)


def bare_arithmetic(world: World, iterations: int) -> Work:
    """The same sums with no server, no worker, no streams: what nothing can be faster than."""
    features, targets = world.features, world.targets.astype(np.float32)
    rng = np.random.default_rng(0)
    count, dimension = len(features), int(features.shape[1])
    bound, scale = np.float32(17.2), 2 * 17.2 / _BATCH / 0.5

    def work() -> int:
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
        return iterations

    return work


def vectorised_against_torch(data_dir: Path) -> Ratio:
    """Vectorised LR at K = 100 with clipping and noise, over a torch-autograd loop with neither."""
    iterations = 20_000
    world = World.of(_scenario(100, iterations), data_dir)

    def vectorised() -> int:
        simulate_rounds(world, blocks=True)
        return iterations

    torch_loop, ours, ratio = compare(autograd_loop(world, 2000), vectorised, rounds=5)
    detail = f"{1 / ours:,.0f} updates/s, torch loop {1 / torch_loop:,.0f}/s"
    return Ratio("vectorised LR, K = 100 / torch-autograd loop", ratio, 2.5, False, detail)


def sweep_against_torch(data_dir: Path) -> Ratio:
    """A sweep of LR as the figures make it, 4 seeds × 2 ε as one product, over the same torch-autograd loop."""
    iterations = 4000
    worlds = sweep_worlds(data_dir, edges=100, iterations=iterations)

    def sweep() -> int:
        simulate_many(worlds, blocks=True)
        return iterations * len(worlds)

    torch_loop, ours, ratio = compare(autograd_loop(worlds[0], 2000), sweep, rounds=5)
    detail = f"{1 / ours:,.0f} updates/s summed, torch loop {1 / torch_loop:,.0f}/s"
    return Ratio(
        "vectorised sweep of 8 LR runs, K = 100 / torch-autograd loop", ratio, _SWEEP_BAR, False, detail
    )


def sweep_worlds(data_dir: Path, *, edges: int, iterations: int) -> list[World]:
    """Return runs that differ in seed and ε alone and share their features."""
    first = World.of(_scenario(edges, iterations), data_dir)
    return [
        replace(first, scenario=scenario, streams=streams_for(seed))
        for seed in range(4)
        for epsilon in (0.1, 0.5)
        for scenario in [
            _scenario(edges, iterations, noise="exponential-norm", epsilon=epsilon).model_copy(
                update={"seed": seed}
            )
        ]
    ]


def autograd_loop(world: World, iterations: int) -> Work:
    features = torch.from_numpy(world.features)
    targets = torch.from_numpy(world.targets.astype(np.float32))
    generator = torch.Generator().manual_seed(0)

    def work() -> int:
        x = torch.zeros(features.shape[1], requires_grad=True)
        for _ in range(iterations):
            rows = torch.randint(len(features), (_BATCH,), generator=generator)
            scores = features[rows] @ x
            loss = torch.nn.functional.softplus(-targets[rows] * scores).mean() + 5e-5 * (x @ x)
            (gradient,) = torch.autograd.grad(loss, x)
            with torch.no_grad():
                x -= 0.01 * gradient
        return iterations

    return work


def many_edges(data_dir: Path) -> Ratio:
    """Cost of an update at K = 1,000 over K = 10, vectorised."""
    iterations = 20_000
    dataset = load_dataset("mnist-5k", data_dir)
    worlds = [World.on(_scenario(edges, iterations), dataset) for edges in (1000, 10)]

    def work(world: World) -> Work:
        def run() -> int:
            simulate_rounds(world, blocks=True)
            return iterations

        return run

    thousand, ten, ratio = compare(work(worlds[0]), work(worlds[1]), rounds=5)
    detail = f"{thousand * 1e6:.1f} µs an update at K = 1,000, {ten * 1e6:.1f} µs at K = 10"
    return Ratio("vectorised LR, K = 1,000 / K = 10", ratio, 1.3, True, detail)


def cnn_per_sample() -> Ratio:
    """The CNN's gradient with per-sample clipping, over a plain autograd gradient of the batch."""
    model = Cnn(shape=(28, 28), classes=10)
    rng = np.random.default_rng(0)
    x = model.initial(rng)
    features = model.features(rng.random((_BATCH, 784), dtype=np.float32))
    targets = rng.integers(0, 10, _BATCH)
    iterations = 100

    def clipped() -> int:
        for _ in range(iterations):
            gradients = model.gradients(x, features, targets)
            norms = gradients.norms()
            np.maximum(norms, 1, out=norms)
            gradients.weighted_sum(np.divide(1, norms, out=norms))
        return iterations

    ours, plain, ratio = compare(clipped, _plain_cnn(model, x, features, targets, iterations))
    detail = f"{ours * 1e3:.2f} ms, plain {plain * 1e3:.2f} ms"
    return Ratio("CNN per-sample clipping / plain batch gradient", ratio, 2.0, True, detail)


def torch_model_against_cnn() -> Ratio:
    """Per-sample clipping of the paper's CNN written as a torch module, over the project's own, at b = 64."""
    own, model = Cnn(shape=(28, 28), classes=10), TorchModel(paper_module, shape=(28, 28), classes=10)
    rng = np.random.default_rng(0)
    x = own.initial(rng)
    images, labels = rng.random((64, 784), dtype=np.float32), rng.integers(0, 10, 64)

    def clipped(which: Model) -> Work:
        features, targets = which.features(images), which.targets(labels)

        def work() -> int:
            for _ in range(20):
                gradients = which.gradients(x, features, targets)
                norms = gradients.norms()
                np.maximum(norms, 1, out=norms)
                gradients.weighted_sum(np.divide(1, norms, out=norms))
            return 20

        return work

    ours, built_in, ratio = compare(clipped(model), clipped(own))
    detail = f"{ours * 1e3:.2f} ms, built-in {built_in * 1e3:.2f} ms"
    return Ratio("the CNN as a TorchModel, b = 64 / the built-in one", ratio, 1.5, True, detail)


def paper_module(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """Return the paper's CNN for 28×28 images as a user would write it."""
    nn = torch.nn
    first = (nn.Unflatten(1, (1, shape[0])), nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(10, 10, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(160, classes))
    return nn.Sequential(*first, *second)


def _plain_cnn(model: Cnn, x: Any, features: Any, targets: Any, iterations: int) -> Work:
    parameters = [
        torch.from_numpy(x[block.slice].reshape(block.shape).copy()).requires_grad_()
        for block in model.layout
    ]
    images, labels = torch.from_numpy(features).reshape(-1, 1, 28, 28), torch.from_numpy(targets)
    functional = torch.nn.functional

    def plain() -> int:
        w1, b1, w2, b2, w3, b3 = parameters
        for _ in range(iterations):
            first = functional.max_pool2d(functional.conv2d(images, w1, b1).relu(), 2)
            second = functional.max_pool2d(functional.conv2d(first, w2, b2).relu(), 2)
            scores = functional.linear(second.flatten(1), w3, b3)
            torch.autograd.grad(functional.cross_entropy(scores, labels), parameters)
        return iterations

    return plain
