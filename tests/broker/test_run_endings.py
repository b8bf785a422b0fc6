"""How mapa run ends when it is not left to finish: signals, a dead broker, nothing to begin with."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from common.scenario.scenario import parse_scenario
from mapa.brokers import free_port
from tests.program_support import MAPA, PATIENCE, SIGINT_IGNORED, eventually, journal_has, start_mapa
from tests.program_support import run_mapa as mapa

pytestmark = pytest.mark.broker
RECORDS = {"manifest.json", "events.jsonl", "summary.json", "model.safetensors"}
LONG = ("quickstart", "--set", "iterations=1000000", "--edges", "4", "--processes", "2", "--json")


# A run that waits for its edges as long as they take: where it should not wait, the test does not end.
PATIENT = (
    sys.executable,
    "-c",
    "from mapa import cli, process_run\nprocess_run._GRACE = 1e6\ncli.main()",
)


@contextlib.contextmanager
def started(runs: Path, *arguments: str, program: Sequence[str] = MAPA) -> Iterator[subprocess.Popen[bytes]]:
    """Run mapa in a session of its own, as a terminal does, and wait for its first update."""
    with (runs.parent / "printed").open("wb") as printed:
        words = ("run", *arguments, "--runs-dir", str(runs))
        child = start_mapa(*words, program=program, stdout=printed, stderr=printed, start_new_session=True)
    try:
        eventually(lambda: child.poll() is not None or journal_has(runs, '"gradient_applied"'), "an update")
        assert child.poll() is None, (runs.parent / "printed").read_text()
        yield child
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def offspring(parent: int) -> dict[int, str]:
    """Return the children of a process and their names; those that ended and wait to be buried are not among them."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            state, ppid = rest.split()[:2]
            if int(ppid) == parent and state != "Z":
                found[int(path.parent.name)] = name
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def only_run(runs: Path) -> Path:
    (path,) = runs.iterdir()
    return path


