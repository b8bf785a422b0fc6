"""mapa containers: one scenario in containers on this machine, with faults on request."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from common.datasets.source import LOCAL
from common.errors import ConfigurationError
from common.models.registry import model_class
from common.own_code import is_dotted
from common.scenario.scenario import Scenario
from common.wire.v1 import payload_limit
from mapa.chaos.faults import Fault, FaultKind, Injector, parse_container_fault
from mapa.cloud_run import EXIT_CODES
from mapa.commands import options
from mapa.commands.options import ScenarioOptions
from mapa.container import SCENARIOS
from mapa.output import progress_console
from mapa.process_run import dotted_paths, permitted
from mapa.run_parts import NEEDS_FILES, check_no_helpers, edge_data_bytes, parameters_of
from mapa.run_view import report
from mapa.scenario_files import find_scenario
from mapa.scenario_patterns import PREFIX, line_of, recipe_names

if TYPE_CHECKING:
    from mapa.container_run import ContainerRun, Stack  # the docker library is an extra

DEFAULT_IMAGE = "mapa-edge-cnn"
_LOOK_EVERY = 0.1  # seconds between two looks at the records
_CHECK_MEMORY_EVERY = 5.0  # seconds between two checks whether an edge ran out of memory
_MESSAGE = 1 << 20  # bytes that a broker takes by default, as in docker/mosquitto/start.sh


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
    """Train in containers on this machine, with faults on request."""
    from mapa.container_run import Stack, connect

    faults = [parse_container_fault(text) for text in fault or ()]
    _, resolved = changed.load(scenario)
    check_no_helpers(resolved, "containers")
    if resolved.data.set == LOCAL:
        raise ConfigurationError(NEEDS_FILES)
    needed = max((max(fault.edges, fault.edge) for fault in faults), default=0)
    if needed > resolved.workers:
        raise ConfigurationError(
            f"fault: needs {needed} edges, but the scenario has {resolved.workers} shards"
        )
    console = progress_console(quiet=as_json)
    run = container_run(
        Stack(connect(), f"mapa-{secrets.token_hex(4)}"),
        *(scenario, resolved, changed.resolve(scenario), runs, data_dir, edge_image),
        gather=60,
        variables={} if changed.seed is None else {"SEED": str(changed.seed)},
    )
    if edge_memory is not None:
        run.memory["edge"] = f"{edge_memory}m"
    try:
        console.print(f"project {run.stack.project}: {resolved.workers} edges")
        run.up(resolved.workers)
        _inject(run, faults, console, time.monotonic() + timeout)
        code = run.stack.wait("cloud", 60.0)
        run.stack.end("edge", 30.0)
    finally:
        if not keep:
            run.down()
    summary = run.summary()
    if summary is None:
        raise ConfigurationError(f"the cloud exited with code {code} and wrote no summary")
    report(summary, as_json=as_json)
    raise typer.Exit(EXIT_CODES.get(summary.get("reason", ""), code))


def container_run(
    stack: Stack,
    name: str,
    scenario: Scenario,
    settings: Sequence[str],
    runs: Path,
    data_dir: Path | None,
    edge_image: str | None,
    *,
    gather: float,
    variables: Mapping[str, str],
) -> ContainerRun:
    """Return a run in containers of a scenario that was changed by these settings, with variables of .env.example."""
    from mapa.container_run import ContainerRun, Images

    message, folder = message_limit(scenario, options.data_dir_or_default(data_dir)), for_a_container(name)[1]
    environment = variables_of(name, scenario, settings, message, gather=gather, variables=variables)
    memory = memory_for(message, scenario.workers, edge_data_bytes(scenario))
    return ContainerRun(
        *(stack, environment, runs, Images(edge=edge_image or image_for(scenario))),
        data_dir=data_dir,
        scenarios=folder,
        memory=memory,
    )


def variables_of(
    name: str,
    scenario: Scenario,
    settings: Sequence[str],
    message: int,
    *,
    gather: float,
    variables: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables of .env.example that describe a run to the containers of its cloud and edges."""
    short, folder = for_a_container(name)
    return {
        "SCENARIO": short,
        "SET": ";".join(settings),
        "EDGES": str(scenario.edges),
        "EDGES_AT_LEAST": str(scenario.workers),
        "GATHER": f"{gather:g}",
        "MESSAGE_SIZE_LIMIT": str(message),
        **own_code(scenario, folder),
        **variables,
    }


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


def _inject(run: ContainerRun, faults: Sequence[Fault], console: Console, until: float) -> None:
    """Inject each fault at its t, until the cloud has ended."""

    def begin(fault: Fault) -> bool:
        scale = fault.kind is FaultKind.SCALE
        action = f"scale to {fault.edges}" if scale else f"{fault.kind.value} {fault.target}"
        console.print(f"t = {run.tail.updates}: {action}")
        if scale:
            run.scale(fault.edges)
        else:
            run.stack.fault(fault.kind, fault.target, True)
        return True

    def end(fault: Fault) -> bool:
        run.stack.fault(fault.kind, fault.target, False)
        console.print(f"t = {run.tail.updates}: {fault.target} is back")
        return True

    injector = Injector(faults, begin, end)
    cloud = run.stack.container("cloud")
    memory_checked = -math.inf
    while (now := time.monotonic()) < until:
        injector.begin_due(run.tail.updates, now)
        injector.end_due(now)
        cloud.reload()
        if cloud.status == "exited" and not injector.holds("cloud"):
            return  # by itself, or killed for good
        if now >= memory_checked + _CHECK_MEMORY_EVERY:
            memory_checked = now
            for edge in run.stack.containers("edge"):
                if edge.attrs["State"].get("OOMKilled"):  # it would never train
                    limit = edge.attrs["HostConfig"]["Memory"] >> 20
                    raise ConfigurationError(
                        f"{edge.name}: out of memory at {limit} MB; give --edge-memory {2 * limit}"
                    )
        time.sleep(_LOOK_EVERY)
    raise ConfigurationError("--timeout: the run took longer")
