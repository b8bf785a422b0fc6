"""The pages for users, executed: their code runs as it stands, and the example notebook's outputs are not stale."""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from common.scenario.scenario import parse_scenario
from tests.pages_support import ROOT, Block, blocks, blocks_of, commands, run_blocks, run_command
from tests.program_support import environment, run_as_user, summary_of

NOTEBOOK = ROOT / "experiments" / "examples" / "notebook.ipynb"
_NUMBER = re.compile(r"-?\d+\.?\d*")
OWN_DATA = blocks("your-own-data.md", "toml")
REST = {"iterations": 10, "algorithm": {"name": "constant", "rate": 0.1, "first_clip": 1.0}}
TUTORIAL = ROOT / "docs" / "tutorial.md"


@pytest.mark.slow
def test_the_algorithm_of_the_page_is_one_short_file_that_trains(tmp_path: Path) -> None:
    (code,), (scenario,) = (blocks("your-own-algorithm.md", kind) for kind in ("python", "toml"))
    assert len(code.splitlines()) < 40
    (tmp_path / "my_algorithm.py").write_text(code, encoding="utf-8")
    (tmp_path / "my.toml").write_text(scenario, encoding="utf-8")
    summary = summary_of(run_as_user(tmp_path, "simulate", "my.toml", "--seed", "1", "--json"))
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


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cells(notebook: dict[str, Any]) -> list[str]:
    """Return what each code cell prints, followed by the value of its last expression."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(code_cells(notebook), start=1):
        tree = ast.parse("".join(cell["source"]), f"cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, f"cell {number}", "exec", dont_inherit=True), names)
            value = None
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        shown.append(printed.getvalue() + ("" if value is None else f"{value!r}\n"))
    return shown


def stored(notebook: dict[str, Any]) -> list[str]:
    """Return the same of the outputs that the file has; bars and pictures are no text of a cell."""
    shown = []
    for cell in code_cells(notebook):
        text = ""
        for output in cell["outputs"]:
            if output["output_type"] == "stream" and output["name"] == "stdout":
                text += "".join(output["text"])
            elif output["output_type"] == "execute_result":
                text += "".join(output["data"]["text/plain"]) + "\n"
        shown.append(text)
    return shown


def pictures(notebook: dict[str, Any]) -> list[bytes]:
    """Return the PNG images that the outputs hold."""
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    found = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    return [base64.b64decode("".join(one)) for one in found]


# -- docs/your-own-data.md ------------------------------------------------------------------------------------


def test_the_program_is_short_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = blocks("your-own-data.md", "python")
    assert len(program.splitlines()) < 40
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "your-own-data.md", "exec", dont_inherit=True), {})
    rmse = float(capsys.readouterr().out.split()[1])
    assert rmse < 150, "a rent's standard deviation is about 280"


@pytest.mark.parametrize("table", OWN_DATA)
def test_every_other_scenario_on_the_page_is_sound(table: str) -> None:
    assert parse_scenario(REST | tomllib.loads(table)).data.source != "file"


def test_there_are_examples_of_images_and_of_arrays() -> None:
    assert {tomllib.loads(table)["data"]["schema"]["kind"] for table in OWN_DATA} == {"images", "array"}


# -- docs/tutorial.md: every block that says so is run, in its order, in an empty folder -----------------------


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
    blocks = [block for block in blocks_of(TUTORIAL) if block.run_by]
    assert len(blocks) == 6
    said = "".join(line for block in blocks for line in follow(block, tmp_path))
    assert "ε = 1.619" in TUTORIAL.read_text(encoding="utf-8")
    assert "1.619" in said, "what the page says of the first run"
    assert len(list((tmp_path / "runs").iterdir())) == 5
