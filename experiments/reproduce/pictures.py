"""The pictures of the attack, of gradient norms under their bounds, and of stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.attack.picture import draw_grid
from experiments.reproduce.attacks import cell_of
from experiments.reproduce.judges.ours import TARGET, seconds_to_target
from experiments.reproduce.results import Results
from mapa import figures
from mapa.figures import (
    Look,
    aligned,
    bars,
    curve,
    hollow,
    line,
    look,
    over_updates,
    panels,
    save,
    shared_legend,
)

_GROUPS = (
    ("ASGD", ["asgd"]),
    ("AUDP", ["audp-15", "audp-3", "audp-0.2"]),
    ("MAPA", ["mapa-200", "mapa-100", "mapa-10"]),
)


def draw_attack(results: Results, folder: Path) -> list[Path]:
    paths = []
    for entry in results.of("attack"):
        cells = entry.result.cells or []
        if cells:
            shape, shown = cells[0]["shape"], [cell_of(cell) for cell in cells]
            paths += draw_grid(shown, shape, folder / f"attack-{entry.point.panel}")
    return paths


def draw_norms(results: Results, folder: Path) -> list[Path]:
    with panels(2, 3) as (figure, axes):
        for column, (title, variants) in enumerate(_GROUPS):
            above, below = axes[:, column]
            for place, variant in enumerate(variants):
                entries = results.of("norms", variant=variant)
                if not entries:
                    continue
                first = entries[0]
                bound = variant.partition("-")[2]
                how = look(f"{title} {bound}".strip(), place)
                norms = first.result.norms or {"t": [], "mean": [], "low": [], "high": []}
                line(above, norms["t"], norms["mean"], replace(how, dash="-"), linewidth=1)
                above.fill_between(
                    norms["t"], norms["low"], norms["high"], color=how.colour, alpha=0.15, linewidth=0
                )
                clips = first.result.clips or ([(1, float(bound))] if bound else [])
                if clips:
                    starts = [t for t, _ in clips] + [first.result.t[-1]]
                    values = [c for _, c in clips] + [clips[-1][1]]
                    dashed = replace(how, label="", dash="--")
                    line(above, starts, values, dashed, drawstyle="steps-post", linewidth=0.9)
                ts, runs = aligned([(e.result.t, e.result.accuracy) for e in entries])
                curve(below, ts, runs, how, markers=True)
            above.set_yscale("log")
            above.set_title(title)
            over_updates(above, "")
            over_updates(below)
            above.legend(frameon=True, framealpha=0.85, edgecolor="none")  # a bound may lie behind
        axes[0, 0].set_ylabel("‖g‖ before clipping, first seed\n(dashed: bound C)")
        axes[1, 0].set_ylabel("test accuracy")
        return save(figure, folder / "norms")


def draw_stragglers(results: Results, folder: Path) -> list[Path]:
    xs = results.xs("stragglers")
    styles = {
        ("asgd", "events"): Look("ASGD, asynchronous", figures.GREEN, "-", "^"),
        ("asgd", "synchronous"): Look("SGD, synchronous", figures.GREEN, "--", "v"),
        ("mapa", "events"): Look("MAPA, asynchronous", figures.BLUE, "-", "o"),
        ("mapa", "synchronous"): Look("MAPA, synchronous", figures.BLUE, "--", "s"),
    }
    with panels(1, 3, width=3.1) as (figure, axes):
        times, *over = axes[0]
        for (variant, engine), how in styles.items():
            runs = {
                x: [e.result for e in results.of("stragglers", variant=variant, engine=engine, x=x)]
                for x in xs
            }
            needed = {x: seconds_to_target(results, variant, engine, x) for x in xs if runs[x]}
            known = {x: [s for s in some if s is not None] for x, some in needed.items() if None not in some}
            bars(times, list(known), list(known.values()), how)
            never = [x for x in needed if x not in known]
            hollow(times, never, [max((r.seconds or [0.0])[-1] for r in runs[x]) for x in never], how)
            for axis, x in zip(over, (xs[0], xs[-1]), strict=True):
                timed = [(r.seconds, r.accuracy) for r in runs[x] if r.seconds]
                if timed:
                    curve(axis, *interpolated(timed), how, markers=True)
                axis.set_title("all edges alike" if x == 1 else f"one edge {x:g}× slower")
                axis.set_xlabel("virtual seconds\n(band: deviation of the seeds)")
        times.set_xlabel("slowest of ten edges, times slower\n(bars: all seeds; hollow: a seed ended before)")
        times.set_ylabel(f"virtual seconds to {TARGET:.0%}")
        times.set_ylim(bottom=0)
        over[0].set_ylabel("test accuracy")
        shared_legend(figure, axes)
        return save(figure, folder / "stragglers")


def interpolated(
    runs: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[list[float], list[list[float]]]:
    """Return common seconds, and the curve (seconds, y) of each run there: seeds are evaluated at other times.

    They are those of all evaluations, from where every run has its first one; a run has NaN after its end.
    """
    begin = max(x[0] for x, _ in runs)
    seconds = sorted({second for x, _ in runs for second in x if second >= begin})
    return seconds, [np.interp(seconds, x, y, right=np.nan).tolist() for x, y in runs]
