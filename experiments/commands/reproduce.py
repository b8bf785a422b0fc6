"""mapa reproduce: the paper's experiments, and what became of its claims."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.errors import ConfigurationError
from experiments.audit.game import finites
from experiments.harness import SWEEP_ENGINES
from experiments.reference.table import ReferenceOrder, ReferenceTable, make_table
from mapa.commands import options
from mapa.output import print_json, progress_console
from mapa.processes import interrupted_by_signals

if TYPE_CHECKING:
    from experiments.reproduce.reproduction import Reproduction, ReproductionOrder

_COLOURS = {
    "reproduced": "green",
    "partly": "yellow",
    "not reproduced": "red",
    "undecided": "cyan",
    "not run": "dim",
}


def reproduce_command(
    figures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIGURE]...",
            help="attack norms accuracy convergence testbed sensitivity bounds heldout "
            "sound constants stragglers, ours (the last five), or 1 to 7; default: all of these. "
            "reference, alone: the table of asynchronous algorithms under the same true ε",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="minutes, on the embedded images (default)")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="the paper's sizes: hours; needs MNIST and USPS")
    ] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="a minute: a smoke test of every step")] = False,
    engine: Annotated[str, typer.Option(help="cores or ray")] = "cores",
    ray_address: Annotated[
        str | None, typer.Option(help="address of a Ray cluster; default: start one here")
    ] = None,
    testbed: Annotated[
        str, typer.Option(help="containers, processes, or auto: containers at --full if available")
    ] = "auto",
    seeds: Annotated[int | None, typer.Option(min=1, help="maximum number of seeds per point")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="run only matching lines, e.g. '*-lr-*'; repeatable"),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="parallel runs on this machine; default: one for each core")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="reuse finished runs from the cache, or run them again")
    ] = True,
    cached: Annotated[
        bool,
        typer.Option("--cached", help="run nothing; report what the cache holds, with all its seeds"),
    ] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="reference: choose rates on held-out records first")
    ] = False,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="reference: also audit each release mechanism, which takes minutes; exit 1 if a claim is refuted",
        ),
    ] = False,
    rows: Annotated[
        list[Path] | None,
        typer.Option(metavar="CSV", help="reference: rows of others for the same table; repeatable"),
    ] = None,
    out: Annotated[Path, typer.Option(help="directory for report, pictures, tables and cache")] = Path(
        "runs/reproduce"
    ),
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Run the paper's experiments and judge its claims."""
    from experiments.reproduce.catalogue import catalogue
    from experiments.reproduce.reproduction import ReproductionOrder

    sizes = [name for name, chosen in (("quick", quick), ("full", full), ("tiny", tiny)) if chosen]
    if len(sizes) > 1:
        raise ConfigurationError(f"--{sizes[0]} and --{sizes[1]}: choose one")
    common: dict[str, Any] = {
        "size": sizes[0] if sizes else "quick",
        "data_dir": options.data_dir_or_default(data_dir),
        "seeds": seeds,
        "only": tuple(only or ()),
        "resume": resume,
        "jobs": jobs,
    }
    if figures == ["reference"]:
        if cached or engine != "cores" or testbed != "auto":
            raise ConfigurationError("reference: takes neither --cached, --engine nor --testbed")
        others = tuple(rows or ())
        table = ReferenceOrder(out=out / "reference", tune=tune, others=others, audit=audit, **common)
        raise typer.Exit(_reference(table, as_json=as_json))
    for wrong, words in (
        ("reference" in (figures or []), "reference: is run alone, without other figures"),
        (tune or audit or rows, "--tune, --audit and --rows: only with `mapa reproduce reference`"),
        (engine not in SWEEP_ENGINES, f"engine = {engine!r}: allowed are {', '.join(SWEEP_ENGINES)}"),
        (ray_address is not None and engine != "ray", "--ray-address: needs --engine ray"),
        (cached and not resume, "--cached and --fresh: choose one"),
    ):
        if wrong:
            raise ConfigurationError(words)
    order = ReproductionOrder(
        experiments=catalogue().chosen(figures or []),
        out=out,
        command=shlex.join(["mapa", *sys.argv[1:]]),
        engine=engine,
        ray_address=ray_address,
        testbed=testbed,
        cached_only=cached,
        **common,
    )
    raise typer.Exit(_reproduce(order, as_json=as_json))


