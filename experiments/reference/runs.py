"""One cell run: the scenario simulated, and what a row says of it."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common.datasets.catalogue import load_dataset
from common.errors import MapaError
from common.models.model import feature_length
from common.wire.v1 import HEADER_BYTES
from experiments.reference.cells import Cell, Choice
from mapa.recording import privacy_of
from mapa.run_parts import assemble
from mapa.simulation.simulator import check_world, simulate
from mapa.simulation.world import World

FORMAT = 1  # raised whenever the same cell would give other numbers


class UnfinishedError(MapaError):
    """A run ended before T and did not diverge: nothing to put into a table."""


@dataclass(frozen=True, slots=True)
class Job:
    """A cell, and what was chosen for it."""

    cell: Cell
    choice: Choice
    data_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the table says of one run; the columns of its CSV."""

    data: str
    edges: int
    epsilon: float  # the budget of each edge
    links: str
    method: str
    seed: int
    accuracy: float  # of the last iterate
    stated_epsilon: float  # of the edge with most
    delta: float
    updates: int
    releases: int  # by all edges
    megabytes: float  # of models and gradients, both ways
    virtual_seconds: float
    seconds: float  # that the simulation took
    evaluated_on: str  # test or held-out
    digest: str  # of the scenario
    command: str
    by: str = "this project"


def units(cell: Cell, data_dir: Path) -> tuple[float, float]:
    """Return ρ by tuning-free's rule for the cell's recipe, and ℓ."""
    base = assemble(cell.base(), partial(load_dataset, data_dir=data_dir), None, data_dir)
    length = feature_length(base.model)
    assert length is not None  # all recipes are tuning-free
    return float(base.scenario.algorithm.options["rate"]), length


def run_job(job: Job) -> Row:
    """Run one cell; one that diverges is a result, too."""
    began = time.perf_counter()
    cell = job.cell
    rate, length = units(cell, job.data_dir)
    scenario, words = cell.scenario(job.choice, rate=rate, length=length)
    world = World.of(scenario, job.data_dir)
    check_world(world)
    outcome = simulate(world)
    if outcome.reason not in ("finished", "diverged"):
        raise UnfinishedError(f"{cell.name}: {outcome.reason} after {outcome.tally.updates} updates")
    resolved = world.scenario
    edges = [
        (k, f"edge-{k}", resolved.law(k), len(world.rows[k]), releases)
        for k, releases in enumerate(outcome.releases)
    ]
    privacy = privacy_of(resolved, edges)
    releases = sum(outcome.releases)
    message = HEADER_BYTES + 4 * world.model.dimension
    return Row(
        data=cell.data,
        edges=cell.edges,
        epsilon=cell.epsilon,
        links=cell.links,
        method=cell.method,
        seed=cell.seed,
        accuracy=float(outcome.tally.evaluations[-1]["accuracy"]),
        stated_epsilon=float(privacy["epsilon"]),
        delta=resolved.privacy.total_delta,
        updates=outcome.tally.updates,
        releases=releases,
        megabytes=2 * releases * message / 1e6,
        virtual_seconds=outcome.virtual_seconds or 0.0,
        seconds=time.perf_counter() - began,
        evaluated_on="held-out" if cell.held_out else "test",
        digest=scenario.digest,
        command=shlex.join(
            ["mapa", "simulate", cell.recipe, "--seed", str(cell.seed)]
            + [part for word in words for part in ("--set", word)]
        ),
    )
