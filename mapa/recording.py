"""Runs with their records: runs/<id>/ from the first event to the summary, simulated or over the network."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloud.algorithm import first_of_tail
from cloud.assembly import explained
from common.errors import ConfigurationError, RecordsError
from common.records.directory import FORMAT, RunDirectory, machine_type, new_run_id, versions
from common.records.tally import Tally
from common.scenario.parts import least_records
from common.scenario.scenario import Scenario
from mapa.budget import Say, release_caps
from mapa.cloud_run import CloudRun
from mapa.output import said_if_slow
from mapa.releases import privacy_of, releases_of
from mapa.run_parts import RunParts
from mapa.simulation import vectorised as blocks
from mapa.simulation.simulator import World, check_world, simulate
from mapa.simulation.synchronous import (
    check_synchronous,
    check_synchronous_scenario,
    simulate_synchronously,
)
from mapa.simulation.vectorised import check_vectorised, check_vectorised_scenario, simulate_rounds

ENGINES = ("events", "vectorised", "block", "synchronous")
NETWORKED = ("network", "processes")  # engines with a cloud
_STREAMS = {True: "secure", False: "philox key (seed, k), counter (0, 0, purpose, n)"}


def random_stream(scenario: Scenario, engine: str) -> str:
    """Say where a run's random numbers come from."""
    return blocks.NAME if engine == "block" else _STREAMS[scenario.seed is None]


@contextlib.contextmanager
def open_records(path: Path, *, resumed: bool = False) -> Iterator[RunDirectory]:
    """Open the directory of a new run, or of one that goes on unless another program has it open.

    A run that ends before it has a manifest never began: nothing is left of it.
    """
    try:
        directory = RunDirectory(path, resumed=resumed)
    except OSError as error:
        where = path if resumed else f"--runs-dir {path.parent}"
        raise RecordsError(f"{where}: cannot write records there: {error}") from error
    try:
        with directory:
            yield directory
    except BaseException:
        if not (path / "manifest.json").exists():
            shutil.rmtree(path, ignore_errors=True)
        raise


def check_engine(scenario: Scenario, engine: str) -> None:
    """Raise ConfigurationError for an engine that is unknown or cannot run the scenario, before data are loaded."""
    if engine not in ENGINES:
        raise ConfigurationError(f"engine = {engine!r}: allowed are {', '.join(ENGINES)}")
    if scenario.records.keep_gradients and engine != "events":
        raise ConfigurationError(
            f"records.keep_gradients = true: the {engine} engine computes whole rounds and has no log of gradients;"
            " allowed are false or no value; --engine events writes one"
        )
    if engine == "synchronous":
        check_synchronous_scenario(scenario)
    elif engine != "events":
        check_vectorised_scenario(scenario, engine)


def record_simulation(
    world: World,
    *,
    name: str,
    runs: Path,
    engine: str = "events",
    progress: Callable[[Tally], None] | None = None,
    say: Say | None = None,
) -> dict[str, Any]:
    """Simulate, write the run's directory, return its summary. An interrupted run has both all the same."""
    scenario = world.scenario
    check_world(world)
    if engine == "synchronous":
        check_synchronous(world)
    elif engine != "events":
        check_vectorised([world], blocks=engine == "block")
    with open_records(runs / new_run_id(name)) as directory:
        write_manifest(directory, world, name=name, engine=engine)
        journal = directory.journal if scenario.records.events else None
        began = time.perf_counter()
        if engine == "events":
            logged = directory.path if scenario.records.keep_gradients else None
            outcome = simulate(world, journal=journal, progress=progress, logged=logged)
        elif engine == "synchronous":
            outcome = simulate_synchronously(world, journal, progress)
        else:
            outcome = simulate_rounds(world, journal=journal, progress=progress, blocks=engine == "block")
        seconds = time.perf_counter() - began
        made = {"name": name, "engine": engine, "reason": outcome.reason}
        summary = summarise(world, directory, outcome.tally, seconds, **made)
        summary["releases"] = outcome.releases
        summary["virtual_seconds"] = outcome.virtual_seconds
        _write_model(directory, world, outcome.x, outcome.tally.updates)
        directory.summary(summary)  # at once: accounting takes seconds and may be interrupted
        edges = [
            (k, f"edge-{k}", scenario.law(k), len(world.rows[k]), releases)
            for k, releases in enumerate(outcome.releases)
        ]
        with said_if_slow(say, f"accounting ε of {sum(outcome.releases):,} releases"):
            summary["privacy"] = privacy_of(scenario, edges)
        directory.summary(summary)
    return summary


