"""The pages for users, executed: their code runs as it stands, and the example notebook's outputs are not stale."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.notebook_support import pictures, read, run_cells, stored
from tests.pages_support import ROOT, blocks, run_blocks
from tests.program_support import MAPA, PATIENCE, environment

NOTEBOOK = ROOT / "experiments" / "examples" / "notebook.ipynb"
_NUMBER = re.compile(r"-?\d+\.?\d*")


@pytest.mark.slow
def test_the_algorithm_of_the_page_is_one_short_file_that_trains(tmp_path: Path) -> None:
    (code,), (scenario,) = (blocks("your-own-algorithm.md", kind) for kind in ("python", "toml"))
    assert len(code.splitlines()) < 40
    (tmp_path / "my_algorithm.py").write_text(code, encoding="utf-8")
    (tmp_path / "my.toml").write_text(scenario, encoding="utf-8")
    done = subprocess.run(
        [MAPA[0], "-P", *MAPA[1:], "simulate", "my.toml", "--seed", "1", "--json"],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(done.stdout)
    assert (summary["reason"], summary["algorithm"]) == ("finished", "my_algorithm:Damped")
    assert summary["final_accuracy"] > 0.75
    assert summary["privacy"]["epsilon"] <= 4.0


@pytest.mark.slow
def test_the_python_of_the_page_runs_as_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPA_DATA_DIR", environment()["MAPA_DATA_DIR"])
    monkeypatch.chdir(tmp_path)
    names = run_blocks("python.md")
    assert names["run"].metrics["t"].tolist() == [0, 50, 100, 150, 200]
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.slow
def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(blocks("../README.md", "python")[0].strip().splitlines()) <= 6
    names = run_blocks("../README.md")
    accuracy, epsilon = capsys.readouterr().out.split()[:2]
    assert float(accuracy) > 0.6
    assert float(epsilon) == names["run"].epsilon


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(re.sub("<!--.*?-->", "", text).split()) <= 600
    assert max(map(len, text.splitlines())) < 120


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_the_notebooks_outputs_are_those_of_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    notebook = read(NOTEBOOK)
    for shown, kept in zip(run_cells(notebook), stored(notebook), strict=True):
        assert _NUMBER.sub("#", shown) == _NUMBER.sub("#", kept)
        now, then = ([float(word) for word in _NUMBER.findall(text)] for text in (shown, kept))
        assert now == pytest.approx(then, rel=0.02, abs=0.01)  # another BLAS rounds otherwise
    assert all(picture.startswith(b"\x89PNG") for picture in pictures(notebook))
    assert len(pictures(notebook)) == 1
    assert NOTEBOOK.stat().st_size < 100_000
