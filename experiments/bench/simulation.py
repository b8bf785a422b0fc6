"""Speed of the simulator against bare arithmetic, of the CNN against a plain gradient, and of an edge's own steps."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from common.accounting.releases import ReleaseKind
from common.messages import GradientArrived, SendModel
from common.models.cnn import Cnn
from common.models.model import Images, Labels, Model
from common.noise.registry import noise_law
from common.quantities import EdgeId, NoisyGradient, RunId, Vector
from common.randomness import streams_for
from common.scenario.scenario import Scenario, parse_scenario
from common.wire import codec
from edge.ledger import Account, ShardIdentity
from edge.sqlite_ledger import SqliteLedger
from experiments.bench.rounds import Case, Figures, Ratio, Turn, work
from experiments.bench.serving import bench_scenario
from mapa.simulation.simulator import World, simulate
from mapa.simulation.vectorised import simulate_many, simulate_rounds

_BATCH = 12
_N = 7_850
_STEPS = 100  # of the CNN in a turn


def simulation_cases(data_dir: Path) -> Iterator[Case]:
    torch.set_num_threads(1)
    five, ten, hundred, thousand = (World.of(lr_scenario(k, 20_000), data_dir) for k in (5, 10, 100, 1000))
    few, most = (World.of(lr_scenario(k, 3000), data_dir) for k in (5, 10_000))
    sweep = sweep_worlds(data_dir, edges=100, iterations=4000)
    cnn = Cnn(shape=(28, 28), classes=10)
    rng = np.random.default_rng(0)
    x, images, labels = (
        cnn.initial(rng),
        rng.random((_BATCH, 784), dtype=np.float32),
        rng.integers(0, 10, _BATCH),
    )

    turns: dict[str, Turn] = {
        "event-driven, K = 5": work(lambda: simulate(few), 3000),
        "event-driven, K = 10,000": functools.partial(_further, most, 20_000),
        "bare numpy": work(bare_arithmetic(five, 3000), 3000),
        "vectorised, K = 10": work(lambda: simulate_rounds(ten, blocks=True), 20_000),
        "vectorised, K = 100": work(lambda: simulate_rounds(hundred, blocks=True), 20_000),
        "vectorised, K = 1,000": work(lambda: simulate_rounds(thousand, blocks=True), 20_000),
        "sweep of 8, K = 100": work(lambda: simulate_many(sweep, blocks=True), 4000 * len(sweep)),
    }
    ratios = (
        Ratio("cpu", "event-driven, K = 5", "bare numpy", at_most=1.6),
        Ratio("cpu", "event-driven, K = 10,000", "event-driven, K = 5", at_most=1.2),
        Ratio("rate", "vectorised, K = 100", "bare numpy", at_least=1.2),
        Ratio("rate", "sweep of 8, K = 100", "bare numpy", at_least=1.2),
        Ratio("cpu", "vectorised, K = 1,000", "vectorised, K = 10", at_most=1.3),
    )
    yield Case("simulation of LR, µs an update", turns, ratios, warm=True)
    cnns = {
        "per-sample clipping": work(_clipped(cnn, x, images, labels, _STEPS), _STEPS),
        "plain batch gradient": work(_plain_cnn(cnn, x, images, labels, _STEPS), _STEPS),
    }
    of_cnn = (Ratio("cpu", "per-sample clipping", "plain batch gradient", at_most=2.0),)
    yield Case("gradient of the CNN, µs", cnns, of_cnn, warm=True)


def cost_cases(data_dir: Path) -> Iterator[Case]:
    """Yield what lean edges leave out: an edge's own steps, one by one."""
    worker = World.of(bench_scenario(5), data_dir).workers()[0]
    n, edge = worker.model.dimension, EdgeId("edge-0")
    sent = SendModel(edge, 1, 1.0, 0, np.zeros(n, np.float32))
    vector = np.full(_N, 1e-3, np.float32)
    model = SendModel(edge, 1, 1.0, 1, vector)
    gradient = GradientArrived(edge, 1, 1, 1.0, NoisyGradient(vector))
    model_bytes, gradient_bytes = codec.encode_model(model), codec.encode_gradient(gradient)
    run, payload = RunId("bench"), bytes(4 * _N)
    kind = ReleaseKind(bench_scenario(5).mechanism(noise_law("gaussian", {"noise_multiplier": 2.0})), 1000)
    with tempfile.TemporaryDirectory() as directory, SqliteLedger(Path(directory)) as ledger:
        ledger.open(Account(run=run, shard=ShardIdentity("none", "iid", 0), kind=kind))

        def debit() -> None:
            sequence = ledger.last_sequence(run) + 1
            ledger.debit(run, sequence, payload)
            ledger.acknowledge(run, sequence)

        steps: dict[str, tuple[Callable[[], object], int]] = {
            f"gradient, clip and noise (LR, N = {n}, b = {_BATCH})": (lambda: worker.receive(sent), 200),
            f"ledger debit, {4 * _N / 1000:.0f} kB": (debit, 10),
            "encode a model": (lambda: codec.encode_model(model), 1000),
            "decode a model": (lambda: codec.decode_model(edge, model_bytes, _N), 1000),
            "encode a gradient": (lambda: codec.encode_gradient(gradient), 1000),
            "decode a gradient": (lambda: codec.decode_gradient(edge, gradient_bytes, _N), 1000),
        }
        turns = {
            name: work(functools.partial(_again, step, count), count) for name, (step, count) in steps.items()
        }
        yield Case(f"an edge's steps, µs; N = {_N:,} unless said", turns, rounds=15, warm=True)


def _further(world: World, updates: int) -> Figures:
    """Return what further updates of a run take, its beginning left out."""
    longer = replace(world, scenario=lr_scenario(world.scenario.edges, world.scenario.iterations + updates))
    spent = [work(lambda w=w: simulate(w), 1)()["cpu"] for w in (world, longer)]  # type: ignore[misc]
    cpu = (spent[1] - spent[0]) / updates
    return {"rate": 1e6 / cpu, "cpu": cpu}


def _again(step: Callable[[], object], count: int) -> None:
    for _ in range(count):
        step()


def lr_scenario(edges: int, iterations: int, *, seed: int = 1, epsilon: float = 0.5) -> Scenario:
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
    first = World.of(lr_scenario(edges, iterations), data_dir)
    return [
        replace(
            first,
            scenario=lr_scenario(edges, iterations, seed=seed, epsilon=epsilon),
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
