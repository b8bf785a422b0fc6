"""mapa compare: overlay any runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from common.errors import ConfigurationError
from common.metrics import Better, Metric
from common.records.reader import RunRecords, read_run, records_in
from common.records.tally import staleness_summary
from mapa import output
from mapa.commands import options
from mapa.figures import line, look, over_updates, panels, save, shared_legend
from mapa.runs import find_run, unfinished


def compare_command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="directories of runs, their ids or unique beginnings, or latest"
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="path of the figure without extension; .svg and .png are written")
    ] = Path("runs/compare"),
    metric: Annotated[
        str | None, typer.Option(help="metric to plot; default: the first run's headline metric")
    ] = None,
    holdings: Annotated[
        bool,
        typer.Option("--holdings", help="also draw which edge holds what, once for each cut; needs the data"),
    ] = False,
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Plot runs: a metric over updates and over seconds."""
    found = []
    for path in [find_run(name, runs) for name in names]:
        with records_in(path):
            found.append(read_run(path))
        if (left := unfinished(path)) is not None:
            output.console(stderr=True, soft_wrap=True).print(left, highlight=False)
    with records_in(", ".join(names)):
        drawn = chosen_metric(found, metric)
        apart = zip(found, told_apart(found), strict=True)
        rows = [{**describe(run, drawn), "run": name} for run, name in apart]
        pictures = draw_comparison(found, drawn, out)
        if holdings:
            pictures += draw_cuts(found, out, options.data_dir_or_default(data_dir))
    if as_json:
        output.print_json({"runs": rows, "pictures": [str(path) for path in pictures]})
        return
    table = Table()
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = (f"{value:.4g}" if isinstance(value, float) else value for value in row.values())
        table.add_row(*("–" if cell is None else str(cell) for cell in cells))
    output.print_wide(table)
    output.console(soft_wrap=True).print("\n".join(f"wrote {path}" for path in pictures), highlight=False)


def chosen_metric(found: Sequence[RunRecords], name: str | None) -> Metric:
    """Return the metric to draw: the one asked for, which every run must have, else the first run's headline."""
    wanted = found[0].metrics[0].name if name is None else name
    for run in found:
        known = [metric.name for metric in run.metrics]
        if wanted not in known:
            raise ConfigurationError(f"metric = {wanted!r}: run {run.name} has {', '.join(known)}")
    return next(metric for metric in found[0].metrics if metric.name == wanted)


def describe(run: RunRecords, metric: Metric) -> dict[str, Any]:
    """Return what sets a run apart, and how it ended."""
    scenario, evaluations = run.scenario, [(one, one.named()) for one in run.evaluations]
    last, final = evaluations[-1] if evaluations else (None, {})
    values = [value for _, named in evaluations if (value := named.get(metric.name)) is not None]
    best = (max if metric.better is Better.HIGHER else min)(values, default=None)
    return {
        "run": run.name,
        "engine": run.manifest.get("engine"),
        "algorithm": scenario.get("algorithm", {}).get("name"),
        "model": scenario.get("model", {}).get("name"),
        "data": scenario.get("data", {}).get("set"),
        "K": run.summary.get("edges_configured", scenario.get("edges")),
        "updates": run.summary.get("updates", max(run.tally.updates, last.updates if last else 0)),
        metric.name: final.get(metric.name),
        "best": best,
        **{other.name: final.get(other.name) for other in run.metrics if other != metric},
        "staleness": staleness_summary(run.tally.staleness)["mean"],
        "seconds": None if last is None else last.seconds,
        "end": run.summary.get("reason", "unfinished"),
    }


def told_apart(found: Sequence[RunRecords]) -> list[str]:
    """Return the last part of every path, and as many before it as no two runs share; the same run is numbered."""
    paths = [run.path.resolve().parts for run in found]
    parts = 1
    while parts < max(map(len, paths)) and len({one[-parts:] for one in paths}) < len(set(paths)):
        parts += 1
    names = ["/".join(path[-parts:]) for path in paths]
    return [
        f"{name} ({names[:place].count(name) + 1})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def draw_cuts(found: Sequence[RunRecords], stem: Path, data_dir: Path) -> list[Path]:
    """Draw which edge holds what, for each cut once; never for records that edges brought themselves."""
    from common.scenario.scenario import parse_scenario  # needed for this alone
    from mapa.holdings import draw_holdings, holdings_of

    drawn: dict[tuple[object, ...], Path] = {}
    for run in found:
        scenario = parse_scenario(run.scenario)
        cut = (scenario.data.model_dump_json(), scenario.workers, scenario.seed)
        if cut not in drawn:
            number = f"-{len(drawn) + 1}" if drawn else ""
            path = stem.with_name(f"{stem.name}-holdings{number}.svg")
            draw_holdings(holdings_of(scenario, run.name, data_dir), path)
            drawn[cut] = path
    return list(drawn.values())


def draw_comparison(found: Sequence[RunRecords], metric: Metric, stem: Path) -> list[Path]:
    clocks = {clock(run) for run in found if run.timed}
    with panels(1, 2 if clocks else 1, width=4.2, height=3.2) as (figure, axes):
        for place, (run, name) in enumerate(zip(found, told_apart(found), strict=True)):
            shown = output.printable(name)
            label = f"{shown} ({clock(run)})" if run.timed and len(clocks) > 1 else shown
            how = replace(look(name, place), label=label)
            evaluations = run.evaluations
            values = [one.named().get(metric.name) for one in evaluations]
            drawn = [math.nan if value is None else value for value in values]
            line(axes[0, 0], [one.updates for one in evaluations], drawn, how)
            if run.timed:
                line(axes[0, 1], [one.seconds for one in evaluations if one.seconds is not None], drawn, how)
        over_updates(axes[0, 0])
        axes[0, 0].set_ylabel(f"test {output.printable(metric.name)}")
        if clocks:
            axes[0, 1].set_xlabel(f"{' or '.join(sorted(clocks))} since the first update")
        shared_legend(figure, axes)
        return save(figure, stem)


def clock(run: RunRecords) -> str:
    """Return which seconds a run counts."""
    from mapa.recording import ENGINES  # the help needs no engine

    return "simulated seconds" if run.manifest.get("engine") in ENGINES else "seconds"
