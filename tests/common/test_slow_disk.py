"""The slow disk of chaos: in the writes, by a file, and refused to everybody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigurationError
from common.quantities import EdgeId
from common.records import slow_disk
from common.records.checkpoint import Checkpoints
from common.records.gradient_log import Entry, Kind, LogWriter
from edge.sqlite_ledger import SqliteLedger
from tests.program_support import Mapa


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the process has waited for."""
    found: list[float] = []
    monkeypatch.setattr("time.sleep", found.append)
    monkeypatch.setattr(slow_disk, "_file", None)
    return found


def test_log_checkpoint_and_ledger_wait_as_long_as_the_file_says(tmp_path: Path, waits: list[float]) -> None:
    file = tmp_path / "slow"
    slow_disk.set_seconds(file, 0.0)
    slow_disk.enable({slow_disk.VARIABLE: str(file)}, "cloud")
    log = LogWriter(tmp_path, 1, 3, 1, power=False)
    entry = Entry(Kind.GRADIENT, 1, 0.0, EdgeId("edge-1"), b"bytes")
    log.append(entry)
    assert waits == []
    slow_disk.set_seconds(file, 0.25)
    log.append(entry)
    log.close()
    assert waits == [0.25]
    Checkpoints(tmp_path).write(1, {"t": 1})
    assert waits == [0.25] * 3  # both files of it
    with SqliteLedger(tmp_path / "state") as ledger:
        ledger._save_identity(EdgeId("edge-2"))
    assert waits == [0.25] * 4
    slow_disk.set_seconds(file, 0.0)
    slow_disk.wait()
    assert len(waits) == 4


def test_without_the_variable_no_disk_is_slow(waits: list[float]) -> None:
    slow_disk.enable({}, "cloud")
    slow_disk.wait()
    assert waits == []


@pytest.mark.parametrize("content", ["", "1.0\n", "mapa chaos: seconds for every write: 1e9\n", "nan"])
def test_a_file_that_is_not_of_chaos_is_refused(tmp_path: Path, waits: list[float], content: str) -> None:
    (tmp_path / "slow").write_text(content)
    with pytest.raises(ConfigurationError, match=slow_disk.VARIABLE):
        slow_disk.enable({slow_disk.VARIABLE: str(tmp_path / "slow")}, "edge")
    slow_disk.wait()
    assert waits == []


@pytest.mark.parametrize(("command", "named"), [("cloud", "not a file of"), ("run", "is for processes that")])
def test_a_command_that_chaos_did_not_start_ends_with_2(
    mapa: Mapa, monkeypatch: pytest.MonkeyPatch, command: str, named: str
) -> None:
    monkeypatch.setenv(slow_disk.VARIABLE, "/nowhere")
    done = mapa(command, "quickstart")
    assert done.code == 2
    assert named in done.err
