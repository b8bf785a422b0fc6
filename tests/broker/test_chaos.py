"""Chaos in its short form: seeded runs come through, and a cloud that is broken on purpose does not."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from common.datasets.catalogue import data_directory
from common.wire.topics import run_id
from mapa.chaos.faults import Fault, make_kills, parse_schedule
from mapa.chaos.processes import in_processes
from mapa.chaos.trial import ChaosTrial, TrialOutcome, TrialPlan, plan_of
from tests.program_support import Mapa, require_mosquitto, run_mapa

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]
# a link gives every machine about the same pace: else a fast one is done before anybody has come back
QUICK = (
    "testbed.silent_after=1",
    "testbed.resend_after=0.3",
    "evaluation.every=0",
    "links=[{delay_ms = 10.0}]",
)
BROKEN = Path(__file__).parent / "broken_cloud.py"


@pytest.fixture(autouse=True)
def _needs_a_broker() -> None:
    require_mosquitto()


def chaos(tmp_path: Path, *words: str) -> tuple[int, str]:
    settings = [word for setting in QUICK for word in ("--set", setting)]
    done = run_mapa("chaos", "quickstart", *settings, "--runs-dir", str(tmp_path), *words)
    return done.returncode, done.stdout + done.stderr


def test_two_seeded_runs_come_through(tmp_path: Path) -> None:
    """Of all seeds these two have every kind of fault and take the least time."""
    code, said = chaos(
        tmp_path, "--edges", "2", "--iterations", "250", "--seed", "3784", "--runs", "2", "--count", "5"
    )
    assert code == 0, said
    assert "2 runs came through" in said
    assert said.count("kill cloud at") >= 2
    assert len(re.findall(r"= distinct; mapa verify: \d+ checks passed", said)) == 2
    assert not list(tmp_path.iterdir())  # what passed is not kept


def test_a_run_with_int8_both_ways_is_killed_resumed_and_verified(tmp_path: Path) -> None:
    """Ledger and log keep the coded bytes: resends are the same, and the replay has the very values."""
    coded = ("--set", "compression.gradients=int8", "--set", "compression.models=int8")
    code, said = chaos(
        tmp_path, *coded, "--edges", "2", "--iterations", "200", "--kills", "2", "--runs", "1", "--seed", "5"
    )
    assert code == 0, said
    assert said.count("kill cloud at") >= 2
    assert len(re.findall(r"= distinct; mapa verify: \d+ checks passed", said)) == 1


def tried(tmp_path: Path, plan: TrialPlan, faults: Sequence[Fault] = ()) -> TrialOutcome:
    return ChaosTrial(plan, run_id("tried"), faults, tmp_path / "tried", print, in_processes).outcome()


def broken(tmp_path: Path, how: str, schedule: str) -> TrialOutcome:
    plan = plan_of("quickstart", QUICK, 2, 160, data_directory(os.environ), (str(BROKEN), how))
    return tried(tmp_path, plan, parse_schedule(schedule, plan.bounds))


def test_a_cloud_that_applies_a_repeat_is_found_out(tmp_path: Path) -> None:
    outcome = broken(tmp_path, "double", "disorder edge-1 at t=20 for 5s\ndisorder edge-2 at t=20 for 5s")
    assert any("applied twice" in line for line in outcome.wrong), outcome.wrong
    assert any(line.startswith("mapa verify: ") for line in outcome.wrong), outcome.wrong


def test_a_cloud_that_loses_what_it_answered_is_found_out(tmp_path: Path) -> None:
    outcome = broken(tmp_path, "forget", "kill cloud at t=80 for 0.2s")
    # by the log fewer came than were applied; a cloud that goes on all the same sends another x_t than before
    told = ("different bytes", "received ")
    assert any(text in line for text in told for line in outcome.wrong), outcome.wrong
    assert not any("traceback" in line for line in outcome.wrong), outcome.wrong


def test_a_failing_schedule_is_shrunk_to_the_fault_that_it_takes(
    mapa: Mapa, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The whole command, with a cloud that applies a gradient twice when it was resumed: only its kill is needed."""
    program = (str(BROKEN), "twice")
    monkeypatch.setattr("mapa.commands.chaos.plan_of", partial(plan_of, program=program))
    (tmp_path / "faults.txt").write_text("kill cloud at t=20 for 0.1s\nslow edge-1 at t=25 for 0.5s\n")
    settings = [word for setting in QUICK for word in ("--set", setting)]
    words = ("--edges", "2", "--iterations", "60", "--faults", "faults.txt", "--shrink", "--tries", "6")
    done = mapa("chaos", "quickstart", *settings, *words, "--data-dir", str(data_directory(os.environ)))
    assert done.code == 1, done.out
    assert "applied twice: 1 gradients" in done.out
    left = done.out.partition("these faults still fail; write them to a file for --faults:\n")[2]
    assert left.splitlines() == ["kill cloud at t=20 for 0.1s"]


# -- a cloud that is killed again and again -----------------------------------------------------------------


def self_killed(tmp_path: Path, steps: list[tuple[str, int]], updates: int, *settings: str) -> TrialOutcome:
    """Train with a cloud that kills itself at each of these steps, when it comes there for the n-th time."""
    (tmp_path / "steps.json").write_text(json.dumps(steps))
    program = (str(BROKEN), "killed", str(tmp_path / "steps.json"))
    plan = plan_of(
        *("quickstart", settings, 3, updates, data_directory(os.environ), program),
        may_end_with=(-signal.SIGKILL,),
    )
    outcome = tried(tmp_path, plan)
    assert not outcome.wrong, outcome.wrong
    assert json.loads((tmp_path / "steps.json").read_text()) == []
    assert outcome.resumed == len(steps)
    return outcome


def test_a_cloud_killed_between_any_two_steps_goes_on_where_it_was(tmp_path: Path) -> None:
    steps = [
        *((point, 40) for point in ("logged", "applied", "replied", "torn")),
        *((point, 2) for point in ("checkpoint-half", "checkpoint-written", "renamed", "segment")),
        *((point, 1) for point in ("checkpoint-half", "renamed")),  # while it resumes
    ]
    outcome = self_killed(tmp_path, steps, 1000)
    (run,) = (outcome.directory / "runs").iterdir()
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    torn = [event["torn_bytes"] for event in events if event["event"] == "resumed"]
    assert sum(size > 0 for size in torn) == 1
    printed = (outcome.directory / "cloud.log").read_text()
    assert printed.count("a torn record, which was never answered, is cut off") == 1


def test_a_cloud_that_waits_for_the_disk_goes_on_too(tmp_path: Path) -> None:
    steps = [(point, 20) for point in ("logged", "applied", "torn")]
    self_killed(tmp_path, steps, 200, 'records.durability="power"', "records.keep_gradients=true")


def test_thirty_kills_at_random_instants_lose_nothing(tmp_path: Path) -> None:
    plan = plan_of("quickstart", (), 3, 1000, data_directory(os.environ))
    outcome = tried(tmp_path, plan, make_kills(1, plan.bounds, int(os.environ.get("MAPA_KILLS", "30"))))
    assert not outcome.wrong, outcome.wrong
    (run,) = (outcome.directory / "runs").iterdir()
    assert json.loads((run / "summary.json").read_text())["final_accuracy"] > 0.7  # undisturbed: 0.82 … 0.84
