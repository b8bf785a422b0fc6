"""mapa runs: list the runs of a folder, show one, remove some."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from common.errors import ConfigurationError, nearest
from common.own_code import allowing
from common.records.layout import HALT_OWED, RESUME
from mapa import output
from mapa.commands import options
from mapa.output import printable
from mapa.runs import KILLED, chosen, files_of, is_run, line_of_run, read_object, run_paths, statement_of

app = typer.Typer(no_args_is_help=True, help="Runs on record: list, show, rm.")

SORT_KEYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "started": lambda one: one["started"] or "",
    "run": lambda one: one["run"],
    "size": lambda one: one["bytes"],
    "updates": lambda one: one["updates"] or 0,
    "value": lambda one: -math.inf if one["value"] is None else one["value"],
    "epsilon": lambda one: -math.inf if one["epsilon"] is None else one["epsilon"],
}
_FILES = 40  # shown one by one
_LINES, _LINE = 50, 2000  # of a statement; characters of a line: what a run states itself is shorter


@app.command("list")
def list_runs(
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--runs-dir", help="folder of records, of one cloud or engine; repeatable; default: runs"
        ),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="only runs in this state: running, killed, finished, interrupted …; repeatable"),
    ] = None,
    scenario: Annotated[str | None, typer.Option(help="only runs of this scenario")] = None,
    algorithm: Annotated[str | None, typer.Option(help="only runs of this algorithm")] = None,
    engine: Annotated[str | None, typer.Option(help="only runs of this engine: network, events …")] = None,
    sort: Annotated[str, typer.Option(help="started, run, size, updates, value or epsilon")] = "started",
    reverse: Annotated[bool, typer.Option("--reverse", help="the other way round")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="maximum number of runs")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the runs of a folder, or of several, the newest first."""
    folders = list(dict.fromkeys(runs or [Path("runs")]))
    if sort not in SORT_KEYS:
        raise ConfigurationError(
            f"--sort {sort!r}: allowed are {', '.join(SORT_KEYS)}{nearest(sort, SORT_KEYS)}"
        )
    for folder in folders:
        if not folder.is_dir():
            raise ConfigurationError(f"--runs-dir {str(folder)!r}: no such folder; a first run makes it")
    wanted = {"scenario": scenario, "algorithm": algorithm, "engine": engine}
    lines = [
        line
        for folder in folders
        for path in run_paths(folder)
        for line in [{**line_of_run(path), "folder": str(folder)}]
        if (not state or line["state"] in state)
        and all(value is None or line[key] == value for key, value in wanted.items())
    ]
    lines.sort(key=SORT_KEYS[sort], reverse=(sort != "run") != reverse)
    lines = lines[:limit]
    if as_json:
        print(json.dumps(lines, indent=2))
    else:
        _print_table(lines, several=len(folders) > 1)


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
            **line,
            "path": str(path),
            "statement": statement,
            "files": [{"file": name, "bytes": size} for name, size in files],
            "next": steps,
        }
        print(json.dumps(document, indent=2))
        return
    for key, value in {**line, "path": path}.items():
        if value is not None:
            print(f"{key:<20}{decimal(value) if key == 'bytes' else printable(str(value))}")
    print("\nprivacy, as the run states it:")
    for word in statement[:_LINES] or ["nothing is stated; `mapa ledger` computes it from what is on record"]:
        print(f"  {printable(word[:_LINE])}{' …' if len(word) > _LINE else ''}")
    if len(statement) > _LINES:
        print(f"  and {len(statement) - _LINES} lines more; --json has all")
    print("\nfiles:")
    for name, size in files[:_FILES]:
        print(f"  {decimal(size):>10}  {printable(name)}")
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

    found, refused = [], []
    for path in dict.fromkeys(named(name, runs) for name in names):
        try:
            found.append(considered(path, forget=forget))
        except RemovalRefusedError as error:
            refused.append(f"refused: {error}")
    if refused:
        print(*refused, "nothing was removed", sep="\n", file=sys.stderr)
        raise typer.Exit(1)
    for one in found:
        print(f"{printable(one.path.name)}: {decimal(one.bytes)}", file=sys.stderr)
        for account in one.accounts:
            print(f"  forgets {account}", file=sys.stderr)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError("--yes: required without a terminal; nothing was removed")
        if not typer.confirm(f"remove {len(found)} for good?", err=True):
            raise typer.Exit(1)
    removed: dict[str, int] = {}
    for one in found:
        if remove(one.path, forget=forget):
            removed[one.path.name] = one.bytes
        else:
            print(f"{printable(one.path.name)}: had gone already", file=sys.stderr)
    if as_json:
        print(json.dumps({"removed": [*removed], "bytes": sum(removed.values())}))
    else:
        print(f"removed {len(removed)}")


