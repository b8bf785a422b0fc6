"""Figures of a reproduction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.reconstruction import draw_grid
from experiments.reproduce.catalogue import Results, catalogue
from experiments.reproduce.claims import MODELS, TARGET, by_value, horizon, seconds_to_target
from experiments.reproduce.runs import cell_of
from mapa import figures

_MOST_TICKS = 7
_BOUND = "bound C (MAPA: the first)"
_SYMBOLS = {
    "privacy.epsilon": "ε",
    "batch_size": "b",
    "algorithm.sigma": "σ",
    "algorithm.smoothness": "L",
    "algorithm.delta": "δ",
    "algorithm.theta": "θ",
}
_LOOKS = {
    "audp-0.1": figures.Look("AUDP, ε = 0.1", figures.ORANGE, "--", "s"),
    "audp-0.5": figures.Look("AUDP, ε = 0.5", figures.VERMILION, "-.", "D"),
    "audp-sound": figures.Look("AUDP, sound, total ε = 2", figures.PURPLE, ":", "^"),
    "mapa-sound": figures.Look("MAPA (first bound), sound, total ε = 2", figures.BLUE, "-", "o"),
    "measured": figures.Look("MAPA, this project's σ and L", figures.BLUE, "-", "o"),
    "paper": figures.Look("MAPA, σ = 30, L = 10", figures.VERMILION, "--", "s"),
    "theorem3": figures.Look("MAPA, σ = 30, L = 10, Theorem 3's first bound", figures.PURPLE, "-.", "D"),
}
_GROUPS = (
    ("ASGD", ["asgd"]),
    ("AUDP", ["audp-15", "audp-3", "audp-0.2"]),
    ("MAPA", ["mapa-200", "mapa-100", "mapa-10"]),
)


def draw_all(results: Results, experiments: Sequence[str], folder: Path) -> dict[str, list[Path]]:
    """Draw what there are results for; return the files of each experiment."""
    drawn = {name: DRAWN[name](results, folder) for name in experiments if results.of(name)}
    return {name: paths for name, paths in drawn.items() if paths}


def _finished(figure: Any, axes: Any, stem: Path, ylabel: str = "", *, legend: bool = True) -> list[Path]:
    for row in axes if ylabel else ():
        row[0].set_ylabel(ylabel)
    if legend:
        figures.shared_legend(figure, axes)
    return figures.save(figure, stem)


@contextmanager
def _panel_grid(results: Results, experiment: str) -> Iterator[tuple[Any, Any, list[tuple[Any, str]]]]:
    """Yield a figure, its axes, and the axis of each panel: a column for each model, MNIST above USPS."""
    parts = [name.partition("-") for name in results.panels(experiment)]
    named = sorted((data, MODELS.index(model)) for model, _, data in parts)
    names = [f"{MODELS[place]}-{data}" for data, place in named]
    columns = len({place for _, place in named})
    with figures.panels(math.ceil(len(names) / columns), columns) as (figure, axes):
        for axis in axes.flat[len(names) :]:
            axis.set_visible(False)
        yield figure, axes, list(zip(axes.flat, names, strict=False))


def draw_swept(
    experiment: str,
    xlabel: str,
    results: Results,
    folder: Path,
    *,
    log: bool = False,
    ylabel: str = "final test accuracy",
) -> list[Path]:
    """Draw final accuracy over the swept key, a panel for each model and data set."""
    with _panel_grid(results, experiment) as (figure, axes, named):
        for axis, panel in named:
            for place, variant in enumerate(results.variants(experiment, panel)):
                entries = results.of(experiment, panel=panel, variant=variant)
                how = _LOOKS.get(variant) or figures.look(variant, place)
                if variant == "audp" and not results.of(experiment, panel=panel, variant="audp-fair"):
                    how = replace(how, label="AUDP")  # its bound is what is swept, or a fair one
                xs = sorted({e.point.x for e in entries if e.point.x is not None})
                if xs:
                    swept = [[e.result.final for e in entries if e.point.x == x] for x in xs]
                    figures.means(axis, xs, swept, how)
                else:
                    figures.level(axis, [e.result.final for e in entries], how)
            axis.set_title(results.title(panel))
            axis.set_xlabel(xlabel)
            if log:
                _log_ticks(axis, results.xs(experiment, panel=panel))
        return _finished(figure, axes, folder / experiment, ylabel)


def _log_ticks(axis: Axes, xs: Sequence[float]) -> None:
    """Mark where something was run, and every second place of many: the decades' own labels run into each other."""
    axis.set_xscale("log")
    shown = xs if len(xs) <= _MOST_TICKS else xs[::2]
    axis.set_xticks(shown, [f"{x:g}" for x in shown], minor=False)
    axis.minorticks_off()


