"""The games that every release mechanism is put to: one list for all laws, clippings, samplers and local work."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from common.errors import ConfigurationError
from common.mechanism.guarantee import Adjacency, Scope
from common.mechanism.mechanism import Mechanism
from common.mechanism.work.single_step import SingleStep
from common.models.model import Features, feature_length
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.scenario.parts import noised_dimension
from edge.worker import EdgeWorker, Shard
from experiments.audit.claims import Floats
from experiments.audit.design import (
    CHOSEN,
    CLIP,
    LIKELY,
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
from experiments.audit.game import Game, turned
from mapa.simulation.simulator import World

LONGEST_LAG = 300
_LEARNING = 700  # releases with the canary zeroed: noise alone


def lagged(name: str, design: Design, rounds: int) -> Game:
    """Return the game of a canary that pulls one way and, ℓ releases later, the other; noise was most alike ℓ apart."""

    def prepare(seed: int) -> tuple[Game, int]:
        worker, [x] = design.worker(False, seed), design.path
        made = [worker.gradient(x, design.sensitivity, n + 1) for n in range(_LEARNING)]
        noise = np.array(made, np.float64)
        noise -= noise.mean(axis=0)
        alike = [abs((noise[:-lag] * noise[lag:]).mean()) for lag in range(1, LONGEST_LAG + 1)]
        lag = int(np.argmax(alike)) + 1
        signs = np.repeat([1.0, -1.0], lag)[:, None] * np.ones(design.canary.size)
        aim = replace(pair, steer=signs[[0, lag]]).aim
        how = {"score": aim.ratio, "learner": aim.learned, "lag": lag}
        return replace(pair, steer=signs).game(f"{name} ({lag} apart)", rounds, **how), seed + 1

    pair = replace(design, releases=2)
    return pair.game(name, rounds, preparing=_LEARNING, prepare=prepare)


_BATCH = 4  # b: seldom empty, and few enough that their codes hardly disturb each other
_FEWEST_ROWS, _MOST_ROWS = 256, 4096
_OF_EPOCH = 4  # releases of a round with the shuffled sampler, all of one epoch, which is charged once
_CLEAR = 7.0  # distance of a canary that is in every batch, in standard deviations of the sum
_MOST_RELEASES = 2048


def most_drawn(name: str, message: Design, shard_size: int, rounds: int) -> Game:
    """Return the game of a canary in the row that was drawn most often; b = 4, and as many rows as the shard has."""
    mechanism, size = replace(resized(message.mechanism, _BATCH), work=SingleStep()), message.canary.size
    blocks = min(_MOST_ROWS, max(_FEWEST_ROWS, shard_size)) // (_BATCH * _OF_EPOCH)
    releases = _OF_EPOCH if mechanism.sampler.by_epoch else 1
    design = replace(message, mechanism=mechanism, shard_size=blocks * _BATCH * _OF_EPOCH, releases=releases)
    assert mechanism.law is not None
    noise = 4 * mechanism.law.relative_second_moment(size) / size
    # after this number of releases a canary in every batch stands out from noise and the others' codes
    learning = min(_MOST_RELEASES, math.ceil(_CLEAR**2 * (_BATCH + noise)))
    game = design.game(name, rounds) if releases > 1 else design.game(name, rounds, **LIKELY)

    def prepare(seed: int) -> tuple[Game, int]:
        row = _most_drawn_row(design, learning, seed)

        def worker(there: bool, seed: int | None) -> EdgeWorker:
            made = design.worker(there, seed)
            made.shard = turned(made.shard, row)
            return made

        epoch = design.shard_size // _BATCH
        # what was learned from is not judged, nor the rest of its epoch
        after = -(-learning // epoch) * epoch
        return replace(game, worker=worker, turning=False, after=after), seed

    return replace(game, preparing=learning, prepare=prepare)


def _most_drawn_row(design: Design, count: int, seed: int) -> int:
    codes = np.random.default_rng(seed).choice(np.array([-1, 1], np.int8), (design.shard_size, count))
    features: Features = codes  # a byte each: few of them are used
    worker, law = design.worker(True, seed), design.mechanism.law
    assert law is not None
    worker.shard = Shard(features, np.zeros(len(codes), np.int64), np.arange(len(codes)))
    coded = CodedGradients(design.canary.size)
    coded.form = written(worker.model).form
    worker.model = with_extra(design.mechanism.clipping, coded)
    size = worker.model.dimension
    x, released = np.zeros(size, np.float32), np.empty((count, size))
    for n in range(count):
        x[0] = n
        released[n] = worker.gradient(x, design.sensitivity, n + 1)
        released[n] -= np.float32(design.regularization) * x
    pull = np.zeros(size)
    pull[design.canary.size - 1] = CLIP / _BATCH
    told = law.log_ratio(design.sensitivity, released, -pull, pull)
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
) -> list[Game]:
    """Return every game of an edge's mechanism on a shard of this size; of a release that claims nothing, the first.

    What is played follows from what the parts state of themselves, so that a user's own parts are played alike.
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
    games: list[Game] = [one.game("one release, canary in the batch", rounds, **CHOSEN)]
    if mechanism.steps > 1:
        name = f"one message of {mechanism.steps} local steps, canary in every batch"
        games.append(message.game(name, max(rounds, _MESSAGES * rounds // mechanism.steps), **LIKELY))
    if law is None or mechanism.scope is not Scope.ALL or not np.isfinite(one.claim.value):
        return games
    if sampled and shard_size > b:
        games.append(replace(one, shard_size=shard_size).game("one release, as sampled", rounds, **CHOSEN))
    if sampler.by_epoch:
        epoch = replace(one, shard_size=2 * b, releases=2)
        games.append(epoch.game("an epoch of two releases", rounds, **CHOSEN))
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
        lagged(f"two releases {alike}", spread, pairs),
        two.game("the first release of two processes", pairs, restarts=True),
        replace(spread, releases=4, steer=signs).game(
            "four releases, canary to and fro", rounds // 8, fresh_runs=True
        ),
        replace(spread, canary=np.ones(dimension), steer=_in_turn(dimension, law)).game(
            "coordinates, layers and norms to 20 C in turn", rounds
        ),
        # more coordinates exactly where the canary would put them than where none would
        spread.game(
            "one release, spread canary, exactly there",
            2 * rounds,
            score=spread.aim.exact,
            learner=None,
            threshold=0.5,
        ),
        above.game(
            f"{composed} release{'s' * (composed > 1)}, canary just above C",
            2 * rounds // composed,
            fresh_runs=True,
            **LIKELY,
        ),
        replace(spread, adjacency=Adjacency.REPLACE_ONE).game("one release, canary replaced", rounds),
    ]
    if mechanism.steps > 1:
        steps = replace(spread, mechanism=mechanism)
        games.append(lagged(f"two messages {alike}", steps, pairs))
    if sampled:
        games.append(
            replace(one, shard_size=2 * b).game("one release, sampled at rate 1/2", 2 * rounds, **LIKELY)
        )
        if not clipping.opposed:
            against = replace(one, shard_size=b + 1, canary=-float(LOUD) * last, others=last)
            games.append(against.game("one release, the others pull against the canary", rounds))
    if not repeats:  # which may take the same record each time, and is charged for it
        games.append(most_drawn("the record that is drawn most often", message, shard_size, rounds))
    if sampled and not clipping.opposed:  # a mean of other sizes would be noised for another
        games.append(_who_is_sampled(spread, one, rounds))
    return games


def _who_is_sampled(spread: Design, one: Design, rounds: int) -> Game:
    """Return the game where the numbers that draw a batch would show in noise: of very many records, or of two.

    Where a claim is of pure ε, what counts is how sure the surest rounds are; otherwise how many there are.
    """
    name, law = "one release, noise by who is sampled", spread.mechanism.law
    if not isinstance(law, Gaussian):
        two = replace(one, mechanism=resized(one.mechanism, 1), shard_size=2)
        return two.game(name, 16 * rounds, score=None, learning=0.25)
    b, n, size = _CROWD
    canary = float(LOUD) * unit(np.ones(size), law.norm)
    crowd = replace(spread, mechanism=resized(spread.mechanism, b), shard_size=n, canary=canary)
    # enough for an excess of 0.02 over the claim at μ = 1/4, and of 0.012 at μ = 1
    rounds = int(20 * rounds * min(1.0, max(0.5, 1 / law.noise_multiplier)))
    # the first row is drawn by the smallest numbers
    return crowd.game(name, rounds, score=None, threshold=0.0, learning=0.25, turning=False)


def _in_turn(dimension: int, law: NoiseLaw) -> Floats:
    """Return an x for each of: every coordinate, every layer, all coordinates; each at every norm above C."""
    places = np.arange(dimension)
    layers = np.array_split(places, min(LAYERS, dimension))
    parts = [unit(np.isin(places, part).astype(np.float64), law.norm) for part in [*layers, places]]
    shapes = [*np.eye(dimension), *parts]
    return np.array([norm * shape for norm in _NORMS for shape in shapes])


def scenario_games(world: World, *, edge: int, rounds: int, dimension: int | None = None) -> list[Game]:
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
