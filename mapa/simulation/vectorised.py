"""The cyclic delay in whole rounds: linear models only, many runs at once.

In a round the K gradients depend only on models of the round before, so a stretch of a round is one
batched product followed by a cumulative sum, which adds in the very order of the event-driven engine.
With the same random numbers the two agree to float32's rounding; `block` streams draw faster instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from cloud.algorithm import StepSchedule
from cloud.assembly import algorithm_for, begun, check_own_edges, first_model
from cloud.server import edge_joined, stage_opened
from common.errors import ConfigurationError
from common.mechanism.clipping import Clipping
from common.mechanism.guarantee import CLIP_MARGIN, Norm
from common.mechanism.sampler import Sampler
from common.mechanism.work.single_step import SingleStep
from common.messages import GradientApplied, StageOpened
from common.models.gradients import L1, L2, Lengths, Total, lengths, powers, summed, unreliable
from common.models.linear import LinearModel
from common.models.model import feature_length
from common.noise.law import Noise, NoiseLaw
from common.quantities import EdgeId, Floats, Indices, Vector, is_finite
from common.randomness import Purpose
from common.records.recorder import Journal, Recorder
from common.scenario.scenario import Scenario
from common.wire.codings.registry import PLAIN
from mapa.simulation.simulator import Outcome, Progress, World, interrupt_between_events, quiet_overflow


def read_version(t: int, workers: int) -> int:
    """Return the model version that the gradient of update t was made on, K edges taking turns."""
    return 1 if t <= workers else t - workers + 1


NAME = "block: SFC64 (seed, 1) for batches, (seed, 2) for noise, (seed, 3) for its norms"


class BlockStreams:
    """One generator each for a run's batches, noise and noise norms, drawn in order and in bulk.

    Faster than a stream per (seed, k, n), and reproducible from the seed, but tied to the cyclic order. Norms have
    their own, or else the numbers would depend on how many rows a block has.
    """

    def __init__(self, seed: int | None) -> None:
        word = np.random.SeedSequence().entropy if seed is None else seed
        assert isinstance(word, int)
        self.batches, self.noise, self.norms = (
            np.random.Generator(np.random.SFC64([word, part])) for part in (1, 2, 3)
        )


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


class VectorisedRun:
    """One run: a plan of its rates and stages, its draws, its records."""

    def __init__(self, world: World, journal: Journal | None, blocks: bool) -> None:
        scenario = world.scenario
        self.world, self.workers, self.last = world, scenario.workers, scenario.iterations
        self.laws = scenario.laws()
        self.records = Recorder(journal)
        self.blocks = BlockStreams(scenario.seed) if blocks else None
        self.sampler = scenario.sampler
        clipping = scenario.privacy.clipped.fitted(feature_length(world.model) or 0.0)
        self.clipping = clipping if scenario.private else None
        self.places = _places(world.rows)
        self.round: tuple[int, Indices | list[Indices]] | None = None  # n, and the batches of all edges in it
        self.x = first_model(world.model, world.streams)  # x₁
        self.rates = np.zeros(self.last + 1, np.float32)  # γ_t at index t
        self.sensitivities = np.zeros(self.last + 2)  # ΔS sent with model version t
        self.stages = np.ones(self.last + 2, np.int64)  # s of model version t
        self.openings: dict[int, StageOpened] = {}  # by first update
        self._plan()
        for k, law in enumerate(self.laws):
            self.records.fact(edge_joined(k, EdgeId(f"edge-{k}"), 1, law, returned=False))
        self._open_stage(1)
        if scenario.evaluate_every:
            self.evaluate(self.x, 0)

    def _plan(self) -> None:
        """Let the algorithm begin as the server would, then walk it to T."""
        check_own_edges(self.world.scenario, self.world.model)
        schedule, stage = begun(self.world.scenario, self.world.model), None
        for t in range(1, self.last + 1):
            assert isinstance(schedule, StepSchedule)
            if schedule.opened() is not stage:
                stage, fact = schedule.opened(), stage_opened(schedule, t, reopened=False)
                if fact is not None:
                    self.openings[t] = fact
            self.sensitivities[t], self.stages[t] = schedule.sensitivity, schedule.stage
            self.rates[t] = schedule.learning_rate(t)
            schedule = schedule.after(t, t - read_version(t, self.workers))

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
        laws = [law for law in self.laws[first : first + len(gradients)] if law is not None]
        if self.blocks is not None:
            noise_block(gradients, laws, sensitivities, self.blocks)
            return
        for i, law in enumerate(laws):
            rng = self.world.streams.at(first + i, Purpose.NOISE, n)
            gradients[i] += law.draw(float(sensitivities[i]), gradients.shape[1], rng)

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
        for i, x in enumerate(models):
            k, t = first + i, start + i
            version = read_version(t, self.workers)
            made = int(self.stages[version]), float(self.sensitivities[version])
            self.records.fact(GradientApplied(k, EdgeId(f"edge-{k}"), n, version, t, t - version, *made))
            if every and t % every == 0:
                self.evaluate(x, t)
            self._open_stage(t + 1)

    def _count(self, first: int, n: int, start: int, count: int) -> None:
        """Record the same without a journal, which would tell in which order."""
        stale = range(start - 1, start - 1 + count) if n == 1 else [self.workers - 1] * count
        self.records.counted(first, n, start, stale)
        for t in range(start + 1, start + count + 1):
            if t in self.openings:
                self._open_stage(t)

    def evaluate(self, x: Vector, t: int) -> None:
        self.world.evaluate(self.records, x, t, int(self.stages[t]))

    def _open_stage(self, t: int) -> None:
        if (fact := self.openings.get(t)) is not None:
            self.records.fact(fact)

    def outcome(self, x: Vector, done: int, reason: str) -> Outcome:
        releases = [self.records.tally.edges[k].applied + 1 for k in range(self.workers)]
        if reason in ("finished", "diverged"):
            releases[(done - 1) % self.workers] -= 1  # the edge of the last update was told to halt
        return self.world.ended(self.records, x.copy(), done, int(self.stages[done]), reason, releases)


def _places(shards: list[Indices]) -> tuple[Indices, Indices, Indices]:
    """Return the rows of all shards in one array, where each begins there, and its size.

    Shards that are one and the same (partition `shared`) are there once.
    """
    distinct = list({id(shard): shard for shard in shards}.values())
    ends = np.cumsum([len(shard) for shard in distinct]).tolist()
    begins = {id(shard): end - len(shard) for shard, end in zip(distinct, ends, strict=True)}
    starts = np.array([begins[id(shard)] for shard in shards])
    return np.concatenate(distinct), starts, np.array([len(shard) for shard in shards])


_POWERS = {Norm.L1: L1, Norm.L2: L2}
_BATCH_BYTES = 1 << 20  # of gathered samples in one stretch: about what stays in the cache


def simulate_rounds(
    world: World, journal: Journal | None = None, progress: Progress | None = None, *, blocks: bool = False
) -> Outcome:
    """Run one scenario on the vectorised path."""
    return simulate_many([world], journals=[journal], progress=progress, blocks=blocks)[0]


def simulate_many(
    worlds: Sequence[World],
    journals: Sequence[Journal | None] | None = None,
    progress: Progress | None = None,
    *,
    blocks: bool = False,
) -> list[Outcome]:
    """Run scenarios that differ in seed, algorithm, ε or bound, but share data, model, K, b and T."""
    check_vectorised(worlds, blocks=blocks)
    sheets = journals or [None] * len(worlds)
    last = worlds[0].scenario.iterations
    with interrupt_between_events() as interrupted, quiet_overflow():
        runs = [VectorisedRun(world, journal, blocks) for world, journal in zip(worlds, sheets, strict=True)]
        rounds = _Rounds(runs)
        while rounds.done < last and rounds.running and not interrupted():
            rounds.stretch()
            if progress is not None:
                progress(runs[0].records.tally)
        reason = "finished" if rounds.done >= last else "interrupted"
        return [
            run.outcome(*rounds.diverged.get(r, (rounds.x[r], rounds.done, reason)))
            for r, run in enumerate(runs)
        ]


def check_vectorised(worlds: Sequence[World], *, blocks: bool = False) -> None:
    """Refuse what the vectorised path cannot run, before anything is written."""
    first, engine = worlds[0].scenario, "block" if blocks else "vectorised"
    for world in worlds:
        s = world.scenario
        check_vectorised_scenario(s, engine)
        if not isinstance(world.model, LinearModel):
            raise ConfigurationError(f"engine = {engine!r}: needs a linear model, not {s.model.name!r}")
        if blocks and type(s.sampler).draw_block is Sampler.draw_block:
            raise ConfigurationError(
                f"data.sampler = {s.data.sampler!r}: has no block form (draw_block); --engine vectorised runs it"
            )
        if any(cap is not None and cap < _releases(s, k) for k, cap in enumerate(world.caps)):
            raise ConfigurationError(
                f"engine = {engine!r}: an edge's budget ends before T; use the events engine"
            )
        if _shape(s) != _shape(first) or world.features is not worlds[0].features:
            raise ConfigurationError(
                "runs of one sweep must share data, model, edges, batch_size and iterations"
            )


def check_vectorised_scenario(s: Scenario, engine: str = "vectorised") -> None:
    """Refuse by the scenario alone, before noise is computed for a run that cannot be."""
    algorithm = algorithm_for(s)
    if s.private and not s.privacy.clipped.block_form:
        why = f"privacy.clipping = {s.privacy.clipping!r} has no vectorised form; --engine events runs it"
    elif not (isinstance(algorithm, StepSchedule) and algorithm.can_be_planned):
        why = f"algorithm {s.algorithm.name!r} has no vectorised form; --engine events runs any algorithm"
    elif s.secure is not None or (s.private and s.privacy.grid is not None):
        why = "draws no integers, so neither [secure] nor privacy.grid; --engine events does"
    elif s.weighted or s.privacy.pace == "own":
        why = (
            "takes gradients of all edges alike, so neither privacy.pace = 'own' nor algorithm.weights = 'noise';"
            " --engine events does"
        )
    elif s.algorithm.average != "none":
        why = f"keeps no average of models, and algorithm.average = {s.algorithm.average!r}; --engine events does"
    elif s.every_coding != {PLAIN}:
        why = f"codes no messages, and compression says {', '.join(sorted(s.every_coding))}; --engine events does"
    elif s.delays.kind != "cyclic" or s.records.diagnostics:
        why = "needs delays.kind = 'cyclic' and no diagnostics"
    elif not isinstance(s.work, SingleStep):
        work = f"steps = {s.work.releases()}" if s.local.work is None else f"work = {s.local.work!r}"
        why = f"makes no local steps, and local.{work}; --engine events does"
    else:
        return
    raise ConfigurationError(f"engine = {engine!r}: {why}")


def _releases(s: Scenario, k: int) -> int:
    """Return how many gradients edge k makes: those applied, and one on its way unless it made the last."""
    applied = -(-(s.iterations - k) // s.workers)
    return applied + ((s.iterations - 1) % s.workers != k)


def _shape(s: Scenario) -> tuple[object, ...]:
    return s.data.set, s.model, s.workers, s.batch_size, s.iterations, s.evaluate_every


class _Rounds:
    """x and the K held models of every run, advanced a stretch of edges at a time."""

    def __init__(self, runs: Sequence[VectorisedRun]) -> None:
        world = runs[0].world
        assert isinstance(world.model, LinearModel)
        self.runs = runs
        self.model: LinearModel = world.model
        self.features, self.targets = world.features, world.targets
        self.workers = world.scenario.workers
        self.batch_size = world.scenario.batch_size
        self.iterations = world.scenario.iterations
        self.done = 0
        self.diverged: dict[int, tuple[Vector, int, str]] = {}  # by run: its last x and update
        self.per_sample = [
            (places, power, powers(self.features, power).astype(np.float64), clipping)
            for power, clipping, places in _scaled_per_sample(runs)
        ]
        self.rates = np.stack([run.rates for run in runs])  # R × (T+1)
        self.sensitivities = np.stack([run.sensitivities for run in runs])
        self.x: Matrix = np.stack([run.x for run in runs])  # R × N
        self.held: npt.NDArray[np.float32] = np.repeat(self.x[:, None], self.workers, axis=1)  # R × K × N
        sample_bytes = self.model.inputs * 4 * self.batch_size * len(runs)
        self.width = max(1, min(self.workers, _BATCH_BYTES // sample_bytes))

    @property
    def running(self) -> bool:
        """Whether a run is left that has not diverged."""
        return len(self.diverged) < len(self.runs)

    def stretch(self) -> None:
        """Advance by edges first … first+count−1 of the round in progress."""
        n, first = self.done // self.workers + 1, self.done % self.workers
        count = min(self.width, self.workers - first, self.iterations - self.done)
        gradients = self._gradients(n, first, count)
        steps = np.empty((len(self.runs), count + 1, self.model.dimension), np.float32)
        steps[:, 0] = self.x
        times = slice(self.done + 1, self.done + 1 + count)
        np.multiply(gradients, -self.rates[:, times, None], out=steps[:, 1:])
        for i in range(count):  # cumsum along this axis takes ten times as long, and adds in the same order
            np.add(steps[:, i], steps[:, i + 1], out=steps[:, i + 1])
        self.held[:, first : first + count] = steps[:, 1:]
        self.x = steps[:, -1].copy()
        start = self.done + 1
        self.done += count
        for r, run in enumerate(self.runs):
            if r in self.diverged:
                continue
            kept = self._finite(r, steps[r], start)
            run.applied(first, n, start, steps[r, 1 : kept + 1])

    def _finite(self, r: int, steps: Matrix, start: int) -> int:
        """Return how many of a stretch's updates run r makes: all, or up to the first infinite model."""
        count = len(steps) - 1
        if is_finite(steps[-1]):  # what is infinite once stays so
            return count
        i = next(i for i in range(1, count + 1) if not is_finite(steps[i]))
        self.diverged[r] = (steps[i].copy(), start + i - 1, "diverged")
        return i

    def _gradients(self, n: int, first: int, count: int) -> npt.NDArray[np.float32]:
        """Return R × count × N released gradients."""
        shape = (len(self.runs), count)
        rows, present = self._batches(n, first, count)
        samples = self.features[rows]
        held = self.held[:, first : first + count]
        weights = held.reshape(*shape, self.model.outputs, self.model.inputs)
        scores = np.matmul(samples, weights.swapaxes(-1, -2))
        d = self.model.score_gradient(scores, self.targets[rows])
        if present is not None:
            d[~present] = 0  # and not d · 0, which may be NaN
        sensitivities = self._sensitivities(n, count)
        apart: list[tuple[tuple[int, int], Total]] = []
        for per_sample, power, of_rows, clipping in self.per_sample:
            bounds = self.batch_size * sensitivities[per_sample][..., None] / 2 * (1 - CLIP_MARGIN)
            least, s = clipping.scaling(bounds)
            clipped = d[per_sample]
            for (r, i), gradient in _scale(
                clipped, samples[per_sample], of_rows[rows[per_sample]], power, bounds, least, s
            ):
                apart.append(((r if isinstance(per_sample, slice) else per_sample[r], i), gradient))
            if clipped.base is None:  # chosen one by one, so it is a copy
                d[per_sample] = clipped
        gradients = summed(d, samples)
        for place, gradient in apart:
            gradients[place] += gradient
        gradients = gradients.reshape(*shape, self.model.dimension)
        gradients /= self.batch_size
        for r, run in enumerate(self.runs):
            if run.clipping is not None and run.clipping.block_form == "mean":
                bounds = self.batch_size * sensitivities[r] / 2
                power = _POWERS[run.norm]
                norms = lengths(powers(gradients[r], power).astype(np.float64), power)
                _null_what_is_not_finite(gradients[r], norms)
                gradients[r] *= (bounds / np.maximum(norms, bounds))[:, None]
        for r, run in enumerate(self.runs):
            run.perturb(gradients[r], first, n, sensitivities[r])
        released = gradients.astype(np.float32)
        # after the noise, as an edge adds it (edge/worker.py says why)
        released += np.float32(self.runs[0].world.scenario.model.regularization) * held
        return released

    def _sensitivities(self, n: int, count: int) -> npt.NDArray[np.float64]:
        """Return R × count ΔS, each sent with the model that the gradient was made of."""
        if n == 1:
            return np.repeat(self.sensitivities[:, 1:2], count, axis=1)
        oldest = self.done + 2 - self.workers
        return self.sensitivities[:, oldest : oldest + count]

    def _batches(self, n: int, first: int, count: int) -> tuple[Indices, npt.NDArray[np.bool_] | None]:
        """Return the rows R × count × width, and for batches of differing size which of them are there."""
        drawn = [run.batches(first, n, count) for run in self.runs]
        alike = [batches for batches in drawn if isinstance(batches, np.ndarray)]
        if len(alike) == len(drawn):
            return np.stack(alike), None
        width = max(len(batch) for run in drawn for batch in run)
        if all(len(batch) == width for run in drawn for batch in run):
            return np.array(drawn).reshape(len(drawn), count, width), None
        rows = np.zeros((len(drawn), count, width), np.int64)
        present = np.zeros(rows.shape, np.bool_)
        for r, run in enumerate(drawn):
            for i, batch in enumerate(run):
                rows[r, i, : len(batch)] = batch
                present[r, i, : len(batch)] = True
        return rows, present


