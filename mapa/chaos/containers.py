"""A run under chaos in containers: each service has one, with a small disk of its own; relays stay on this machine."""

from __future__ import annotations

import contextlib
import io
import shutil
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

from common.errors import BrokerUnavailableError, ConfigurationError
from common.transport.connection import BrokerAddress
from mapa.brokers import accepts, free_port
from mapa.chaos.faults import BROKER, CLOUD, FaultKind
from mapa.chaos.trial import FAILED, Environment, Service, TrialPlan
from mapa.container_run import (
    NUMBER,
    PROJECT,
    SERVICE,
    ContainerRun,
    ContainerRunError,
    Stack,
    bind,
    split_name,
)

_MOST = 256 << 20  # bytes of gradients: the disks are in memory
_MB = 1 << 20
_KILLED = 128 + int(signal.SIGKILL)
_TOLD_EARLY = (128 + int(signal.SIGTERM), 130)  # of an edge that is told to go while it starts
_PATIENCE = 60.0  # seconds for the engine to do what it was told
_HEARD = 5.0  # seconds until its event of an end has come
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
_EMPTY = "import os, sys; os.path.exists(sys.argv[1]) and os.remove(sys.argv[1])"


class EngineEvents:
    """A thread that hears the starts and ends of a project's containers, those by a restart policy among them."""

    def __init__(self, client: Any, project: str) -> None:
        self._listeners: dict[str, Callable[[int | None], None]] = {}  # by the container's name
        self._changed = threading.Condition()
        filters = {"label": f"{PROJECT}={project}", "type": "container", "event": ["start", "die"]}
        self._stream = client.events(decode=True, filters=filters)
        self._thread = threading.Thread(target=self._listen, name="mapa-engine-events", daemon=True)

    def tell(self, container: str, listener: Callable[[int | None], None]) -> None:
        """Call the listener with the exit code at every end of a container, and with None at every start."""
        self._listeners[container] = listener

    def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until a condition holds, which is looked at after every event; return False if it never did."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def _listen(self) -> None:
        for event in self._stream:
            attributes = event["Actor"]["Attributes"]
            listener = self._listeners.get(attributes.get("name", ""))
            if listener is not None:
                with self._changed:
                    listener(int(attributes["exitCode"]) if event["Action"] == "die" else None)
                    self._changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._thread.join(10.0)


class ContainerService(Service):
    """A cloud or an edge. After a kill, or a full disk, its restart policy brings it back, not this program."""

    def __init__(
        self,
        name: str,
        directory: Path,
        stack: Stack,
        events: EngineEvents,
        run: Callable[[], None],  # its container
        fill: Callable[[bool], None],
    ) -> None:
        super().__init__(name, directory)
        self._stack, self._events, self._run, self._fill = stack, events, run, fill
        self._running = self._full = self._left = False
        service, number = split_name(name)
        events.tell(f"{stack.project}-{service}-{number}", self._on_event)

    def _on_event(self, code: int | None) -> None:
        if code is None:
            self.starts += 1
            self._allowed = {0, FAILED} if self._full else {0}
        else:
            self._note_end(code)
        self._running = code is None  # last: its end is noted before it counts as ended

    @property
    def running(self) -> bool:
        return self._running

    def start(self) -> None:
        self._run()
        self._until(lambda: self._running, "start")

    def come_back(self) -> bool:
        """Start a container that was told to go; any other comes back by itself."""
        if self._left:
            self._left = False
            self._stack.container(self.name).start()
            self._until(lambda: self._running, "start again")
        return self._running

    def kill(self) -> None:
        if not self._running:
            return
        self.allow(_KILLED)
        before = len(self.ends)
        self._signal(signal.SIGKILL, inside=True)
        self._until(lambda: len(self.ends) > before, "end")

    def pause(self, on: bool) -> None:
        self._signal(signal.SIGSTOP if on else signal.SIGCONT, inside=True)

    def dismiss(self) -> None:
        """Tell an edge to leave, also one that is paused; no policy starts it again."""
        self.pause(False)
        self.allow(*_TOLD_EARLY)
        self._left = True
        self._signal(signal.SIGTERM, inside=False)

    def fill(self, on: bool) -> None:
        self._full = on
        if on:
            self.allow(FAILED)
        self._fill(on)

    def end(self, patience: float) -> None:
        """Wait for the end, also of what a policy is about to start again; kill it if it does not come."""

        def over() -> bool:
            no_restart = not self.ends or self._left or self.ends[-1].code == 0
            return not self._running and no_restart

        if not self._events.until(over, patience):
            self._allowed = {0}
            self._signal(signal.SIGKILL, inside=False)
            self._until(lambda: not self._running, "end")

    def last_lines(self, lines: int = 3) -> str:
        output = self._stack.container(self.name).logs(tail=lines).decode(errors="replace")
        return " / ".join(output.strip().splitlines())[-600:]

    def _signal(self, number: signal.Signals, *, inside: bool) -> None:
        """Send a signal; a container that has ended meanwhile needs none."""
        before = len(self.ends)
        try:
            self._stack.send(self.name, number, inside=inside)
        except ContainerRunError:
            if not self._events.until(lambda: not self._running or len(self.ends) > before, _HEARD):
                raise

    def _until(self, condition: Callable[[], bool], action: str) -> None:
        if not self._events.until(condition, _PATIENCE):
            raise ContainerRunError(f"{self.name}: did not {action} in {_PATIENCE:g} s")


