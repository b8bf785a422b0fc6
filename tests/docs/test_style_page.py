"""docs/style.md is a program: its blocks run in order, its tests hold, and what it names exists."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from tests.pages_support import ROOT, blocks

PAGE = ROOT / "docs" / "style.md"
PAPER = ROOT / "docs" / "paper.md"
ROOMS = ("common", "cloud", "edge", "mapa", "experiments")


def calls(test: Callable[..., None]) -> Iterator[dict[str, object]]:
    """Yield the arguments that pytest would call a test with."""
    marks = getattr(test, "pytestmark", [])
    if not marks:
        yield {}
    for mark in marks:
        name, values = mark.args
        yield from ({name: value} for value in values)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The page's blocks, run from the repository's root."""
    module = ModuleType("style_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses and pydantic look themselves up
    monkeypatch.chdir(ROOT)
    habits = blocks("style.md", "python")
    assert len(habits) == 15
    exec(compile("\n".join(habits), str(PAGE), "exec", dont_inherit=True), module.__dict__)
    return module


def test_the_pages_own_tests_hold(page: ModuleType) -> None:
    tests = [value for name, value in vars(page).items() if name.startswith("test_")]
    made = [(test, arguments) for test in tests for arguments in calls(test)]
    assert len(tests) == 4
    assert len(made) == 3 + len(ROOMS)
    for test, arguments in made:
        test(**arguments)


def test_what_the_page_writes_is_read_back_at_the_border(page: ModuleType) -> None:
    fields = {"version": 1, "edge_id": "edge-0", "read_at": 1, "gradient": b"\x00\x00\x80\x3f" * 2}
    arrived = page.to_event(fields, 2)
    assert arrived.gradient.tolist() == [1.0, 1.0]
    with pytest.raises(page.RemoteProtocolError, match="8 bytes for d=3"):
        page.to_event(fields, 3)
    channel = page.MemoryChannel()
    page.perform(page.SendModel("edge-0", 2, 0.5), channel)
    assert channel.sent == [("edge/edge-0/model", {"iteration": 2, "sensitivity": 0.5})]


def test_rooms_are_ours(page: ModuleType) -> None:
    for room in ROOMS:
        module = __import__(room)
        assert page.is_ours(module.__file__, room, ROOT), f"{room} comes from {module.__file__}"


def test_the_tree_names_every_folder_of_the_packages() -> None:
    tree = PAGE.read_text(encoding="utf-8").split("## A. The tree")[1].split("```")[1]
    told = [line.split()[0].rstrip("/") for line in tree.strip().splitlines()]
    there = {
        path.parent.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")
    }
    assert set(told) == there
    assert len(told) == len(there)


def test_every_departure_that_the_code_marks_is_described() -> None:
    described = re.findall(r"^### D-(\d\d) ", PAPER.read_text(encoding="utf-8"), re.MULTILINE)
    assert described == [f"{number:02}" for number in range(1, len(described) + 1)], "numbered in order"
    marked = {
        number
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for number in re.findall(r"\bD-(\d\d)\b", path.read_text(encoding="utf-8"))
    }
    assert marked
    assert marked <= set(described)


def test_every_name_in_the_paper_page_is_where_it_says() -> None:
    """A row or a `Code:` line names files; each exists, and holds the plain names that stand beside it."""
    text = PAPER.read_text(encoding="utf-8")
    files = set(re.findall(r"`((?:common|cloud|edge|mapa|experiments)/[\w/]*(?:\.py)?)`", text))
    assert len(files) > 20
    assert not [name for name in files if not (ROOT / name).exists()]
    rows = [line.split("|") for line in text.splitlines() if re.match(r"\| [^|]+\|[^|]+\|[^|]+`", line)]
    rows = [row for row in rows if len(row) == 6]
    assert len(rows) > 35
    for _, symbol, _, names, where, _ in rows:
        sources = [(ROOT / path).read_text(encoding="utf-8") for path in re.findall(r"`([\w/]+\.py)`", where)]
        for name in re.findall(r"`([\w.]+)`", names):
            last = name.rsplit(".", 1)[-1]
            assert any(re.search(rf"\b{last}\b", source) for source in sources), (
                f"{symbol}: {name} in {where}"
            )
