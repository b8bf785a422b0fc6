"""MAPA_NO_SKIP=1 and --without, tried on a small tree with the real conftest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.program_support import PATIENCE

CONFTEST = Path(__file__).parent / "conftest.py"
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
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "."],
            cwd=tmp_path,
            env={**environ, "MAPA_NO_SKIP": no_skip, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

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
