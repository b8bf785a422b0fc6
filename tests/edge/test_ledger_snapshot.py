"""An operator looks at a ledger while its edge holds it: a true picture, and no trace."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import ConfigurationError
from common.quantities import RunId
from edge.sqlite_ledger import FILE_NAME, SqliteLedger, ledger_snapshot
from tests.edge_support import account, spend

REPOSITORY = Path(__file__).parents[2]
RUN = RunId("live")

# Acknowledgements and payloads of many pages: the WAL is folded into the file and begins anew all the time.
EDGE = """
import os, sys
from pathlib import Path
from edge.sqlite_ledger import SqliteLedger
from tests.edge_support import account

ledger = SqliteLedger(Path(sys.argv[1]))
ledger.open(account("live"))
sequence = 0
print("ready", flush=True)
while True:
    sequence += 1
    ledger.debit("live", sequence, os.urandom(200_000))
    ledger.acknowledge("live", sequence - 1)
    print(sequence, flush=True)
"""


@pytest.mark.slow
def test_the_ledger_of_a_live_edge_can_be_looked_at_by_command(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with SqliteLedger(state) as ledger:
        ledger.open(account(RUN))
        spend(ledger, 3, RUN)
        before = sorted(path.name for path in state.iterdir())
        # in another process: whoever closes a file gives up all of its own process's locks on it
        command = [sys.executable, "-m", "mapa.cli", "ledger", str(state), "--json"]
        looked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
        assert looked.returncode == 0, looked.stderr
        (edge,) = json.loads(looked.stdout)["edges"]
        assert (edge["releases"], edge["edge_id"]) == (3, ledger.edge_id)
        assert sorted(path.name for path in state.iterdir()) == before
        assert ledger.debit(RUN, 4, b"gradient") is None
    with SqliteLedger(state) as again:
        assert again.last_sequence(RUN) == 4


@pytest.mark.slow
def test_a_picture_is_never_older_than_what_had_left_nor_torn(tmp_path: Path) -> None:
    edge = subprocess.Popen(
        [sys.executable, "-c", EDGE, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    try:
        assert edge.stdout is not None
        assert edge.stdout.readline() == "ready\n"
        seen = 0
        for _ in range(25):
            left = int(edge.stdout.readline())
            with ledger_snapshot(tmp_path) as ledger:
                now = ledger.standing(RUN)
                assert now.releases >= max(left, seen)
                assert now.charges == now.releases
                seen = now.releases
        assert seen >= 25
    finally:
        edge.kill()
        edge.wait()
        if edge.stdout is not None:
            edge.stdout.close()


def test_what_is_damaged_is_named_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(os.urandom(9000))
    with (
        pytest.raises(ConfigurationError, match=f"{tmp_path / FILE_NAME}: damaged"),
        ledger_snapshot(tmp_path),
    ):
        pass


def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"), ledger_snapshot(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def execute(*statements: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        connection = sqlite3.connect(path)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    return change


def put(name: str, target: str | None) -> Callable[[Path], None]:
    """Put a link to the target in the place of a file; None: a pipe that nobody writes to."""

    def change(path: Path) -> None:
        path.with_name(name).unlink(missing_ok=True)
        if target is None:
            os.mkfifo(path.with_name(name))
        else:
            path.with_name(name).symlink_to(target)

    return change


ENDLESS = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT i AS id FROM r"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(FILE_NAME, None), "cannot be read: not a regular file"),
        (put(f"{FILE_NAME}-wal", None), "cannot be read: not a regular file"),
        (put(FILE_NAME, "/dev/zero"), "cannot be read"),
        (
            execute("ALTER TABLE edge RENAME TO former", f"CREATE VIEW edge AS {ENDLESS}"),
            "plain tables",
        ),
        (
            execute("CREATE TRIGGER one AFTER DELETE ON outbox BEGIN DELETE FROM account; END"),
            "plain tables",
        ),
        (
            execute("ALTER TABLE account ADD COLUMN more TEXT AS (hex(zeroblob(100000000)))"),
            "plain tables",
        ),
        (execute("CREATE INDEX one ON account (hex(zeroblob(9)))"), "plain tables"),
        (execute("UPDATE account SET dataset = hex(zeroblob(100000))"), "a text of more than"),
        (
            execute("PRAGMA writable_schema = 1", "UPDATE sqlite_master SET sql = CAST(x'92' AS TEXT)"),
            "damaged",
        ),
        (execute(f"UPDATE account SET mechanism = '{'[' * 5000}'"), "damaged"),
        (execute("UPDATE account SET mechanism = '[]'"), "damaged"),
        (lambda path: path.write_bytes(b""), "damaged"),
    ],
    ids=[
        "pipe",
        "pipe-as-wal",
        "device",
        "endless-view",
        "trigger",
        "computed",
        "index",
        "long",
        "no-text",
        "deep",
        "list",
        "empty",
    ],
)
def test_a_ledger_of_somebody_else_s_making_is_refused_and_never_waited_for(
    tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(account(RUN))
    change(tmp_path / FILE_NAME)
    with pytest.raises(ConfigurationError, match=words), ledger_snapshot(tmp_path):
        pass


def test_a_ledger_larger_than_any_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(account(RUN))
    monkeypatch.setattr("edge.sqlite_ledger._MOST", 100)
    with pytest.raises(ConfigurationError, match="more than 100 bytes"), ledger_snapshot(tmp_path):
        pass


def test_what_takes_longer_than_opening_any_ledger_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(account(RUN))
    execute(f"INSERT INTO edge {ENDLESS} LIMIT 50000")(tmp_path / FILE_NAME)
    monkeypatch.setattr("edge.sqlite_ledger._MOST_STEPS", 2)
    with pytest.raises(ConfigurationError, match="interrupted"), ledger_snapshot(tmp_path):
        pass
