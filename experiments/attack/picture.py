"""The grid of the paper's figure: rows are ε, columns are laws and iterations, the original comes first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.datasets.dataset import Dataset
from common.errors import ConfigurationError
from experiments.attack.inversion import Picture
from experiments.attack.reconstruction import IN_THE_CLEAR, Cell
from mapa.figures import panels, save

Titled = tuple[str, Picture]


def grey_shape(dataset: Dataset) -> tuple[int, int]:
    """Return height and width of the data set's images; ConfigurationError where it holds anything else."""
    if len(dataset.shape) != 2 or not dataset.classes:
        raise ConfigurationError(
            f"data.set = {dataset.name!r}: shape {dataset.shape}, {dataset.classes} classes: only grey images with"
            " classes can be drawn"
        )
    return dataset.shape[0], dataset.shape[1]


def draw_grid(cells: Sequence[Cell], shape: tuple[int, int], stem: Path) -> list[Path]:
    """Write one clipping's cells as <stem>.svg and <stem>.png; |r| is the mean correlation with the original."""
    clear = [cell for cell in cells if cell.law == IN_THE_CLEAR]
    noised = [cell for cell in cells if cell.law != IN_THE_CLEAR]
    columns = list(dict.fromkeys((cell.law, cell.t) for cell in noised))
    by_place = {(cell.epsilon, cell.law, cell.t): cell for cell in noised}
    rows: list[tuple[str, list[Titled]]] = []
    for epsilon in list(dict.fromkeys(cell.epsilon for cell in noised)) or [None]:
        first = not rows  # what is the same in every row has its title there alone
        row = [("original" if first else "", clear[0].truth)]
        row += [(f"no noise\nt = {cell.t:,}" if first else "", cell.picture) for cell in clear]
        for law, t in columns:
            cell = by_place[epsilon, law, t]
            row.append((f"{law}\nt = {t:,}\n|r| {cell.correlation:.2f}", cell.picture))
        rows.append(("" if epsilon is None else f"ε = {epsilon:g}", row))
    return _write(rows, shape, stem)


def draw_sightings(
    pairs: Sequence[tuple[str, Picture, Picture]], shape: tuple[int, int], stem: Path
) -> list[Path]:
    """Write (name, reconstruction, nearest training image) rows."""
    titles = ("from the wire", "nearest image")
    rows = [
        (name, [(title if place == 0 else "", image) for title, image in zip(titles, images, strict=True)])
        for place, (name, *images) in enumerate(pairs)
    ]
    return _write(rows, shape, stem)


def _write(rows: Sequence[tuple[str, Sequence[Titled]]], shape: tuple[int, int], stem: Path) -> list[Path]:
    with panels(len(rows), len(rows[0][1]), width=1.1, height=1.4) as (figure, axes):
        for (label, row), line in zip(rows, axes, strict=True):
            for (title, picture), axis in zip(row, line, strict=True):
                pixels = picture.size == np.prod(shape)  # else features
                scale = {"vmin": 0, "vmax": 1} if pixels else {}
                axis.imshow(picture.reshape(shape if pixels else (10, -1)), cmap="gray", **scale)
                axis.set_xticks([])
                axis.set_yticks([])
                axis.grid(visible=False)
                axis.set_title(title, fontsize=6)
            line[0].set_ylabel(label)
        return save(figure, stem)
