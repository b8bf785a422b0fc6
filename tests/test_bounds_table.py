"""Every row of docs/bounds.md, and of the threats in docs/secure-aggregation.md, names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("page", "begins", "ends"),
    [("bounds.md", "", None), ("secure-aggregation.md", "## What can be tried", "**What is not prevented")],
)
def test_every_bound_and_every_threat_has_its_test(page: str, begins: str, ends: str | None) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(begins or "#")[2]
    text = text if ends is None else text.partition(ends)[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| who")]
    assert len(rows) >= 20
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"no test: {row}"
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
