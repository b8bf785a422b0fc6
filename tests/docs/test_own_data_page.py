"""docs/your-own-data.md: its program runs as it stands, and its scenarios are sound."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from common.scenario.scenario import parse_scenario

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-data.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TABLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
REST = {"iterations": 10, "algorithm": {"name": "constant", "rate": 0.1, "first_clip": 1.0}}


def test_the_program_is_short_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = PROGRAMS
    assert len(program.splitlines()) < 40
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "your-own-data.md", "exec", dont_inherit=True), {})
    rmse = float(capsys.readouterr().out.split()[1])
    assert rmse < 150, "a rent's standard deviation is about 280"


@pytest.mark.parametrize("table", TABLES)
def test_every_other_scenario_on_the_page_is_sound(table: str) -> None:
    assert parse_scenario(REST | tomllib.loads(table)).data.source != "file"


def test_there_are_examples_of_images_and_arrays() -> None:
    assert {tomllib.loads(table)["data"]["schema"]["kind"] for table in TABLES} == {"images", "array"}
