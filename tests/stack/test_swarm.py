"""docker/stack.yml on a Swarm of one node: deployed, scaled, trained to T."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from mapa.brokers import free_port
from mapa.container_run import Stack
from tests.program_support import run_program
from tests.stack.compose_support import MARKS, PATIENCE

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]


def docker(*words: str, **environment: str) -> str:
    done = run_program("docker", *words, env={**os.environ, **environment})
    assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture
def swarm(engine: Any) -> Iterator[None]:
    """A Swarm of this node alone, on its loopback; one that is there already is used and left as it was."""
    state = engine.info()["Swarm"]["LocalNodeState"]
    if state != "active":
        docker("swarm", "init", "--advertise-addr", "127.0.0.1", "--listen-addr", f"127.0.0.1:{free_port()}")
    yield
    if state != "active":
        docker("swarm", "leave", "--force")


@pytest.mark.usefixtures("swarm")
def test_a_stack_is_deployed_scaled_and_trained(engine: Any) -> None:
    name = f"mapatest{secrets.token_hex(4)}"
    environment = {
        "EDGE_IMAGE": "mapa-edge",
        "EDGES": "6",
        "REPLICAS": "2",
        "ITERATIONS": "2500",
        "BROKER_PORT": str(free_port()),
        "RUN": name,
        "EDGES_AT_LEAST": "2",
        "SET": "links=[{delay_ms = 20.0}]",
    }
    watch = Stack(engine, name)

    def containers(service: str, **more: Any) -> list[Any]:
        label = f"com.docker.swarm.service.name={name}_{service}"
        return list(engine.containers.list(filters={"label": label}, ignore_removed=True, **more))

    def cloud_says(command: list[str]) -> str:
        running = containers("cloud")
        return running[0].exec_run(command).output.decode() if running else ""

    def edges_in_training() -> int:
        script = "cat /runs/*/events.jsonl"
        lines = cloud_says(["sh", "-c", script]).splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return len({event["edge"] for event in events if event["event"] == "gradient_applied"})

    try:
        docker("stack", "deploy", "--resolve-image", "never", "-c", "docker/stack.yml", name, **environment)
        watch.until(lambda: edges_in_training() >= 2, PATIENCE, "two edges in training")
        docker("service", "scale", "--detach", f"{name}_edge=5")
        watch.until(lambda: edges_in_training() >= 5, PATIENCE, "five edges in training")

        def ended() -> bool:
            every = containers("cloud", all=True)
            return any(c.status == "exited" and c.attrs["State"]["ExitCode"] == 0 for c in every)

        watch.until(ended, PATIENCE, "the cloud to end with 0")
        watch.until(lambda: not containers("edge"), PATIENCE, "the edges to end")
        done = [c for c in containers("edge", all=True) if c.attrs["State"]["ExitCode"] == 0]
        assert len(done) >= 5
    finally:
        docker("stack", "rm", name)
        watch.until(
            lambda: not any(containers(s, all=True) for s in ("edge", "cloud", "broker", "data")),
            PATIENCE,
            "the end",
        )
        for volume in engine.volumes.list(filters={"label": f"com.docker.stack.namespace={name}"}):
            volume.remove(force=True)
