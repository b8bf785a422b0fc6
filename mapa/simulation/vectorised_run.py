"""One of the runs that advance together: its plan, its random numbers, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError
from common.mechanism.clipping import Clipping
from common.mechanism.guarantee import Norm
from common.mechanism.sampler import Sampler
from common.messages import GradientApplied
from common.models.model import feature_length
from common.noise.law import Noise, NoiseLaw
from common.quantities import EdgeId, Indices, Vector
from common.randomness import Purpose
from common.records.events import Journal
from common.records.recorder import Recorder
from mapa.simulation.plan import Plan, plan_for, read_version
from mapa.simulation.simulator import Outcome
from mapa.simulation.world import World

NAME = "block: SFC64 (seed, 1) for batches, (seed, 2) for noise, (seed, 3) for its norms"


class BlockStreams:
    """One generator each for a run's batches, noise and noise norms, drawn in order and in bulk.

    Faster than a stream per (seed, k, n), and reproducible from the seed, but tied to the cyclic order. Norms have
    their own, or else the numbers would depend on how many rows a block has.
    """

    def __init__(self, seed: int | None) -> None:
        entropy = np.random.SeedSequence().entropy if seed is None else seed
        self.batches = np.random.Generator(np.random.SFC64([_word(entropy), 1]))
        self.noise = np.random.Generator(np.random.SFC64([_word(entropy), 2]))
        self.norms = np.random.Generator(np.random.SFC64([_word(entropy), 3]))


def _word(entropy: object) -> int:
    assert isinstance(entropy, int)
    return entropy


def noise_block(
    gradients: Noise,
    laws: Sequence[NoiseLaw],
    sensitivities: npt.NDArray[np.float64],
    streams: BlockStreams,
) -> None:
    """Add a row of noise to each row of the gradients, in place and in float64, as edge/worker.py does."""
    made = type(laws[0])
    assert all(type(law) is made for law in laws)  # they are the run's own
    eta = made.draw_block(laws, sensitivities, gradients.shape[1], streams.noise, streams.norms)
    if eta.dtype != np.float64:  # the steps of coarser noise would tell what it was added to
        raise ConfigurationError(
            f"privacy.noise = {made.name!r}: draw_block gives {eta.dtype}, must be float64"
        )
    gradients += eta


Matrix = npt.NDArray[np.float32]


@dataclass(slots=True)
class VectorisedRun:
    world: World
    workers: int  # K; the scenario takes its time to say it
    plan: Plan
    laws: list[NoiseLaw | None]
    records: Recorder
    blocks: BlockStreams | None
    sampler: Sampler
    clipping: Clipping | None  # None: nothing is clipped
    places: tuple[Indices, Indices, Indices]  # all shards, where each begins, its size
    round: tuple[int, Indices | list[Indices]] | None = None  # n, and the batches of all edges in it

    @classmethod
    def of(cls, world: World, journal: Journal | None, blocks: bool) -> VectorisedRun:
        scenario = world.scenario
        laws = [scenario.law(k) for k in range(scenario.workers)]
        clipping = scenario.privacy.clipped.fitted(feature_length(world.model) or 0.0)
        run = cls(
            world,
            scenario.workers,
            plan_for(world, laws),
            laws,
            Recorder(journal),
            BlockStreams(scenario.seed) if blocks else None,
            scenario.sampler,
            clipping if scenario.private else None,
            _places(world.rows),
        )
        for fact in run.plan.joins:
            run.records.fact(fact)
        run._open_stage(1)
        if scenario.evaluate_every:
            run.evaluate(run.plan.first_model, 0)
        return run

    @property
    def norm(self) -> Norm:
        """The norm that is clipped, where anything is."""
        law = self.laws[0]  # all are of the run's own
        return Norm.L2 if law is None else law.norm

    def batches(self, first: int, n: int, count: int) -> Indices | list[Indices]:
        """Return the n-th batch of edges first, first+1, …: rows of a matrix where all are of one size."""
        batch_size, shards = self.world.scenario.batch_size, self.world.rows[first : first + count]
        if self.blocks is None:
            streams, draw = self.world.streams, self.sampler.draw
            return [
                shard[draw(streams, first + i, n, len(shard), batch_size)] for i, shard in enumerate(shards)
            ]
        if self.round is None or self.round[0] != n:
            rows, starts, sizes = self.places
            drawn = self.sampler.draw_block(self.blocks.batches, sizes, batch_size)
            if isinstance(drawn, np.ndarray):
                self.round = n, rows[starts[:, None] + drawn]
            else:
                self.round = n, [rows[start + one] for start, one in zip(starts, drawn, strict=True)]
        return self.round[1][first : first + count]

    def perturb(self, gradients: Noise, first: int, n: int, sensitivities: npt.NDArray[np.float64]) -> None:
        """Add η to the gradients of edges first, first+1, … in place; they are rounded to float32 afterwards."""
        if self.laws[first] is None:
            return
        if self.blocks is not None:
            laws = [law for law in self.laws[first : first + len(gradients)] if law is not None]
            noise_block(gradients, laws, sensitivities, self.blocks)
            return
        for i, gradient in enumerate(gradients):
            law = self.laws[first + i]
            assert law is not None
            gradient += law.draw(
                float(sensitivities[i]), gradient.size, self.world.streams.at(first + i, Purpose.NOISE, n)
            )

    def applied(self, first: int, n: int, start: int, models: Matrix) -> None:
        """Record the updates from `start` on that edges first, first+1, … made, and the models they led to."""
        every = self.world.scenario.evaluate_every
        if self.records.journal is not None:
            self._write(first, n, start, models, every)
            return
        self._count(first, n, start, len(models))
        if every:
            for t in range(start + -start % every, start + len(models), every):
                self.evaluate(models[t - start], t)

    def _write(self, first: int, n: int, start: int, models: Matrix, every: int) -> None:
        """Write in the order of the event-driven engine: an update, its evaluation, the stage that opens after it."""
        plan = self.plan
        for i, x in enumerate(models):
            k, t = first + i, start + i
            version = read_version(t, self.workers)
            fact = GradientApplied(
                k,
                EdgeId(f"edge-{k}"),
                n,
                version,
                t,
                t - version,
                int(plan.stages[version]),
                float(plan.sensitivities[version]),
            )
            self.records.fact(fact)
            if every and t % every == 0:
                self.evaluate(x, t)
            self._open_stage(t + 1)

    def _count(self, first: int, n: int, start: int, count: int) -> None:
        """Record the same without a journal, which would tell in which order."""
        stale = range(start - 1, start - 1 + count) if n == 1 else [self.workers - 1] * count
        self.records.counted(first, n, start, stale)
        openings = self.plan.openings
        for t in range(start + 1, start + count + 1):
            if t in openings:
                self._open_stage(t)

    def evaluate(self, x: Vector, t: int) -> None:
        if self.world.evaluator is not None:
            self.records.evaluated(self.world.evaluator.evaluate(x, t, int(self.plan.stages[t])))

    def _open_stage(self, t: int) -> None:
        fact = self.plan.openings.get(t)
        if fact is not None and t <= self.world.scenario.iterations:
            self.records.fact(fact)

    def outcome(self, x: Vector, done: int, reason: str) -> Outcome:
        records = self.records
        if not records.is_evaluated(done):
            self.evaluate(x, done)
        records.halted(done, reason)
        releases = [records.tally.edges[k].applied + 1 for k in range(self.workers)]
        if reason in ("finished", "diverged"):
            releases[(done - 1) % self.workers] -= 1  # the edge of the last update was told to halt
        return Outcome(tally=records.tally, x=x.copy(), releases=releases, reason=reason)


def _places(shards: list[Indices]) -> tuple[Indices, Indices, Indices]:
    """Return the rows of all shards in one array, where each begins there, and its size.

    Shards that are one and the same (partition `shared`) are there once.
    """
    distinct = list({id(shard): shard for shard in shards}.values())
    ends = np.cumsum([len(shard) for shard in distinct]).tolist()
    begins = {id(shard): end - len(shard) for shard, end in zip(distinct, ends, strict=True)}
    starts = np.array([begins[id(shard)] for shard in shards])
    return np.concatenate(distinct), starts, np.array([len(shard) for shard in shards])
