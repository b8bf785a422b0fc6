"""One style for every picture: Okabe–Ito colours, a marker and a dash for each line, SVG and PNG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from common.errors import ConfigurationError

# Okabe & Ito 2008: told apart with every kind of colour blindness
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
_DASHES = ("-", "--", "-.", ":")
_MARKERS = "osD^vP*X"

_RC: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "mapa",  # the same picture gives the same file
}


@dataclass(frozen=True, slots=True)
class Look:
    """How one line looks; colour is never the only difference."""

    label: str
    colour: str
    dash: str = "-"
    marker: str = "o"


LOOKS = {
    "csgd": Look("CSGD", BLACK, ":", "X"),
    "asgd": Look("ASGD", GREEN, "-.", "^"),
    "audp": Look("AUDP, bound G", ORANGE, "--", "s"),
    "audp-fair": Look("AUDP, fair bound", VERMILION, "--", "D"),
    "mapa": Look("MAPA", BLUE, "-", "o"),
}


def look(name: str, place: int = 0) -> Look:
    """Return the look of a known line, else one by its place."""
    return LOOKS.get(name) or Look(
        name, PALETTE[place % len(PALETTE)], _DASHES[place % len(_DASHES)], _MARKERS[place % len(_MARKERS)]
    )


@contextmanager
def panels(rows: int, columns: int, *, width: float = 2.9, height: float = 2.3) -> Iterator[tuple[Any, Any]]:
    """Yield (figure, rows × columns axes) in the house style; the object API leaves no global state."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("figures need matplotlib: pip install 'mapa-testbed[figures]'") from error
    with rc_context(_RC):
        figure = Figure(figsize=(width * columns + 0.3, height * rows + 0.5), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False)


def _style(how: Look) -> dict[str, Any]:
    return {"color": how.colour, "linestyle": how.dash, "marker": how.marker, "label": how.label}


def line(axis: Any, x: Sequence[float], y: Any, how: Look, **more: Any) -> None:
    """Draw a line with its dash and about ten of its markers."""
    axis.plot(x, y, **{**_style(how), "markevery": max(1, len(x) // 10), **more})


def aligned(
    runs: Sequence[tuple[Sequence[float], Sequence[float | None]]],
) -> tuple[list[float], list[list[float]]]:
    """Return every x of the runs (x, y), and y of each run there; NaN where it has none."""
    xs = sorted({place for x, _ in runs for place in x})
    known = [dict(zip(x, y, strict=True)) for x, y in runs]
    return xs, [[math.nan if (y := run.get(x)) is None else y for x in xs] for run in known]


def curve(
    axis: Any,
    x: Sequence[float],
    runs: Sequence[Sequence[float]],
    how: Look,
    *,
    markers: bool = False,
    label: str | None = None,
) -> None:
    """Draw the mean of the runs, with a band of one standard deviation where there are several.

    Where a run has NaN the others have no mean that could be compared: they are drawn thin, each for itself.
    """
    import numpy as np

    values = np.array(runs, dtype=float)
    middle = values.mean(axis=0)
    more = {} if markers else {"marker": None}
    line(axis, x, middle, how, **more, **({} if label is None else {"label": label}))
    if len(values) > 1:
        _band(axis, x, middle, values.std(axis=0, ddof=1), how)
    torn = np.isnan(middle)
    for run in values if torn.any() else ():
        alone = np.where(torn, run, math.nan)
        axis.plot(x, alone, color=how.colour, linestyle=how.dash, marker=".", markersize=2, linewidth=0.6)


def means(axis: Any, x: Sequence[float], runs: Sequence[Sequence[float]], how: Look) -> None:
    """Draw means over x, of as many runs as there are at each, with a band of one standard deviation."""
    import numpy as np

    middle = np.array([fmean(values) for values in runs])
    width = np.array([stdev(values) if len(values) > 1 else 0.0 for values in runs])
    line(axis, x, middle, how)
    if any(width):
        _band(axis, x, middle, width, how)


def _band(axis: Any, x: Sequence[float], middle: Any, width: Any, how: Look) -> None:
    axis.fill_between(x, middle - width, middle + width, color=how.colour, alpha=0.18, linewidth=0)


def bars(axis: Any, x: Sequence[float], runs: Sequence[Sequence[float]], how: Look) -> None:
    """Draw means over x, and bars from the least to the largest of the runs: on a log axis they stay above 0."""
    middle = [fmean(values) for values in runs]
    below = [m - min(values) for m, values in zip(middle, runs, strict=True)]
    above = [max(values) - m for m, values in zip(middle, runs, strict=True)]
    axis.errorbar(x, middle, yerr=[below, above], capsize=2, elinewidth=0.8, **_style(how))


def hollow(axis: Any, x: Sequence[float], y: Sequence[float], how: Look) -> None:
    """Mark what was not reached."""
    axis.plot(x, y, linestyle="", marker=how.marker, markerfacecolor="none", color=how.colour)


def over_updates(axis: Any, label: str = "update t") -> None:
    """Label an axis of updates; thousands are short, or they run into each other."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_xlabel(label)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t / 1000:g}k" if t >= 1000 else f"{t:g}"))


def level(axis: Any, runs: Sequence[float], how: Look) -> None:
    """Draw a line that does not depend on x, with its band."""
    middle = fmean(runs)
    axis.axhline(middle, color=how.colour, linestyle=how.dash, label=how.label, linewidth=1.2)
    if len(runs) > 1:
        width = stdev(runs)
        axis.axhspan(middle - width, middle + width, color=how.colour, alpha=0.12, linewidth=0)


def shared_legend(figure: Any, axes: Any) -> None:
    """Put one legend of all axes below the figure."""
    found: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=min(len(found), 6))


def save(figure: Any, stem: Path) -> list[Path]:
    """Write <stem>.svg and <stem>.png."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png")]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        figure.set_layout_engine("none")  # what was laid out for the first holds for the second
    return paths
