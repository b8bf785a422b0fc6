"""Every planted defect, and the games that it must fall to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.noise.gaussian import Gaussian
from experiments.audit.battery import battery
from experiments.audit.defects import MUTATIONS
from experiments.audit.game import Finding, Playable
from experiments.audit.planted import planted_games

MULTIPLIERS = (1.0, 4.0)  # z of every mutation
BATTERY_ROUNDS = 8000

# What no observer of the releases could see, each with the reason; the list is empty.
INVISIBLE: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A defect with the claim of its author, and the games that are played until one refutes it."""

    name: str
    games: tuple[Playable, ...]


def planted(rounds: int = BATTERY_ROUNDS) -> list[Planted]:
    """Return every defect: those that a game was made for, and those that the battery of any scenario must find."""
    made_for = [Planted(name=game.name, games=(game,)) for game in planted_games()]
    found = [
        Planted(
            name=f"{name}, z = {z:g}",
            games=tuple(
                battery(Gaussian(z), batch_size=4, dimension=16, rounds=rounds, plant=plant),
            ),
        )
        for name, plant in MUTATIONS.items()
        for z in MULTIPLIERS
    ]
    return [*found, *made_for]


def put_to_test(
    defect: Planted, *, alpha: float, seed: int, progress: Callable[[str], None] | None = None
) -> list[Finding]:
    """Play the games in order until one refutes; α is of each game, played or not."""
    findings: list[Finding] = []
    for place, game in enumerate(defect.games):
        if progress is not None:
            progress(f"{defect.name}: {game.name}")
        findings.append(game.play(alpha=alpha, seed=seed + place))
        if findings[-1].violated:
            break
    return findings
