"""One scenario in containers: start, scale, inject faults, wait, read records, remove. The only docker import."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker.client import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import DriverConfig, Mount

from common.errors import ConfigurationError, MapaError
from mapa.chaos.faults import FaultKind
from mapa.runs import NewRun

REPOSITORY = Path(__file__).parents[1]
PROJECT = "com.docker.compose.project"  # Compose's own labels: what it started is found by them too
SERVICE = "com.docker.compose.service"
NUMBER = "com.docker.compose.container-number"
_LOOK_EVERY = 0.1  # seconds between two looks at a container or at the records
# /proc, because the images have no ps; the first process is the engine's init, and its child the program
_SIGNAL = """
import os, sys
for name in filter(str.isdecimal, os.listdir("/proc")):
    if open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1] == "1":
        os.kill(int(name), int(sys.argv[1]))
        sys.exit(0)
sys.exit("no program runs")
"""


class ContainerRunError(MapaError):
    """A container failed or did not become ready; the message has the last log lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    cloud: str = "mapa-cloud"
    edge: str = "mapa-edge-cnn"
    broker: str = "eclipse-mosquitto:2"


def connect() -> Any:
    """Return a client of the Docker engine; raise ConfigurationError if none is found."""
    try:
        client = DockerClient.from_env(timeout=120)
        client.ping()
    except DockerException as error:
        _drop_sockets(error)
        raise ConfigurationError(f"no Docker engine found ({error}); `make engine` starts one") from error
    return client


