"""An edge that is killed, restored from an old copy, or ended while its broker is away; and what it imports."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.datasets.catalogue import data_directory
from common.quantities import RunId
from common.wire.codec import decode_gradient
from common.wire.topics import parse_edge_topic, run_id
from edge.sqlite_ledger import ledger_snapshot
from mapa.brokers import Broker
from mapa.processes import one_thread_each
from tests.broker.testbed_support import (
    PATIENCE,
    Testbed,
    assert_applied_exactly_once,
    open_testbed,
    scenario,
)
from tests.program_support import ROOT, eventually, run_mapa, run_program

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]
RUN: RunId = run_id("test")
Connect = Callable[..., Any]

# The program itself, with one step that ends in a SIGKILL: before the bytes of a gradient leave, or right after.
KILLED = """
import os, signal, sys
from edge.client import EdgeClient
from edge.session import PushOutbox
from mapa.cli import main

moment, sequence = sys.argv.pop(1), int(sys.argv.pop(1))
perform = EdgeClient._perform

def killed(self, effect):
    last = isinstance(effect, PushOutbox) and effect.sequence == sequence
    if last and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    perform(self, effect)
    if last:
        os.kill(os.getpid(), signal.SIGKILL)

EdgeClient._perform = killed
main()
"""

# The program itself, on a disk that takes nothing beyond 300 kB of a file once the journal's two files have their room:
# a few releases reach that.
FULL = """
import resource
from edge import journal
from mapa.cli import main

fill, filled = journal._fill, []

def limited(*given):
    fill(*given)
    filled.append(given)
    if len(filled) == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

