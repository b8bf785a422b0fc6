"""Many seeds of the sound games: all mechanisms are among them, and one false claim is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.noise.mechanism import Clipping, Sampling
from experiments.audit import seeds
from experiments.audit.game import Game, play_all
from experiments.audit.sound import sound_batteries, sound_games


def test_every_clipping_and_sampler_is_among_the_games() -> None:
    names = " ".join(seeds.every_game(200))
    words = {Clipping.PER_SAMPLE: "poisson", Clipping.QUANTILE: "with a count", Sampling.POISSON: "poisson"}
    for kind in (*Clipping, *Sampling):
        assert words.get(kind, kind.value) in names, kind
    assert "four local steps" in names
    batteries = sum(map(len, sound_batteries(200).values()))
    assert len(seeds.every_game(200)) == len(sound_games(200)) + batteries  # no name hides another


def test_a_false_claim_is_counted_and_named() -> None:
    sound = next(game for game in sound_games(400) if game.name == "gaussian z=1 poisson 4/4")
    weak = next(game for game in sound_games(400) if game.name == "gaussian z=0.5 poisson 4/4")
    wrong = replace(weak, name="wrong", claim=replace(sound.claim, value=0.1))
    games: list[Game] = [sound, wrong]
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
