"""mapa audit: what can be told of a sample, beside what is claimed."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from common.datasets.catalogue import data_directory
from common.errors import ConfigurationError
from experiments.audit.game import Finding, Playable, finite, play_all
from experiments.audit.one_run import OneRun, audit_one_run
from experiments.audit.subject import keep, scenario_games, scenario_of_run
from experiments.commands.audit_planted import audit_planted
from mapa.commands import options
from mapa.commands.common_options import Allowed
from mapa.output import note, progress_console
from mapa.runs import find_run
from mapa.scenario_files import load_scenario
from mapa.simulation.world import World

_MIN_ROUNDS = 1000


def audit_command(
    scenario: Annotated[
        str | None,
        typer.Argument(help="a shipped scenario's name, or a TOML file; not with --run or --planted"),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="audit the scenario of a run on record instead, and keep the report there as audit.json, "
            "where the live page shows it",
        ),
    ] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE for any field")] = None,
    confidence: Annotated[float, typer.Option(help="of all games together (Bonferroni)")] = 0.95,
    rounds: Annotated[int, typer.Option(help="of each world in a game")] = 8000,
    edge: Annotated[int, typer.Option(min=0, help="k, the edge whose ε_k, z_k and shard are audited")] = 0,
    dimension: Annotated[
        int | None, typer.Option(min=1, help="N of a game; default: 2 for gamma-norm, else 16")
    ] = None,
    one_run: Annotated[bool, typer.Option(help="also audit one whole training run; reported beside")] = True,
    canaries: Annotated[
        int, typer.Option(min=1, help="m of the one-run audit, at most half of the shard")
    ] = 1000,
    iterations: Annotated[
        int, typer.Option(min=1, help="updates of the one-run audit, at most the scenario's")
    ] = 500,
    planted: Annotated[
        bool,
        typer.Option("--planted", help="put planted defects to the games instead; exit 1 if one is missed"),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the audit's own draws")] = 0,
    allow: Allowed = None,
    runs: options.RunsDir = Path("runs"),
    data_dir: Annotated[Path | None, typer.Option(help="instead of MAPA_DATA_DIR")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Bound ε from below by attacking the real release code; exit 1 where a claim is refuted."""
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence = {confidence}: must be greater than 0 and less than 1")
    if rounds < _MIN_ROUNDS:
        raise ConfigurationError(f"rounds = {rounds}: must be at least {_MIN_ROUNDS}")
    if planted:
        if scenario is not None or run is not None or changes:
            raise ConfigurationError(
                "--planted takes no scenario, --run or --set: its mechanisms are its own"
            )
        audit_planted(confidence=confidence, rounds=rounds, seed=seed, as_json=as_json)
        return
    if (scenario is None) == (run is None):
        raise ConfigurationError(
            "scenario: name a shipped scenario or a TOML file, or pass --run or --planted"
        )
    if run is not None and changes:
        raise ConfigurationError("--set: not with --run, which audits what was run")
    folder = None if run is None else find_run(run, runs)
    if folder is not None:
        name, resolved = folder.resolve().name, scenario_of_run(folder, frozenset(allow or ()))
    else:
        name, resolved = load_scenario(str(scenario), changes or [])
    world = World.of(resolved, data_dir or data_directory(os.environ), say=note)
    games = scenario_games(world, edge=edge, rounds=rounds, dimension=dimension)
    findings = _play_all(games, confidence, seed)
    whole = (
        audit_one_run(world, edge=edge, canaries=canaries, iterations=iterations, confidence=confidence)
        if one_run
        else None
    )
    delta = resolved.privacy.total_delta
    rows = [_row(game, finding, delta) for game, finding in zip(games, findings, strict=True)]
    report = {
        "scenario": name,
        "scenario_sha256": resolved.digest,
        "edge": edge,
        "confidence": confidence,
        "delta": delta,
        "seeded": resolved.seed is not None,
        "games": rows,
        "one_run": None if whole is None else _one_run_row(whole),
    }
    if folder is not None:
        kept = keep(folder, report)
        print(f"kept in {kept}", file=sys.stderr)
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_report(name, rows, whole, confidence, delta, seeded=resolved.seed is not None)
    if any(row["violated"] for row in rows):
        raise typer.Exit(1)


def _play_all(games: Sequence[Playable], confidence: float, seed: int) -> list[Finding]:
    console = progress_console()
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal or console.quiet
    ) as bar:
        task = bar.add_task("", total=None)
        return play_all(
            games, confidence=confidence, seed=seed, progress=lambda name: bar.update(task, description=name)
        )


def _row(game: Playable, finding: Finding, delta: float) -> dict[str, Any]:
    claim = game.claim
    return {
        "kind": "scenario",
        "name": finding.name,
        "figure": finding.figure,
        "claimed": finite(finding.claimed),
        "lower_bound": finite(finding.lower_bound),
        "claimed_epsilon": finite(claim.epsilon(finding.claimed, delta)),
        "lower_epsilon": finite(claim.epsilon(finding.lower_bound, delta)),
        "false_positives": finding.false_positives,
        "false_negatives": finding.false_negatives,
        "rounds": finding.rounds,
        "violated": finding.violated,
    }


def _one_run_row(whole: OneRun) -> dict[str, Any]:
    return {
        "canaries": whole.canaries,
        "guesses": whole.guesses,
        "correct": whole.correct,
        "releases": whole.releases,
        "claimed_epsilon": finite(whole.claimed),
        "lower_epsilon": whole.lower_bound,
        "delta": whole.delta,
        "confidence": whole.confidence,
        "violated": whole.violated,
    }


def _print_report(
    name: str,
    rows: Sequence[dict[str, Any]],
    whole: OneRun | None,
    confidence: float,
    delta: float,
    *,
    seeded: bool,
) -> None:
    console = Console(highlight=False)
    console.width = max(console.width, 130)
    refuted = [row for row in rows if row["violated"]]
    claims = [row for row in rows if row["claimed"] is not None]
    if refuted:
        console.print(
            f"{name}: the claim is REFUTED: more can be told of a sample than it allows.", style="red"
        )
    elif claims:
        console.print(f"{name}: nothing contradicts the claim. That is no proof of it.")
    else:
        console.print(f"{name}: nothing is claimed (not DP); the bounds say what can be told at least.")
    if seeded:
        console.print(
            "The scenario has a seed: anyone who knows it can subtract the noise. Audited as if nobody did."
        )
    table = Table(title=f"games, {confidence:g} for all rows together, ε at δ = {delta:g}", box=box.SIMPLE)
    for column in ("game", "claimed", "at least", "claimed ε", "ε at least", "verdict"):
        table.add_column(column, justify="left" if column in ("game", "verdict") else "right")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['figure']} {_figure(row['claimed'])}",
            f"{row['figure']} {_figure(row['lower_bound'])}",
            _figure(row["claimed_epsilon"]),
            _figure(row["lower_epsilon"]),
            _verdict(row),
        )
    console.print(table)
    if whole is not None:
        console.print(
            f"one run (beside, not a gate): {whole.releases} releases, {whole.canaries} canaries, "
            f"{whole.correct} of {whole.guesses} guesses right: total ε at least {whole.lower_bound:.3g}, "
            f"claimed {_figure(finite(whole.claimed))} at δ = {whole.delta:g}"
        )


def _verdict(row: dict[str, Any]) -> str:
    return "REFUTED" if row["violated"] else "no claim" if row["claimed"] is None else "not refuted"


def _figure(value: float | None) -> str:
    return "∞" if value is None or math.isinf(value) else f"{value:.3f}"