def draw_convergence(results: Results, folder: Path) -> list[Path]:
    with _panel_grid(results, "convergence") as (figure, axes, named):
        for axis, panel in named:
            xs, last = results.xs("convergence", panel=panel), horizon(results, panel)
            threshold = catalogue().thresholds()[panel].taken
            for variant in results.variants("convergence", panel):
                how = figures.look(variant)
                runs = {x: results.of("convergence", panel=panel, variant=variant, x=x) for x in xs}
                reached = {x: [e.result.reached(threshold) for e in entries] for x, entries in runs.items()}
                known = {x: [t for t in ts if t is not None] for x, ts in reached.items() if None not in ts}
                figures.bars(axis, [x for x in known if known[x]], [ts for ts in known.values() if ts], how)
                never = [x for x in xs if x not in known]
                figures.hollow(axis, never, [last * 1.25] * len(never), how)
            axis.axhline(last, color="#999999", linewidth=0.8)
            _log_ticks(axis, xs)
            axis.set_yscale("log")
            axis.set_title(f"{results.title(panel)}, loss ≤ {threshold:g}")
            axis.set_xlabel("edges K\n(bars: all seeds; hollow: not within T)")
        return _finished(figure, axes, folder / "convergence", "updates needed")


def draw_testbed(results: Results, folder: Path) -> list[Path]:
    xs = results.xs("testbed")
    if not xs:
        return []
    with figures.panels(3, len(xs)) as (figure, axes):
        for column, x in enumerate(xs):
            over_t, over_seconds, stale = axes[:, column]
            for variant in results.variants("testbed", results.panels("testbed")[0]):
                for entry in results.of("testbed", variant=variant, x=x):
                    how, result = figures.look(variant), entry.result
                    figures.line(over_t, result.t, result.accuracy, how)
                    if result.seconds:
                        figures.line(over_seconds, result.seconds, result.accuracy, how)
                    if result.staleness and variant != "csgd":
                        values = sorted(result.staleness)
                        total = sum(result.staleness.values())
                        figures.line(stale, values, [result.staleness[v] / total for v in values], how)
            over_t.set_title(f"K = {x:g}")
            figures.over_updates(over_t)
            over_seconds.set_xlabel("seconds since the first update")
            stale.axvline(x, color="#999999", linewidth=0.8)
            stale.set_xscale("symlog", linthresh=20)  # single gradients are far out
            stale.set_xlim(left=-0.5)
            stale.set_xlabel("staleness (grey: τ_max = K)")
            stale.set_yscale("log")
        axes[2, 0].set_ylabel("share of gradients")
        return _finished(figure, axes[:2], folder / "testbed", "test accuracy")


def draw_sensitivity(results: Results, folder: Path) -> list[Path]:
    with figures.panels(2, 3) as (figure, axes):
        for axis, (key, symbol) in zip(axes.flat, _SYMBOLS.items(), strict=True):
            for place, (x, entries) in enumerate(by_value(results, key).items()):
                how = figures.look(f"{symbol} = {x:g}", place)
                ts, runs = figures.aligned([(e.result.t, e.result.accuracy) for e in entries])
                figures.curve(axis, ts, runs, how, markers=True)
            axis.set_title(symbol)
            figures.over_updates(axis)
            axis.legend()
        return _finished(figure, axes, folder / "sensitivity", "test accuracy", legend=False)


def draw_attack(results: Results, folder: Path) -> list[Path]:
    paths = []
    for entry in results.of("attack"):
        cells = entry.result.cells or []
        if cells:
            shape, shown = cells[0]["shape"], [cell_of(cell) for cell in cells]
            paths += draw_grid(shown, shape, folder / f"attack-{entry.point.panel}")
    return paths