def record_cloud(
    cloud: CloudRun, *, name: str, reason: str, engine: str, own_edges: bool = False
) -> dict[str, Any]:
    """Write the records of a networked run, whose manifest is there already; return its summary.

    `own_edges`: the caller has started all edges, so that none has another budget than the scenario's.
    """
    setting, service, directory = cloud.setting, cloud.service, cloud.directory
    failures: list[RecordsError] = []
    service.records.end()  # summary, events and what a view shows have one count
    if reason != "failed" and service.records.failure is not None:  # the last lines only: the run was over
        failures.append(service.records.failure)
    with _kept(failures):
        directory.events.flush()
    first, last = service.first_update, service.last_update
    seconds = last - first if first is not None and last is not None else 0.0
    summary = summarise(setting, directory, service.tally, seconds, name=name, engine=engine, reason=reason)
    summary["dropped"] = dict(service.dropped)
    summary["network"] = network(cloud)
    accounts = sorted(service.server.edges.values(), key=lambda account: account.index)
    begun = service.server.schedule is not None
    released = [releases_of(a, service.server.restarts, service.tally, begun=begun) for a in accounts]
    summary["releases"] = [most for _, most in released]
    with _kept(failures):
        _write_model(directory, setting, service.server.result, service.server.updates)
    with _kept(failures):
        directory.summary(summary)  # at once: accounting takes seconds and may be interrupted
    if own_edges:  # their ledgers let nothing on its way that the budget does not permit
        caps = release_caps(setting.scenario, setting.shard_sizes)
        summary["releases"] = [
            most if (cap := caps[a.index]) is None else max(known, min(most, cap))
            for a, (known, most) in zip(accounts, released, strict=True)
        ]
    sizes, least = setting.shard_sizes, least_records(setting.scenario)
    edges = [
        (a.index, a.edge_id, a.law, sizes[a.index], releases)
        for a, releases in zip(accounts, summary["releases"], strict=True)
    ]
    with said_if_slow(service.say, f"accounting ε of {sum(summary['releases']):,} releases"):
        summary["privacy"] = privacy_of(setting.scenario, edges, service.server.restarts, least)
    with _kept(failures):
        directory.summary(summary)
    if failures:
        raise failures[0]
    if service.history is not None:
        service.history.finish()
    return summary


@contextlib.contextmanager
def _kept(failures: list[RecordsError]) -> Iterator[None]:
    """Go on after a file that cannot be written: the next may be smaller."""
    try:
        yield
    except RecordsError as error:
        failures.append(error)


def network(cloud: CloudRun) -> list[dict[str, Any]]:
    """Return, per edge, the one-way delay that the scenario asks for, and what was measured.

    An edge whose operator gave it a link of its own keeps that to itself.
    """
    scenario, service = cloud.setting.scenario, cloud.service
    rows = []
    for account in sorted(service.server.edges.values(), key=lambda account: account.index):
        peer, tally = service.peers.get(account.edge_id), service.tally.edges.get(account.index)
        trip = peer.turnaround_sum / peer.turnarounds * 1e3 if peer is not None and peer.turnarounds else None
        rows.append(
            {
                "edge": account.index,
                "edge_id": account.edge_id,
                **asked_of(scenario, account.index),
                "round_trip_ms": trip,
                "staleness_mean": tally.staleness_sum / tally.applied if tally and tally.applied else None,
                "applied": account.applied,
            }
        )
    return rows


