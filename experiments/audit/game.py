"""The distinguishing game: was the canary's contribution there, or set to zero?

An adversary sees releases of either world and scores them. Everything that is chosen by looking (a learned
score, which score, the threshold) is chosen on the first rounds and judged on the others, so that it cannot
profit from chance; where all of it is fixed beforehand, every round is judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from common.models.gradients import Matrix
from edge.worker import EdgeWorker, Shard
from experiments.audit.bounds import Floats, upper_rate
from experiments.audit.claims import Claim

Releases = npt.NDArray[np.float64]  # rounds × releases of a round × N
Score = Callable[
    [Releases, int], Floats
]  # given the releases and the sequence of the first; high: canary there
Learner = Callable[[Releases, Releases, int, int], Score]  # zeroed, there, and the sequence of each first

_THRESHOLDS = 400
_PLACES = 64  # rows that the canary takes in turn, spread over the shard
_WARY = 0.02  # factor of α while choosing: bounds that owe much to chance are not chosen


class Playable(Protocol):
    """A game of any kind: a claim, and a test of it."""

    @property
    def name(self) -> str: ...

    @property
    def claim(self) -> Claim: ...

    @property
    def cost(self) -> int:
        """Return about how many releases of each world it takes."""

    def play(self, *, alpha: float, seed: int) -> Finding:
        """Bound the claim's figure from below; the bound is too high with probability α at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """Two neighbouring shards behind one mechanism, what is claimed of it, and how to attack it.

    The rounds follow each other in one run of the edge, or each is a run of its own from n = 1. A round
    is `releases_per_round` releases; `lag` apart where they are two of a long run.
    """

    name: str
    claim: Claim  # of a round
    worker: Callable[[bool, int | None], EdgeWorker]  # (canary there?, seed) → the edge; None: secure streams
    sensitivity: float  # ΔS
    score: Score | None  # None: what is learned alone
    rounds: int  # of each world
    steer: Matrix  # release n is of x = row n−1, from the start again when they end
    releases_per_round: int = 1
    learner: Learner | None = None
    threshold: float | None = None  # fixed beforehand; None: chosen on the first rounds
    learning: float = 0.5  # share of the rounds to learn and choose on
    fresh_runs: bool = False
    turning: bool = (
        True  # the canary's row moves on with every round, but not between two of a lag; or is the first
    )
    restarts: bool = False  # every release is the first of a process, with secure streams
    lag: int = 1
    after: int = 0  # releases of the run that are not looked at

    @property
    def cost(self) -> int:
        return self.rounds * self.releases_per_round

    def play(self, *, alpha: float, seed: int) -> Finding:
        """Play every round of both worlds and bound the claim's figure from below at level α."""
        zeroed, there = (_released(self, there, seed) for there in (False, True))
        first = 1 + self.after
        firsts = first, first if self.fresh_runs or self.restarts else first + _count(self)
        candidates = [] if self.score is None else [self.score]
        seen = int(self.rounds * self.learning)
        if self.learner is not None:
            taught = seen // 2 if candidates else seen
            candidates.append(self.learner(zeroed[:taught], there[:taught], *firsts))
        pairs = [(score(zeroed, firsts[0]), score(there, firsts[1])) for score in candidates]
        if not all(np.isfinite(scores).all() for pair in pairs for scores in pair):
            raise ValueError(f"{self.name}: a score is not finite")

        def promise(pair: tuple[Floats, Floats]) -> float:
            quarter = slice(seen // 2, seen)
            trial = judge(self.name, self.claim, pair[0][quarter], pair[1][quarter], alpha)
            return trial.lower_bound - trial.false_positives - trial.false_negatives  # errors break ties

        chosen = pairs[0] if len(pairs) == 1 else max(pairs, key=promise)
        if self.threshold is not None and self.learner is not None:
            chosen = chosen[0][seen:], chosen[1][seen:]
        return judge(self.name, self.claim, *chosen, alpha, learning=self.learning, threshold=self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a game showed; with probability 1 − α the true figure is at least `lower_bound`."""

    name: str
    figure: str  # ε or μ
    claimed: float
    lower_bound: float
    false_positives: float  # measured on the rounds that are judged
    false_negatives: float
    rounds: int
    alpha: float

    @property
    def violated(self) -> bool:
        """Tell whether the claim is refuted."""
        return self.lower_bound > self.claimed


def play(game: Playable, *, alpha: float, seed: int) -> Finding:
    """Play a game at level α."""
    return game.play(alpha=alpha, seed=seed)


def judge(
    name: str,
    claim: Claim,
    zeroed: Floats,
    present: Floats,
    alpha: float,
    *,
    learning: float = 0.5,
    threshold: float | None = None,
) -> Finding:
    """Bound a claim's figure from the scores of both worlds, equally many of each."""
    rounds = len(zeroed)
    seen = 0 if threshold is not None else int(rounds * learning)
    if threshold is None:
        threshold = _best_threshold(claim, zeroed[:seen], present[:seen], alpha)
    trials = rounds - seen
    positives = int((zeroed[seen:] > threshold).sum())
    negatives = int((present[seen:] <= threshold).sum())
    bounds = (upper_rate(errors, trials, alpha / 2) for errors in (positives, negatives))
    return Finding(
        name=name,
        figure=claim.figure,
        claimed=claim.value,
        lower_bound=float(claim.least(*bounds)),
        false_positives=positives / trials,
        false_negatives=negatives / trials,
        rounds=rounds,
        alpha=alpha,
    )


def _count(game: Game) -> int:
    """Return how many releases of one world are made; at a lag, whole blocks of twice the lag."""
    block = game.lag * game.releases_per_round if game.lag > 1 else 1
    return -(-game.rounds * game.releases_per_round // block) * block


def _released(game: Game, there: bool, seed: int) -> Releases:
    """Make the releases of one world."""
    steer, of_round = game.steer, game.releases_per_round
    if game.restarts:
        released = np.empty((game.rounds, of_round, steer.shape[1]))
        for place in range(game.rounds):
            for n in range(of_round):
                worker = game.worker(there, None)
                worker.shard = turned(worker.shard, place)
                released[place, n] = worker.gradient(steer[n % len(steer)], game.sensitivity, 1)
        return released
    worker = game.worker(there, seed)
    size = len(worker.shard) if game.turning else 1
    shards = [turned(worker.shard, place) for place in range(0, size, -(-size // _PLACES))]
    if game.fresh_runs:
        released = np.empty((game.rounds, of_round, steer.shape[1]))
        for place in range(game.rounds):
            worker.index = place + game.rounds * there  # the two worlds share no batch and no noise
            worker.shard = shards[place % len(shards)]
            for n in range(of_round):
                released[place, n] = worker.gradient(steer[n % len(steer)], game.sensitivity, n + 1)
        return released
    count = _count(game)
    first = 1 + game.after + count * there  # likewise
    line: Releases = np.empty((count, steer.shape[1]))
    for place in range(count):
        worker.shard = shards[-1 if game.lag > 1 else place // of_round % len(shards)]
        line[place] = worker.gradient(
            steer[(first + place - 1) % len(steer)], game.sensitivity, first + place
        )
    if game.lag > 1:
        line = line.reshape(-1, of_round, game.lag, steer.shape[1]).swapaxes(1, 2)
    return line.reshape(-1, of_round, steer.shape[1])[: game.rounds]


def turned(shard: Shard, places: int) -> Shard:
    """Return the shard rotated: its first record `places` further on."""
    return replace(shard, rows=np.roll(shard.rows, places))


def _best_threshold(claim: Claim, zeroed: Floats, present: Floats, alpha: float) -> float:
    """Return the threshold whose bound is the highest on this half."""
    both = np.sort(np.concatenate((zeroed, present)))
    between = (both[1:] + both[:-1]) / 2
    positives = len(zeroed) - np.searchsorted(np.sort(zeroed), between, side="right")
    negatives = np.searchsorted(np.sort(present), between, side="right")
    # a few quantiles tell enough, except where a gap parts the worlds: there one place does
    places = np.linspace(0, len(between) - 1, _THRESHOLDS).astype(np.int64)
    places = np.append(places, np.argmin(positives + negatives))
    thresholds, positives, negatives = between[places], positives[places], negatives[places]
    fpr = upper_rate(positives, len(zeroed), _WARY * alpha)
    fnr = upper_rate(negatives, len(present), _WARY * alpha)
    # where several refute every finite figure, the one with the fewest errors is the least due to chance
    best = np.lexsort((-(fpr + fnr), claim.least(fpr, fnr)))[-1]
    return float(thresholds[best])


def play_all(
    games: Sequence[Playable], *, confidence: float, seed: int, progress: Callable[[str], None] | None = None
) -> list[Finding]:
    """Play several games, whose bounds then hold together with this confidence; each has draws of its own."""
    alpha = familywise(confidence, len(games))
    findings = []
    for place, game in enumerate(games):
        if progress is not None:
            progress(game.name)
        findings.append(game.play(alpha=alpha, seed=1000 * seed + place))
    return findings


def familywise(confidence: float, games: int) -> float:
    """Return Bonferroni's α of one of several games that hold together at this confidence."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: must be between 0 and 1")
    return (1 - confidence) / max(1, games)


def finite(value: float) -> float | None:
    """Return None for an infinite figure: JSON knows none."""
    return value if math.isfinite(value) else None
