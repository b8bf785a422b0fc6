"""docs/tutorial.md as a reader takes it: every block that says so is run, in its order, in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blocks_support import ROOT, Block, blocks_of, commands, run_command

PAGE = ROOT / "docs" / "tutorial.md"


def follow(block: Block, folder: Path) -> list[str]:
    """Do what a block says; return what its commands printed."""
    match block.language:
        case "python":
            return [run_command(["python", "-c", block.text], folder)]
        case "toml":
            (folder / "mine.toml").write_text(block.text, encoding="utf-8")
            return []
    return [run_command(words, folder) for words in commands(block)]


@pytest.mark.slow
def test_every_command_of_the_tutorial_works_in_its_order(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(PAGE) if block.run_by]
    assert len(blocks) == 6
    said = "".join(line for block in blocks for line in follow(block, tmp_path))
    assert "ε = 1.619" in PAGE.read_text(encoding="utf-8")
    assert "1.619" in said, "what the page says of the first run"
    assert len(list((tmp_path / "runs").iterdir())) == 5
