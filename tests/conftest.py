"""Laws of the whole test tree.

MAPA_NO_SKIP=1 makes a skip a failure; a second run can leave out what passed in the first; --again gives a failed
test a second try; property tests are repeatable; a SIGINT reaches what a test starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.program_support import Mapa

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--passed-to", type=Path, help="add the names of the tests that passed to this file")
    parser.addoption("--without", type=Path, help="leave out the tests named in this file")
    parser.addoption(
        "--again", action="store_true", help="run failed tests once more, alone: fail where one fails twice"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Undo an ignored SIGINT, which a shell gives its background jobs and which every child would inherit.

    No test reads or leaves features in the user's cache.
    """
    os.environ["MAPA_CACHE_MB"] = "0"
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    passed_to = config.getoption("--passed-to")
    if passed_to and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_PassedNames(passed_to))


class _PassedNames:
    """Writes the name of each test that passed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and (report.passed or hasattr(report, "wasxfail")):
            with self._path.open("a", encoding="utf-8") as names:
                names.write(f"{report.nodeid}\n")


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """Where --again is given, let a second run of the failed tests decide; the first must have come to its end."""
    ended = yield
    first = not hasattr(config, "workerinput") and not config.getoption("lf", False)
    if not (first and config.getoption("--again") and ended == pytest.ExitCode.TESTS_FAILED):
        return ended
    stats: dict[str, list[Any]] = config.pluginmanager.get_plugin("terminalreporter").stats
    failed = sorted({report.nodeid for outcome in ("failed", "error") for report in stats.get(outcome, ())})
    assert config.cache is not None
    # xdist gives the test of a crashed worker to another, where it may have passed
    config.cache.set("cache/lastfailed", dict.fromkeys(failed, True))
    print(f"\nagain: {len(failed)} tests that failed at first", *failed, sep="\n  ", flush=True)
    alone = ("-n", "0", "--last-failed", "--last-failed-no-failures", "none")
    return subprocess.run([sys.executable, "-m", "pytest", *config.invocation_params.args, *alone]).returncode


def _files(**folders: str) -> set[str]:
    return {f"tests/{folder}/test_{name}.py" for folder, names in folders.items() for name in names.split()}


# Files whose slow tests show again, longer or under more conditions, what a test of `make test` shows.
EXTENDED = _files(
    broker="chaos devices edge_returns guide halt_delivery hearing large_model metrics_endpoints run_endings",
    browser="look kept",
    experiments="attack audit_battery reference reproduce_choices sweep_ray",
    common="accounting_rounding landmarks truncated_batches",
    docs="commands own_model_page",
    mapa="honest_runs",
)
STATISTICS = _files(
    common="noise noise_port randomness",
    edge="clipping_holds privacy samplers",
    experiments="audit audit_battery",
)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if item.nodeid.partition("::")[0] in EXTENDED and marks & {"slow", "broker", "browser"}:
            item.add_marker("extended")
        if item.nodeid.partition("::")[0] in STATISTICS:
            item.add_marker("statistics")
    without = config.getoption("--without")
    if without is None:
        return
    names = set(without.read_text(encoding="utf-8").splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in names])
    items[:] = [item for item in items if item.nodeid not in names]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _refuse_skip((yield))


def _refuse_skip(report: Any) -> Any:
    """Turn a skip into a failure where MAPA_NO_SKIP=1; an expected failure is no skip."""
    if os.environ.get("MAPA_NO_SKIP") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"a skip is a failure with MAPA_NO_SKIP=1: {report.longrepr}"
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the stack tests in one worker: they share one engine; and a file of browser tests in one.

    xdist 3.8 marks groups by an attribute that pytest 9.2 no longer reads, so its own `loadgroup` scatters them.
    """
    from xdist.scheduler import LoadGroupScheduling

    class OneWorkerForTheStack(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if "browser/" in file:
                return file  # a file shares one run, and a worker one Chromium
            return "stack" if "stack/" in file else str(super()._split_scope(nodeid))

    return OneWorkerForTheStack(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture
def mapa(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mapa:
    """The program in this process, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Mapa(capsys, monkeypatch)
