"""Our cloud as a program of a bench: run after run, each until a line on stdin; of the tree that PYTHONPATH names.

A line of JSON asks for a run; its cloud says that it is ready, with the bytes of a hello, and ends at the next line.
Where messages are to be proven it says the name of a file instead, with what each edge needs to seal and open.
"""

from __future__ import annotations

import json
import os
import secrets
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
from common.transport.mqtt import MqttChannel
from common.wire import codec
from common.wire.topics import EdgeTopic, edge_topic
from mapa.cloud_run import CloudRun, Setting, open_cloud
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
            credentials=Credentials(
                tls=TlsFiles(ca=Path(task["ca"])) if task["ca"] else None,
                identity=identities(directory) if task.get("sealed") else None,
            ),
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
        if task.get("sealed"):
            said["hello"] = str(sealed_hellos(cloud, directory, RunId(task["run"]), task["edges"]))
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


def identities(directory: Path) -> Path:
    """Make an authority, and return the folder of the cloud's identity."""
    from mapa.authority import CLOUD, Authority, Role

    place = directory / "cloud"
    Authority.create(directory / "authority", ["localhost"]).issue(CLOUD, Role.CLOUD).write(place)
    return place


def sealed_hellos(cloud: CloudRun, directory: Path, run: RunId, edges: int) -> Path:
    """Write a line for each edge: its signed hello, its nonce, and the keys of the session that the hello begins."""
    from common.secure.boxes import RunKey
    from common.wire.guards import CloudGuard
    from common.wire.sessions import GRADIENTS, MODELS, Side, session_keys
    from common.wire.signatures import Signer
    from mapa.authority import Authority, Role

    assert isinstance(cloud.channel, MqttChannel)
    guard, life = cloud.channel.options.guard, cloud.service.server.incarnation
    assert isinstance(guard, CloudGuard)
    authority, lines = Authority(directory / "authority"), []
    for number in range(edges):
        edge_id, nonce = EdgeId(f"edge-{number}"), codec.new_nonce()
        identity = authority.issue(edge_id, Role.EDGE)
        signer = Signer(identity.key, identity.certificate, nonce, RunKey(secrets.token_bytes(32)))
        side = Side(signer.nonce, signer.run_key.public, signer.certificate)
        keys = session_keys(signer.run_key, run, life, edge_id, side, guard.side)
        hello = codec.encode(Hello(edge_id=edge_id, nonce=nonce, incarnation=life))
        signed = signer.sign(edge_topic(run, edge_id, EdgeTopic.HELLO), hello)
        lines.append(" ".join(part.hex() for part in (signed, signer.nonce, keys[GRADIENTS], keys[MODELS])))
    path = directory / "hellos"
    path.write_text("\n".join(lines), encoding="ascii")
    return path


if __name__ == "__main__":
    while line := os.read(_STDIN, 1 << 16):
        asked = json.loads(line)
        with TemporaryDirectory(dir=asked["directory"]) as folder:
            listener = metrics_listener("127.0.0.1", 0) if asked.get("metrics") else None
            print(json.dumps(serve(asked, Path(folder), listener)), flush=True)
