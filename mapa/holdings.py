"""Who holds what: how many records of each label lie on each edge. For data that all parties hold alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from common.datasets.catalogue import load_dataset
from common.datasets.dataset import Dataset
from common.datasets.source import LOCAL
from common.errors import ConfigurationError
from common.scenario.parts import dataset_for
from common.scenario.scenario import Scenario
from edge.shards import shards_for
from mapa.figures import PALETTE, panels

_BINS = 5  # of a target range
_WIDTH = 40  # characters of the longest bar
_MOST_ROWS, _MOST_COLUMNS = 50, 12  # of the table
_STYLES = ("blue", "red", "green", "magenta", "yellow", "cyan", "white")


@dataclass(frozen=True, slots=True)
class Holdings:
    """Records of each label on each edge."""

    title: str
    labels: tuple[str, ...]
    counts: npt.NDArray[np.int64]  # K × labels

    @property
    def sizes(self) -> list[int]:
        """n_k."""
        return [int(size) for size in self.counts.sum(axis=1)]

    def as_dict(self) -> dict[str, Any]:
        return {"labels": list(self.labels), "sizes": self.sizes, "counts": self.counts.tolist()}


def holdings_of(scenario: Scenario, name: str, data_dir: Path) -> Holdings:
    """Cut the scenario's data as its edges would, and count."""
    if scenario.data.set == LOCAL:
        raise ConfigurationError(
            "data.set = 'local': not shown, since the label counts of an edge's own records would leak them"
        )
    dataset = dataset_for(scenario, partial(load_dataset, data_dir=data_dir))
    labels, classes = _labels(scenario, dataset)
    shards = shards_for(scenario, dataset.train)
    counts = np.stack([np.bincount(classes[rows], minlength=len(labels)) for rows in shards])
    return Holdings(f"{name}: {scenario.data.set}, {scenario.data.partition}", labels, counts)


def _labels(scenario: Scenario, dataset: Dataset) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return the names of the labels and each record's own; real targets fall into even parts of their range."""
    labels = dataset.train.labels
    if dataset.target_range is not None:
        ends = np.linspace(*dataset.target_range, _BINS + 1)
        names = tuple(f"{low:.4g} to {high:.4g}" for low, high in itertools.pairwise(ends))
        return names, np.searchsorted(ends[1:-1], labels, side="right").astype(np.int64)
    declared = scenario.data.declared
    named = () if declared is None else tuple(declared.class_names)
    return named or tuple(map(str, range(dataset.classes))), labels.astype(np.int64)


def print_holdings(holdings: Holdings, console: Console) -> None:
    """Print a row for each edge: its records and a bar of its labels; then the counts, where there is room."""
    shown, largest = holdings.counts[:_MOST_ROWS], max(holdings.sizes)
    bars = Table("edge", Column("records", justify="right"), "by label", title=holdings.title)
    for k, counts in enumerate(shown):
        bars.add_row(str(k), f"{counts.sum():,}", _bar(counts, largest))
    console.print(bars)
    if len(holdings.labels) <= _MOST_COLUMNS:
        table = Table("edge", *(Column(label, justify="right") for label in holdings.labels), box=None)
        for k, counts in enumerate(shown):
            table.add_row(str(k), *(str(count) for count in counts))
        console.print(table)
    if len(holdings.sizes) > _MOST_ROWS:
        console.print(f"and {len(holdings.sizes) - _MOST_ROWS} more edges; --json and --svg show all")


def _bar(counts: npt.NDArray[np.int64], largest: int) -> Text:
    """Return a bar as long as the shard is large, cut into its labels: colours, and letters to tell them apart."""
    bar = Text()
    ends = np.rint(np.cumsum(counts) * _WIDTH / max(1, largest)).astype(int)
    for label, length in enumerate(np.diff(ends, prepend=0)):
        letter = "0123456789abcdefghijklmnopqrstuvwxyz"[label % 36]
        bar.append(letter * int(length), _STYLES[label % len(_STYLES)])
    return bar


def draw_holdings(holdings: Holdings, path: Path) -> None:
    """Write a picture: a bar for each edge, cut into its labels."""
    if path.suffix != ".svg":
        raise ConfigurationError(f"--svg {path}: must end in .svg")
    edges = np.arange(len(holdings.sizes))
    with panels(1, 1, width=5.5, height=max(1.5, 0.18 * len(edges))) as (figure, axes):
        axis, left = axes[0, 0], np.zeros(len(edges))
        for place, (label, counts) in enumerate(zip(holdings.labels, holdings.counts.T, strict=True)):
            hatch = ("", "//", "..", "xx")[place // len(PALETTE) % 4]
            colour = PALETTE[place % len(PALETTE)]
            axis.barh(
                edges,
                counts,
                left=left,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.4,
                label=label,
            )
            left = left + counts
        axis.set_title(holdings.title)
        axis.set_xlabel("records")
        axis.set_ylabel("edge")
        axis.invert_yaxis()
        if len(holdings.labels) <= 20:
            figure.legend(loc="outside right upper")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
