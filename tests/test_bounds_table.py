"""Every row of docs/bounds.md, and of the threats in docs/secure-aggregation.md, names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("page", "heads", "least"),
    [
        ("bounds.md", ("| who",), 20),
        ("secure-aggregation.md", ("| who", "| N ", "| 7,850", "| 1,000,000"), 20),
    ],
)
def test_every_bound_and_every_threat_has_its_test(page: str, heads: tuple[str, ...], least: int) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(heads)]
    assert len(rows) >= least
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"no test: {row}"
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
