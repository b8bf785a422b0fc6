"""What is declared of samples in files, none of it learnt from records; and the error for a file that is otherwise."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from common.datasets.dataset import is_range, is_shape
from common.errors import ConfigurationError, DataFaultError, require

Kind = Literal["array", "table", "images"]
KINDS: tuple[Kind, ...] = ("array", "table", "images")
MOST_CLASSES = 100_000
_BUILT_IN = {"array": "labels", "table": "label", "images": ""}  # what `label` is called where it is not said


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table: numbers with a range, or categories. An empty cell takes `fill`, else it is an error."""

    name: str
    range: tuple[float, float] | None = None  # numbers are clipped to it and scaled to [0, 1]
    # One value each, 1 for the cell's own and 0 for the others, in this order.
    categories: tuple[str, ...] = ()
    other: bool = False  # one value more, for what is no declared category; else that is an error
    fill: float | str | None = None

    def __post_init__(self) -> None:
        key = f"columns {self.name!r}"
        require(bool(self.name), "columns: name", repr(self.name), "not empty")
        one = (self.range is not None) != bool(self.categories)
        wanted = "exactly one of them: numbers with a range, or categories"
        require(one, key, "range and categories", wanted)
        if self.range is not None:
            _require_range(f"{key}: range", self.range)
            low, high = self.range
            filled = self.fill is None or (isinstance(self.fill, int | float) and low <= self.fill <= high)
            require(filled, f"{key}: fill", repr(self.fill), f"a number from {low} to {high}")
            require(not self.other, f"{key}: other", self.other, "false: it goes with categories")
        else:
            distinct = len(set(self.categories)) == len(self.categories) and "" not in self.categories
            require(distinct, f"{key}: categories", self.categories, "distinct and not empty")
            filled = self.fill is None or self.fill in self.categories
            require(filled, f"{key}: fill", repr(self.fill), f"one of {', '.join(self.categories)}")

    @property
    def width(self) -> int:
        """How many values of a sample the column makes."""
        return 1 if self.range is not None else len(self.categories) + self.other


