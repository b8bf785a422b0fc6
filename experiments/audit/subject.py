"""What `mapa audit` audits: an edge of a scenario, or of a run on record, beside whose records the report is kept."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError, RecordsError
from common.mechanism.guarantee import Scope
from common.models.model import feature_length
from common.noise.law import NoiseLaw
from common.scenario.parts import noised_dimension
from common.scenario.scenario import Scenario
from experiments.audit.battery import battery
from experiments.audit.game import Playable
from mapa.runs import read_object
from mapa.simulation.world import World
from mapa.verification.log_replay import scenario_of
from mapa.verification.untrusted_files import NotCheckedError, UnreadableError


def scenario_games(world: World, *, edge: int, rounds: int, dimension: int | None = None) -> list[Playable]:
    """Return the battery of edge k's own mechanism, its stabiliser, λ and local steps included.

    The guarantee holds for every N, so the audit takes an N where the law is easiest to tell: gamma-norm
    noise hides a direction among many.
    """
    scenario = world.scenario
    if not 0 <= edge < scenario.workers:
        raise ConfigurationError(f"edge = {edge}: must be from 0 to {scenario.workers - 1}")
    law, model = scenario.law(edge), world.model
    mechanism = scenario.mechanism(law)
    mechanism = replace(mechanism, clipping=mechanism.clipping.fitted(feature_length(model) or 0.0))
    if noised_dimension(scenario, model) == model.dimension:
        mechanism = replace(mechanism, scope=Scope.ALL)  # a linear model's first layer is all of it
    default = NoiseLaw.audit_dimension if law is None else law.audit_dimension
    return battery(
        mechanism,
        shard_size=len(world.rows[edge]),
        dimension=default if dimension is None else dimension,
        rounds=rounds,
        regularization=scenario.model.regularization,
    )


AUDIT = "audit.json"  # mapa/dashboard shows it, mapa runs rm removes it with the run


def scenario_of_run(path: Path, allowed: Collection[str]) -> Scenario:
    """Return the scenario that a run was recorded with, its noise and rate as they were; ConfigurationError: none."""
    try:
        return scenario_of(read_object(path / "manifest.json") or {}, allowed)
    except (UnreadableError, NotCheckedError) as error:
        raise ConfigurationError(f"{path}: cannot be audited: {error}") from error


def keep(path: Path, report: Mapping[str, Any]) -> Path:
    """Write the report into the run's folder, as a whole or not at all."""
    file, draft = path / AUDIT, path / f".{AUDIT}.tmp"
    try:
        draft.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise RecordsError(f"{file}: not written: {error.strerror or error}") from error
    return file
