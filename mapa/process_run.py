"""A run in processes on this machine, from broker to summary: what `mapa run` and `mapa.run` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from common.dotted import is_dotted
from common.own_code import code_folder
from common.records.directory import new_run_id
from common.records.layout import LONGEST, STAMP
from common.scenario.scenario import Scenario
from common.transport.connection import Credentials
from common.wire.topics import run_id
from mapa.brokers import private, resolve_broker
from mapa.cloud_run import Setting, open_cloud
from mapa.local_run import EdgesFailedError, edge_counts, edge_processes
from mapa.recording import open_records, record_cloud, write_manifest
from mapa.run_view import View

PROCESSES = 8  # of edges, at most, unless the user says otherwise
_OWN_BROKER = 2.0  # seconds for the halt where the broker is ours: one that has died does not come back


def run_in_processes(
    setting: Setting,
    view: View,
    *,
    name: str,
    runs: Path,
    data_dir: Path,
    broker: str = "auto",
    processes: int = PROCESSES,
    say: IO[str] | None = None,
) -> dict[str, Any]:
    """Train with a broker, the cloud in this process, and edges in others; write the records, return the summary."""
    scenario, ours = setting.scenario, private(broker)
    run = run_id(new_run_id(name, most=LONGEST - STAMP))  # its name on the broker, too
    counts = edge_counts(scenario.workers, processes)
    code = edge_code(scenario)
    summary: dict[str, Any] = {}
    with (
        open_records(runs / run) as directory,
        resolve_broker(
            broker, directory.path / "broker", max_payload=setting.payload_bytes, say=say
        ) as address,
        view,
    ):
        over: list[str] = []
        with (
            open_cloud(
                setting,
                run=run,
                broker=address,
                credentials=Credentials(),
                directory=directory,
                view=view,
                edges_at_least=scenario.workers,
            ) as cloud,
            edge_processes(
                scenario,
                run=run,
                broker=address,
                directory=directory.path,
                data_dir=data_dir,
                counts=counts,
                extra=code,
            ) as children,
        ):
            write_manifest(
                directory,
                scenario,
                setting.dataset,
                name=name,
                engine="processes",
                shard_sizes=setting.shard_sizes,
            )
            cloud.patience = _OWN_BROKER if ours else cloud.patience
            children.watch(cloud.loop, over, lambda: cloud.service.halted is not None)
            reason = cloud.serve()
            failed = bool(over) and cloud.service.halted is None
            if cloud.channel.owing:
                children.patience = 0.0  # they will not hear of the halt
            if not failed:  # the records first: edges take their time, and a second Ctrl-C takes it away
                summary = record_cloud(cloud, name=name, reason=reason, engine="processes", own_edges=True)
        if failed:
            raise EdgesFailedError(over[0])
    return summary


def edge_code(scenario: Scenario) -> Sequence[str]:
    """Return the options by which edges find the user's own classes in the folders where this process found them."""
    folders: dict[Path, None] = {}
    for name in (scenario.model.name, scenario.data.set, scenario.privacy.noise):
        folder = code_folder(name) if is_dotted(name) else None
        if folder is not None:
            folders[folder] = None
    return [word for folder in folders for word in ("--code", str(folder))]
