"""The grid of the paper's figure: rows are ε, columns are laws and iterations, the original comes first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import ConfigurationError
from experiments.attack.inversion import Picture
from experiments.attack.reconstruction import IN_THE_CLEAR, Cell


def draw_grid(cells: Sequence[Cell], shape: tuple[int, int], stem: Path) -> list[Path]:
    """Write one clipping's cells as <stem>.png and <stem>.svg."""
    clear = [cell for cell in cells if cell.law == IN_THE_CLEAR]
    noised = [cell for cell in cells if cell.law != IN_THE_CLEAR]
    columns = list(dict.fromkeys((cell.law, cell.t) for cell in noised))
    epsilons = list(dict.fromkeys(cell.epsilon for cell in noised)) or [None]
    by_place = {(cell.epsilon, cell.law, cell.t): cell for cell in noised}
    titles = ["original", *(f"no noise\nt = {cell.t:,}" for cell in clear)]
    titles += [f"{law}\nt = {t:,}" for law, t in columns]
    rows = []
    for epsilon in epsilons:
        row: list[Picture] = [clear[0].truth, *(cell.picture for cell in clear)]
        row += [by_place[epsilon, law, t].picture for law, t in columns]
        rows.append(("" if epsilon is None else f"ε = {epsilon:g}", row))
    return _write(rows, titles, shape, stem)


def draw_sightings(
    pairs: Sequence[tuple[str, Picture, Picture]], shape: tuple[int, int], stem: Path
) -> list[Path]:
    """Write (name, reconstruction, nearest training image) rows."""
    rows = [(name, [guess, nearest]) for name, guess, nearest in pairs]
    return _write(rows, ["from the wire", "nearest image"], shape, stem)


def _write(
    rows: Sequence[tuple[str, Sequence[Picture]]], titles: Sequence[str], shape: tuple[int, int], stem: Path
) -> list[Path]:
    figure_class, canvas = _matplotlib()
    figure = figure_class(figsize=(1.15 * len(titles) + 0.8, 1.15 * len(rows) + 0.7), layout="constrained")
    canvas(figure)
    axes = figure.subplots(len(rows), len(titles), squeeze=False)
    for place, ((label, pictures), line) in enumerate(zip(rows, axes, strict=True)):
        for picture, title, axis in zip(pictures, titles, line, strict=True):
            image = picture.reshape(shape) if picture.size == np.prod(shape) else picture.reshape(10, -1)
            inside = picture.size == np.prod(shape)
            axis.imshow(image, cmap="gray", **({"vmin": 0, "vmax": 1} if inside else {}))
            axis.set_xticks([])
            axis.set_yticks([])
            if place == 0:
                axis.set_title(title, fontsize=6)
        line[0].set_ylabel(label, fontsize=7)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def _matplotlib() -> tuple[Any, Any]:
    """Import it when a picture is drawn; the object API leaves no global state, so any thread may draw."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("pictures need matplotlib: pip install 'mapa-testbed[figures]'") from error
    return Figure, FigureCanvasAgg
