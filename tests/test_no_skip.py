"""MAPA_NO_SKIP=1, --without and --again, tried on a small tree with the real conftest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import EXTENDED, STATISTICS
from tests.program_support import ROOT, run_program

CONFTEST = ROOT / "tests" / "conftest.py"
TESTS = """
import pytest

def test_that_passes():
    pass

@pytest.mark.skip(reason="no broker here")
def test_that_is_marked():
    pass

def test_that_skips_itself():
    pytest.skip("no engine here")

@pytest.mark.xfail(reason="known", strict=True)
def test_that_is_known_to_fail():
    raise AssertionError
"""
MODULE = (
    "import pytest\npytest.skip('no library here', allow_module_level=True)\ndef test_inside():\n    pass\n"
)
Pytest = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def small(tmp_path: Path) -> Pytest:
    """Run pytest on the small tree."""
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_whole_module.py").write_text(MODULE)
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "MAPA_NO"))}

    def run(*options: str, no_skip: str = "") -> subprocess.CompletedProcess[str]:
        env = {**environ, "MAPA_NO_SKIP": no_skip, "PYTHONPATH": os.pathsep.join(sys.path)}
        return run_program(sys.executable, "-m", "pytest", *options, ".", env=env, cwd=tmp_path)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("no_skip", "words"),
    [
        ("", ["1 passed", "3 skipped", "1 xfailed"]),
        ("1", ["no broker here", "no engine here", "no library here", "1 xfailed", "1 error"]),
    ],
)
def test_a_skip_is_a_failure_only_where_it_was_asked_for(
    small: Pytest, no_skip: str, words: list[str]
) -> None:
    done = small("--continue-on-collection-errors", "-rs", no_skip=no_skip)
    assert done.returncode == (1 if no_skip else 0), done.stdout + done.stderr
    for word in words:
        assert word in done.stdout


@pytest.mark.slow
def test_a_second_run_leaves_out_what_passed_and_nothing_else(small: Pytest, tmp_path: Path) -> None:
    assert "1 passed, 3 skipped, 1 xfailed" in small("-n", "2", "--passed-to=passed.txt").stdout
    (tmp_path / "test_some.py").write_text(TESTS.replace('pytest.skip("no engine here")', "pass"))
    (tmp_path / "test_whole_module.py").write_text("def test_inside():\n    pass\n")
    assert "2 passed, 1 skipped" in small("-n", "2", "--without=passed.txt").stdout


UNSTEADY = """
import pathlib

def test_that_fails_once():
    seen = pathlib.Path("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
BROKEN = """
import pytest

@pytest.fixture
def broken():
    raise OSError

def test_that_always_fails(broken):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "more", "code", "words"),
    [
        (
            "2",
            "",
            0,
            ["again: 1 tests that failed at first\n  test_unsteady.py::test_that_fails_once\n", " 1 passed"],
        ),
        ("2", BROKEN, 1, ["again: 2 tests that failed at first\n", " 1 passed, 1 error in "]),
        ("0", "import nothing_of_that_name", 2, []),
    ],
    ids=["fails-once", "always-fails", "cannot-be-read"],
)
def test_a_failed_test_is_run_once_more_and_fails_where_it_fails_twice(
    small: Pytest, tmp_path: Path, workers: str, more: str, code: int, words: list[str]
) -> None:
    (tmp_path / "test_unsteady.py").write_text(UNSTEADY)
    (tmp_path / "test_more.py").write_text(more)
    done = small("-n", workers, "--dist", "loadgroup", "--again", "--passed-to=passed.txt")
    assert done.returncode == code, done.stdout + done.stderr
    for word in words:
        assert word in done.stdout
    if words:  # the first run came to its end
        assert "::test_that_fails_once\n" in (tmp_path / "passed.txt").read_text()
    else:
        assert "again: " not in done.stdout


def test_the_files_of_a_kind_are_there() -> None:
    assert not [name for name in EXTENDED | STATISTICS if not (ROOT / name).is_file()]
