"""docs/audit.md counts what the code has: games, defects and sound mechanisms, each with its row."""

from __future__ import annotations

import re

from experiments.audit.defects import MUTATIONS
from experiments.audit.planted import planted_games
from experiments.audit.sound import sound_games
from experiments.audit.trial import planted
from tests.program_support import ROOT

PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")


def rows_after(head: str) -> list[str]:
    """Return the first column of the table with this head."""
    table = PAGE[PAGE.index(head) :].partition("\n\n")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]


def test_the_page_counts_the_planted_defects_of_the_code() -> None:
    text, defects, own = re.sub(r"\s+", " ", PAGE), planted(), len(planted_games())
    assert f"puts {len(defects)} defects to the games" in text
    assert f"{len(MUTATIONS)} mutations are planted at z = 1 and z = 4" in text
    assert f"{own} more have the claim" in text
    assert f"95% for all {sum(len(defect.games) for defect in defects)} games together" in text
    assert f"All {len(defects)} were refuted in one run" in text
    assert f"adds {len(sound_games())} of them" in text
    assert f"beside the {own} defects" in text


def test_each_game_has_its_row() -> None:
    made_for = [game.name for game in planted_games()]
    assert rows_after("| defect, each with a game made for it |") == made_for
    assert (
        rows_after("| defect | game that refutes it |") == [one.name for one in planted()][: -len(made_for)]
    )
    assert rows_after("| sound | claimed |") == [game.name for game in sound_games()]