journal._fill = limited
main()
"""


def program(bed: Testbed, source: str, *words: str) -> list[str]:
    """Return the command of an edge that begins with this source."""
    command = [sys.executable, "-c", source, *words, "--broker", str(bed.broker), "--run", bed.run]
    command += ["--state-dir", str(bed.directory / "state")]
    return [*command, "--data-dir", str(data_directory(os.environ))]


def log(bed: Testbed, number: int) -> str:
    return (bed.directory / f"edge-{number}.log").read_text()


def debited(bed: Testbed, state: str = "state") -> int:
    with ledger_snapshot(bed.directory / state / "0") as ledger:
        standing = ledger.standing(RUN)
    assert standing.charges == standing.releases
    return standing.releases


def released(wire: Any) -> dict[int, set[bytes]]:
    """Return what left, by sequence; a resend is the same bytes."""
    found: dict[int, set[bytes]] = defaultdict(set)
    for topic, payload in list(wire.seen):
        arrived = decode_gradient(parse_edge_topic(topic).edge_id, payload, (len(payload) - 40) // 4)
        found[arrived.sequence].add(payload)
    return found


def left(bed: Testbed) -> list[str]:
    return [account.left for account in bed.cloud.service.server.edges.values()]


# -- the outbox survives ------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_edge_killed_around_its_publish_sends_those_very_bytes_and_the_cloud_applies_them_once(
    mosquitto: Broker, tmp_path: Path, connect: Connect, moment: str
) -> None:
    wire = connect(mosquitto, "wire", "mapa/v1/test/edge/+/gradient")
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=1, iterations=40)) as bed:
        command = program(bed, KILLED, moment, "12", "edge")
        victim = subprocess.run(command, env=one_thread_each(), cwd=ROOT, timeout=PATIENCE, check=False)
        assert victim.returncode == -signal.SIGKILL
        assert debited(bed) == 12
        with ledger_snapshot(tmp_path / "state" / "0") as ledger:
            owed = dict(ledger.pending(RUN))[12]
        edge = bed.edge()
        bed.finish()
        assert edge.returncode == 0
        assert_applied_exactly_once(bed, 40)
        assert debited(bed) == 40
    wire.wait(lambda: len(released(wire)) == 40)
    sent = released(wire)
    assert set(sent) == set(range(1, 41))  # released = debited, from 1 to the last
    assert all(len(payloads) == 1 for payloads in sent.values())
    assert sent[12] == {owed}


def test_a_full_disk_under_its_ledger_ends_an_edge_with_nothing_released_that_was_not_debited(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    wire = connect(mosquitto, "wire", "mapa/v1/test/edge/+/gradient")
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=2, iterations=10**6)) as bed:
        command = program(bed, FULL, "edge")
        ended = run_program(*command)
        assert ended.returncode == 1, ended.stderr
        assert "nothing more is released" in ended.stderr
        bed.wait(lambda: left(bed) == ["failed"])
        sent = debited(bed)
        assert 0 < bed.updates == sent
    assert set(released(wire)) == set(range(1, sent + 1))


# -- an old copy --------------------------------------------------------------------------------------


def test_an_old_copy_is_refused_and_goes_on_once_its_operator_has_charged_what_it_lacks(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    wire = connect(mosquitto, "wire", "mapa/v1/test/edge/+/gradient")
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=1, iterations=10**6)) as bed:
        first = bed.edge()
        bed.wait(lambda: bed.updates > 20)
        first.kill()
        first.wait(PATIENCE)
        shutil.copytree(tmp_path / "state", tmp_path / "copy")
        had = debited(bed, "copy")
        second = bed.edge()
        bed.wait(lambda: bed.updates > had + 20)
        second.kill()
        second.wait(PATIENCE)
        made = debited(bed)
        restored = bed.edge(state="copy")
        assert restored.wait(PATIENCE) == 2
        assert debited(bed, "copy") == had  # nothing is charged by itself
        known = bed.updates
        said = log(bed, 2)
        for words in (f"it has {had} releases", f"it has got {known}", "not authenticated"):
            assert words in said
        (command,) = re.findall(r"^mapa (ledger charge .*)$", said, re.MULTILINE)
        words = shlex.split(command)
        assert words[-2:] == ["--through", str(known + 1)]
        done = run_mapa(*words)
        assert done.returncode == 0, done.stderr
        assert f"releases {had} -> {known + 1}" in done.stdout
        assert debited(bed, "copy") == known + 1 >= made  # never less than what has left
        charged = bed.edge(state="copy")
        bed.wait(lambda: bed.updates > known + 20)
        charged.send_signal(signal.SIGTERM)
        assert charged.wait(PATIENCE) == 0
        bed.wait(lambda: left(bed) == ["shutdown"])
        applied = [event["sequence"] for event in bed.events("gradient_applied")]
        assert applied[: known + 10] == [*range(1, known + 1), *range(known + 2, known + 12)]
        assert len(set(applied)) == len(applied)
        assert debited(bed, "copy") >= max(applied)
    assert all(len(payloads) == 1 for payloads in released(wire).values())


# -- last words ---------------------------------------------------------------------------------------


def test_an_edge_that_is_told_to_end_while_its_broker_is_away_says_leave_when_it_is_back(
    mosquitto: Broker, tmp_path: Path
) -> None:
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=2, iterations=10**6)) as bed:
        edge = bed.edge()
        bed.wait(lambda: bed.updates > 5)
        mosquitto.stop()
        eventually(lambda: "reconnecting" in log(bed, 0), "the loss was noticed")
        edge.send_signal(signal.SIGTERM)
        eventually(lambda: "waiting up to 8 s to say leave" in log(bed, 0), "the edge waits")
        mosquitto.start()
        assert edge.wait(PATIENCE) == 0
        bed.wait(lambda: left(bed) == ["shutdown"])


def test_ctrl_c_on_an_edge_says_leave_and_exits_with_130(mosquitto: Broker, tmp_path: Path) -> None:
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=2, iterations=10**6)) as bed:
        edge = bed.edge("--verbose")
        bed.wait(lambda: bed.updates > 5)
        eventually(
            lambda: "releases made, no budget" in log(bed, 0).partition("joined")[2], "a line of progress"
        )
        edge.send_signal(signal.SIGINT)
        assert edge.wait(PATIENCE) == 130
        bed.wait(lambda: left(bed) == ["shutdown"])
        first, joined, *_ = log(bed, 0).splitlines()
        assert first == f"waiting for run 'test' at {mosquitto.address}"
        assert "joined run 'test': 2,000 records" in joined


def test_an_edge_that_is_told_twice_waits_no_longer(mosquitto: Broker, tmp_path: Path) -> None:
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=2, iterations=10**6)) as bed:
        edge = bed.edge()
        bed.wait(lambda: bed.updates > 5)
        mosquitto.stop()
        eventually(lambda: "reconnecting" in log(bed, 0), "the loss was noticed")
        for _ in range(2):
            edge.send_signal(signal.SIGTERM)
            eventually(lambda: "to say leave" in log(bed, 0), "the first was heard")
        assert edge.wait(PATIENCE) == 0
        mosquitto.start()  # else the cloud waits for it to say its halt


# -- what it imports ----------------------------------------------------------------------------------

PROBE = """
import json, sys
from pathlib import Path
from mapa.cli import main
place = Path(sys.argv.pop(1))
try:
    main()
finally:
    place.write_text(json.dumps(sorted(sys.modules)))
"""
# On a small board every library is memory and seconds.
NEEDLESS = {
    "amqtt",
    "asyncio",
    "cloud",
    "docker",
    "dp_accounting",
    "h5py",
    "matplotlib",
    "mlxtend",
    "multiprocessing",
}
NEEDLESS |= {
    "pandas",
    "prometheus_client",
    "ray",
    "rich",
    "safetensors",
    "scipy",
    "sklearn",
    "sympy",
    "torch",
}


@pytest.mark.parametrize(
    "privacy", [{"noise_multiplier": 2.0}, {"noise_multiplier": 2.0, "total_epsilon": 4.0}]
)
def test_an_edge_that_trains_lr_imports_nothing_it_does_not_need(
    mosquitto: Broker, tmp_path: Path, privacy: dict[str, float]
) -> None:
    """Its budget is the accountant's business, which has a process of its own."""
    found = tmp_path / "modules.json"
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=1, iterations=20, privacy=privacy)) as bed:
        command = program(bed, PROBE, str(found), "edge")
        bed.edges.append(subprocess.Popen(command, env=one_thread_each(), cwd=ROOT))
        summary = bed.finish()
        assert [child.returncode for child in bed.edges] == [0]
    assert summary["updates"] == 20
    imported = {name.partition(".")[0] for name in json.loads(found.read_text())}
    assert {"numpy", "paho", "edge", "sqlite3"} <= imported
    assert not imported & NEEDLESS
