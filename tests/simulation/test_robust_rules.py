"""One edge of five sends what it likes: it ruins the plain mean, and does not ruin a rule that expects it.

`python -m tests.simulation.test_robust_rules` prints what is left of that under noise, on mnist-5k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.assembly import terms_for
from common.metrics import ACCURACY
from common.quantities import NoisyGradient, Vector
from common.scenario.scenario import parse_scenario
from edge.worker import EdgeWorker
from mapa.simulation.simulator import Outcome, World, simulate
from tests.core_support import small_dataset, small_scenario

LIAR = 2
PLAIN: dict[str, Any] = {"name": "constant", "rate": 0.6}
RULES: dict[str, dict[str, Any]] = {
    "norm-cap": {"name": "norm-cap", "rate": 0.6},
    "trimmed-mean": {"name": "trimmed-mean", "rate": 2.0},
    "the median": {"name": "trimmed-mean", "rate": 2.0, "trim": 2},
    "krum": {"name": "krum", "rate": 2.0},
    "multi-krum": {"name": "krum", "rate": 2.0, "chosen": 3},
}
NOISE = {"noise": "gaussian", "noise_multiplier": 0.1}
Lie = Callable[[Vector, float], Vector]


def opposed(honest: Vector, longest: float) -> Vector:
    """Back up the hill, as far as the cloud's own check lets it."""
    return -honest * np.float32(longest / np.linalg.norm(honest))


def persistent(honest: Vector, longest: float) -> Vector:
    """Always towards the label 0, so that all lies add up."""
    row = honest.size // 10
    lie = np.zeros_like(honest)
    lie[:row] = -longest / row**0.5
    return lie


def quiet(honest: Vector, longest: float) -> Vector:  # noqa: ARG001
    """The same, shorter than honest noise is."""
    return persistent(honest, 0.7 * float(np.linalg.norm(honest)))


@dataclass(slots=True)
class Liar(EdgeWorker):
    """An edge that computes an honest gradient and sends another, as long as it may be."""

    lie: Lie = opposed
    reach: float = 0.0

    def gradient(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        honest = EdgeWorker.gradient(self, x, sensitivity, n)
        return NoisyGradient(self.lie(honest, 0.999 * self.reach * sensitivity))


@dataclass(frozen=True, slots=True)
class Infiltrated(World):
    """A world one of whose edges lies."""

    lie: Lie = field(default=opposed)

    def workers(self) -> list[EdgeWorker]:
        workers = World.workers(self)
        reach = terms_for(self.scenario, self.model, edges_at_least=1).reach(self.scenario.law(LIAR))
        own = {one.name: getattr(workers[LIAR], one.name) for one in fields(EdgeWorker) if one.init}
        workers[LIAR] = Liar(**own, lie=self.lie, reach=reach)
        return workers


def lied_to(world: World, lie: Lie | None) -> Outcome:
    if lie is not None:
        world = Infiltrated(**{one.name: getattr(world, one.name) for one in fields(World)}, lie=lie)
    return simulate(world)


def ran(algorithm: dict[str, Any], lie: Lie | None) -> Outcome:
    scenario = small_scenario(
        edges=5,
        iterations=600,
        batch_size=24,
        data={"sampler": "poisson"},
        model={"name": "softmax"},
        algorithm=algorithm,
        privacy=NOISE,
        evaluation={"every": 0},
    )
    return lied_to(World.on(scenario, small_dataset()), lie)


def accuracy(outcome: Outcome) -> float:
    assert (outcome.reason, outcome.tally.updates, dict(outcome.tally.refused)) == ("finished", 600, {})
    return outcome.tally.evaluations[-1].values[ACCURACY]


@pytest.mark.parametrize("lie", [opposed, persistent])
def test_plain_training_is_ruined(lie: Lie) -> None:
    assert accuracy(ran(PLAIN, None)) > 0.9
    assert accuracy(ran(PLAIN, lie)) < 0.5


@pytest.mark.parametrize("lie", [opposed, persistent])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_expects_one_liar_learns_all_the_same(name: str, lie: Lie) -> None:
    assert accuracy(ran(RULES[name], None)) > 0.9
    assert accuracy(ran(RULES[name], lie)) > 0.85


def print_table() -> None:
    """Print accuracies after 1,000 updates, by noise multiplier, lie and rule."""
    rules = {
        "constant": {**PLAIN, "rate": 0.2},
        **{name: {**rule, "rate": 0.8} for name, rule in RULES.items()},
    }
    rules["norm-cap"]["rate"] = 0.2
    print("| z | lie |", *(f"{name} |" for name in rules))
    for z in (0.01, 1.0, 2.0, 4.0):
        for lie in (None, opposed, persistent, quiet):
            row = []
            for rule in rules.values():
                values: dict[str, Any] = {
                    "edges": 5,
                    "iterations": 1000,
                    "batch_size": 64,
                    "seed": 1,
                    "data": {"set": "mnist-5k", "sampler": "poisson"},
                    "model": {"name": "softmax"},
                    "algorithm": {"first_clip": 1.0, **rule},
                    "privacy": {"noise": "gaussian", "noise_multiplier": z},
                    "evaluation": {"every": 0},
                }
                outcome = lied_to(World.of(parse_scenario(values), Path("nowhere")), lie)
                row.append(f"{100 * outcome.tally.evaluations[-1].values[ACCURACY]:.1f} |")
            print(f"| {z:g} | {lie.__name__ if lie else 'none'} |", *row, flush=True)


if __name__ == "__main__":
    print_table()