def _drop_sockets(error: BaseException | None) -> None:
    """Close the socket that the docker library leaves open in its frames where no engine answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__


@dataclass(slots=True)
class Stack:
    """The containers of one project by name: broker, cloud, edge-1, edge-2, …, also those that Compose started."""

    client: Any
    project: str

    def containers(self, service: str | None = None) -> list[Any]:
        """Return all of a service, also those that have ended, in the order of their numbers."""
        labels = [f"{PROJECT}={self.project}", *([f"{SERVICE}={service}"] if service else [])]
        containers = self.client.containers.list(all=True, filters={"label": labels}, ignore_removed=True)
        return sorted(containers, key=lambda container: int(container.labels.get(NUMBER, "1")))

    def container(self, name: str) -> Any:
        service, _, number = name.partition("-")
        for container in self.containers(service):
            if not number or container.labels.get(NUMBER) == number:
                return container
        raise ConfigurationError(f"no container {name!r} in project {self.project!r}")

    # -- faults -----------------------------------------------------------------------------------------

    def fault(self, kind: FaultKind, name: str, on: bool) -> None:
        """Begin or end a fault; from a crash the container's restart policy brings it back."""
        container = self.container(name)
        match kind, on:
            case FaultKind.KILL, True:
                container.kill("SIGKILL")
                container.wait()
            case FaultKind.KILL, False:
                container.start()
            case FaultKind.CRASH, True:
                self.send(name, signal.SIGKILL, inside=True)
            case FaultKind.PAUSE, True:
                container.pause()
            case FaultKind.PAUSE, False:
                container.unpause()
            case FaultKind.PARTITION, True:
                for network in self.networks():
                    network.disconnect(container)
            case FaultKind.PARTITION, False:
                service = container.labels[SERVICE]  # the name that the others know it by
                for network in self.networks():
                    network.connect(container, aliases=[service, container.name])

    def send(self, name: str, number: signal.Signals, *, inside: bool) -> None:
        """Send a signal by the engine, or within its container to the program of a cloud or an edge.

        No restart policy starts a container again that the engine itself has killed; one whose program ends it does.
        """
        container, wrong = self.container(name), ""
        try:
            if inside:
                done = container.exec_run(["python", "-I", "-S", "-c", _SIGNAL, str(int(number))])
                if done.exit_code not in (0, 137):  # 137: the container ended before the answer
                    wrong = done.output.decode(errors="replace").strip()
            else:
                container.kill(number.name)
        except APIError as error:
            raise ContainerRunError(f"{name}: no {number.name}: {error.explanation}") from error
        if wrong:
            raise ContainerRunError(f"{name}: no {number.name}: {wrong}")

    def networks(self) -> list[Any]:
        return list(self.client.networks.list(filters={"label": f"{PROJECT}={self.project}"}))

    def gateway(self) -> str:
        """Return the address by which containers of the network reach this machine."""
        (network,) = self.networks()
        network.reload()
        for subnet in network.attrs["IPAM"]["Config"]:
            if "Gateway" in subnet:
                return str(subnet["Gateway"]).partition("/")[0]
        raise ContainerRunError(
            f"network {network.name}: has no gateway, so containers cannot reach the relays"
        )

    # -- waiting ----------------------------------------------------------------------------------------

    def wait(self, name: str, timeout: float) -> int:
        container = self.container(name)

        def ended() -> bool:
            container.reload()
            return bool(container.status == "exited")

        self.until(ended, timeout, f"{name} to end")
        return int(container.attrs["State"]["ExitCode"])

    def end(self, service: str, seconds: float) -> None:
        """Wait, at most that long each, for the containers of a service to end; kill those that do not."""
        for container in self.containers(service):
            until = time.monotonic() + seconds
            while container.status == "running" and time.monotonic() < until:
                time.sleep(_LOOK_EVERY)
                container.reload()
            if container.status in ("running", "paused"):
                container.kill("SIGKILL")

    def until(self, condition: Callable[[], bool], timeout: float, event: str) -> None:
        """Wait for a condition; at the timeout raise an error with the last log lines of all containers."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise ContainerRunError(
                    f"timed out after {timeout:g} s waiting for {event}: {self.last_lines()}"
                )
            time.sleep(_LOOK_EVERY)

    def last_lines(self, lines: int = 3) -> str:
        logs = []
        for container in self.containers():
            output = container.logs(tail=lines).decode(errors="replace").strip().splitlines()
            logs.append(f"{container.name} ({container.status}): {' / '.join(output)}")
        return " | ".join(logs)


def split_name(name: str) -> tuple[str, int]:
    """Return service and number of a container: edge-2 → ("edge", 2), cloud → ("cloud", 1)."""
    service, _, number = name.partition("-")
    return service, int(number or 1)


@dataclass(slots=True)
class ContainerRun:
    """One scenario in containers started here, with their own network and volumes."""

    stack: Stack
    environment: Mapping[str, str]  # as in .env.example
    runs: Path
    images: Images = field(default_factory=Images)
    data_dir: Path | None = None  # a folder of the host that holds the data sets
    scenarios: Path | None = None  # a folder of the host that holds the scenario
    memory: dict[str, str] = field(default_factory=dict)  # limits, by service
    retries: int = 5  # of the restart policy, as in docker-compose.yml; 0: no end
    tail: NewRun = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ContainerRunError(f"--runs-dir {self.runs}: cannot write records there: {error}") from error
        self.tail = NewRun(self.runs)

    def up(self, edges: int, timeout: float = 120.0) -> None:
        """Start the broker, get the data, start the cloud and then the edges."""
        self.prepare(timeout)
        self.start("cloud", 1, self.images.cloud)
        self.healthy("cloud", timeout)
        self.scale(edges)

    def prepare(self, timeout: float = 120.0, **broker: Any) -> None:
        """Make the network, start the broker and get the data."""
        self.stack.client.networks.create(self._named("federation"), labels={PROJECT: self.stack.project})
        self.start("broker", 1, self.images.broker, **broker)
        self.healthy("broker", timeout)
        self.start("data", 1, self.images.cloud, command=["data"])
        if code := self.stack.wait("data", timeout):
            raise ContainerRunError(
                f"could not get the data set (exit code {code}): {self.stack.last_lines()}"
            )

    def scale(self, edges: int) -> None:
        """Start or stop edges until this many run; the last started are stopped first, and leave properly."""
        running = [c for c in self.stack.containers("edge") if c.status in ("running", "paused", "created")]
        highest = max((int(c.labels[NUMBER]) for c in self.stack.containers("edge")), default=0)
        for surplus in reversed(running[edges:]):
            surplus.stop(timeout=20)
        for number in range(highest + 1, highest + 1 + edges - len(running)):
            self.start("edge", number, self.images.edge)

    def summary(self) -> dict[str, Any] | None:
        """Return the run's summary with its path on this host; None: there is none."""
        return self.tail.reported()

    def down(self) -> None:
        """Remove containers, network and volumes; the records stay."""
        for container in self.stack.containers():
            with contextlib.suppress(NotFound, APIError):
                container.remove(force=True, v=True)
        for network in self.stack.networks():
            network.remove()
        for volume in self.stack.client.volumes.list(filters={"label": f"{PROJECT}={self.stack.project}"}):
            volume.remove(force=True)

    # -- parts ------------------------------------------------------------------------------------------

    def start(
        self,
        service: str,
        number: int,
        image: str,
        *,
        environment: Mapping[str, str] | None = None,
        mounts: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        """Run one container; ours are read-only, without capabilities and with the caller's own user.

        `environment` comes on top of the run's, `mounts` take the place of those with their target.
        """
        network = self._named("federation")
        variables = {"BROKER": "broker", "MAPA_RUN_FILE": "/shared/run", **self.environment}
        more: dict[str, Any] = {}
        if service == "broker":
            more["healthcheck"] = _check(["mosquitto_pub", "-h", "127.0.0.1", "-t", "health", "-n"])
            more["tmpfs"] = {"/mosquitto/data": "", "/mosquitto/log": ""}
            if _broker_files():
                more["command"] = ["sh", "/mosquitto/config/start.sh"]
        else:
            more |= {
                "user": f"{os.getuid()}:{os.getgid()}",
                "read_only": True,
                "tmpfs": {"/tmp": "", "/run/mapa": "mode=1777"},
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges:true"],
            }
        if service == "cloud":
            more["healthcheck"] = _check([*_HEALTH, "30"])
        if service in ("cloud", "edge"):
            more["restart_policy"] = {"Name": "on-failure", "MaximumRetryCount": self.retries}
        taken = {mount["Target"] for mount in mounts}
        endpoint = self.stack.client.api.create_endpoint_config(aliases=[service])
        more |= {
            "name": f"{self.stack.project}-{service}-{number}",
            "labels": {PROJECT: self.stack.project, SERVICE: service, NUMBER: str(number)},
            "detach": True,
            "init": True,
            "environment": {**variables, **(environment or {})},
            "mounts": [*mounts, *(m for m in self._mounts(service) if m["Target"] not in taken)],
            "mem_limit": self.memory.get(service, "1g"),
            "network": network,
            "networking_config": {network: endpoint},
        }
        try:
            self.stack.client.containers.run(image, **(more | options))
        except ImageNotFound as error:
            raise ConfigurationError(f"{error.explanation}; `make images` builds the images") from error

    def volume(self, part: str, target: str, size: int | None = None) -> Any:
        """Return the mount of a volume of this run; with a size it is in memory, while a container that has it runs."""
        options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={size},mode=1777"}
        driver = None if size is None else DriverConfig("local", options)
        labels = {PROJECT: self.stack.project}
        return Mount(target, self._named(part), type="volume", labels=labels, driver_config=driver)

    def _named(self, part: str) -> str:
        return f"{self.stack.project}_{part}"

    def _mounts(self, service: str) -> list[Any]:
        if service == "broker":
            return [bind(_BROKER / name, f"/mosquitto/config/{name}") for name in _broker_files()]
        mounts = [self.volume("state", "/state")] if service == "edge" else []
        mounts += [bind(self.runs, "/runs", read_only=False)] if service == "cloud" else []
        mounts.append(self.volume("shared", "/shared"))
        mounts.append(self.volume("data", "/data") if self.data_dir is None else bind(self.data_dir, "/data"))
        return mounts + ([] if self.scenarios is None else [bind(self.scenarios, "/scenarios")])

    def healthy(self, name: str, timeout: float) -> None:
        container = self.stack.container(name)

        def healthy() -> bool:
            container.reload()
            if container.status == "exited":
                raise ContainerRunError(f"{name} exited before it was ready: {self.stack.last_lines()}")
            return bool(container.attrs["State"].get("Health", {}).get("Status") == "healthy")

        self.stack.until(healthy, timeout, f"{name} to be healthy")


_HEALTH = ["python", "-I", "-S", "/usr/local/bin/mapa-health", "/run/mapa/health"]
_BROKER = REPOSITORY / "docker" / "mosquitto"
_SECOND = 1_000_000_000  # in the nanoseconds that the engine counts


def _broker_files() -> list[str]:
    """Return our configuration and start script; none where only the wheel is installed: the image has its own."""
    return [name for name in ("mosquitto.conf", "start.sh") if (_BROKER / name).is_file()]


def _check(command: list[str]) -> dict[str, Any]:
    return {"test": ["CMD", *command], "interval": 2 * _SECOND, "timeout": 10 * _SECOND, "retries": 30}


def bind(source: Path, target: str, *, read_only: bool = True) -> Any:
    """Return the mount of a file or folder of the host."""
    return Mount(target, str(source.resolve()), type="bind", read_only=read_only)
