"""What another algorithm would have made of the very same arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloud.algorithm import Algorithm, Update
from cloud.assembly import begin
from cloud.server import CloudServer
from common.errors import ConfigurationError
from common.messages import GradientApplied, GradientArrived
from common.quantities import NoisyGradient, Vector
from common.scenario.scenario import Scenario, parse_scenario
from mapa.scenario_files import changed_by
from mapa.verification.gradients import Makers


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
class Otherwise:
    """The other algorithm, fed update by update while the log is taken again."""

    scenario: Scenario  # with the other algorithm
    server: CloudServer  # of the run itself
    x: Vector
    makers: Makers | None = None  # None: gradients as logged
    last_use: dict[int, int] | None = (
        None  # version → t of the last update made on it, where gradients are made anew
    )
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
            for version in [one for one in self._models if self.last_use.get(one, 0) <= t]:
                del self._models[version]

    @property
    def result(self) -> Vector:
        return self.x if self.algorithm is None else self.algorithm.result(self.x)
