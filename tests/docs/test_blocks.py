"""Every block of every page is run by a test, or read by the real parser, or says why neither.

Commands are only read here; tests/docs/test_commands.py runs them. Fragments of scenarios are no commands.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.algorithms import algorithm_names
from common.scenario.scenario import parse_scenario
from mapa.cli import FORMER_NAMES
from mapa.reference import commands as known_commands
from mapa.reference import options_of
from mapa.scenario_files import load_scenario
from tests.pages_support import ROOT, Block, blocks_of, commands, pages, parse_mapa, require_test

BLOCKS = [block for page in pages() for block in blocks_of(page)]
# Not programs: prose in columns, tables of contents, and what autodoc fills in (tests/docs/test_site.py builds them).
PROSE = ("text", "{toctree}", "{eval-rst}")
# Run whole, as one program or project, by tests that take the blocks out of the page themselves.
RUN_WHOLE = {
    ("docs/python.md", "python"): "tests/docs/test_pages.py::test_the_python_of_the_page_runs_as_one_program",
    ("docs/style.md", "python"): "tests/docs/test_style_page.py::test_the_pages_own_tests_hold",
    ("docs/your-own-algorithm.md", "python"): (
        "tests/docs/test_pages.py::test_the_algorithm_of_the_page_is_one_short_file_that_trains"
    ),
    ("docs/your-own-algorithm.md", "toml"): (
        "tests/docs/test_pages.py::test_the_algorithm_of_the_page_is_one_short_file_that_trains"
    ),
    (
        "docs/your-own-data.md",
        "python",
    ): "tests/docs/test_pages.py::test_the_program_is_short_and_learns",
    **{
        ("docs/your-own-mechanism.md", language): (
            "tests/mapa/test_own_mechanism.py::test_the_parts_of_the_page_train_are_charged_and_stated"
        )
        for language in ("python", "toml")
    },
    (
        "docs/your-own-model.md",
        "python",
    ): "tests/docs/test_own_model_page.py::test_the_pages_scenario_simulates",
}
# A fragment of a scenario is checked with these keys around it.
REST: dict[str, Any] = {"iterations": 10, "algorithm": {"name": "constant", "rate": 0.1, "first_clip": 1.0}}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def own_name(name: str) -> bool:
    """Whether a word on a page stands for something of the reader's own: a file, a path, a word in capitals."""
    return name.endswith(".toml") or "/" in name or name.isupper()


def check_mapa(words: list[str]) -> None:
    """The parser takes it; a shipped scenario exists and takes every --set."""
    command, given = parse_mapa(words)
    scenario = given.get("scenario")
    if isinstance(scenario, str) and not own_name(scenario):
        load_scenario(scenario, list(given.get("changes") or ()), edges=given.get("edges"))
    algorithm = given.get("algorithm")
    if isinstance(algorithm, str) and ":" not in algorithm:
        assert algorithm in algorithm_names(), f"{command}: no algorithm {algorithm}"


def check_make(words: list[str]) -> None:
    targets = [word for word in words if "=" not in word]
    assert targets
    assert set(targets) <= TARGETS, f"no such target: {targets}"


def check_docker(words: list[str]) -> None:
    composed = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    for option, value in itertools.pairwise(words):
        match option:
            case "-f" | "-c":
                assert (ROOT / value).is_file(), f"no such file: {value}"
            case "--profile":
                assert re.search(rf"^    profiles: \[{value}\]$", composed, re.MULTILINE), (
                    f"no profile {value}"
                )
            case "--scale":
                assert re.search(rf"^  {value.partition('=')[0]}:$", composed, re.MULTILINE), (
                    f"no service: {value}"
                )


def check_pip(words: list[str]) -> None:
    assert words[0] == "install"
    for extras in re.findall(r"mapa-testbed\[([\w,]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys(), extras


def check_python(words: list[str]) -> None:
    assert words[0] == "-m"
    place = ROOT / words[1].replace(".", "/")
    assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), words[1]


def check_export(words: list[str]) -> None:
    assert all(re.match(r"(PATH|MAPA_[A-Z_]+)=", word) for word in words), words


KNOWN: dict[str, Callable[[list[str]], None]] = {
    "mapa": check_mapa,
    "make": check_make,
    "docker": check_docker,
    "pip": check_pip,
    "python": check_python,
    "export": check_export,
}