def _reproduce(order: ReproductionOrder, *, as_json: bool) -> int:
    from experiments.reproduce.reproduction import reproduce

    console = progress_console()
    with interrupted_by_signals(), _bar(console) as bar:
        outcome = reproduce(order, _watching(bar, f"size {order.size}"))
    if as_json:
        verdicts = [
            {
                "claim": one.claim.name,
                "experiment": one.claim.experiment,
                "verdict": one.words,
                "measured": one.judgement.measured,
                "why": one.why,
            }
            for one in outcome.judged
        ]
        print_json({"size": order.size, "verdicts": verdicts, **_common(outcome)})
    else:
        table = Table("experiment", "claim", "verdict")
        for one in outcome.judged:
            colour = _COLOURS[one.judgement.verdict.value]
            table.add_row(one.claim.experiment, one.claim.text, f"[{colour}]{one.words}[/]")
        Console().print(table)
        counts = f"{outcome.runs} runs, {outcome.cached} from the cache"
        Console(soft_wrap=True).print(f"{counts}; report: {outcome.files[0]}")
        _print_failures(console, outcome.failures)
    return 1 if outcome.failures else 0


def _reference(order: ReferenceOrder, *, as_json: bool) -> int:
    console = Console(stderr=True)
    with interrupted_by_signals(), _bar(console) as bar:
        table = make_table(order, _watching(bar, f"reference, size {order.size}"))
    if as_json:
        audited = [finites(asdict(row)) for row in table.audited]
        rows = [asdict(row) for row in table.rows]
        report = {"size": order.size, "rows": rows, **_common(table)}
        print_json({**report, "looks_at_held_out": table.looks, "audited": audited})
    else:
        print(table.files[1].read_text(encoding="utf-8"))
        counts = f"{table.runs} runs, {table.cached} from the cache; {table.looks} looks at held-out records"
        console.print(f"{counts}; {table.files[0]}", soft_wrap=True, markup=False)
        _print_failures(console, table.failures)
    refuted = order.audit and any(row.is_refuted for row in table.audited)
    return 1 if table.failures or refuted else 0


def _common(outcome: Reproduction | ReferenceTable) -> dict[str, Any]:
    files = [os.fspath(path) for path in outcome.files]
    counts = {"runs": outcome.runs, "cached": outcome.cached}
    return {"failures": outcome.failures, **counts, "files": files}


def _print_failures(console: Console, failures: Mapping[str, str]) -> None:
    for name, error in failures.items():
        console.print(f"failed: {name}: {error}", style="red", markup=False, soft_wrap=True)


class TimeLeft(progress.ProgressColumn):
    """Time left by the cost that is done. Rich looks at the last 30 s alone, in which no task may have ended."""

    def render(self, task: progress.Task) -> Text:
        needed = task.fields["needed"]
        if needed is None or task.elapsed is None:
            return Text("-:--:--")
        return Text(str(timedelta(seconds=round(max(0.0, needed - task.elapsed)))))


def _watching(bar: progress.Progress, note: str) -> Callable[[float, float, str], None]:
    """Add a task to the bar; return what moves it."""
    number = bar.add_task("reproduce", total=None, note=note, needed=None)
    (task,) = bar.tasks

    def watch(done: float, total: float, line: str) -> None:
        needed = (task.elapsed or 0.0) * total / done if done else None  # seconds in all
        bar.update(number, completed=done, total=total, note=line or note, needed=needed)

    return watch


def _bar(console: Console, get_time: Callable[[], float] | None = None) -> progress.Progress:
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        TimeLeft(),
        progress.TextColumn("{task.fields[note]}"),
        console=console,
        get_time=get_time,
        disable=not console.is_terminal or console.quiet,
    )
