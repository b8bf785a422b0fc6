"""A pace, local steps, truncated batches and device profiles at once, in containers: every edge makes its R_k."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mapa.verification.untrusted_files import find_ledgers
from tests.program_support import run_mapa
from tests.stack.compose_support import MARKS, Compose, assert_applied_exactly_once, compose

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]

CAPS = [6, 12, 18]  # messages; those of z are chosen so that E·R_k releases stay within the budget
SCENARIO = """# Three edges of unlike devices, each with its own number of messages
edges = 3
iterations = 60
batch_size = 64
devices = [{ name = "pi4", reference_ms = 2 }, { name = "attic", slowdown = 2, reference_ms = 2 }, { name = "laptop" }]
data = { set = "mnist-5k", sampler = "truncated-poisson", largest_batch = 80 }
model.name = "lr"
algorithm = { name = "constant", rate = 0.2, first_clip = 1.0 }
local = { steps = 2, rate = 0.05 }
evaluation.every = 0

[privacy]
clipping = "normalised"
total_epsilon = 4.0
pace = "own"
noise_multiplier = [1.5, 1.8, 2.1]
release_caps = [6, 12, 18]
"""


def ledgers_of(project: Compose, directory: Path) -> Path:
    """Copy the state volume, where every edge has its ledger, out of a container that has ended."""
    stream, _ = project.stack.containers("edge")[0].get_archive("/state")
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        archive.extractall(directory, filter="data")
    return directory / "state"


def test_paced_edges_with_local_steps_and_truncated_batches_reach_their_caps_and_are_verified(
    engine: Any, tmp_path: Path
) -> None:
    scenarios = tmp_path / "scenarios"
    scenarios.mkdir()
    (scenarios / "paced.toml").write_text(SCENARIO, encoding="utf-8")
    # a budget needs the accountant, which the smallest image does not have
    places = {"SCENARIO": "paced", "SCENARIOS_DIR": str(scenarios)}
    places |= {"EDGE_IMAGE": "mapa-edge-cnn", "EDGE_TARGET": "edge-cnn"}
    with compose(engine, tmp_path / "runs", **places) as project:
        project.up(3)
        summary = project.finish()
        assert (summary["reason"], summary["updates"]) == ("finished", sum(CAPS))
        per_edge = assert_applied_exactly_once(project.records, sum(CAPS))
        assert [per_edge[k] for k in range(3)] == CAPS == summary["releases"]
        assert [row["charges"] for row in summary["privacy"]["edges"]] == [2 * cap for cap in CAPS]
        path = project.records.path
        assert path is not None
        state = ledgers_of(project, tmp_path)
    found = find_ledgers(path, path.name, [state])
    assert sorted(one.releases for one in found.statements) == CAPS
    verified = run_mapa("verify", str(path), "--ledger", str(state))
    assert verified.returncode == 0, verified.stdout + verified.stderr
