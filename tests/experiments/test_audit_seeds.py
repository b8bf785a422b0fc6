"""Many seeds of the sound games: all mechanisms are among them, and one false claim is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.mechanism.mechanism import Mechanism
from common.noise.gaussian import Gaussian
from experiments.audit import seeds
from experiments.audit.claims import GdpClaim
from experiments.audit.game import Game, play_all
from experiments.audit.seeds import sound_battery, sound_mechanisms


def test_every_sound_mechanism_is_among_the_games() -> None:
    games = seeds.every_game(200)
    assert {name.partition(": ")[0] for name in games} == set(sound_mechanisms())
    assert len(games) == sum(len(sound_battery(recipe, 200)) for recipe in sound_mechanisms().values())


def test_a_false_claim_is_counted_and_named() -> None:
    sound, weak = (sound_battery(Mechanism(Gaussian(z), 4), 400)[0] for z in (1.0, 0.5))
    assert isinstance(weak, Game)
    games = [sound, replace(weak, name="wrong", claim=GdpClaim(0.1))]
    one = seeds.judged(3, [game.name for game in games], play_all(games, confidence=0.99, seed=3))
    assert (one.refuted, one.games, one.nearest[1]) == (["wrong"], 2, "wrong")
    said: list[str] = []
    assert seeds.report([one, replace(one, seed=4, refuted=[])], said.append) == 1
    assert said[0].startswith("seed 3: 2 games, refuted: wrong; nearest ")
    assert said[-1].startswith("2 seeds: 1 claims refuted")


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--rounds", "5"], ["--confidence", "1"]])
def test_what_cannot_be_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        seeds.main(words)
    assert stopped.value.code == 2
    assert words[0] in capsys.readouterr().err
