"""docs/audit.md and audit-tests.md count what there is; many seeds of the sound games, and a false claim among them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from common.mechanism.mechanism import Mechanism
from common.noise.gaussian import Gaussian
from experiments.audit import seeds
from experiments.audit.claims import GdpClaim
from experiments.audit.defects import MUTATED, MUTATIONS, planted
from experiments.audit.seeds import sound_battery, sound_mechanisms
from tests.program_support import ROOT

PAGE = "\n".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("audit.md", "audit-tests.md")
)


def rows_after(head: str) -> list[str]:
    """Return the first column of the table with this head."""
    table = PAGE[PAGE.index(head) :].partition("\n\n")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]


def test_the_page_counts_what_the_code_has() -> None:
    text = re.sub(r"\s+", " ", PAGE)
    recipes = sound_mechanisms()
    games = sum(len(sound_battery(recipe, 200)) for recipe in recipes.values())
    assert f"puts {len(planted())} defects to the battery" in text
    assert f"{len(MUTATIONS)} mutations of {len(MUTATED)} mechanisms" in text
    assert f"{len(planted()) - len(MUTATIONS) * len(MUTATED)} more" in text
    assert f"{len(recipes)} sound mechanisms, {games} games" in text


def test_each_defect_and_each_game_has_its_row() -> None:
    assert rows_after("| mutation |") == list(MUTATIONS)
    names = [defect.name for defect in planted()]
    assert rows_after("| other defect |") == names[len(MUTATIONS) * len(MUTATED) :]
    games = [game for recipe in sound_mechanisms().values() for game in sound_battery(recipe, 200)]
    played = {re.sub(r"^\d+ releases?", "9 releases", game.name) for game in games}
    rows = rows_after("| game | what it looks for |")
    assert {re.sub(r"\bE local", "4 local", row) for row in rows} == played


def test_every_sound_mechanism_is_among_the_games() -> None:
    games = seeds.every_game(200)
    assert {name.partition(": ")[0] for name in games} == set(sound_mechanisms())
    assert len(games) == sum(len(sound_battery(recipe, 200)) for recipe in sound_mechanisms().values())


def test_a_false_claim_is_counted_and_named() -> None:
    sound, weak = (sound_battery(Mechanism(Gaussian(z), 4), 400)[0] for z in (1.0, 0.5))
    games = [sound, replace(weak, name="wrong", claim=GdpClaim(0.1))]
    one = seeds.play_seed(3, {game.name: game for game in games}, confidence=0.99)
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
