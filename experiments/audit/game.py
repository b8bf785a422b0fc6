"""The distinguishing game: was the canary's contribution there, or set to zero?

An adversary sees releases of either world and scores them. The threshold is chosen on one half of the
rounds and judged on the other, so that it cannot profit from chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.worker import EdgeWorker
from experiments.audit.bounds import Floats, upper_rate
from experiments.audit.claims import Claim

Releases = npt.NDArray[np.float64]  # rounds × releases of a round × N
Score = Callable[
    [Releases, int], Floats
]  # given the releases and the sequence of the first; high: canary there

_THRESHOLDS = 400
_WARY = 0.02  # factor of α while choosing: bounds that owe much to chance are not chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """Two neighbouring shards behind one mechanism, what is claimed of it, and how to attack it."""

    name: str
    claim: Claim
    worker: Callable[[bool, int], EdgeWorker]  # (canary there?, seed) → the edge that releases
    sensitivity: float  # ΔS
    score: Score
    rounds: int  # of each world
    releases_per_round: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a game showed; with probability 1 − α the true figure is at least `lower_bound`."""

    name: str
    figure: str  # ε or μ
    claimed: float
    lower_bound: float
    false_positives: float  # measured on the second half
    false_negatives: float
    rounds: int
    alpha: float

    @property
    def violated(self) -> bool:
        """Tell whether the claim is refuted."""
        return self.lower_bound > self.claimed


def play(game: Game, *, alpha: float, seed: int) -> Finding:
    """Play every round of both worlds and bound the claim's figure from below at level α."""
    zeroed, present = (_scores(game, there, seed) for there in (False, True))
    return judge(game.name, game.claim, zeroed, present, alpha)


def judge(name: str, claim: Claim, zeroed: Floats, present: Floats, alpha: float) -> Finding:
    """Bound a claim's figure from the scores of both worlds, equally many of each."""
    rounds = len(zeroed)
    half = rounds // 2
    threshold = _best_threshold(claim, zeroed[:half], present[:half], alpha)
    trials = rounds - half
    positives = int((zeroed[half:] > threshold).sum())
    negatives = int((present[half:] <= threshold).sum())
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


def _scores(game: Game, there: bool, seed: int) -> Floats:
    worker = game.worker(there, seed)
    x = np.zeros(worker.model.dimension, np.float32)
    count = game.rounds * game.releases_per_round
    first = 1 + count * there  # the two worlds share no batch and no noise
    released = np.empty((count, x.size))
    for place in range(count):
        released[place] = worker.gradient(x, game.sensitivity, first + place)
    scores = game.score(released.reshape(game.rounds, game.releases_per_round, x.size), first)
    if not np.isfinite(scores).all():
        raise ValueError(f"{game.name}: a score is not finite")
    return scores


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
    games: Sequence[Game], *, confidence: float, seed: int, progress: Callable[[str], None] | None = None
) -> list[Finding]:
    """Play several games, whose bounds then hold together with this confidence; each has draws of its own."""
    alpha = familywise(confidence, len(games))
    findings = []
    for place, game in enumerate(games):
        if progress is not None:
            progress(game.name)
        findings.append(play(game, alpha=alpha, seed=1000 * seed + place))
    return findings


def familywise(confidence: float, games: int) -> float:
    """Return Bonferroni's α of one of several games that hold together at this confidence."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: must be between 0 and 1")
    return (1 - confidence) / max(1, games)


def finite(value: float) -> float | None:
    """Return None for an infinite figure: JSON knows none."""
    return value if math.isfinite(value) else None