def _scaled_per_sample(
    runs: Sequence[VectorisedRun],
) -> Iterator[tuple[int, Clipping, slice | list[int]]]:
    """Yield the runs that scale samples alike, in one norm: as a slice, which copies nothing, where all do."""
    alike: dict[tuple[int, Clipping, float], list[int]] = {}
    for r, run in enumerate(runs):
        if run.clipping is not None and run.clipping.block_form == "samples":
            _, stabiliser = run.clipping.scaling(np.ones(1))
            alike.setdefault((_POWERS[run.norm], run.clipping, stabiliser), []).append(r)
    for (power, clipping, _), places in alike.items():
        yield power, clipping, slice(None) if len(places) == len(runs) else places


def _scale(
    d: Matrix,
    samples: Matrix,
    of_x: Lengths,
    power: int,
    bounds: Lengths,
    least: Lengths | float,
    stabiliser: float,
) -> list[tuple[tuple[int, int], Total]]:
    """Scale the D of each sample by C/(max(‖g‖, least) + s), in place, as an edge does.

    Samples that float32 cannot be relied on for are returned, with their place, as gradients in float64; their D is 0.
    """
    of_d = powers(d, power)
    of: Lengths = np.multiply(of_x, of_d, dtype=np.float64)
    hard: list[tuple[int, int, int]] = []
    doubtful = unreliable(np.stack((of_x, of_d)), power)
    if doubtful is not None:
        hard = [(r, i, j) for r, i, j in np.argwhere(doubtful.any(axis=0) & d.any(axis=-1)).tolist()]
        for place in hard:
            factors = (powers(of_one[place].astype(np.float64), power) for of_one in (d, samples))
            of[place] = math.prod(map(float, factors))
    norms = lengths(of, power)
    _null_what_is_not_finite(d, norms)
    divisors = np.maximum(norms, least)
    divisors += stabiliser
    weights = bounds / divisors
    apart = []
    for place in hard:
        scaled = d[place].astype(np.float64) * weights[place]
        apart.append((place[:2], np.outer(scaled, samples[place].astype(np.float64))))
        weights[place] = 0
    d *= weights.astype(np.float32)[..., None]
    return apart


def _null_what_is_not_finite(vectors: Floats, norms: Lengths) -> None:
    """Set vectors whose norm is not finite to 0, in place, as an edge does before it clips."""
    if not math.isfinite(norms.sum()):
        lost = ~np.isfinite(norms)
        vectors[lost] = 0
        norms[lost] = 0
