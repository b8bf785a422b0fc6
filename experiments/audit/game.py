"""The distinguishing game: was the canary's contribution there, or set to zero?

An adversary sees releases of either world and scores them. Everything that is chosen by looking (a learned
score, which score, the threshold) is chosen on the first rounds and judged on the others, so that it cannot
profit from chance; where all of it is fixed beforehand, every round is judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from common.models.gradients import Matrix
from common.noise.law import NoiseLaw, distances
from edge.worker import EdgeWorker, Shard
from experiments.audit.claims import Floats, ReleaseClaim, upper_rate

Releases = npt.NDArray[np.float64]  # rounds × releases of a round × N
Score = Callable[[Releases, int], Floats]  # given the sequence of the first, too; high: canary there
Learner = Callable[[Releases, Releases, int, int], Score]  # zeroed, there, and the sequence of each first

_THRESHOLDS = 400
_PLACES = 64  # rows that the canary takes in turn, spread over the shard
_WARY = 0.02  # factor of α while choosing: bounds that owe much to chance are not chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """Two neighbouring shards behind one mechanism, what is claimed of it, and how to attack it.

    The rounds follow each other in one run of the edge, or each is a run of its own from n = 1. A round
    is `releases_per_round` releases; `lag` apart where they are two of a long run.
    """

    name: str
    claim: ReleaseClaim  # of a round
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
    turning: bool = True  # the canary's row moves on with each round, but not between two of a lag
    restarts: bool = False  # every release is the first of a process, with secure streams
    lag: int = 1
    after: int = 0  # releases of the run that are not looked at
    preparing: int = 0  # releases that `prepare` takes
    # given the seed: looks for what the game is about; returns the game that is played then, and its seed
    prepare: Callable[[int], tuple[Game, int]] | None = None

    @property
    def cost(self) -> int:
        """Return about how many releases of each world it takes."""
        return self.rounds * self.releases_per_round + self.preparing

    def play(self, *, alpha: float, seed: int) -> Finding:
        """Play every round of both worlds and bound the claim's figure from below at level α."""
        if self.prepare is not None:
            game, seed = self.prepare(seed)
            return game.play(alpha=alpha, seed=seed)
        zeroed, there = (_released(self, there, seed) for there in (False, True))
        first = 1 + self.after
        firsts = first, first if self.fresh_runs or self.restarts else first + _count(self)
        scores = [] if self.score is None else [self.score]
        seen = int(self.rounds * self.learning)
        if self.learner is not None:
            taught = seen // 2 if scores else seen
            scores.append(self.learner(zeroed[:taught], there[:taught], *firsts))
        pairs = [(score(zeroed, firsts[0]), score(there, firsts[1])) for score in scores]
        if not np.isfinite(pairs).all():
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
        return self.lower_bound > self.claimed