@pytest.mark.parametrize("broker", ["mosquitto", "embedded"])
def test_ctrl_c_at_a_terminal_ends_with_every_record_and_no_edge_killed(
    broker: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if broker == "mosquitto":
        request.getfixturevalue("mosquitto")
    with started(tmp_path / "runs", *LONG, "--broker", broker) as child:
        children = offspring(child.pid)
        assert len(children) == 3
        os.killpg(child.pid, signal.SIGINT)  # as a terminal: to everybody in the group
        assert child.wait(PATIENCE) == 130
        assert not any(map(alive, children))
    path = only_run(tmp_path / "runs")
    assert {file.name for file in path.iterdir()} >= RECORDS
    assert json.loads((path / "summary.json").read_text())["reason"] == "interrupted"
    logs = [log.read_text() for log in path.glob("edges-*.log")]
    assert len(logs) == 2
    assert all("the run has ended" in log for log in logs)


@pytest.mark.usefixtures("mosquitto")
@pytest.mark.parametrize(
    ("number", "launcher"),
    [(signal.SIGINT, ()), (signal.SIGINT, SIGINT_IGNORED), (signal.SIGTERM, SIGINT_IGNORED)],
    ids=["SIGINT", "SIGINT-in-the-background", "SIGTERM-in-the-background"],
)
def test_two_ctrl_c_in_a_row_leave_nobody_running_and_the_records_whole(
    tmp_path: Path, number: signal.Signals, launcher: tuple[str, ...]
) -> None:
    program = [*launcher, *PATIENT]
    with started(tmp_path / "runs", *LONG, "--broker", "mosquitto", program=program) as child:
        children = offspring(child.pid)
        for pid in (pid for pid, name in children.items() if name != "mosquitto"):
            os.kill(pid, signal.SIGSTOP)  # edges that do not go by themselves
        path = only_run(tmp_path / "runs")
        os.killpg(child.pid, number)
        eventually((path / "summary.json").exists, "a summary before the edges are waited for")
        os.killpg(child.pid, number)
        assert child.wait(PATIENCE) == 130
        assert not any(map(alive, children))
    assert {file.name for file in path.iterdir()} >= RECORDS


@pytest.mark.usefixtures("mosquitto")
def test_where_its_broker_has_died_ctrl_c_waits_for_nobody(tmp_path: Path) -> None:
    loud = [word for word in LONG if word != "--json"]
    with started(tmp_path / "runs", *loud, "--broker", "mosquitto", program=PATIENT) as child:
        children = offspring(child.pid)
        (broker,) = (pid for pid, name in children.items() if name == "mosquitto")
        os.kill(broker, signal.SIGKILL)
        os.killpg(child.pid, signal.SIGINT)
        assert child.wait(PATIENCE) == 130
        assert not any(map(alive, children))
    assert {file.name for file in only_run(tmp_path / "runs").iterdir()} >= RECORDS
    assert "halt not delivered" in (tmp_path / "printed").read_text()


@pytest.mark.usefixtures("mosquitto")
def test_a_killed_run_takes_its_children_along_and_its_manifest_is_there(tmp_path: Path) -> None:
    with started(tmp_path / "runs", *LONG, "--broker", "mosquitto") as child:
        children = offspring(child.pid)
        assert sorted(children.values())[0] == "mosquitto"
        assert len(children) == 3
        child.kill()
        child.wait()
        eventually(lambda: not any(map(alive, children)), "the end of the children")
    manifest = json.loads((only_run(tmp_path / "runs") / "manifest.json").read_text())
    assert (manifest["engine"], manifest["scenario"]["edges"]) == ("processes", 4)


@pytest.mark.usefixtures("mosquitto")
def test_a_scenario_with_a_total_budget_makes_as_many_gradients_as_were_planned_and_no_more(
    tmp_path: Path,
) -> None:
    changes = ["model.name=softmax", "privacy.releases=10", "iterations=1000"]
    arguments = [part for change in changes for part in ("--set", change)]
    options = ["--edges", "2", "--processes", "1", "--broker", "mosquitto", "--runs-dir", str(tmp_path)]
    done = mapa("run", "private-scattering-mnist-5k", *arguments, *options, "--json")
    assert done.returncode == 3, done.stderr  # no budget left
    ended = json.loads(done.stdout)
    assert ended["updates"] == sum(ended["releases"]) == 20
    manifest = json.loads((Path(ended["path"]) / "manifest.json").read_text())
    privacy = parse_scenario(manifest["scenario"]).privacy  # what the edges were sent
    assert (privacy.total_epsilon, privacy.releases) == (2.0, None)
    assert privacy.noise_multiplier is not None
    assert mapa("ledger", ended["path"], "--json").returncode == 0


@pytest.mark.usefixtures("mosquitto")
def test_no_gradient_counts_as_on_its_way_that_the_budget_does_not_permit(tmp_path: Path) -> None:
    changes = ["model.name=softmax", "privacy.releases=10", "iterations=10"]  # the last one brings the halt
    arguments = [part for change in changes for part in ("--set", change)]
    options = ["--edges", "1", "--broker", "mosquitto", "--runs-dir", str(tmp_path), "--json"]
    done = mapa("run", "private-scattering-mnist-5k", *arguments, *options)
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert ended["releases"] == [10]
    assert 1.9 < ended["privacy"]["epsilon"] <= 2.0


@pytest.mark.parametrize("command", ["run", "cloud"])
def test_a_broker_that_cannot_be_asked_leaves_no_records(command: str, tmp_path: Path) -> None:
    name = ["--run", "lab"] if command == "cloud" else []
    done = mapa(command, "quickstart", *name, "--broker", "bogus:99999", "--runs-dir", str(tmp_path / "runs"))
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_broker_that_does_not_answer_leaves_no_records(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = ["--connect-timeout", "0.2", "--runs-dir", str(tmp_path / "runs")]
    done = mapa("cloud", "quickstart", "--run", "lab", "--broker", address, *options)
    assert done.returncode == 1, done.stderr
    assert list((tmp_path / "runs").iterdir()) == []
