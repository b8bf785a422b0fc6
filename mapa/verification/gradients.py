"""The gradients of a seeded run made again from seed, edge and sequence, at the x that each was made on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cloud.server import CloudServer
from common.messages import GradientApplied, GradientArrived, SendModel
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, NoisyGradient, Vector
from common.records.rundir import machine_type
from edge.assembly import worker_for
from edge.worker import EdgeWorker, Shard
from mapa.recording import ENGINES
from mapa.simulation.world import World

TOLERANCE = 1e-4  # of the largest coordinate: float32 sums in another order differ by less
_LOCAL = (*ENGINES, "processes")  # engines whose edges run on the cloud's machine


def bits_are_meant(manifest: Mapping[str, Any]) -> bool:
    """Tell whether every bit must be the same: the edges ran on a machine of this type, with this BLAS."""
    return manifest.get("engine") in _LOCAL and manifest.get("machine") == machine_type()


@dataclass(slots=True)
class Makers:
    """The edges of a seeded run, able to make any of their gradients again."""

    world: World
    _workers: dict[tuple[int, NoiseLaw | None], EdgeWorker] = field(default_factory=dict)

    def gradient(self, k: int, law: NoiseLaw | None, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        """Return g̃ of edge k's batch n at x."""
        worker = self._workers.get((k, law))
        if worker is None:
            world = self.world
            worker = self._workers[k, law] = worker_for(
                world.scenario,
                world.model,
                law,
                edge_id=EdgeId(f"edge-{k}"),
                index=k,
                shard=Shard(world.features, world.targets, world.rows[k]),
                streams=world.streams,
            )
        return worker.gradient(x, sensitivity, n)


@dataclass(slots=True)
class GradientsAgain:
    """Compares gradients of the log with those made again; `every` n-th of them."""

    makers: Makers
    server: CloudServer
    every: int = 1
    same: int = 0  # bit for bit
    near: int = 0  # within TOLERANCE
    other: int = 0
    first_other: str = ""
    seen: int = 0
    _sent: dict[EdgeId, dict[int, Vector]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def made(self) -> int:
        return self.same + self.near + self.other

    def sent(self, sent: SendModel) -> None:
        """Keep a model until its edge has answered a newer one."""
        self._sent[sent.edge_id][sent.version] = sent.model

    def applied(self, arrived: GradientArrived, applied: GradientApplied) -> None:
        """Make the gradient again, and compare."""
        models = self._sent[arrived.edge_id]
        for version in [version for version in models if version < arrived.version]:
            del models[version]
        self.seen += 1
        if (self.seen - 1) % self.every:
            return
        law = self.server.edges[arrived.edge_id].law
        x = models[arrived.version]
        again = self.makers.gradient(applied.edge, law, x, arrived.sensitivity, arrived.sequence)
        if again.tobytes() == arrived.gradient.tobytes():
            self.same += 1
            return
        difference = float(np.abs(again.astype(np.float64) - arrived.gradient).max())
        if difference <= TOLERANCE * float(np.abs(again).max()):
            self.near += 1
            return
        self.other += 1
        self.first_other = self.first_other or (
            f"t = {applied.t}: gradient {arrived.sequence} of {arrived.edge_id} differs by {difference:g}"
        )
