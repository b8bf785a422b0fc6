"""Curves and counts of any length in bounded memory: pure downsampling, one value at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import itemgetter

_PARTS = 8  # stretches of an octave
_Point = tuple[float, float, float | None]  # x, y, seconds


@dataclass(slots=True)
class Envelope:
    """The least and the largest y of each bucket of points, the first and the last point; x never falls.

    At most 2·`buckets` + 2 points whatever was added, and every point as it was while they fit. Of too many buckets
    each two neighbours are merged, so that one holds twice as many points as before.
    """

    buckets: int
    _extrema: list[tuple[_Point, _Point]] = field(default_factory=list)  # (least, largest) of each bucket
    _width: int = 1  # points in a bucket
    _room: int = 0  # for further points in the last one
    _ends: tuple[_Point, _Point] | None = None  # the first and the last point

    def add(self, x: float, y: float, seconds: float | None = None) -> None:
        point = (x, y, seconds)
        self._ends = (point if self._ends is None else self._ends[0], point)
        if self._room:
            self._extrema[-1] = _joined(self._extrema[-1], (point, point))
            self._room -= 1
            return
        self._extrema.append((point, point))
        self._room = self._width - 1
        if len(self._extrema) > self.buckets:
            self._room += self._width * (len(self._extrema) % 2)  # the odd one is half of a new bucket
            self._extrema = [_joined(*self._extrema[i : i + 2]) for i in range(0, len(self._extrema), 2)]
            self._width *= 2

    def points(self) -> list[_Point]:
        """Return what is kept, in the order in which it was added."""
        extrema = [
            sorted({id(one): one for one in both}.values(), key=itemgetter(0)) for both in self._extrema
        ]
        kept = [point for both in extrema for point in both]
        if self._ends is not None and kept[0] is not self._ends[0]:
            kept.insert(0, self._ends[0])
        if self._ends is not None and kept[-1] is not self._ends[1]:
            kept.append(self._ends[1])
        return kept


def _joined(*buckets: tuple[_Point, _Point]) -> tuple[_Point, _Point]:
    least, largest = zip(*buckets, strict=True)
    return min(least, key=itemgetter(1)), max(largest, key=itemgetter(1))


@dataclass(slots=True)
class Counts:
    """How many fell into each of at most `buckets` stretches of [0, ∞), which double when something lies beyond."""

    buckets: int
    width: float = 1.0
    counts: list[int] = field(default_factory=list)

    def add(self, x: float, count: int = 1) -> None:
        place = int(max(0.0, x) / self.width)
        while place >= self.buckets:
            self.counts = _paired(self.counts)
            self.width *= 2
            place = int(max(0.0, x) / self.width)
        self.counts += [0] * (place + 1 - len(self.counts))
        self.counts[place] += count


def _paired(counts: Sequence[int]) -> list[int]:
    return [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]


@dataclass(slots=True)
class Durations:
    """How long things took, in stretches of 9 %: a percentile within 5 % of the true one, whatever was added."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float) -> None:
        self.counts[round(_PARTS * math.log2(min(max(seconds, 1e-6), 1e6)))] += 1

    def percentile(self, share: float) -> float | None:
        """Return what this share of them took at most."""
        wanted, seen = share * self.counts.total(), 0
        for place in sorted(self.counts):
            seen += self.counts[place]
            if seen >= wanted:
                return float(2 ** (place / _PARTS))
        return None


@dataclass(slots=True)
class HeatMap:
    """Counts over two axes, both of [0, ∞) in doubling stretches: columns of x, and in each, rows of y."""

    columns: int
    rows: int
    width: float = 1.0  # of a column
    height: int = 1  # of a row
    cells: list[list[int]] = field(default_factory=list)  # by column; a short one has zeros above

    def add(self, x: float, y: int) -> None:
        while y // self.height >= self.rows:
            self.cells = [_paired(column) for column in self.cells]
            self.height *= 2
        while int(x / self.width) >= self.columns:
            pairs = [self.cells[i : i + 2] for i in range(0, len(self.cells), 2)]
            self.cells = [[*map(sum, zip_longest(*pair, fillvalue=0))] for pair in pairs]
            self.width *= 2
        column, row = int(x / self.width), y // self.height
        self.cells += [[] for _ in range(column + 1 - len(self.cells))]
        counts = self.cells[column]
        counts += [0] * (row + 1 - len(counts))
        counts[row] += 1
