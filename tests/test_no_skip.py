"""MAPA_NO_SKIP=1, tried on a small tree with the real conftest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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

MODULE = "import pytest\npytest.skip('no library here', allow_module_level=True)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("no_skip", "words"),
    [
        ("", ["1 passed", "3 skipped", "1 xfailed"]),
        ("1", ["no broker here", "no engine here", "no library here", "1 xfailed", "1 error"]),
    ],
)
def test_a_skip_is_a_failure_only_where_it_was_asked_for(
    tmp_path: Path, no_skip: str, words: list[str]
) -> None:
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_whole_module.py").write_text(MODULE)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
            "-rs",
            ".",
        ],
        cwd=tmp_path,
        env={**environ, "MAPA_NO_SKIP": no_skip},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == (1 if no_skip else 0), done.stdout + done.stderr
    for word in words:
        assert word in done.stdout


@pytest.mark.slow
def test_a_second_run_leaves_out_what_passed_and_nothing_else(tmp_path: Path) -> None:
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_whole_module.py").write_text(MODULE + "def test_inside():\n    pass\n")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "MAPA_NO"))}

    def pytest_run(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", *options, "."]
        path = os.pathsep.join(sys.path)
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=600,
        )
        return done.stdout

    assert "1 passed, 3 skipped, 1 xfailed" in pytest_run("--passed-to=passed.txt")
    (tmp_path / "test_some.py").write_text(TESTS.replace('pytest.skip("no engine here")', "pass"))
    (tmp_path / "test_whole_module.py").write_text("def test_inside():\n    pass\n")
    assert "2 passed, 1 skipped" in pytest_run("--without=passed.txt")
