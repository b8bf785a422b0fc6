"""mapa containers: one scenario in containers on this machine, with faults on request."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from common.datasets.source import LOCAL
from common.dotted import is_dotted
from common.errors import ConfigurationError
from common.models.registry import model_class
from common.scenario.scenario import Scenario
from common.wire.v1 import payload_limit
from mapa.cloud_run import EXIT_CODES
from mapa.commands import options
from mapa.commands.groups import with_groups
from mapa.commands.report import report
from mapa.commands.scenario_options import ScenarioOptions
from mapa.container import SCENARIOS
from mapa.faults import Fault, FaultEvent, Scale, parse_fault_event
from mapa.figure_lines import PREFIX, line_of
from mapa.local_run import dotted_paths, permitted
from mapa.output import progress_console
from mapa.recipes import recipe_names
from mapa.run_parts import NEEDS_FILES, edge_data_bytes, parameters_of
from mapa.scenario_files import find_scenario

DEFAULT_IMAGE = "mapa-edge-cnn"
_LOOK_EVERY = 0.1  # seconds between two looks at the records
_LOOK_AT_MEMORY = 5.0  # seconds between two looks at whether an edge ran out of memory
_MESSAGE = 1 << 20  # bytes that a broker takes where nobody says more, as in docker/mosquitto/start.sh


@with_groups()
def containers_command(
    changed: ScenarioOptions,
    scenario: options.ScenarioName = "quickstart",
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="`pause broker at t=500 for 5s`, `kill edge-2 at t=300 for 2s`, `crash cloud at t=700`,"
            " `scale 8 at t=900`"
        ),
    ] = None,
    edge_image: Annotated[
        str | None,
        typer.Option(
            help="image of the edges; mapa-edge has no torch, mapa-edge-cnn enough for the built-in CNN,"
            " mapa-edge-torch all of it; absent: what the model needs"
        ),
    ] = None,
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    edge_memory: Annotated[
        int | None,
        typer.Option(
            min=64, help="memory limit of an edge's container in MB; absent: what data and model need"
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="time limit of the whole run, in seconds")] = 3600.0,
    keep: Annotated[bool, typer.Option("--keep", help="do not remove the containers at the end")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Train in containers on this machine, one per edge, with faults on request."""
    from mapa.container_run import ContainerRun, Images, Stack, connect  # the docker library is an extra

    faults = [parse_fault_event(text) for text in fault or ()]
    _, resolved = changed.load(scenario)
    if resolved.data.set == LOCAL:
        raise ConfigurationError(NEEDS_FILES)
    _check(faults, resolved.workers)
    name, folder = for_a_container(scenario)
    message = message_limit(resolved, options.data_dir_or_default(data_dir))
    data_bytes = edge_data_bytes(resolved, options.data_dir_or_default(data_dir))
    memory = memory_for(message, resolved.workers, data_bytes)
    if edge_memory is not None:
        memory["edge"] = f"{edge_memory}m"
    console = progress_console(quiet=as_json)
    bed = ContainerRun(
        Stack(connect(), f"mapa-{secrets.token_hex(4)}"),
        {
            "SCENARIO": name,
            "SET": ";".join(changed.resolve(scenario)),
            "EDGES": str(resolved.edges),
            "EDGES_AT_LEAST": str(resolved.workers),
            "GATHER": "60",
            "MESSAGE_SIZE_LIMIT": str(message),
            **({} if changed.seed is None else {"SEED": str(changed.seed)}),
            **own_code(resolved, folder),
        },
        runs,
        Images(edge=edge_image or image_for(resolved)),
        data_dir=data_dir,
        scenarios=folder,
        memory=memory,
    )
    try:
        console.print(f"project {bed.stack.project}: {resolved.workers} edges")
        bed.up(resolved.workers)
        Script(bed, faults, console).play(time.monotonic() + timeout)
        code = bed.stack.wait("cloud", 60.0)
        for container in bed.stack.containers("edge"):
            _end(container)
    finally:
        if not keep:
            bed.down()
    summary = bed.summary()
    if summary is None:
        raise ConfigurationError(f"the cloud exited with code {code} and wrote no summary")
    report(summary, as_json=as_json)
    raise typer.Exit(EXIT_CODES.get(summary.get("reason", ""), code))


def image_for(scenario: Scenario) -> str:
    """Return the edges' image: what a model class of one's own says it needs, else the default."""
    if not is_dotted(scenario.model.name):
        return DEFAULT_IMAGE
    return str(getattr(model_class(scenario.model.name), "edge_image", DEFAULT_IMAGE))