def _require_range(key: str, bounds: tuple[float, float]) -> None:
    require(is_range(bounds), key, bounds, "two finite numbers, the lower first")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSchema:
    """How files become samples. `class_names` name the labels (or folders) 0, 1, …; `classes` alone counts them."""

    kind: Kind
    shape: tuple[int, ...] = ()  # of one sample; of a table by default one row of values
    classes: int = 0  # 0: real targets, which need target_range
    class_names: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None  # real targets are clipped to it
    columns: tuple[Column, ...] = ()  # table
    label: str = ""  # the column (table) or array (array) of labels
    inputs: str = "inputs"  # array: the array of inputs
    # Of an array: inputs are clipped to it and scaled to [0, 1]; else as they are.
    input_range: tuple[float, float] | None = None
    group: str | None = None  # the column or array that says whose record it is: for partition "group"
    ignore: tuple[str, ...] = ()  # table: columns that are not read; any other undeclared one is an error
    resize: bool = False  # images: bring every image to the shape; else another size is an error
    records_at_least: int = 0  # of every edge that brings its own, n_k ≥ this; 0: not declared

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "kind", repr(self.kind), f"one of {', '.join(KINDS)}")
        if not self.classes and self.class_names:
            object.__setattr__(self, "classes", len(self.class_names))
        if not self.label:
            object.__setattr__(self, "label", _BUILT_IN[self.kind])
        bound = self.records_at_least
        require(0 <= bound < 1 << 31, "records_at_least", bound, "from 0 to 2147483647")
        self._check_labels()
        if self.kind == "table":
            self._check_table()
        else:
            require(not self.columns, "columns", len(self.columns), 'none: they go with kind = "table"')
            require(not self.ignore, "ignore", self.ignore, 'none: it goes with kind = "table"')
        require(is_shape(self.shape), "shape", self.shape, "1 to 8 whole numbers from 1")
        if self.kind == "images":
            self._check_images()
        else:
            require(not self.resize, "resize", self.resize, 'false: it goes with kind = "images"')
        if self.input_range is not None:
            is_array = self.kind == "array"
            require(is_array, "input_range", self.input_range, 'none: it goes with kind = "array"')
            _require_range("input_range", self.input_range)

    def _check_labels(self) -> None:
        names, allowed = self.class_names, f"from 2 to {MOST_CLASSES}, or 0 with a target_range"
        require(self.classes == 0 or 2 <= self.classes <= MOST_CLASSES, "classes", self.classes, allowed)
        fits = not names or len(names) == self.classes
        require(fits, "classes", self.classes, f"{len(names)}, as class_names has")
        distinct = len(set(names)) == len(names) and "" not in names
        require(distinct, "class_names", names, "distinct and not empty")
        one = (self.classes == 0) == (self.target_range is not None)
        wanted = "given (or class_names) for classes, or target_range for real targets: exactly one of them"
        require(one, "classes", self.classes, wanted)
        if self.target_range is not None:
            _require_range("target_range", self.target_range)

    def _check_table(self) -> None:
        require(bool(self.columns), "columns", "[]", 'at least one with kind = "table"')
        named = [column.name for column in self.columns] + [self.label] + list(self.ignore)
        distinct = len(set(named)) == len(named)
        require(distinct, "columns, label and ignore", named, "distinct names")
        width = sum(column.width for column in self.columns)
        if not self.shape:
            object.__setattr__(self, "shape", (width,))
        fits = math.prod(self.shape) == width
        require(fits, "shape", self.shape, f"of {width} values, as the columns make")

    def _check_images(self) -> None:
        fits = len(self.shape) == 2 or (len(self.shape) == 3 and self.shape[0] == 3)
        require(fits, "shape", self.shape, "(height, width) for grey images or (3, height, width) for colour")
        wanted = "the names of the class folders, in the order of labels"
        require(bool(self.class_names), "class_names", "[]", wanted)
        require(self.group is None, "group", self.group, "absent with images")

    @property
    def width(self) -> int:
        """How many values one sample has."""
        return math.prod(self.shape)

    @property
    def digest(self) -> str:
        """SHA-256 of all that is declared."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


MOST_RECORDS = 50_000_000
MOST_BYTES = 4 << 30  # of the samples of one file
_most_bytes = ContextVar("most_bytes", default=MOST_BYTES)
_MOST_CHARACTERS = 60  # of a cell, in a message


def fault(
    path: Path, reason: str, *, row: int | None = None, column: str | int | None = None
) -> DataFaultError:
    """Return the error for a file; rows count from 1, as the samples do, a header not being one."""
    place = "" if row is None else f", row {row}"
    if column is not None:
        place += f", column {column!r}" if isinstance(column, str) else f", value {column}"
    return DataFaultError(f"{path}{place}: {reason}")


def shown(cell: object) -> str:
    """Return a cell as a message shows it."""
    text = repr(cell)
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Read at most `count` bytes of samples: a peer may have declared how they look."""
    before = _most_bytes.set(min(count, MOST_BYTES))
    try:
        yield
    finally:
        _most_bytes.reset(before)


def check_extent(path: Path, records: int, width: int) -> None:
    """Refuse no records, and more than may be taken into memory, before they are."""
    if records < 1:
        raise fault(path, "has no records; needs at least one")
    most = _most_bytes.get()
    if records > MOST_RECORDS or records * width * 4 > most:
        raise fault(
            path,
            f"{records:,} records of {width:,} values: at most {MOST_RECORDS:,} records and {most >> 20:,} MB",
        )


def need(package: str, what: Path | str, extra: str) -> None:
    """Raise ConfigurationError, with the extra to install, where a package is missing."""
    if importlib.util.find_spec(package) is None:
        raise ConfigurationError(f"{what}: needs the package {package}: pip install 'mapa-testbed[{extra}]'")
