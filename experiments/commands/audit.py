"""mapa audit: what can be told of a sample, beside what is claimed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from common.errors import ConfigurationError, RecordsError
from common.scenario.scenario import Scenario
from experiments.audit.battery import scenario_games
from experiments.audit.defects import INVISIBLE, Defect, planted
from experiments.audit.game import Finding, familywise, finite, finites, play_all, put_to_test
from experiments.audit.one_run import audit_one_run
from mapa.commands import options
from mapa.output import console, note, print_json, print_wide, progress_console, say
from mapa.runs import find_run, read_object
from mapa.scenario_files import load_scenario
from mapa.simulation.simulator import World
from mapa.verification.check import NotCheckedError, UnreadableError
from mapa.verification.replay import scenario_of

AUDIT = "audit.json"  # mapa/dashboard shows it, mapa runs rm removes it with the run
_MIN_ROUNDS = 1000
_RUN_HELP = (
    "audit the scenario of a run on record instead, and keep the report there as audit.json, "
    "where the live page shows it"
)
_OF_PLANTED = ("name", "figure", "claimed", "lower_bound", "rounds", "violated")


def audit_command(
    scenario: Annotated[
        str | None,
        typer.Argument(help="a shipped scenario's name, or a TOML file; not with --run or --planted"),
    ] = None,
    run: Annotated[str | None, typer.Option(metavar="RUN", help=_RUN_HELP)] = None,
    changes: options.Changes = None,
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
    with_planted: Annotated[
        bool,
        typer.Option("--planted", help="put planted defects to the games instead; exit 1 if one is missed"),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the audit's own draws")] = 0,
    allow: options.Allowed = None,  # noqa: ARG001  (what a run on record may name: set before this begins)
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Bound ε from below by attacking the real release code."""
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence = {confidence}: must be greater than 0 and less than 1")
    if rounds < _MIN_ROUNDS:
        raise ConfigurationError(f"rounds = {rounds}: must be at least {_MIN_ROUNDS}")
    if with_planted:
        if scenario is not None or run is not None or changes:
            raise ConfigurationError("--planted takes no scenario, --run or --set: it has its own mechanisms")
        _audit_planted(confidence=confidence, rounds=rounds, seed=seed, as_json=as_json)
        return
    if (scenario is None) == (run is None):
        raise ConfigurationError(
            "scenario: name a shipped scenario or a TOML file, or pass --run or --planted"
        )
    if run is not None and changes:
        raise ConfigurationError("--set: not with --run, which audits what was run")
    folder = None if run is None else find_run(run, runs)
    if folder is not None:
        name, resolved = folder.resolve().name, scenario_of_run(folder)
    else:
        name, resolved = load_scenario(str(scenario), changes or [])
    world = World.of(resolved, options.data_dir_or_default(data_dir), say=note)
    games = scenario_games(world, edge=edge, rounds=rounds, dimension=dimension)
    with _spinner() as show:
        findings = play_all(games, confidence=confidence, seed=seed, progress=show)
    delta = resolved.privacy.total_delta
    report: dict[str, Any] = {
        "scenario": name,
        "scenario_sha256": resolved.digest,
        "edge": edge,
        "confidence": confidence,
        "delta": delta,
        "seeded": resolved.seed is not None,
        "games": [
            {
                "kind": "scenario",
                **_row(finding),
                "claimed_epsilon": finite(game.claim.epsilon(finding.claimed, delta)),
                "lower_epsilon": finite(game.claim.epsilon(finding.lower_bound, delta)),
            }
            for game, finding in zip(games, findings, strict=True)
        ],
        "one_run": None,
    }
    if one_run:
        whole = audit_one_run(
            world, edge=edge, canaries=canaries, iterations=iterations, confidence=confidence
        )
        told = asdict(whole)
        epsilons = {"claimed_epsilon": finite(told.pop("claimed")), "lower_epsilon": told.pop("lower_bound")}
        report["one_run"] = {**told, **epsilons, "violated": whole.violated}
    if folder is not None:
        say(f"kept in {_keep(folder, report)}")
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    if any(row["violated"] for row in report["games"]):
        raise typer.Exit(1)


@contextmanager
def _spinner() -> Iterator[Callable[[str], None]]:
    """Show what is being done, where somebody watches."""
    err = progress_console()
    columns, unseen = (SpinnerColumn(), TextColumn("{task.description}")), not err.is_terminal or err.quiet
    with Progress(*columns, console=err, transient=True, disable=unseen) as bar:
        task = bar.add_task("", total=None)
        yield lambda words: bar.update(task, description=words)


def _row(finding: Finding) -> dict[str, Any]:
    values = {key: value for key, value in asdict(finding).items() if key != "alpha"}
    return {**finites(values), "violated": finding.violated}


