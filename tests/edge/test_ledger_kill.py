"""SIGKILL at any point: never fewer debits than gradients that left, and a resend is the same bytes."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from common.quantities import RunId
from edge.sqlite_ledger import SqliteLedger

RUN = RunId("kill")

EDGE = """
import hashlib, os, sys
from pathlib import Path

from edge.sqlite_ledger import SqliteLedger
from tests.edge_support import account

directory, wire = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
ledger = SqliteLedger(directory)
ledger.open(account("kill"))

def publish(sequence, payload):
    os.write(wire, f"{sequence} {hashlib.sha256(payload).hexdigest()}\\n".encode())

for sequence, payload in ledger.pending("kill"):
    publish(sequence, payload)
print("ready", flush=True)
while True:
    sequence, payload = ledger.last_sequence("kill") + 1, os.urandom(31_400)
    ledger.debit("kill", sequence, payload)
    publish(sequence, payload)
    if sequence % 3:
        ledger.acknowledge("kill", sequence - 1)
"""


@pytest.mark.slow
def test_every_gradient_that_left_was_debited_before_and_is_resent_as_it_was(tmp_path: Path) -> None:
    wire, moments = tmp_path / "wire", random.Random()
    sent: dict[int, set[str]] = defaultdict(set)
    debited = resent = 0
    for _ in range(8):
        edge = subprocess.Popen(
            [sys.executable, "-c", EDGE, str(tmp_path / "state"), str(wire)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert edge.stdout is not None
        assert edge.stdout.readline() == "ready\n"
        try:
            edge.wait(timeout=moments.uniform(0, 0.08))
        except subprocess.TimeoutExpired:
            edge.kill()
        assert edge.wait() < 0, "the edge must have been killed, not have ended"
        edge.stdout.close()

        sent.clear()
        for line in wire.read_text().splitlines() if wire.exists() else []:
            sequence, digest = line.split()
            sent[int(sequence)].add(digest)
        with SqliteLedger(tmp_path / "state") as ledger:
            assert ledger.last_sequence(RUN) >= max(sent, default=0)
            assert ledger.last_sequence(RUN) >= debited
            debited = ledger.last_sequence(RUN)
            assert ledger.standing(RUN).charges == debited
            pending = dict(ledger.pending(RUN))
        # what may not have arrived is at hand: the last debit was never acknowledged
        assert not debited or debited in pending
        for sequence, payload in pending.items():
            assert sent[sequence] <= {hashlib.sha256(payload).hexdigest()}
            resent += bool(sent[sequence])
    assert debited > 8
    assert resent
    assert all(len(digests) <= 1 for digests in sent.values()), "a sequence left with two different bytes"
