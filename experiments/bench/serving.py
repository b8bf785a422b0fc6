"""Our cloud as a program of a bench: run after run, each until a line on stdin; of the tree that PYTHONPATH names.

A line of JSON asks for a run; its cloud says that it is ready, with the bytes of a hello, and ends at the next line.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console

from common.datasets.dataset import Dataset, Samples
from common.messages import Hello
from common.models.linear import LogisticRegression
from common.quantities import EdgeId, RunId
from common.records.directory import RunDirectory
from common.scenario.scenario import Scenario, parse_scenario
from common.telemetry.server import metrics_listener
from common.transport.connection import Credentials, TlsFiles, parse_address
from common.transport.loop import READ, SelectorLoop
from common.wire import codec
from mapa.cloud_run import Setting, open_cloud
from mapa.run_view import view_for

_STDIN = 0


def bench_scenario(edges: int, durability: str = "process") -> Scenario:
    """Return MAPA with Gaussian noise, records on, no evaluation on the way, and no end in sight."""
    return parse_scenario(
        {
            "edges": edges,
            "iterations": 1_000_000_000,
            "batch_size": 12,
            "data": {"set": "mnist-5k"},
            "model": {"name": "lr"},
            "algorithm": {"name": "mapa", "first_clip": 6.0},
            "privacy": {"noise_multiplier": 2.0},
            "evaluation": {"every": 0},
            "records": {"durability": durability},
        }
    )


def serve(task: dict[str, Any], directory: Path, metrics: socket.socket | None = None) -> dict[str, Any]:
    """Serve one run until the next line; `log`: how durable the gradient log is, or null for none.

    The data set has one record: lean edges never ask for a gradient.
    """
    scenario = bench_scenario(task["edges"], task["log"] or "process")
    one = Samples(np.zeros((1, task["dimension"] - 1), np.float32), np.zeros(1, np.int64))
    dataset = Dataset("none", (task["dimension"] - 1,), 2, one, one, "none")
    model = LogisticRegression(shape=dataset.shape, classes=2)
    with (
        RunDirectory(directory / task["run"]) as records,
        open_cloud(
            Setting(scenario, dataset, model, [np.arange(12)] * task["edges"]),
            run=RunId(task["run"]),
            broker=parse_address(task["broker"]),
            credentials=Credentials(tls=TlsFiles(ca=Path(task["ca"])) if task["ca"] else None),
            directory=records,
            view=view_for(scenario, Console(quiet=True), quiet=True),
            edges_at_least=task["edges"],
            remembers=task["log"] is not None,
            metrics=metrics,
        ) as cloud,
    ):
        loop = cloud.loop
        assert isinstance(loop, SelectorLoop)
        loop.serve(lambda: not cloud.channel.owing)  # then the broker knows what it subscribes to
        incarnation = cloud.service.server.incarnation
        hello = Hello(edge_id=EdgeId("any"), nonce=codec.new_nonce(), incarnation=incarnation)
        said: dict[str, Any] = {"hello": codec.encode(hello).hex()}
        if metrics is not None:
            said["metrics"] = metrics.getsockname()[1]
        print(json.dumps(said), flush=True)

        def end(_mask: int) -> None:
            os.read(_STDIN, 4096)
            loop.unwatch(_STDIN)
            cloud.service.halt("interrupted")

        loop.watch(_STDIN, READ, end)
        cloud.serve()
        service = cloud.service
        return {
            "updates": service.server.updates,
            "lost": service.traffic.lost_connections,
            "dropped": dict(service.dropped),
            "refused": {why: n for why, n in service.tally.refused.items() if why != "after-halt"},
        }


if __name__ == "__main__":
    while line := os.read(_STDIN, 1 << 16):
        asked = json.loads(line)
        with TemporaryDirectory(dir=asked["directory"]) as folder:
            listener = metrics_listener("127.0.0.1", 0) if asked.get("metrics") else None
            print(json.dumps(serve(asked, Path(folder), listener)), flush=True)
