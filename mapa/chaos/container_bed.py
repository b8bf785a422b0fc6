"""A run under chaos in containers: every node has one, with a small disk of its own; relays stay on this machine."""

from __future__ import annotations

import contextlib
import io
import secrets
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from common.errors import ConfigurationError
from common.quantities import RunId
from common.records import slow_disk
from common.transport.connection import BrokerAddress
from mapa.brokers import free_port
from mapa.chaos.container_node import ContainerBroker, ContainerNode, number_of, service_of
from mapa.chaos.engine_events import EngineEvents
from mapa.chaos.plan import Plan
from mapa.chaos.schedule import CLOUD
from mapa.container_run import NUMBER, SERVICE, ContainerRun, ContainerRunError, Images, Stack, bind

_MOST = 256 << 20  # bytes of gradients: the disks are in memory
_MB = 1 << 20
_FULL = """
import os, sys
path = sys.argv[1]
descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
size = 0
for step in (1 << 24, 1 << 20, 1 << 16, 1 << 12):
    while (left := os.statvfs(path)).f_bavail * left.f_frsize >= step + 8192:
        try:
            os.posix_fallocate(descriptor, size, step)
            size += step
        except OSError:
            break
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """What every container of a run is made of."""

    client: Any
    images: Images
    environment: Mapping[str, str]
    memory: Mapping[str, str]
    data_dir: Path | None
    scenarios: Path | None

    def bed(self, plan: Plan, run: RunId, directory: Path) -> ContainerBed:
        return ContainerBed(self, plan, run, directory)


class ContainerBed:
    """The containers, disks and network of one run; nothing of them is left afterwards."""

    def __init__(self, boxes: Boxes, plan: Plan, run: RunId, directory: Path) -> None:
        self._plan, self._directory = plan, directory
        self._names = [CLOUD, *(f"edge-{k}" for k in range(1, plan.scenario.workers + 1))]
        self._sizes = disk_sizes(plan)
        self._run = ContainerRun(
            Stack(boxes.client, f"mapa-chaos-{secrets.token_hex(4)}"),
            {**boxes.environment, "RUN": run, "MAPA_RUN_FILE": "", "CONNECT_TIMEOUT": "600"},
            directory / "runs",
            boxes.images,
            boxes.data_dir,
            boxes.scenarios,
            boxes.memory,
            retries=0,
        )
        self._nodes: list[ContainerNode] = []
        self._open = contextlib.ExitStack()
        self.host = ""
        self.broker: ContainerBroker

    def __enter__(self) -> Self:
        stack = self._run.stack
        self._open.callback(self._run.down)
        try:
            port = free_port()
            self._run.prepare(ports={"1883/tcp": ("127.0.0.1", port)})
            self.broker = ContainerBroker(stack, BrokerAddress("127.0.0.1", port))
            self.host = _gateway(stack)
            self._events = self._open.enter_context(EngineEvents(stack.client, stack.project))
            (self._directory / "slow").mkdir()
            self._run.start(
                "disks",
                1,
                self._run.images.cloud,
                entrypoint=["python", "-I", "-S", "-c", "import signal; signal.pause()"],
                mounts=[self._disk(name, f"/disks/{name}") for name in self._names],
                mem_limit=sum(map(self._size, self._names)) + 64 * _MB,
                healthcheck={"test": ["NONE"]},
            )
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def node(self, name: str, broker: BrokerAddress) -> ContainerNode:
        service, target = service_of(name), "/runs" if name == CLOUD else "/state"

        def run() -> None:
            self._run.start(
                service,
                number_of(name),
                self._run.images.cloud if name == CLOUD else self._run.images.edge,
                environment={"BROKER": str(broker), slow_disk.VARIABLE: f"/chaos/{name}"},
                mounts=[self._disk(name, target), bind(self._directory / "slow", "/chaos")],
                healthcheck={"test": ["NONE"]},
            )

        node = ContainerNode(
            name, self._run.stack, self._events, run, lambda on: self._fill(name, on), self._directory
        )
        self._nodes.append(node)
        return node

    def collect(self) -> None:
        """Copy every disk and log out of the containers."""
        for container in self._run.stack.containers():
            service, number = container.labels[SERVICE], container.labels[NUMBER]
            name = f"edge-{number}" if service == "edge" else service
            (self._directory / f"{name}.log").write_bytes(container.logs())
        packed, _ = self._run.stack.container("disks").get_archive("/disks")
        with tarfile.open(fileobj=io.BytesIO(b"".join(packed))) as archive:
            archive.extractall(self._directory, filter="data")
        disks = self._directory / "disks"
        shutil.copytree(disks / CLOUD, self._directory / "runs", dirs_exist_ok=True)
        for name in self._names[1:]:
            shutil.copytree(disks / name, self._directory / "state" / name)
        shutil.rmtree(disks)

    # -- disks ----------------------------------------------------------------------------------------

    def _size(self, name: str) -> int:
        return self._sizes[service_of(name)]

    def _disk(self, name: str, target: str) -> Any:
        return self._run.disk(f"disk-{name}", target, self._size(name))

    def _fill(self, name: str, on: bool) -> None:
        """Take what is left of a disk but two pages, which is less than a record, or give it back."""
        path = f"/disks/{name}/.full"
        words = [_FULL] if on else ["import os, sys; os.path.exists(sys.argv[1]) and os.remove(sys.argv[1])"]
        done = self._run.stack.container("disks").exec_run(["python", "-I", "-S", "-c", *words, path])
        if done.exit_code:
            raise ContainerRunError(f"{name}: its disk: {done.output.decode(errors='replace').strip()}")


def disk_sizes(plan: Plan) -> dict[str, int]:
    """Return the bytes of a cloud's and of an edge's disk: twice what a run without faults needs, and room."""
    vector = 4 * plan.setting.model.dimension
    if plan.scenario.iterations * vector > _MOST:
        raise ConfigurationError(
            f"--containers: T·4N = {plan.scenario.iterations * vector >> 20} MB: must be at most {_MOST >> 20} MB,"
            " since the disks are in memory; choose fewer iterations"
        )
    return {
        "cloud": 2 * plan.scenario.iterations * (vector + 1000) + 16 * vector + 16 * _MB,
        "edge": 64 * vector + 16 * _MB,
    }


def _gateway(stack: Stack) -> str:
    """Return the address by which containers of the network reach this machine."""
    (network,) = stack.networks()
    network.reload()
    for one in network.attrs["IPAM"]["Config"]:
        if "Gateway" in one:
            return str(one["Gateway"]).partition("/")[0]
    raise ContainerRunError(f"network {network.name}: has no gateway, so containers cannot reach the relays")
