"""The code of a page, taken out so that tests run it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of docs/<page> in a language, in their order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = [body for name, body in _BLOCK.findall(text) if name == language]
    assert found, f"docs/{page} has no block in {language}"
    return found


def run_blocks(page: str) -> dict[str, Any]:
    """Run the Python blocks of a page as one program; return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, body in enumerate(blocks(page, "python"), start=1):
        exec(compile(body, f"docs/{page}, block {number}", "exec", dont_inherit=True), names)
    return names
