"""mapa ledger and mapa calibrate: what a run has cost, and what a budget permits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from common.accounting.releases import Budget, ReleaseKind, check_delta
from common.errors import ConfigurationError
from common.noise import Clipping, NoiseLaw, Sampling, noise_law
from common.scenario import Scenario, parse_scenario
from edge.ledger import Standing
from edge.ledger_snapshot import ledger_snapshot
from edge.sqlite_ledger import FILE_NAME
from experiments.commands import options
from experiments.statement import EdgeReleases, Statement, state_privacy


def ledger_command(
    run: Annotated[
        str, typer.Argument(help="a run's directory, its name under runs/, or an edge's state directory")
    ],
    runs: options.RunsDir = Path("runs"),
    delta: Annotated[float | None, typer.Option(help="δ, instead of the run's total_delta")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what every edge has released and what it guarantees: words first, then the table."""
    if delta is not None:
        check_delta(delta)
    statement = _statement(_find(run, runs), delta)
    if as_json:
        print(json.dumps(statement.as_dict(), indent=2, ensure_ascii=False))
        return
    console = Console()
    for line in statement.words():
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.width = max(console.width, 140)
    console.print(statement.table())


def calibrate_command(
    total_epsilon: Annotated[float, typer.Option(help="ε of the whole run")],
    releases: Annotated[int, typer.Option(min=1, help="gradients that one edge makes")],
    batch_size: Annotated[int, typer.Option(min=1, help="b")],
    shard: Annotated[int, typer.Option(min=1, help="n_k, records of the edge")],
    total_delta: Annotated[float, typer.Option(help="δ of the whole run")] = 1e-5,
    sampler: Annotated[str, typer.Option(help="poisson, shuffled or with-replacement")] = "poisson",
    clipping: Annotated[str, typer.Option(help="per-sample or batch-mean")] = "per-sample",
    as_json: options.AsJson = False,
) -> None:
    """Find the least noise multiplier z with which so many releases stay within (ε, δ), by PLD."""
    from common.accounting.budget import calibrate

    budget = Budget(total_epsilon, total_delta)
    z = calibrate(
        budget,
        releases=releases,
        batch_size=batch_size,
        shard_size=shard,
        sampling=_one_of(Sampling, "sampler", sampler),
        clipping=_one_of(Clipping, "clipping", clipping),
    )
    if as_json:
        fields = {"noise_multiplier": z, "total_epsilon": total_epsilon, "total_delta": total_delta}
        print(
            json.dumps({**fields, "releases": releases, "batch_size": batch_size, "shard": shard}, indent=2)
        )
    else:
        print(f"noise multiplier z = {z:.6f}")


def _one_of(kind: Any, key: str, text: str) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        allowed = ", ".join(member.value for member in kind)
        raise ConfigurationError(f"{key} = {text!r}: allowed are {allowed}") from error


def _find(run: str, runs: Path) -> Path:
    for path in (Path(run), runs / run):
        if path.is_dir():
            return path
    raise ConfigurationError(f"run = {run!r}: no such directory, here or under {runs}")


def _statement(path: Path, delta: float | None) -> Statement:
    """Return the statement of an edge's own ledgers where they are here, else of what the cloud was told."""
    ledgers = sorted(
        {*path.glob(FILE_NAME), *path.glob(f"*/{FILE_NAME}"), *path.glob(f"state/*/{FILE_NAME}")}
    )
    manifest = path / "manifest.json"
    scenario = None
    if manifest.is_file():
        scenario = parse_scenario(_json(manifest)["scenario"])
    if ledgers:
        return _of_ledgers(ledgers, scenario, delta)
    if scenario is None or not (path / "summary.json").is_file():
        raise ConfigurationError(f"run = {str(path)!r}: neither a run's records nor a ledger is there")
    return _of_summary(_json(path / "summary.json"), scenario, delta)


def _of_ledgers(ledgers: list[Path], scenario: Scenario | None, delta: float | None) -> Statement:
    """Account what the ledgers hold; other runs on the same records count too."""
    edges: list[EdgeReleases] = []
    shared, chosen = False, delta
    for path in ledgers:
        with ledger_snapshot(path.parent) as ledger:
            standings = ledger.standings()
            if not standings:
                continue
            now = standings[-1]
            edges.append(_edge(now, standings[:-1], ledger.edge_id))
        shared = shared or not now.account.shard.disjoint
        if chosen is None and now.account.budget is not None:
            chosen = now.account.budget.delta
    if not edges:
        raise ConfigurationError("the ledgers hold no account yet")
    if chosen is None:
        chosen = 1e-5 if scenario is None else scenario.privacy.total_delta
    return state_privacy(sorted(edges, key=lambda edge: edge.edge), chosen, shared=shared)


def _edge(now: Standing, others: list[Standing], edge_id: str) -> EdgeReleases:
    touching = [other for other in others if other.account.shard.overlaps(now.account.shard)]
    return EdgeReleases(
        edge=now.account.shard.index,
        edge_id=edge_id,
        kind=now.account.kind,
        releases=now.releases,
        charges=now.charges,
        earlier=tuple(other.spent for other in touching),
        reproducible=now.account.reproducible,
    )


def _of_summary(summary: dict[str, Any], scenario: Scenario, delta: float | None) -> Statement:
    rows = summary.get("privacy", {}).get("edges", [])
    if not rows:
        raise ConfigurationError(f"run = {summary['run']!r}: nothing was released")
    edges = [
        EdgeReleases(
            edge=row["edge"],
            edge_id=row["edge_id"],
            kind=ReleaseKind(_law(row), scenario.mechanism, row["shard_size"]),
            releases=row["releases"],
            charges=row["charges"],
            reproducible=row["reproducible_noise"],
        )
        for row in rows
    ]
    shared = scenario.data.partition == "shared"
    chosen = scenario.privacy.total_delta if delta is None else delta
    return state_privacy(edges, chosen, shared=shared)


def _law(row: dict[str, Any]) -> NoiseLaw | None:
    if row["noise"] == "none":
        return None
    epsilon, multiplier = row["epsilon_per_release"], row["noise_multiplier"]
    return noise_law(row["noise"], epsilon=epsilon, noise_multiplier=multiplier)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}: not a JSON object")
    return value
