"""What a run's summary states is never less than what the edges' ledgers hold, and nothing where nothing left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.accounting.releases import Spent
from common.accounting.total import total
from common.records.directory import RunDirectory
from common.records.tally import Tally
from edge.client import EdgeClient
from edge.session import Ending
from mapa.cloud_run import CloudRun, Setting
from mapa.recording import record_cloud
from mapa.simulation.simulator import World
from tests.core_support import small_dataset
from tests.mapa.test_conversation import RUN, Talk, talk
from tests.memory_broker import MemoryChannel


def summary_of(run: Talk, path: Path) -> dict[str, Any]:
    world = World.on(run.scenario, small_dataset())
    setting = Setting(run.scenario, world.dataset, world.model, world.rows)
    with RunDirectory(path) as directory:
        cloud = CloudRun(setting, run.service, run.service.channel, run.broker, directory)  # type: ignore[arg-type]
        return record_cloud(cloud, name="r", reason="interrupted", engine="network")


def die(client: EdgeClient) -> None:
    """End an edge as SIGKILL does."""
    assert isinstance(client.connection.channel, MemoryChannel)
    client.connection.channel.lose()
    client.session.receive(Ending(0, "left", "killed"))  # nothing of it is performed


def test_restarts_with_the_shuffled_sampler_are_counted(tmp_path: Path) -> None:
    privacy = {"noise": "gaussian", "noise_multiplier": 2.0}
    run = Talk(talk(seed=None, iterations=400, data={"sampler": "shuffled"}, privacy=privacy, edges=1))
    run.service.records.tally = Tally()
    edge = run.edge()
    for _ in range(6):
        done = run.service.server.updates
        run.until(lambda done=done: run.service.server.updates >= done + 2)
        die(edge)
        edge = run.edge(ledger=edge.ledger)  # type: ignore[arg-type]
    done = run.service.server.updates
    run.until(lambda: run.service.server.updates >= done + 2)
    die(edge)
    standing = edge.ledger.standing(RUN)
    assert standing.charges >= 7  # one epoch holds 48 batches, and there were seven starts
    summary = summary_of(run, tmp_path / "run")
    [row] = summary["privacy"]["edges"]
    assert row["charges"] >= standing.charges
    held = total([Spent(standing.account.kind, standing.charges)], 1e-5).epsilon
    assert summary["privacy"]["epsilon"] >= held
    assert any("each start of an edge's process" in line for line in summary["privacy"]["words"])


@pytest.mark.parametrize("sampler", ["poisson", "shuffled"])
def test_a_run_that_ends_before_a_model_was_sent_states_no_release(tmp_path: Path, sampler: str) -> None:
    run = Talk(talk(seed=None, data={"sampler": sampler}), edges_at_least=3)
    run.service.records.tally = Tally()
    for _ in range(2):
        run.edge()
    run.broker.settle()
    assert len(run.service.server.edges) == 2
    run.service.halt("interrupted")
    summary = summary_of(run, tmp_path / "run")
    assert summary["releases"] == [0, 0]
    assert summary["privacy"]["words"] == ["Nothing was released."]
    assert all(client.ledger.last_sequence(RUN) == 0 for client in run.clients)
