"""mapa runs: list the runs of a folder, show one, remove some."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import ConfigurationError
from common.own_code import allowing
from common.records.layout import HALT_OWED, RESUME
from mapa import output
from mapa.commands import options
from mapa.output import printable
from mapa.runs import (
    KILLED,
    RunLine,
    chosen,
    files_of,
    is_run,
    line_of_run,
    read_object,
    run_paths,
    statement_of,
)

app = typer.Typer(no_args_is_help=True, help="Runs on record: list, show, rm.")

SORT_KEYS: dict[str, Callable[[RunLine], Any]] = {
    "started": lambda one: one.started or "",
    "run": lambda one: one.run,
    "size": lambda one: one.bytes,
    "updates": lambda one: one.updates or 0,
    "value": lambda one: float("-inf") if one.value is None else one.value,
    "epsilon": lambda one: float("-inf") if one.epsilon is None else one.epsilon,
}


@app.command("list")
def list_runs(
    runs: options.RunsDir = Path("runs"),
    state: Annotated[
        list[str] | None,
        typer.Option(help="only runs in this state: running, killed, finished, interrupted …; repeatable"),
    ] = None,
    scenario: Annotated[str | None, typer.Option(help="only runs of this scenario")] = None,
    algorithm: Annotated[str | None, typer.Option(help="only runs of this algorithm")] = None,
    engine: Annotated[str | None, typer.Option(help="only runs of this engine: network, events …")] = None,
    sort: Annotated[str, typer.Option(help="started, run, size, updates, value or epsilon")] = "started",
    reverse: Annotated[bool, typer.Option("--reverse", help="the other way round")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="at most so many")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the runs of a folder, the newest first."""
    if sort not in SORT_KEYS:
        raise ConfigurationError(f"--sort {sort!r}: allowed are {', '.join(SORT_KEYS)}")
    if not runs.is_dir():
        raise ConfigurationError(f"--runs-dir {str(runs)!r}: no such folder; a first run makes it")
    wanted = {"scenario": scenario, "algorithm": algorithm, "engine": engine}
    lines = [
        line
        for line in map(line_of_run, run_paths(runs))
        if (not state or line.state in state)
        and all(value is None or getattr(line, key) == value for key, value in wanted.items())
    ]
    lines.sort(key=SORT_KEYS[sort], reverse=(sort != "run") != reverse)
    lines = lines[:limit]
    if as_json:
        print(json.dumps([line.as_dict() for line in lines], indent=2))
        return
    _print_table(lines)


@app.command("show")
def show_run(
    run: options.RunName = "latest", runs: options.RunsDir = Path("runs"), as_json: options.AsJson = False
) -> None:
    """Show one run: its result, what it states of privacy, its files, and what can be done with it."""
    given = Path(run)
    path = given if len(given.parts) > 1 and is_run(given) else chosen(run, runs)
    line = line_of_run(path)
    files = sorted((file.relative_to(path).as_posix(), size) for file, size in files_of(path))
    statement = statement_of(read_object(path / "summary.json") or {})
    steps = next_steps(path, line, runs)
    if as_json:
        document = {
            **line.as_dict(),
            "path": str(path),
            "statement": statement,
            "files": [{"file": name, "bytes": size} for name, size in files],
            "next": steps,
        }
        print(json.dumps(document, indent=2))
        return
    for key, value in line.as_dict().items():
        if value is not None:
            print(f"{key:<20}{_size(value) if key == 'bytes' else printable(str(value))}")
    print(f"{'path':<20}{printable(str(path))}")
    print("\nprivacy, as the run states it:")
    for word in statement[:_LINES] or ["nothing is stated; `mapa ledger` computes it from what is on record"]:
        print(f"  {printable(word[:_LINE])}{' …' if len(word) > _LINE else ''}")
    if len(statement) > _LINES:
        print(f"  and {len(statement) - _LINES} lines more; --json has all")
    print("\nfiles:")
    for name, size in files[:_FILES]:
        print(f"  {_size(size):>10}  {printable(name)}")
    if len(files) > _FILES:
        print(f"  and {len(files) - _FILES} more; --json lists all")
    print("\nnext:")
    for name, step in steps.items():
        print(f"  {name:<9}{printable(step)}")