def check_command(words: list[str]) -> None:
    program, rest = words[0], words[1:]
    if (ROOT / program).is_file() and "/" in program:
        return
    assert program in KNOWN, f"nobody checks `{program}`: add a check, or a mark that says why it is not run"
    KNOWN[program](rest)


def check_shell(block: Block) -> None:
    found = commands(block)
    assert found, "no command"
    for words in found:
        check_command(words)


def check_toml(block: Block) -> None:
    """The real parser takes it. It is a fragment of a scenario and no command, so there is nothing more to run."""
    values = tomllib.loads(block.text)
    parse_scenario({**REST, **values})


CHECKS = {
    "": check_shell,
    "bash": check_shell,
    "toml": check_toml,
    "json": lambda block: json.loads(block.text),
}


def test_there_are_blocks_in_many_pages() -> None:
    assert len({block.page for block in BLOCKS}) > 20


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_a_block_is_run_or_parsed_or_says_why_not(block: Block) -> None:
    if block.language in PROSE:
        return
    if block.not_run:
        assert len(block.not_run) > 10, "a reason, please"
        return
    if by := block.run_by or RUN_WHOLE.get((block.page, block.language), ""):
        require_test(by)
        return
    assert block.language in CHECKS, f"a block in {block.language!r} needs a mark: run by, or not run"
    CHECKS[block.language](block)


def test_every_page_that_is_run_whole_has_such_blocks() -> None:
    assert RUN_WHOLE.keys() <= {(block.page, block.language) for block in BLOCKS}


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("", "mapa simulate quickstart --no-such-option"),
        ("", "mapa simulate no-such-scenario"),
        ("", "mapa simulate quickstart --set no.such=1"),
        ("", "mapa simulate quickstart --set algorithm.theta=3"),
        ("", "mapa nothing quickstart"),
        ("", "$ mapa calibrate --releases many\noutput"),
        ("", "mapa replay RUN --algorithm fedbluff"),
        ("", "make no-such-target"),
        ("", "docker compose --profile none up"),
        ("", "docker compose up --scale hedge=3"),
        ("", "pip install 'mapa-testbed[none]'"),
        ("", "python -m experiments.none"),
        ("", "rm -rf runs"),
        ("", "# a remark alone"),
        ("toml", "edges = 0"),
        ("toml", "edges = "),
        ("toml", "[privacy]\nepsilom = 1"),
    ],
)
def test_the_checker_finds_what_is_wrong(language: str, text: str) -> None:
    with pytest.raises(BaseException):  # noqa: B017  # of the parser, of a scenario, of TOML, of an assertion
        CHECKS[language](Block("here", 1, language, text + "\n"))


def test_marks_and_continued_lines_are_read() -> None:
    page = ROOT / "docs" / "tutorial.md"
    marked = [block for block in blocks_of(page) if block.run_by or block.not_run]
    assert {block.language for block in marked} == {"bash", "python", "toml"}
    block = Block(
        "here", 1, "", "$ A=1 mapa run \\\n  x > out  # why\nsaid\n$ alias f='mapa data'\n$ f list\n"
    )
    assert commands(block) == [["mapa", "run", "x"], ["mapa", "data", "list"]]


INLINE = re.compile(r"(?<!`)`mapa ([a-z][^`]*)`(?!`)")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_within_sentences_exist_with_their_options(page: Path) -> None:
    known = known_commands()
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for said in INLINE.findall(text):
        words = said.split()
        command = known.get(" ".join(words[:2])) or known.get(words[0])
        assert command is not None or words[0] in FORMER_NAMES, f"{page.name}: no such command: mapa {said}"
        options = {word.strip("[]").partition("=")[0] for word in words if word.strip("[").startswith("--")}
        if command is not None and not hasattr(command, "commands"):
            known_options = {name for one in options_of(command) for name in (*one.opts, *one.secondary_opts)}
            unknown = options - known_options - {"--help"}
            assert not unknown, f"{page.name}: mapa {said}: no such option: {', '.join(unknown)}"


def test_the_security_page_names_tests_that_there_are() -> None:
    named = re.findall(
        r"`((?:\.\./\w+/)?test_\w+\.py)?::(\w+)`", (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    )
    assert len(named) > 10
    file = ""
    for place, test in named:  # without a file: the one before
        file = place or file
        require_test(f"tests/{file[3:] if file.startswith('../') else f'broker/{file}'}::{test}")