def judge(
    name: str,
    claim: ReleaseClaim,
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
    steer, of_round, count = game.steer, game.releases_per_round, _count(game)
    apart = game.restarts or game.fresh_runs  # else one run makes them all; the worlds share no draw
    first = 1 + game.after + count * there
    worker = game.worker(there, seed)
    size = len(worker.shard) if game.turning else 1
    shards = [turned(worker.shard, place) for place in range(0, size, -(-size // _PLACES))]
    line: Releases = np.empty((count, steer.shape[1]))
    for place in range(count):
        of_game, n = divmod(place, of_round)
        if game.restarts:
            worker = game.worker(there, None)
        elif game.fresh_runs:
            worker.index = of_game + game.rounds * there  # likewise
        worker.shard = shards[-1 if game.lag > 1 else of_game % len(shards)]
        number = n + 1 if apart else first + place
        x = steer[(number - 1) % len(steer)]
        line[place] = worker.gradient(x, game.sensitivity, 1 if game.restarts else number)
    if game.lag > 1:
        line = line.reshape(-1, of_round, game.lag, steer.shape[1]).swapaxes(1, 2)
    return line.reshape(-1, of_round, steer.shape[1])[: game.rounds]


def turned(shard: Shard, places: int) -> Shard:
    """Return the shard rotated: its first record `places` further on."""
    return replace(shard, rows=np.roll(shard.rows, places))


def _best_threshold(claim: ReleaseClaim, zeroed: Floats, present: Floats, alpha: float) -> float:
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
    games: Sequence[Game], *, confidence: float, seed: int, progress: Callable[[str], None] = lambda _: None
) -> list[Finding]:
    """Play several games, whose bounds then hold together with this confidence; each has draws of its own."""
    return list(_played(games, familywise(confidence, len(games)), 1000 * seed, progress))


def put_to_test(
    games: Sequence[Game], *, alpha: float, seed: int, progress: Callable[[str], None] = lambda _: None
) -> list[Finding]:
    """Play the games in order until one refutes; α is of each game, played or not."""
    findings: list[Finding] = []
    for finding in _played(games, alpha, seed, progress):
        findings.append(finding)
        if finding.violated:
            break
    return findings


def _played(
    games: Sequence[Game], alpha: float, seed: int, progress: Callable[[str], None]
) -> Iterator[Finding]:
    for place, game in enumerate(games):
        progress(game.name)
        yield game.play(alpha=alpha, seed=seed + place)


def familywise(confidence: float, games: int) -> float:
    """Return Bonferroni's α of one of several games that hold together at this confidence."""
    return (1 - confidence) / max(1, games)


def finite(value: float) -> float | None:
    """Return None for an infinite figure: JSON knows none."""
    return value if math.isfinite(value) else None


def finites(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: finite(value) if isinstance(value, float) else value for key, value in values.items()}


_ROUNDING = 1e-6  # in units of C/b: above what float32 rounds
_WIDTHS = (0.005, 0.01, 0.02, 0.05)  # in units of the noise
_BINS = (-1.2, -0.7, -0.4, -0.2, 0.0, 0.2, 0.4, 0.7, 1.2)  # likewise
_MOST_COORDINATES = 64  # of a round, to learn from one by one
_RIDGE = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Aim:
    """Where a release lies before noise, with the canary zeroed and there; row n−1 for release n, periodic."""

    law: NoiseLaw | None
    sensitivity: float  # ΔS
    zeroed: Floats  # period × N
    there: Floats
    rate: float = 1.0  # q
    one_of: bool = False  # the canary is in one release of the round: a shuffled epoch

    def centres(self, shape: tuple[int, ...], first: int) -> tuple[Floats, Floats]:
        """Return both centres, of every release or, where they are all alike, of one."""
        if len(self.zeroed) == 1:
            return self.zeroed, self.there
        if shape[1] > 1:  # the releases of a round are of the period's rows, in order
            return self.zeroed[: shape[1]], self.there[: shape[1]]
        places = (first - 1 + np.arange(shape[0])) % len(self.zeroed)
        return self.zeroed[places][:, None], self.there[places][:, None]

    def ratio(self, releases: Releases, first: int) -> Floats:
        """Return the log-likelihood ratio of each round, all of whose batches have the canary or may have it.

        It is the best score, by Neyman and Pearson.
        """
        centres = self.centres(releases.shape, first)
        if self.law is None:
            far, near = distances(releases, *centres)
            ratios = far - near
        else:
            ratios = self.law.log_ratio(self.sensitivity, releases, *centres)
        if self.rate < 1:
            with np.errstate(divide="ignore"):
                ratios = np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + ratios)
        if self.one_of:
            highest = ratios.max(axis=1, keepdims=True)
            return np.asarray(highest[:, 0] + np.log(np.exp(ratios - highest).mean(axis=1)))
        return np.asarray(ratios.sum(axis=1))

    def exact(self, releases: Releases, first: int) -> Floats:
        """Return how many coordinates lie exactly where the canary would put them, less those where none would."""
        return self._hits(releases, first, _ROUNDING * self.sensitivity / 2)

    def _hits(self, releases: Releases, first: int, width: float) -> Floats:
        zeroed, there = self.centres(releases.shape, first)
        near = [np.abs(releases - centre) < width for centre in (there, zeroed)]
        hits, misses = (some.sum(axis=(1, 2), dtype=np.float64) for some in near)
        return np.asarray(hits - misses)

    def learned(self, zeroed: Releases, there: Releases, first_zeroed: int, first_there: int) -> Score:
        """Return Fisher's discriminant of ratio, hits and single coordinates; a fifth of the zeroed is below 0."""
        known = self._features(zeroed, first_zeroed), self._features(there, first_there)
        return discriminant(*known, self._features)

    def _features(self, releases: Releases, first: int) -> Floats:
        columns = [self.ratio(releases, first), self.exact(releases, first)]
        if self.law is not None:
            size = releases.shape[-1]
            spread = self.sensitivity * (self.law.relative_second_moment(size) / size) ** 0.5
            columns += [self._hits(releases, first, width * spread) for width in _WIDTHS]
            if self.rate < 1:  # noise in the first coordinate may tell how much was sampled
                noise = releases[:, 0, 0] - self.centres(releases.shape, first)[0][..., 0].ravel()
                places = np.searchsorted(np.multiply(_BINS, spread), noise)
                columns += [np.where(places == place, columns[0], 0) for place in range(len(_BINS) + 1)]
        features = np.stack(columns, axis=1)
        alike = len(self.zeroed) == 1 or releases.shape[1] > 1
        # where the canary is seldom there, that number of weights would be learned from chance
        if alike and self.rate == 1 and releases[0].size <= _MOST_COORDINATES:
            features = np.hstack((features, releases.reshape(len(releases), -1)))
        return features


def discriminant(zeroed: Floats, there: Floats, features: Callable[[Releases, int], Floats]) -> Score:
    """Return Fisher's linear discriminant of two clouds of features."""
    scale = np.concatenate((zeroed, there)).std(axis=0)
    scale[scale == 0] = 1
    within = (np.cov(zeroed / scale, rowvar=False) + np.cov(there / scale, rowvar=False)) / 2
    apart = (there.mean(axis=0) - zeroed.mean(axis=0)) / scale
    weights = np.linalg.solve(within + _RIDGE * np.eye(len(scale)), apart) / scale
    weights /= np.abs(weights).max() or 1.0
    # A canary in few batches can hardly be ruled out, and the claim of a sampled release knows that: evidence
    # against it stands out the most.
    middle = float(np.quantile(zeroed @ weights, 0.2))

    return lambda releases, first: np.asarray(features(releases, first) @ weights - middle)
