"""Pages of the documentation: every fenced block with the mark before it, its commands, and its code to run."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

from mapa.cli import build, current_name
from tests.program_support import MAPA, ROOT, environment, run_program

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*) *$")
_MARK = re.compile(r"^ *<!-- (?P<kind>not run|run by): (?P<words>.+) -->$")
_ASSIGNMENT = re.compile(r"^[A-Z_]+=")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    page: str  # below the repository
    line: int
    language: str
    text: str
    not_run: str = ""  # the reason that the page gives
    run_by: str = ""  # path::test

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(path: Path) -> list[Block]:
    """Return the blocks of a page; a mark is the last line before its fence that is not empty."""
    found: list[Block] = []
    opened, body, marks, last = None, [], {}, ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            mark = _MARK.match(last)
            marks = {mark["kind"].replace(" ", "_"): mark["words"]} if mark else {}
            opened, body = (number, fence["language"]), []
        elif opened is not None and fence and not fence["language"]:
            page = str(path.relative_to(ROOT))
            found.append(Block(page, *opened, "\n".join(body) + "\n", **marks))
            opened, last = None, ""
        elif opened is not None:
            body.append(line)
        elif line.strip():
            last = line
    assert opened is None, f"{path}: a block is not closed"
    return found


def commands(block: Block) -> list[list[str]]:
    """Return the words of every command that a block shows; where lines begin with `$`, the others are output."""
    text = block.text.replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    aliases: dict[str, list[str]] = {}
    found = []
    for line in lines:
        words = _plain(shlex.split(line, comments=True))
        if words[:1] == ["alias"]:
            name, _, meant = words[1].partition("=")
            aliases[name] = meant.split()
        elif words:
            found.append([*aliases.get(words[0], words[:1]), *words[1:]])
    return found


def _plain(words: list[str]) -> list[str]:
    """Return a command without assignments before it, and without where its output goes."""
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    return words[: words.index(">")] if ">" in words else words


def require_test(named: str) -> None:
    """Fail where a page or a table names a test, as path::test, that there is not."""
    path, _, test = named.partition("::")
    assert test, f"path::test, please: {named}"
    assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"no such test: {named}"


def run_command(words: list[str], folder: Path) -> str:
    """Run a command of a page in a folder, which is also its home; return what it printed."""
    program, *rest = words
    match program:
        case "mapa":
            start = [MAPA[0], "-P", *MAPA[1:]]
        case "python":
            start = [sys.executable, "-P"]
        case _:
            start = [str(ROOT / program)]
            assert Path(start[0]).is_file(), f"`{program}` cannot be run here: say why not"
    kept = {name: value for name, value in environment().items() if not name.startswith("XDG_")}
    env = {**kept, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    done = run_program(*start, *rest, env=env, cwd=folder)
    assert done.returncode == 0, f"{words}: exit {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


@cache
def _program() -> Any:
    return typer.main.get_command(build([]))


def parse_mapa(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the command and its parameters as the real parser reads them; it raises where it would refuse them."""
    command, path, parent, rest = _program(), "mapa", None, current_name(words)
    while True:
        context = command.make_context(path, list(rest), parent=parent)
        if not getattr(command, "commands", None):
            return path.removeprefix("mapa "), dict(context.params)
        rest = [
            *context._protected_args,
            *context.args,
        ]  # as a group has read them: it may put a word before them
        name, command, rest = command.resolve_command(context, rest)
        path, parent = f"{path} {name}", context


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of docs/<page> in a language, in their order."""
    found = [block.text for block in blocks_of(ROOT / "docs" / page) if block.language == language]
    assert found, f"docs/{page} has no block in {language}"
    return found


def run_blocks(page: str) -> dict[str, Any]:
    """Run the Python blocks of a page as one program; return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, body in enumerate(blocks(page, "python"), start=1):
        exec(compile(body, f"docs/{page}, block {number}", "exec", dont_inherit=True), names)
    return names


# -- docs/your-own-model.md: its file, its scenario, and a data set beside them --------------------------------

OWN_MODEL = "your-own-model.md"
COLOUR = '''
import hashlib
import numpy as np
import mapa


class Tints:
    """Noisy 3×32×32 images, each with one channel that is brighter: ten classes would be CIFAR-10's form."""

    def load(self, data_dir):
        rng = np.random.default_rng(3)
        labels = rng.integers(0, 3, 700)
        values = rng.random((700, 3, 32, 32)) * 0.5
        values[np.arange(700), labels] += 0.3
        images = np.rint(255 * values).astype(np.uint8).reshape(700, -1)
        parts = [mapa.data.Samples(images[rows], labels[rows]) for rows in (np.s_[:600], np.s_[600:])]
        return mapa.Dataset("tints", (3, 32, 32), 3, *parts, hashlib.sha256(images.tobytes()).hexdigest())
'''


def write_project(folder: Path) -> Path:
    """Write what the page prints, and a data set of colour images."""
    (folder / "my_model.py").write_text(blocks(OWN_MODEL, "python")[0])
    (folder / "my_data.py").write_text(COLOUR)
    (folder / "my.toml").write_text(blocks(OWN_MODEL, "toml")[0])
    return folder
