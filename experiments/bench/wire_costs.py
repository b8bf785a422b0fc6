"""What an update costs beside the wire: the bench edges leave it out, so it is timed apart."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from common.accounting.releases import ReleaseKind
from common.messages import GradientArrived, SendModel
from common.noise.registry import noise_law
from common.quantities import EdgeId, NoisyGradient, RunId
from common.wire.codec import decode_gradient, decode_model, encode_gradient, encode_model
from edge.ledger import Account, ShardIdentity
from edge.sqlite_ledger import SqliteLedger
from experiments.bench.wire_cloud import bench_scenario
from mapa.simulation.world import World

_DIMENSION = 7850
_EDGE = EdgeId("edge-0")


def wire_costs(data_dir: Path) -> Iterator[tuple[str, float]]:
    """Yield what was done and the µs that one of it took, the median of batches."""
    worker = World.of(bench_scenario(5, 1), data_dir).workers()[0]
    n, b = worker.model.dimension, worker.mechanism.batch_size
    sent = SendModel(_EDGE, 1, 1.0, 0, np.zeros(n, np.float32))
    yield f"gradient, clip and noise (LR, N = {n}, b = {b})", _median(lambda: worker.receive(sent), 200)
    yield f"ledger debit with its sync to the disk ({4 * _DIMENSION / 1000:.0f} kB)", _debit()
    vector = np.full(_DIMENSION, 1e-3, np.float32)
    model = SendModel(_EDGE, 1, 1.0, 1, vector)
    gradient = GradientArrived(_EDGE, 1, 1, 1.0, NoisyGradient(vector))
    model_bytes, gradient_bytes = encode_model(model), encode_gradient(gradient)
    yield f"encode a model (N = {_DIMENSION:,})", _median(lambda: encode_model(model), 1000)
    yield (
        f"decode a model (N = {_DIMENSION:,})",
        _median(lambda: decode_model(_EDGE, model_bytes, _DIMENSION), 1000),
    )
    yield f"encode a gradient (N = {_DIMENSION:,})", _median(lambda: encode_gradient(gradient), 1000)
    yield (
        f"decode a gradient (N = {_DIMENSION:,})",
        _median(lambda: decode_gradient(_EDGE, gradient_bytes, _DIMENSION), 1000),
    )


def _median(work: Callable[[], object], count: int, batches: int = 15) -> float:
    times = []
    for _ in range(batches):
        began = time.perf_counter()
        for _ in range(count):
            work()
        times.append((time.perf_counter() - began) / count)
    return float(np.median(times)) * 1e6


def _debit() -> float:
    run, payload = RunId("bench"), bytes(4 * _DIMENSION)
    kind = ReleaseKind(bench_scenario(5, 1).mechanism(noise_law("gaussian", {"noise_multiplier": 2.0})), 1000)
    with tempfile.TemporaryDirectory() as directory, SqliteLedger(Path(directory)) as ledger:
        ledger.open(Account(run=run, shard=ShardIdentity("none", "iid", 0), kind=kind))

        def debit() -> None:
            sequence = ledger.last_sequence(run) + 1
            ledger.debit(run, sequence, payload)
            ledger.acknowledge(run, sequence)

        return _median(debit, 10)