def scenario_of_run(path: Path) -> Scenario:
    """Return the scenario that a run was recorded with, its noise and rate as they were; ConfigurationError: none."""
    try:
        return scenario_of(read_object(path / "manifest.json") or {})
    except (UnreadableError, NotCheckedError) as error:
        raise ConfigurationError(f"{path}: cannot be audited: {error}") from error


def _keep(path: Path, report: Mapping[str, Any]) -> Path:
    """Write the report into the run's folder, as a whole or not at all."""
    file, draft = path / AUDIT, path / f".{AUDIT}.tmp"
    try:
        draft.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise RecordsError(f"{file}: not written: {error.strerror or error}") from error
    return file


def _table(title: str, columns: Sequence[str], to_the_left: Sequence[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE)
    for column in columns:
        table.add_column(column, justify="left" if column in to_the_left else "right")
    return table


def _bounds(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['figure']} {_figure(row[key])}" for key in ("claimed", "lower_bound")]


def _print_report(report: Mapping[str, Any]) -> None:
    out, name, rows = partial(console().print, soft_wrap=True), report["scenario"], report["games"]
    if any(row["violated"] for row in rows):
        out(f"{name}: the claim is REFUTED: more can be told of a sample than it allows.", style="red")
    elif any(row["claimed"] is not None for row in rows):
        out(f"{name}: nothing contradicts the claim. That is no proof of it.")
    else:
        out(f"{name}: nothing is claimed (not DP); the bounds say what can be told at least.")
    if report["seeded"]:
        out("The scenario has a seed: anyone who knows it can subtract the noise. Audited as if nobody did.")
    title = f"games, {report['confidence']:g} for all rows together, ε at δ = {report['delta']:g}"
    columns = ("game", "claimed", "at least", "claimed ε", "ε at least", "verdict")
    table = _table(title, columns, ("game", "verdict"))
    for row in rows:
        verdict = "REFUTED" if row["violated"] else "no claim" if row["claimed"] is None else "not refuted"
        in_epsilon = (_figure(row[key]) for key in ("claimed_epsilon", "lower_epsilon"))
        table.add_row(row["name"], *_bounds(row), *in_epsilon, verdict)
    print_wide(table)
    if whole := report["one_run"]:
        out(
            f"one run (beside, not a gate): {whole['releases']} releases, {whole['canaries']} canaries, "
            f"{whole['correct']} of {whole['guesses']} guesses right: total ε at least {whole['lower_epsilon']:.3g}, "
            f"claimed {_figure(whole['claimed_epsilon'])} at δ = {whole['delta']:g}"
        )


def _figure(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3f}"


def _audit_planted(*, confidence: float, rounds: int, seed: int, as_json: bool) -> None:
    """Play the battery against every defect; exit 1 where one is neither refuted nor known to be invisible.

    α is divided among the games of a battery, as where `mapa audit` plays it: could that command have seen it?
    """
    played: list[tuple[Defect, list[dict[str, Any]]]] = []
    with _spinner() as show:
        for place, defect in enumerate(planted()):
            games = defect.games(rounds)
            findings = put_to_test(
                games,
                alpha=familywise(confidence, len(games)),
                seed=100_000 * seed + 100 * place,
                progress=lambda game, name=defect.name: show(f"{name}: {game}"),  # type: ignore[misc]
            )
            played.append((defect, [_row(finding) for finding in findings]))
    missed = [d.name for d, rows in played if not rows[-1]["violated"] and d.name not in INVISIBLE]
    if as_json:
        defects = [
            {
                "name": defect.name,
                "refuted": rows[-1]["violated"],
                "games": [{key: row[key] for key in _OF_PLANTED} for row in rows],
            }
            for defect, rows in played
        ]
        print_json({"confidence": confidence, "missed": missed, "invisible": INVISIBLE, "defects": defects})
    else:
        _print_planted(played, confidence, missed)
    if missed:
        raise typer.Exit(1)


def _print_planted(
    played: Sequence[tuple[Defect, list[dict[str, Any]]]], confidence: float, missed: Sequence[str]
) -> None:
    title = f"planted defects, {confidence:g} for the games of each together"
    table = _table(title, ("defect", "game", "claimed", "at least", "verdict"), ("defect", "game", "verdict"))
    for defect, rows in played:
        for place, row in enumerate(rows):
            name = "" if place else defect.name
            table.add_row(name, row["name"], *_bounds(row), "refuted" if row["violated"] else "")
        if not rows[-1]["violated"]:
            table.add_row("", INVISIBLE.get(defect.name, "no game refutes it"), "", "", "NOT REFUTED")
    print_wide(table)
    counts = f"{len(played) - len(missed)} of {len(played)} defects are refuted or known to be invisible."
    console().print(counts + (f" Missed: {'; '.join(missed)}." if missed else ""), soft_wrap=True)
