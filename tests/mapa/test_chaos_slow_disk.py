"""The slow disk of chaos: a program's writes wait while a file is there, and the program does not know of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.quantities import EdgeId
from common.records.checkpoint import Checkpoints
from common.records.gradient_log import Entry, Kind, LogWriter
from edge.journal import DebitJournal
from edge.sqlite_ledger import SqliteLedger
from mapa.chaos import slow_disk
from tests.edge_support import account, spend
from tests.program_support import run_program


def test_log_checkpoint_and_ledger_wait_while_the_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, method in ((LogWriter, "append"), (Checkpoints, "write"), (DebitJournal, "_write")):
        monkeypatch.setattr(owner, method, getattr(owner, method))  # put back afterwards
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    file = tmp_path / "slow"
    slow_disk.slow_writes(file, "cloud")
    slow_disk.slow_writes(file, "edge")
    log = LogWriter(tmp_path, 1, 3, 1, power=False)
    entry = Entry(Kind.GRADIENT, 1, 0.0, EdgeId("edge-1"), b"bytes")
    log.append(*entry)
    assert waits == []
    file.touch()
    log.append(*entry)
    assert log.records == 2
    log.close()
    assert len(waits) == 1
    Checkpoints(tmp_path).write(1, {"t": 1})
    assert len(waits) == 2
    with SqliteLedger(tmp_path / "state") as ledger:
        ledger.open(account())
        spend(ledger, 1)
    assert waits == [slow_disk.SECONDS] * 3


@pytest.mark.parametrize("service", ["cloud", "edge"])
def test_a_program_runs_as_without_it_and_an_edge_still_needs_no_torch(tmp_path: Path, service: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nassert __name__ == '__main__'\nassert 'torch' not in sys.modules\nprint(sys.argv[1:])\n"
    )
    command = [sys.executable, "-m", "mapa.chaos.slow_disk", str(tmp_path / "slow")]
    for target in (str(program), "mapa.cli"):
        done = run_program(*command, target, service, "--help")
        assert done.returncode == 0, done.stderr
        assert (f"['{service}', '--help']" if target != "mapa.cli" else f"mapa {service}") in done.stdout