class ContainerBroker:
    """The Mosquitto of a run; its port on this machine stays."""

    def __init__(self, stack: Stack, address: BrokerAddress) -> None:
        self._stack, self.address = stack, address

    def kill(self) -> None:
        self._stack.fault(FaultKind.KILL, BROKER, True)

    def stop(self) -> None:
        self._stack.container(BROKER).stop(timeout=10)

    def start(self) -> None:
        self._stack.fault(FaultKind.KILL, BROKER, False)
        until = time.monotonic() + _PATIENCE
        while not accepts(self.address):
            if time.monotonic() > until:
                raise BrokerUnavailableError(f"broker on {self.address} did not start again")
            time.sleep(0.02)

    def pause(self, on: bool) -> None:
        self._stack.fault(FaultKind.PAUSE, BROKER, on)


@contextlib.contextmanager
def in_containers(run: ContainerRun, plan: TrialPlan, directory: Path) -> Iterator[Environment]:
    """Start the broker, the network and the disks of a run; nothing of them is left afterwards."""
    stack, sizes = run.stack, disk_sizes(plan)

    def disk(name: str, target: str) -> Any:
        return run.volume(f"disk-{name}", target, sizes[split_name(name)[0]])

    def fill(name: str, on: bool) -> None:
        """Take what is left of a disk but two pages, which is less than a record, or give it back."""
        program = ["python", "-I", "-S", "-c", _FULL if on else _EMPTY, f"/disks/{name}/.full"]
        done = stack.container("disks").exec_run(program)
        if done.exit_code:
            raise ContainerRunError(f"{name}: its disk: {done.output.decode(errors='replace').strip()}")

    def start(name: str, broker: BrokerAddress) -> None:
        service, number = split_name(name)
        slow_disk = ["python", "-m", "mapa.chaos.slow_disk", f"/chaos/{name}"]
        run.start(
            service,
            number,
            run.images.cloud if name == CLOUD else run.images.edge,
            environment={"BROKER": str(broker)},
            entrypoint=[*slow_disk, "mapa.container", service],
            mounts=[disk(name, "/runs" if name == CLOUD else "/state"), bind(directory / "slow", "/chaos")],
            healthcheck={"test": ["NONE"]},
        )

    def service(name: str, broker: BrokerAddress) -> ContainerService:
        begin = partial(start, name, broker)
        return ContainerService(name, directory, stack, events, begin, partial(fill, name))

    def collect() -> None:
        for container in stack.containers():
            service, number = container.labels[SERVICE], container.labels[NUMBER]
            name = f"edge-{number}" if service == "edge" else service
            (directory / f"{name}.log").write_bytes(container.logs())
        packed, _ = stack.container("disks").get_archive("/disks")
        with tarfile.open(fileobj=io.BytesIO(b"".join(packed))) as archive:
            archive.extractall(directory, filter="data")
        disks = directory / "disks"
        shutil.copytree(disks / CLOUD, directory / "runs", dirs_exist_ok=True)
        for name in plan.services[1:]:
            shutil.copytree(disks / name, directory / "state" / name)
        shutil.rmtree(disks)

    try:
        port = free_port()
        run.prepare(ports={"1883/tcp": ("127.0.0.1", port)})
        (directory / "slow").mkdir()
        with EngineEvents(stack.client, stack.project) as events:
            run.start(
                "disks",
                1,
                run.images.cloud,
                entrypoint=["python", "-I", "-S", "-c", "import signal; signal.pause()"],
                mounts=[disk(name, f"/disks/{name}") for name in plan.services],
                mem_limit=sum(sizes[split_name(name)[0]] for name in plan.services) + 64 * _MB,
                healthcheck={"test": ["NONE"]},
            )
            broker = ContainerBroker(stack, BrokerAddress("127.0.0.1", port))
            yield Environment(broker, stack.gateway(), service, collect)
    finally:
        run.down()


def disk_sizes(plan: TrialPlan) -> dict[str, int]:
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
