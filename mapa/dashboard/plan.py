"""The stages that theory foresees for a run, from the numbers in its records; no code that they name is loaded."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from cloud.stages import planned_stages
from common.errors import MapaError
from common.problem import Problem, SensitivityRule

_MOST = 200


def planned(scenario: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return (t, ΔS, γ, T_s) of every stage as if τ_max and the edges of the first stage stayed; []: not MAPA.

    The moment v of the noise follows from Δ_b = σ²/b + ΔS²·v, which the record of the first stage has.
    """
    algorithm = scenario.get("algorithm")
    if not isinstance(algorithm, Mapping) or algorithm.get("name") != "mapa" or not stages:
        return []
    first, batch = stages[0], scenario.get("batch_size")
    if type(batch) is not int:
        return []
    try:
        problem = Problem(
            batch_size=batch,
            smoothness=algorithm["smoothness"],
            sigma=algorithm["sigma"],
            tau_max=int(first["tau_max"]),
            iterations=scenario["iterations"],
            theta=algorithm["theta"],
            delta=algorithm["delta"],
            loss_gap=algorithm["loss_gap"],
            radius=algorithm["radius"],
            first_clip=first["sensitivity"] * batch / 2,
            rule=SensitivityRule(algorithm["rule"]),
        )
        spread = problem.sigma**2 / problem.batch_size
        moment = max(0.0, first["variance"] - spread) / first["sensitivity"] ** 2
        return [
            {
                "stage": stage.index,
                "t": start,
                "sensitivity": stage.sensitivity,
                "learning_rate": stage.learning_rate,
                "length": stage.length,
            }
            for start, stage in itertools.islice(planned_stages(moment, problem), _MOST)
        ]
    except (MapaError, KeyError, TypeError, ValueError, ArithmeticError):
        return []  # records of another version, or of somebody else