def next_steps(path: Path, line: dict[str, Any], runs: Path) -> dict[str, str]:
    """Return the commands that make sense with a run, by what they do."""
    usual = path.parent == runs == Path("runs")
    name = shlex.quote(path.name if usual else str(path))
    steps = {
        "ledger": f"mapa ledger show {name}",
        "verify": f"mapa verify {name}",
        "replay": f"mapa replay {name}"
        if any(path.glob("log/*"))
        else "not possible: gradients were not kept",
        "compare": f"mapa compare {name} ANOTHER-RUN",
    }
    killed = line["state"] == KILLED
    owed = killed or (read_object(path / RESUME) or {}).get(HALT_OWED) is True
    if owed and any(path.glob("checkpoints/[0-9]*")):
        code = allowing((read_object(path / "manifest.json") or {}).get("scenario"))
        steps["resume"] = f"mapa cloud --resume {name} --broker HOST{code}"
    elif killed:
        steps["resume"] = "not possible: it has no checkpoint"
    if line["scenario"] is not None:
        by_engine = {"processes": "run", "containers": "containers", "network": "cloud"}
        begins = by_engine.get(line["engine"] or "", "simulate")
        more = " --broker HOST --run NAME" if begins == "cloud" else ""
        steps["again"] = f"mapa {begins} {shlex.quote(line['scenario'])}{more}"
    return steps


def _print_table(lines: list[dict[str, Any]], *, several: bool) -> None:
    names = {line["metric"] for line in lines if line["value"] is not None}
    fixed = ("run", "state", "K", "algorithm", "updates", "ε", "scenario", "engine", "size", "started")
    one_name = len(names) == 1 and names.isdisjoint(fixed)
    columns = dict.fromkeys((*fixed[:5], str(*names) if one_name else "metric", *fixed[5:]), "left")
    columns |= dict.fromkeys(("K", "updates", "size"), "right")
    rows = [
        (
            str(Path(line["folder"], line["run"])) if several else line["run"],
            line["state"],
            "–" if line["edges"] is None else f"{line['edges']:g}",
            line["algorithm"] or "–",
            "–" if line["updates"] is None else f"{line['updates']:,}",
            "–"
            if line["value"] is None
            else f"{'' if one_name else line['metric']} {line['value']:.4g}".strip(),
            _epsilon(line),
            line["scenario"] or "–",
            line["engine"] or "–",
            decimal(line["bytes"]),
            (line["started"] or "–").replace("T", " ").removesuffix("+00:00"),
        )
        for line in lines
    ]
    output.print_fitting(columns, rows, ("started", "size", "engine", "scenario", "updates"))
    if any(line["reproducible_noise"] and line["epsilon"] is not None for line in lines):
        print("* seeded: not private", file=sys.stderr)


def _epsilon(line: dict[str, Any]) -> str:
    """Return ε as the run states it; rounded up, as the statement does."""
    if line["epsilon"] is None:
        return "–" if line["delta"] is None else "∞"
    shown = output.rounded_up(max(0.0, line["epsilon"]))  # a file of unknown origin may say anything
    return f"{shown}*" if line["reproducible_noise"] else shown