@app.command("rm")
def remove_runs(
    names: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="whole ids of runs, or their paths in the folder")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget-account",
            help="remove edges' ledgers, and records of releases, too: what was spent is then known to nobody",
        ),
    ] = False,
    runs: options.RunsDir = Path("runs"),
    as_json: options.AsJson = False,
) -> None:
    """Remove runs for good. One that is running, or that holds an account of privacy spent, is refused."""
    from mapa.run_removal import RemovalRefusedError, considered, named, remove

    paths = list(dict.fromkeys(named(name, runs) for name in names))
    found, refused = [], []
    for path in paths:
        try:
            found.append(considered(path, forget=forget))
        except RemovalRefusedError as error:
            refused.append(str(error))
    if refused:
        for reason in refused:
            print(f"refused: {reason}", file=sys.stderr)
        print("nothing was removed", file=sys.stderr)
        raise typer.Exit(1)
    for one in found:
        print(f"{printable(one.path.name)}: {_size(one.bytes)}", file=sys.stderr)
        for account in one.accounts:
            print(f"  forgets {account}", file=sys.stderr)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError("--yes: required where nobody can be asked; nothing was removed")
        if not typer.confirm(f"remove {len(found)} for good?", err=True):
            raise typer.Exit(1)
    gone = [one.path.name for one in found if remove(one.path, forget=forget)]
    for one in found:
        if one.path.name not in gone:
            print(f"{printable(one.path.name)}: had gone already", file=sys.stderr)
    if as_json:
        print(
            json.dumps({"removed": gone, "bytes": sum(one.bytes for one in found if one.path.name in gone)})
        )
    else:
        print(f"removed {len(gone)}")


def next_steps(path: Path, line: RunLine, runs: Path) -> dict[str, str]:
    """Return the commands that make sense with a run, by what they do."""
    name = (
        shlex.quote(str(path))
        if path.parent != Path("runs") or runs != Path("runs")
        else shlex.quote(path.name)
    )
    logged = any(path.glob("log/*"))
    owed = line.state == KILLED or (read_object(path / RESUME) or {}).get(HALT_OWED) is True
    resumable = owed and any(path.glob("checkpoints/[0-9]*"))
    steps = {
        "ledger": f"mapa ledger show {name}",
        "verify": f"mapa verify {name}",
        "replay": f"mapa replay {name}" if logged else "not possible: gradients were not kept",
        "compare": f"mapa compare {name} ANOTHER-RUN",
    }
    if resumable:
        named = allowing((read_object(path / "manifest.json") or {}).get("scenario"))
        steps["resume"] = f"mapa cloud --resume {name} --broker HOST{named}"
    elif line.state == KILLED:
        steps["resume"] = "not possible: it has no checkpoint"
    begins = {"processes": "run", "containers": "containers", "network": "cloud"}.get(
        line.engine or "", "simulate"
    )
    if line.scenario is not None:
        more = " --broker HOST --run NAME" if begins == "cloud" else ""
        steps["again"] = f"mapa {begins} {shlex.quote(line.scenario)}{more}"
    return steps


_FILES = 40  # shown one by one
_LINES, _LINE = 50, 2000  # of a statement; characters of a line: what a run states itself is shorter


def _print_table(lines: list[RunLine]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("run", "scenario", "engine", "state", "updates", "metric", "ε", "size", "started"):
        table.add_column(
            column, overflow="fold", justify="right" if column in ("updates", "size") else "left"
        )
    for line in lines:
        cells = (
            line.run,
            line.scenario or "–",
            line.engine or "–",
            line.state,
            "–" if line.updates is None else f"{line.updates:,}",
            "–" if line.value is None else f"{line.metric} {line.value:.4g}",
            _epsilon(line),
            _size(line.bytes),
            (line.started or "–").replace("T", " ").removesuffix("+00:00"),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    output.print_wide(table)


def _epsilon(line: RunLine) -> str:
    """Return ε as the run states it; rounded up, as the statement does."""
    if line.epsilon is None:
        return "–" if line.delta is None else "∞"
    import math

    digits = 0.0 if line.epsilon <= 0 else 10.0 ** (3 - math.floor(math.log10(line.epsilon)))
    shown = f"{math.ceil(line.epsilon * digits - 1e-9) / digits:.10g}" if digits else "0"
    return f"{shown} (seeded: not private)" if line.reproducible_noise else shown


def _size(size: int) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "B" else f"{size} B"
        size /= 1000  # type: ignore[assignment]
    return f"{size:.3g} GB"
