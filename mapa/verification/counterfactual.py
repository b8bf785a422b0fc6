"""Gradients of a seeded run made again, and what another algorithm would have made of the same arrivals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cloud.algorithm import Algorithm, Update
from cloud.assembly import begin
from cloud.server import CloudServer
from common.errors import ConfigurationError
from common.messages import GradientApplied, GradientArrived, SendModel
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, NoisyGradient, Vector
from common.records.directory import machine_type
from common.scenario.scenario import Scenario, parse_scenario
from edge.assembly import worker_for
from edge.worker import EdgeWorker, Shard
from mapa.recording import ENGINES
from mapa.scenario_files import changed_by
from mapa.simulation.world import World

TOLERANCE = 1e-4  # of the largest coordinate: float32 sums in another order differ by less
_LOCAL = (*ENGINES, "processes")  # engines whose edges run on the cloud's machine


def bits_are_meant(manifest: Mapping[str, Any]) -> bool:
    """Tell whether every bit must be the same: the edges ran on a machine of this type, with this BLAS."""
    return manifest.get("engine") in _LOCAL and manifest.get("machine") == machine_type()


@dataclass(slots=True)
class GradientMakers:
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
class GradientComparison:
    """Compares gradients of the log with those made again; `every` n-th of them."""

    makers: GradientMakers
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


def other_scenario(scenario: Scenario, algorithm: str, changes: Sequence[str]) -> Scenario:
    """Return the run's scenario with another algorithm: the shared keys stay, the old one's own options go."""
    values = scenario.canonical()
    own = {*scenario.algorithm.options, "rate", "rate_decay"}
    values["algorithm"] = {key: value for key, value in values["algorithm"].items() if key not in own}
    values["algorithm"]["name"] = algorithm
    other = parse_scenario(changed_by(values, changes))
    if other.centralised != scenario.centralised:
        raise ConfigurationError(
            f"--algorithm {algorithm}: one of the two is centralised, with one worker on all data; arrivals of"
            f" {scenario.workers} edges mean nothing to it"
        )
    if other.private and not scenario.private:
        raise ConfigurationError(
            f"--algorithm {algorithm}: asks edges to clip and noise; the gradients of this run are neither"
        )
    fixed = ("iterations", "edges", "batch_size", "data", "model", "seed", "privacy")
    if any(getattr(other, key) != getattr(scenario, key) for key in fixed):
        raise ConfigurationError(f"--set: only keys of [algorithm] can differ, not {', '.join(fixed)}")
    return other


@dataclass
class Counterfactual:
    """The other algorithm, fed update by update while the log is taken again."""

    scenario: Scenario  # with the other algorithm
    server: CloudServer  # of the run itself
    x: Vector
    makers: GradientMakers | None = None  # None: gradients as logged
    last_use: dict[int, int] | None = None  # version → t of the last gradient made on it, to remake gradients
    algorithm: Algorithm | None = None
    moment: float = 0.0

    def __post_init__(self) -> None:
        self.x = np.array(self.x, dtype=np.float32)
        self._models: dict[int, tuple[Vector, Algorithm]] = {}

    def applied(self, arrived: GradientArrived, applied: GradientApplied) -> None:
        """Apply what the run applied."""
        server, t = self.server, applied.t
        if self.algorithm is None:
            self.algorithm, self.moment = begin(self.scenario, server.moment), server.moment
            self._models[t] = self.x, self.algorithm
        elif server.moment > self.moment:
            self.algorithm, self.moment = self.algorithm.with_moment(server.moment, t), server.moment
        account = server.edges[arrived.edge_id]
        law = account.law if self.scenario.private else None
        gradient, sensitivity, stage = arrived.gradient, arrived.sensitivity, applied.stage
        if self.makers is not None:
            x, then = self._models[arrived.version]
            sensitivity, stage = then.sensitivity_for(arrived.version, account.index, law), then.stage
            gradient = self.makers.gradient(account.index, law, x, sensitivity, arrived.sequence)
        update = Update(
            NoisyGradient(gradient),
            t,
            arrived.version,
            applied.staleness,
            account.index,
            law,
            account.moment,
            stage,
            sensitivity,
        )
        moved, self.algorithm = self.algorithm.apply(self.x, update)
        self.x = np.asarray(moved, np.float32)
        if self.last_use is not None:
            if t + 1 in self.last_use:
                self._models[t + 1] = self.x, self.algorithm
            for version in [known for known in self._models if self.last_use.get(known, 0) <= t]:
                del self._models[version]

    @property
    def result(self) -> Vector:
        return self.x if self.algorithm is None else self.algorithm.result(self.x)