def for_a_container(scenario: str) -> tuple[str, Path | None]:
    """Return a scenario's name in a container and the folder to mount; the image has every line of a figure."""
    line = line_of(scenario)
    if line is not None:
        return f"{PREFIX}{line}", None
    if scenario in recipe_names():
        return scenario, None
    path = find_scenario(scenario)
    return path.stem, path.parent.resolve()


def own_code(scenario: Scenario, folder: Path | None) -> dict[str, str]:
    """Return the variables by which edges may, and can, use the classes and records of the user's own."""
    dotted = dotted_paths(scenario)
    permits = {option.removeprefix("--").replace("-", "_").upper(): "true" for option in permitted(scenario)}
    if not dotted:
        return permits
    return {"ALLOW": " ".join(dotted), **permits, **({} if folder is None else {"CODE": str(SCENARIOS)})}


def message_limit(scenario: Scenario, data_dir: Path) -> int:
    """Return the bytes of a message that the broker must take; a model that cannot be made here gets the least."""
    parameters = parameters_of(scenario, data_dir)
    return _MESSAGE if parameters is None else max(_MESSAGE, payload_limit(parameters))


def memory_for(message: int, edges: int, data_bytes: int = 0) -> dict[str, str]:
    """Return the limits of the containers: every edge may have a few messages under way through broker and cloud.

    An edge holds the whole data set while it cuts its shard.
    """
    more = (message - _MESSAGE) >> 20
    under_way = 4 * edges * more
    return {
        "edge": f"{512 + 12 * more + (data_bytes >> 20)}m",
        "cloud": f"{2048 + under_way}m",
        "broker": f"{256 + under_way}m",
    }


def _check(faults: Sequence[FaultEvent], edges: int) -> None:
    for event in faults:
        asked = event.edges if isinstance(event, Scale) else int(event.whom.partition("-")[2] or 0)
        if asked > edges:
            raise ConfigurationError(f"fault: needs {asked} edges, but the scenario has {edges} shards")


def _end(container: Any) -> None:
    """Wait for an edge to end; kill it if it does not."""
    until = time.monotonic() + 30
    container.reload()
    while container.status == "running" and time.monotonic() < until:
        time.sleep(_LOOK_EVERY)
        container.reload()
    if container.status in ("running", "paused"):
        container.kill("SIGKILL")


@dataclass(slots=True)
class Script:
    """The faults of a run, each injected at its t."""

    bed: Any
    faults: list[FaultEvent]
    console: Console
    _ends: list[tuple[float, Fault]] = field(default_factory=list)
    _next_look: float = 0.0

    def play(self, until: float) -> None:
        """Watch t and act, until the cloud has ended."""
        waiting = sorted(self.faults, key=lambda event: event.at)
        cloud = self.bed.stack.container("cloud")
        while time.monotonic() < until:
            updates = self.bed.tail.updates
            while waiting and waiting[0].at <= updates:
                self._begin(waiting.pop(0), updates)
            for end in [end for end in self._ends if end[0] <= time.monotonic()]:
                self._ends.remove(end)
                self.bed.stack.end_fault(end[1].kind, end[1].whom)
                self.console.print(f"t = {self.bed.tail.updates}: {end[1].whom} is back")
            cloud.reload()
            if cloud.status == "exited" and not any(fault.whom == "cloud" for _, fault in self._ends):
                return  # by itself, or killed for good
            self._look_for_memory()
            time.sleep(_LOOK_EVERY)
        raise ConfigurationError("--timeout: the run took longer")

    def _look_for_memory(self) -> None:
        """End a run whose edges the kernel kills again and again: they would never train."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_AT_MEMORY
        for container in self.bed.stack.containers("edge"):
            if container.attrs["State"].get("OOMKilled"):
                limit = container.attrs["HostConfig"]["Memory"] >> 20
                raise ConfigurationError(
                    f"{container.name}: out of memory at {limit} MB; give --edge-memory {2 * limit}"
                )

    def _begin(self, event: FaultEvent, updates: int) -> None:
        if isinstance(event, Scale):
            self.console.print(f"t = {updates}: scale to {event.edges}")
            self.bed.scale(event.edges)
            return
        self.console.print(f"t = {updates}: {event.kind.value} {event.whom}")
        self.bed.stack.start_fault(event.kind, event.whom)
        if event.seconds is not None:
            self._ends.append((time.monotonic() + event.seconds, event))
