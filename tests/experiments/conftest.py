"""The program in this process, in a directory of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.program_support import Mapa


@pytest.fixture
def mapa(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mapa:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Mapa(capsys, monkeypatch)
