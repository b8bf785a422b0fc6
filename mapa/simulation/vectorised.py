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

from common.errors import ConfigurationError
from common.mechanism.clipping import Clipping
from common.mechanism.guarantee import CLIP_MARGIN, Norm
from common.mechanism.sampler import Sampler
from common.mechanism.work.single_step import SingleStep
from common.models.gradients import L1, L2, Lengths, Total, lengths, powers, summed, unreliable
from common.models.linear import LinearModel
from common.quantities import Floats, Indices, Vector, is_finite
from common.records.events import Journal
from common.scenario.scenario import Scenario
from mapa.simulation.plan import check_plannable_scenario
from mapa.simulation.simulator import Outcome, Progress, interrupt_between_events, quiet_overflow
from mapa.simulation.vectorised_run import Matrix, VectorisedRun
from mapa.simulation.world import World

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
        runs = [
            VectorisedRun.of(world, journal, blocks) for world, journal in zip(worlds, sheets, strict=True)
        ]
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


def check_vectorised_scenario(s: Scenario, engine: str) -> None:
    """Refuse by the scenario alone, before noise is computed for a run that cannot be."""
    check_plannable_scenario(s, engine)
    if s.delays.kind != "cyclic" or s.records.diagnostics:
        raise ConfigurationError(f"engine = {engine!r}: needs delays.kind = 'cyclic' and no diagnostics")
    if not isinstance(s.work, SingleStep):
        told = (
            f"local.steps = {s.work.releases()}" if s.local.work is None else f"local.work = {s.local.work!r}"
        )
        raise ConfigurationError(
            f"engine = {engine!r}: makes no local steps, and {told}; --engine events does"
        )


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
        self.rates = np.stack([run.plan.rates for run in runs])  # R × (T+1)
        self.sensitivities = np.stack([run.plan.sensitivities for run in runs])
        self.x: Matrix = np.stack([run.plan.first_model for run in runs])  # R × N
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
