"""The games that every release mechanism is put to: one list for all laws, clippings, samplers and local work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from common.mechanism.guarantee import Adjacency, Scope
from common.mechanism.mechanism import Mechanism
from common.mechanism.work.single_step import SingleStep
from common.models.model import Features
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from edge.worker import EdgeWorker, Shard
from experiments.audit.claims import Claim, Floats
from experiments.audit.design import (
    CLIP,
    LOUD,
    CodedGradients,
    Design,
    Plant,
    honest,
    resized,
    unit,
    with_extra,
    written,
)
from experiments.audit.game import Finding, Playable, turned

LONGEST_LAG = 300
_LEARNING = 700  # releases with the canary zeroed: noise alone


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggedGame:
    """A canary that pulls one way and, ℓ releases later, the other; ℓ is where noise was most alike."""

    name: str
    design: Design
    rounds: int

    @property
    def claim(self) -> Claim:
        return replace(self.design, releases=2).claim

    @property
    def cost(self) -> int:
        return 2 * self.rounds + _LEARNING

    def play(self, *, alpha: float, seed: int) -> Finding:
        lag = self._most_alike(seed)
        signs = np.repeat([1.0, -1.0], lag)[:, None] * np.ones(self.design.canary.size)
        pair = replace(self.design, releases=2, steer=signs)
        aim = replace(self.design, releases=2, steer=signs[[0, lag]]).aim
        game = replace(pair.game(self.name, self.rounds), score=aim.ratio, learner=aim.learned, lag=lag)
        finding = game.play(alpha=alpha, seed=seed + 1)
        return replace(finding, name=f"{self.name} ({lag} apart)")

    def _most_alike(self, seed: int) -> int:
        worker, [x] = self.design.worker(False, seed), self.design.path
        noise = np.array(
            [worker.gradient(x, self.design.sensitivity, n + 1) for n in range(_LEARNING)], np.float64
        )
        noise -= noise.mean(axis=0)
        alike: Floats = np.array([(noise[:-lag] * noise[lag:]).mean() for lag in range(1, LONGEST_LAG + 1)])
        return int(np.argmax(np.abs(alike))) + 1


_BATCH = 4  # b: seldom empty, and few enough that their codes hardly disturb each other
_FEWEST_ROWS, _MOST_ROWS = 256, 4096
_OF_EPOCH = 4  # releases of a round with the shuffled sampler, all of one epoch, which is charged once
_CLEAR = 7.0  # distance of a canary that is in every batch, in standard deviations of the sum
_MOST_RELEASES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class MostDrawn:
    """A canary in the row that was drawn most often; b = 4, and as many rows as the shard has."""

    name: str
    mechanism: Mechanism
    shard_size: int
    dimension: int
    rounds: int
    plant: Plant = field(default=honest)
    regularization: float = 0.0  # λ

    @property
    def design(self) -> Design:
        last = np.zeros(self.dimension)
        last[-1] = float(LOUD)
        rows = (
            min(_MOST_ROWS, max(_FEWEST_ROWS, self.shard_size)) // (_BATCH * _OF_EPOCH) * _BATCH * _OF_EPOCH
        )
        return Design(
            mechanism=replace(resized(self.mechanism, _BATCH), work=SingleStep()),
            regularization=self.regularization,
            shard_size=rows,
            canary=last,
            releases=_OF_EPOCH if self.mechanism.sampler.by_epoch else 1,
            plant=self.plant,
        )

    @property
    def claim(self) -> Claim:
        return self.design.claim

    @property
    def cost(self) -> int:
        return self.rounds * self.design.releases + self._learning

    @property
    def _learning(self) -> int:
        """Return after how many releases a canary in every batch stands out from noise and the others' codes."""
        assert self.mechanism.law is not None
        noise = 4 * self.mechanism.law.relative_second_moment(self.dimension) / self.dimension
        return min(_MOST_RELEASES, math.ceil(_CLEAR**2 * (_BATCH + noise)))

    def play(self, *, alpha: float, seed: int) -> Finding:
        design, row = self.design, self._most_drawn(seed)

        def worker(there: bool, seed: int | None) -> EdgeWorker:
            made = design.worker(there, seed)
            made.shard = turned(made.shard, row)
            return made

        game = design.game(self.name, self.rounds)
        if design.releases == 1:
            game = design.likely(self.name, self.rounds)
        epoch = design.shard_size // _BATCH
        after = (
            -(-self._learning // epoch) * epoch
        )  # what was learned from is not judged, nor the rest of its epoch
        return replace(game, worker=worker, turning=False, after=after).play(alpha=alpha, seed=seed)

    def _most_drawn(self, seed: int) -> int:
        design, count = self.design, self._learning
        codes = np.random.default_rng(seed).choice(np.array([-1, 1], np.int8), (design.shard_size, count))
        features: Features = codes  # a byte each: few of them are used
        worker = design.worker(True, seed)
        worker.shard = Shard(features, np.zeros(len(codes), np.int64), np.arange(len(codes)))
        coded = CodedGradients(self.dimension)
        coded.form = written(worker.model).form
        worker.model = with_extra(self.mechanism.clipping, coded)
        size = worker.model.dimension
        x, released = np.zeros(size, np.float32), np.empty((count, size))
        for n in range(count):
            x[0] = n
            released[n] = worker.gradient(x, design.sensitivity, n + 1)
            released[n] -= np.float32(self.regularization) * x
        pull = np.zeros(size)
        pull[self.dimension - 1] = CLIP / _BATCH
        assert self.mechanism.law is not None
        told = self.mechanism.law.log_ratio(design.sensitivity, released, -pull, pull)
        return int(np.argmax(codes.astype(np.float32) @ told.astype(np.float32)))


LAYERS = 4
_NORMS = (1.05, 1.5, 3.0, 8.0, 15.0, 19.0)  # between C and 20 C
_CROWD = (128, 1024, 64)  # b, n_k and N where the numbers that draw a batch would show in noise
_MESSAGES = 16  # times the rounds, over E: one step of four without noise is seen at z = 4


def battery(
    mechanism: Mechanism,
    *,
    shard_size: int,
    dimension: int,
    rounds: int,
    plant: Plant = honest,
    regularization: float = 0.0,
) -> list[Playable]:
    """Return every game of an edge's mechanism on a shard of this size; of a release that claims nothing, the first.

    What is played follows from what the parts state of themselves, so that parts of one's own are played alike.
    """
    law, sampler, clipping, b = mechanism.law, mechanism.sampler, mechanism.clipping, mechanism.batch_size
    sampled, repeats = mechanism.amplification.sampled, sampler.places(b) > 1
    last = np.zeros(dimension)
    last[-1] = 1.0
    # the canary is in the batch for certain; where it may fill several places, it may even fill the batch
    certain = sampler.least_records(b)
    if clipping.opposed and repeats:
        certain = max(2, certain)
    message = Design(
        mechanism=mechanism,
        shard_size=certain,
        canary=float(LOUD) * last,
        plant=plant,
        regularization=regularization,
    )
    one = replace(message, mechanism=replace(mechanism, work=SingleStep()))
    games: list[Playable] = [one.threshold("one release, canary in the batch", rounds)]
    if mechanism.steps > 1:
        name = f"one message of {mechanism.steps} local steps, canary in every batch"
        games.append(message.likely(name, max(rounds, _MESSAGES * rounds // mechanism.steps)))
    if law is None or mechanism.scope is not Scope.ALL or not np.isfinite(one.claim.value):
        return games
    if sampled and shard_size > b:
        games.append(replace(one, shard_size=shard_size).threshold("one release, as sampled", rounds))
    if sampler.by_epoch:
        epoch = replace(one, shard_size=2 * b, releases=2)
        games.append(epoch.threshold("an epoch of two releases", rounds))
    spread = replace(one, canary=float(LOUD) * unit(np.ones(dimension), law.norm))
    composed = 9 if isinstance(law, Gaussian) else 1
    above = replace(one, canary=1.5 * last, releases=composed)
    pair = np.array([1.0, -1.0])[:, None] * np.ones(dimension)
    signs = np.vstack((pair, pair))
    alike = "whose noise is most alike"
    two = replace(spread, releases=2, steer=pair)
    # without an error they must say more than is claimed
    pairs = min(rounds, max(600, rounds // 20, int(20 * math.exp(min(two.claim.value, 20)))))
    games += [
        LaggedGame(name=f"two releases {alike}", design=spread, rounds=pairs),
        replace(two.game("the first release of two processes", pairs), restarts=True),
        replace(
            replace(spread, releases=4, steer=signs).game("four releases, canary to and fro", rounds // 8),
            fresh_runs=True,
        ),
        replace(spread, canary=np.ones(dimension), steer=_in_turn(dimension, law)).game(
            "coordinates, layers and norms to 20 C in turn", rounds
        ),
        spread.exact("one release, spread canary, exactly there", 2 * rounds),
        replace(
            above.likely(
                f"{composed} release{'s' * (composed > 1)}, canary just above C", 2 * rounds // composed
            ),
            fresh_runs=True,
        ),
        replace(spread, adjacency=Adjacency.REPLACE_ONE).game("one release, canary replaced", rounds),
    ]
    if mechanism.steps > 1:
        steps = replace(spread, mechanism=mechanism)
        games.append(LaggedGame(name=f"two messages {alike}", design=steps, rounds=pairs))
    if sampled:
        games.append(replace(one, shard_size=2 * b).likely("one release, sampled at rate 1/2", 2 * rounds))
        if not clipping.opposed:
            against = replace(one, shard_size=b + 1, canary=-float(LOUD) * last, others=last)
            games.append(against.game("one release, the others pull against the canary", rounds))
    if not repeats:  # which may take the same record each time, and is charged for it
        games.append(
            MostDrawn(
                name="the record that is drawn most often",
                mechanism=mechanism,
                regularization=regularization,
                shard_size=shard_size,
                dimension=dimension,
                rounds=rounds,
                plant=plant,
            )
        )
    if sampled and not clipping.opposed:  # a mean of other sizes would be noised for another
        games.append(_who_is_sampled(spread, one, rounds))
    return games


def _who_is_sampled(spread: Design, one: Design, rounds: int) -> Playable:
    """Return the game where the numbers that draw a batch would show in noise: of very many records, or of two.

    Where a claim is of pure ε, what counts is how sure the surest rounds are; otherwise how many there are.
    """
    name, law = "one release, noise by who is sampled", spread.mechanism.law
    if not isinstance(law, Gaussian):
        two = replace(one, mechanism=resized(one.mechanism, 1), shard_size=2)
        return replace(two.game(name, 16 * rounds), score=None, learning=0.25)
    b, n, size = _CROWD
    canary = float(LOUD) * unit(np.ones(size), law.norm)
    crowd = replace(spread, mechanism=resized(spread.mechanism, b), shard_size=n, canary=canary)
    # enough for an excess of 0.02 over the claim at μ = 1/4, and of 0.012 at μ = 1
    game = crowd.game(name, int(20 * rounds * min(1.0, max(0.5, 1 / law.noise_multiplier))))
    # the first row is drawn by the smallest numbers
    return replace(game, score=None, threshold=0.0, learning=0.25, turning=False)


def _in_turn(dimension: int, law: NoiseLaw) -> Floats:
    """Return an x for each of: every coordinate, every layer, all coordinates; each at every norm above C."""
    shapes = [*np.eye(dimension)]
    layers = np.array_split(np.arange(dimension), min(LAYERS, dimension))
    for part in [*layers, np.arange(dimension)]:
        shape = np.zeros(dimension)
        shape[part] = 1.0
        shapes.append(unit(shape, law.norm))
    return np.array([norm * shape for norm in _NORMS for shape in shapes])
