"""docs/audit.md and audit-tests.md count what there is: games, mutations and sound mechanisms, each with its row."""

from __future__ import annotations

import re

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
    played = {
        re.sub(r"^\d+ releases?", "9 releases", game.name)
        for recipe in sound_mechanisms().values()
        for game in sound_battery(recipe, 200)
    }
    assert {
        re.sub(r"\bE local", "4 local", row) for row in rows_after("| game | what it looks for |")
    } == played