def draw_norms(results: Results, folder: Path) -> list[Path]:
    with figures.panels(2, 3) as (figure, axes):
        for column, (title, variants) in enumerate(_GROUPS):
            above, below = axes[:, column]
            for place, variant in enumerate(variants):
                entries = results.of("norms", variant=variant)
                if not entries:
                    continue
                first, bound = entries[0].result, variant.partition("-")[2]
                how = figures.look(f"{title} {bound}".strip(), place)
                norms = first.norms or {}
                ts, means, low, high = (norms.get(key, []) for key in ("t", "mean", "low", "high"))
                figures.line(above, ts, means, replace(how, dash="-"), linewidth=1)
                above.fill_between(ts, low, high, color=how.colour, alpha=0.15, linewidth=0)
                clips = first.clips or ([(1, float(bound))] if bound else [])
                if clips:
                    starts, values = zip(*clips, (first.t[-1], clips[-1][1]), strict=True)
                    dashed = replace(how, label="", dash="--")
                    figures.line(above, starts, values, dashed, drawstyle="steps-post", linewidth=0.9)
                ts, runs = figures.aligned([(e.result.t, e.result.accuracy) for e in entries])
                figures.curve(below, ts, runs, how, markers=True)
            above.set_yscale("log")
            above.set_title(title)
            figures.over_updates(above, "")
            figures.over_updates(below)
            above.legend(frameon=True, framealpha=0.85, edgecolor="none")  # a bound may lie behind
        axes[0, 0].set_ylabel("‖g‖ before clipping, first seed\n(dashed: bound C)")
        axes[1, 0].set_ylabel("test accuracy")
        return figures.save(figure, folder / "norms")


_TWINS = {
    ("asgd", "events"): figures.Look("ASGD, asynchronous", figures.GREEN, "-", "^"),
    ("asgd", "synchronous"): figures.Look("SGD, synchronous", figures.GREEN, "--", "v"),
    ("mapa", "events"): figures.Look("MAPA, asynchronous", figures.BLUE, "-", "o"),
    ("mapa", "synchronous"): figures.Look("MAPA, synchronous", figures.BLUE, "--", "s"),
}


def draw_stragglers(results: Results, folder: Path) -> list[Path]:
    xs = results.xs("stragglers")
    with figures.panels(1, 3, width=3.1) as (figure, axes):
        times, *over = axes[0]
        for (variant, engine), how in _TWINS.items():
            entries = {x: results.of("stragglers", variant=variant, engine=engine, x=x) for x in xs}
            runs = {x: [entry.result for entry in some] for x, some in entries.items()}
            needed = {x: seconds_to_target(results, variant, engine, x) for x in xs if runs[x]}
            known = {x: [s for s in some if s is not None] for x, some in needed.items() if None not in some}
            figures.bars(times, list(known), list(known.values()), how)
            never = [x for x in needed if x not in known]
            figures.hollow(times, never, [max((r.seconds or [0.0])[-1] for r in runs[x]) for x in never], how)
            for axis, x in zip(over, (xs[0], xs[-1]), strict=True):
                timed = [(r.seconds, r.accuracy) for r in runs[x] if r.seconds]
                if timed:
                    figures.curve(axis, *interpolated(timed), how, markers=True)
                axis.set_title("all edges alike" if x == 1 else f"one edge {x:g}× slower")
                axis.set_xlabel("virtual seconds\n(band: deviation of the seeds)")
        times.set_xlabel("slowest of ten edges, times slower\n(bars: all seeds; hollow: a seed ended before)")
        times.set_ylabel(f"virtual seconds to {TARGET:.0%}")
        times.set_ylim(bottom=0)
        over[0].set_ylabel("test accuracy")
        return _finished(figure, axes, folder / "stragglers")


def interpolated(
    runs: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[list[float], list[list[float]]]:
    """Return common seconds, and the curve (seconds, y) of each run there: seeds are evaluated at other times.

    They are those of all evaluations, from where every run has its first one; a run has NaN after its end.
    """
    begin = max(x[0] for x, _ in runs)
    seconds = sorted({second for x, _ in runs for second in x if second >= begin})
    return seconds, [np.interp(seconds, x, y, right=np.nan).tolist() for x, y in runs]


DRAWN: dict[str, Callable[[Results, Path], list[Path]]] = {
    "attack": draw_attack,
    "norms": draw_norms,
    "accuracy": partial(draw_swept, "accuracy", "ε of one release"),
    "convergence": draw_convergence,
    "testbed": draw_testbed,
    "sensitivity": draw_sensitivity,
    "bounds": partial(draw_swept, "bounds", _BOUND, log=True),
    "heldout": partial(draw_swept, "heldout", _BOUND, log=True, ylabel="accuracy on held-out records"),
    "sound": partial(draw_swept, "sound", "total ε of an edge (δ = 1e-5)", log=True),
    "constants": partial(draw_swept, "constants", "ε of one release"),
    "stragglers": draw_stragglers,
}
