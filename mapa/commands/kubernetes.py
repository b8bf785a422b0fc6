"""mapa kubernetes: one scenario on the cluster that kubectl is set to."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from common.datasets.source import LOCAL
from common.errors import ConfigurationError
from common.records.layout import folder_name
from mapa.cloud_run import EXIT_CODES
from mapa.commands import options
from mapa.commands.containers import for_a_container, image_for, memory_for, message_limit, variables_of
from mapa.commands.options import ScenarioOptions
from mapa.output import progress_console
from mapa.run_parts import NEEDS_FILES, check_no_helpers, edge_data_bytes
from mapa.run_view import report
from mapa.runs import NewRun

_PATIENCE = 60.0  # seconds for the edges to end after the cloud


def kubernetes_command(
    changed: ScenarioOptions,
    scenario: options.ScenarioName = "quickstart",
    overlay: Annotated[
        str, typer.Option(help="single-node, several-nodes, or a folder with a kustomization of your own")
    ] = "single-node",
    edge_image: Annotated[
        str | None, typer.Option(help="image of the edges; absent: what the model needs")
    ] = None,
    cloud_image: Annotated[str, typer.Option(help="image of cloud, data and page")] = "mapa-cloud",
    broker_image: Annotated[str, typer.Option(help="image of the broker")] = "eclipse-mosquitto:2",
    namespace: Annotated[
        str | None, typer.Option(help="name of the new namespace; absent: one of its own")
    ] = None,
    runs: options.RunsDir = Path("runs"),
    timeout: Annotated[float, typer.Option(help="time limit of the whole run, in seconds")] = 3600.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="do not remove the namespace, with claims and ledgers, at the end")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Train on a Kubernetes cluster, one pod per edge, with an authority and a broker of the run's own."""
    from mapa.kubernetes_run import MANIFESTS, Fleet, Namespace, followed, removed_afterwards

    name, resolved = changed.load(scenario)
    check_no_helpers(resolved, "kubernetes")
    if resolved.data.set == LOCAL:
        raise ConfigurationError(NEEDS_FILES)
    message = message_limit(resolved, options.data_dir_or_default(None))
    limits = memory_for(message, resolved.workers, edge_data_bytes(resolved))
    own = f"{folder_name(name, 30)}-{secrets.token_hex(4)}"
    mirror = os.environ.get("MAPA_DATA_MIRROR", "")
    folder = for_a_container(scenario)[1]
    fleet = Fleet(
        overlay=MANIFESTS / overlay if "/" not in overlay else Path(overlay),
        edges=resolved.workers,
        variables={
            **variables_of(
                scenario,
                resolved,
                changed.resolve(scenario),
                message,
                gather=600,
                variables={} if changed.seed is None else {"SEED": str(changed.seed)},
            ),
            "RUN": own,
            **({"MAPA_DATA_MIRROR": mirror} if mirror else {}),
        },
        images={
            "mapa-cloud": cloud_image,
            "mapa-edge-cnn": edge_image or image_for(resolved),
            "eclipse-mosquitto": broker_image,
        },
        memory={part: limit.replace("m", "Mi") for part, limit in limits.items()},
        files=()
        if folder is None
        else (folder / f"{Path(scenario).stem}.toml", *sorted(folder.glob("*.py"))),
    )
    runs.mkdir(parents=True, exist_ok=True)
    console, tail = progress_console(quiet=as_json), NewRun(runs)
    place = Namespace(namespace or f"mapa-{secrets.token_hex(4)}")
    with removed_afterwards(place, keep):
        console.print(f"namespace {place.name}: {resolved.workers} edges")
        fleet.apply(place)
        code, edges = followed(place, console.print, time.monotonic() + timeout, _PATIENCE)
        for pod, ended in sorted(edges.items()):
            if ended:
                console.print(f"{pod}: exit code {ended}")
        if len(edges) < resolved.workers:
            console.print(f"{resolved.workers - len(edges)} edges have not ended within {_PATIENCE:g} s")
        if code != 2:  # else nothing was started
            place.records(own, runs)
    summary = tail.reported()
    if summary is None:
        raise ConfigurationError(f"the cloud exited with code {code} and wrote no summary")
    report(summary, as_json=as_json)
    raise typer.Exit(EXIT_CODES.get(summary.get("reason", ""), code))