def asked_of(scenario: Scenario, index: int) -> dict[str, Any]:
    """Return link, device and one-way delay that the scenario gives edge k."""
    link = scenario.links[index % len(scenario.links)] if scenario.links else None
    profile = None if link is None else link.profile
    device = scenario.devices[index % len(scenario.devices)] if scenario.devices else None
    return {
        "link": None if link is None else link.model_dump(exclude_none=True, exclude_defaults=True),
        **({} if device is None else {"device": device.model_dump(exclude_none=True)}),
        "asked_delay_ms": None if profile is None else profile.mean_delay_ms,
    }


def write_manifest(
    directory: RunDirectory, parts: RunParts, *, name: str, engine: str, started_by: str | None = None
) -> None:
    """Write what is needed to run the same thing again.

    `started_by` names a container, which goes on with its own run when it is started again.
    """
    scenario, dataset = parts.scenario, parts.dataset
    more = {} if started_by is None else {"started_by": started_by}
    manifest = {
        "format": FORMAT,
        "run": directory.run,
        "name": name,
        "engine": engine,
        "scenario": scenario.canonical(),
        "scenario_sha256": scenario.digest,
        "seed": scenario.seed,
        "data": {scenario.data.set: dataset.checksum},
        "versions": versions(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "samples": {"shape": list(dataset.shape), "classes": dataset.classes},
        "machine": machine_type(),
        "random_stream": random_stream(scenario, engine),
        "shard_sizes": [len(rows) for rows in parts.rows],  # empty where only the edges know
        **more,
    }
    directory.document("manifest.json", manifest)


NO_TAIL = "algorithm.average = 'tail' averaged nothing"


def summarise(
    parts: RunParts,
    directory: RunDirectory,
    tally: Tally,
    seconds: float,
    *,
    name: str,
    engine: str,
    reason: str,
) -> dict[str, Any]:
    """Return the part of summary.json that every engine has."""
    scenario, model = parts.scenario, parts.model
    summary: dict[str, Any] = {
        "run": directory.run,
        "path": str(directory.path),
        "name": name,
        "engine": engine,
        "algorithm": scenario.algorithm.name,
        "model": scenario.model.name,
        "data": scenario.data.set,
        "edges_configured": scenario.workers,
        "iterations": scenario.iterations,
        "batch_size": scenario.batch_size,
        "parameters": model.dimension,
        "seed": scenario.seed,
        "scenario_sha256": scenario.digest,
        "reason": reason,
        **tally.summary(model.metrics),
        "seconds": seconds,
        "iterations_per_second": tally.updates / seconds if seconds > 0 else None,
        "diagnostics": scenario.records.diagnostics,
    }
    if noise := noise_of(scenario):
        summary["noise"] = noise
    if rate := explained(scenario, model):
        summary["rate"] = rate
    if warnings := warnings_of(scenario, tally.updates, engine):
        summary["warning"] = "; ".join(warnings)
    return summary


def noise_of(scenario: Scenario) -> dict[str, Any] | None:
    """Return the law and z, or z_k of each edge, as given or found for the budget; None: nothing is noised."""
    return {"law": scenario.privacy.noise, **scenario.privacy.given} if scenario.private else None


def warnings_of(scenario: Scenario, updates: int, engine: str) -> list[str]:
    """Return what a reader of the result must know first."""
    found = []
    if scenario.records.diagnostics:
        found.append(
            "diagnostics were on: the records hold gradient norms before noise, which are not private"
        )
    if scenario.algorithm.average == "tail":
        each = scenario.workers if engine == "synchronous" else 1  # gradients of one update
        last = max(1, scenario.updates // each)
        first = first_of_tail(scenario.algorithm.average_from, last)
        if updates // each < first:
            found.append(
                f"{NO_TAIL}: it begins with update {first} of {last}, and the run made {updates // each};"
                " the result is the last model"
            )
    return found


def _write_model(directory: RunDirectory, parts: RunParts, x: Any, updates: int) -> None:
    metadata = {"scenario_sha256": parts.scenario.digest, "updates": str(updates)}
    directory.model(x, parts.model.layout, metadata)
