"""Sound mechanisms in many seeds: python -m experiments.audit.seeds [--seeds 20] [--rounds 2000]

Each seed plays the battery of every sound mechanism, whose bounds hold together at the confidence. A refuted
claim is a false alarm of the audit, or a fault of the mechanism: the command then ends with 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from common.mechanism.clipping import CLIPPINGS
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import SAMPLERS
from common.mechanism.work.local_steps import LocalSteps
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.laplace import Laplace
from common.noise.law import NoiseLaw
from experiments.audit.battery import battery
from experiments.audit.game import Game, play_all
from experiments.harness import sweep

SHARD, BATCH = 8, 4  # n_k and b, so that a batch tells something as it is sampled

_LAWS: dict[str, tuple[NoiseLaw, NoiseLaw]] = {  # each, and with as much more noise as a clipped mean needs
    "gaussian": (Gaussian(1.0), Gaussian(8.0)),
    "laplace": (Laplace(2.0), Laplace(0.25)),
    "gamma-norm": (GammaNorm(2.0), GammaNorm(0.25)),
}


def sound_mechanisms() -> dict[str, Mechanism]:
    """Return every law behind every clipping and every sampler that comes with mapa, and local steps, by name."""
    plain = Mechanism(None, BATCH)
    single = {"gaussian z=4": Gaussian(4.0), "laplace ε=0.5": Laplace(0.5)}
    sound = {name: replace(plain, law=law) for name, law in single.items()}
    for name, (law, strong) in _LAWS.items():
        for kind in CLIPPINGS.names:
            clipping = CLIPPINGS.make(kind, {}).fitted(28.0)
            chosen = law if clipping.bounds_each_sample else strong
            sound[f"{name} {kind}"] = replace(plain, law=chosen, clipping=clipping)
        for kind in SAMPLERS.names:
            if kind != plain.sampler.name:
                sampler = SAMPLERS.make_from(kind, {"largest_batch": 7})
                sound[f"{name} {kind}"] = replace(plain, law=law, sampler=sampler)
        sound[f"{name}, four local steps"] = replace(plain, law=law, work=LocalSteps(steps=4))
    return sound


def sound_battery(mechanism: Mechanism, rounds: int) -> list[Game]:
    assert mechanism.law is not None
    return battery(mechanism, shard_size=SHARD, dimension=mechanism.law.audit_dimension, rounds=rounds)


@dataclass(frozen=True, slots=True)
class Seed:
    seed: int
    games: int
    refuted: list[str]
    nearest: tuple[float, str]  # the largest bound as a share of its claim, and its game


def every_game(rounds: int) -> dict[str, Game]:
    """Return the games of all sound mechanisms, by name, with this number of rounds of each world."""
    return {
        f"{name}: {game.name}": game
        for name, mechanism in sound_mechanisms().items()
        for game in sound_battery(mechanism, rounds)
    }


def play_seed(seed: int, games: dict[str, Game], *, confidence: float) -> Seed:
    """Play all games once; return which claims are refuted, and the bound that comes nearest to its claim."""
    findings = play_all(list(games.values()), confidence=confidence, seed=seed)
    named = dict(zip(games, findings, strict=True))
    nearest = max((finding.lower_bound / finding.claimed, name) for name, finding in named.items())
    return Seed(seed, len(named), [name for name, finding in named.items() if finding.violated], nearest)


def report(seeds: Iterable[Seed], say: Callable[[str], None] = print) -> int:
    """Say a line for each seed and one for all of them; return how many claims were refuted."""
    told = []
    for one in seeds:
        told.append(one)
        share, name = one.nearest
        refuted = ", ".join(one.refuted) or "none"
        nearest = f"nearest {share:.3f} of its claim ({name})"
        say(f"seed {one.seed}: {one.games} games, refuted: {refuted}; {nearest}")
    count = sum(len(one.refuted) for one in told)
    share, name = max(one.nearest for one in told)
    say(f"{len(told)} seeds: {count} claims refuted; nearest {share:.3f} of its claim ({name})")
    return count


def _seed(seed: int, rounds: int, confidence: float) -> Seed:
    return play_seed(seed, every_game(rounds), confidence=confidence)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.audit.seeds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="seeds 1 to this one")
    parser.add_argument("--rounds", type=int, default=2000, help="rounds of each world")
    parser.add_argument("--confidence", type=float, default=0.9999, help="of all bounds of a seed together")
    parser.add_argument("--jobs", type=int, help="seeds played at once; default: one for each core")
    given = parser.parse_args(arguments)
    for name, least in (("seeds", 1), ("rounds", 100), ("jobs", 1)):
        value = getattr(given, name)
        if value is not None and value < least:
            parser.error(f"--{name} {value}: must be {least} or more")
    if not 0 < given.confidence < 1:
        parser.error(f"--confidence {given.confidence}: must be between 0 and 1")
    one = partial(_seed, rounds=given.rounds, confidence=given.confidence)
    played = sweep(one, range(1, given.seeds + 1), jobs=given.jobs)
    return 1 if report((done.result() for done in played), partial(print, flush=True)) else 0


if __name__ == "__main__":
    sys.exit(main())
