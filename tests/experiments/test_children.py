"""Programs that are started from a directory with modules of the same names run ours."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from common.connection import BrokerAddress
from common.quantities import RunId
from experiments.brokers import embedded_broker
from experiments.local import edge_arguments
from experiments.scenario_files import load_scenario


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caller's directory, with packages that end whoever imports them."""
    for room in ("common", "edge", "experiments"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise SystemExit('not ours')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_edge_process_is_ours(elsewhere: Path) -> None:
    _, scenario = load_scenario("quickstart")
    command = edge_arguments(
        scenario, RunId("r"), BrokerAddress("127.0.0.1", 1), elsewhere / "state", elsewhere / "data", 1
    )
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_embedded_broker_is_ours(elsewhere: Path) -> None:
    with embedded_broker(elsewhere / "broker") as broker:
        assert broker.kind == "embedded"
