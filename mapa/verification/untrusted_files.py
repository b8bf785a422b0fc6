"""Read runs, bundle parts and ledgers of unknown origin: bounded, strict JSON, known file names only."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.numpy import load

from common.errors import ConfigurationError
from common.quantities import Vector
from common.records.gradient_log import Entry, LogDamagedError, Segment, SegmentHead, segment_name
from common.records.layout import name_before_stamp
from common.records.regular import (
    LONGEST_LINE,
    MOST_JSON,
    MOST_MODEL,
    few_values,
    lines_of,
    mapped,
    open_below,
    pieces_of,
    table,
)
from edge.ledger import Standing
from edge.sqlite_ledger import FILE_NAME, ledger_snapshot
from mapa.verification.check import UnreadableError

MANIFEST, EVENTS, SUMMARY, MODEL = "manifest.json", "events.jsonl", "summary.json", "model.safetensors"
START = ("checkpoints/000001/state.json", "checkpoints/000001/arrays.safetensors")  # the cloud at t = 1
START_OF_LOG = "log/000001.seg"
LEDGERS = "ledgers"  # the folder in a bundle
_SEGMENT = re.compile(r"log/\d{6}\.seg")
FILES = re.compile("|".join([*map(re.escape, (MANIFEST, EVENTS, SUMMARY, MODEL, *START)), _SEGMENT.pattern]))
_DEPTH = 32  # of lists and objects in each other; records need 6
_HEADER = 1 << 24  # bytes of a model's header


# -- JSON ----------------------------------------------------------------------------------------------------


def strict_object(content: bytes | memoryview, most: int) -> dict[str, Any]:
    """Return a JSON object; ValueError if it is longer than `most` bytes, none, not finite, ambiguous or too deep."""
    if len(content) > most:
        raise ValueError(f"{len(content)} bytes, at most {most}")
    try:
        value = json.loads(
            few_values(bytes(content)).decode("utf-8"),
            parse_constant=_finite,
            parse_float=_finite,
            object_pairs_hook=_distinct,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not _is_shallow(value, _DEPTH):
        raise ValueError(f"nested more than {_DEPTH} deep")
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def canonical_json(value: Any) -> bytes:
    """Return the one way to write a value."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not finite")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key is there twice")
    return values


def _is_shallow(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return not isinstance(value, list) or (depth > 0 and all(_is_shallow(item, depth - 1) for item in value))


# -- ledgers -------------------------------------------------------------------------------------------------


class LedgerStatement(BaseModel):
    """What an edge has released in a run, by its own ledger: counts and the mechanism, never the outbox."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    part: str = Field(exclude=True)  # where it stands
    edge_id: str
    run: str  # its name on the broker
    shard: int = Field(ge=0)
    releases: int = Field(ge=0)
    charges: int = Field(ge=0)
    kind: dict[str, Any]  # law, mechanism and n_k
    dataset: str  # its checksum
    partition: str  # the cut that the shard is of
    reproducible: bool  # seeded noise

    @classmethod
    def of(cls, part: str, standing: Standing) -> LedgerStatement:
        account = standing.account
        return cls(
            part=part,
            edge_id=str(standing.edge_id),
            run=str(account.run),
            shard=account.shard.index,
            releases=standing.releases,
            charges=standing.charges,
            kind=dict(account.kind.fields()),
            dataset=account.shard.dataset,
            partition=account.shard.partition,
            reproducible=account.reproducible,
        )


@dataclass(slots=True)
class FoundLedgers:
    statements: list[LedgerStatement] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)  # file → edge: in RUN/state, without this run
    faults: dict[str, str] = field(default_factory=dict)  # file → why a ledger in RUN/state cannot be read


def is_name_of(run: str, recorded: str) -> bool:
    """Tell whether the run with this id has this name on the broker."""
    return run in (recorded, name_before_stamp(recorded))


def find_ledgers(path: Path, run: str, given: Iterable[Path]) -> FoundLedgers:
    """Return what the ledgers below these state directories, and those in the run's own, say of the run of this id.

    Raise ConfigurationError if a given directory has no ledger with this run, or one that cannot be read.
    """
    ledgers, by_edge = FoundLedgers(), dict[str, LedgerStatement]()
    for ledger in _ledgers_below(path / "state"):
        try:
            edge_id, of_run = _statements(ledger, run, below=path)
        except ConfigurationError as error:
            ledgers.faults[str(ledger)] = str(error)
            continue
        by_edge |= of_run
        if not of_run:
            ledgers.others[str(ledger)] = edge_id
    for directory in given:
        below = [_statements(ledger, run, below=directory)[1] for ledger in _ledgers_below(directory)]
        if not any(below):
            raise ConfigurationError(f"--ledger {directory}: holds no ledger with an account of run {run}")
        for of_run in below:
            by_edge |= of_run
    ledgers.statements = [by_edge[edge_id] for edge_id in sorted(by_edge)]
    return ledgers


def _ledgers_below(directory: Path) -> list[Path]:
    return sorted({*directory.glob(FILE_NAME), *directory.glob(f"*/{FILE_NAME}")})


def _statements(path: Path, run: str, *, below: Path) -> tuple[str, dict[str, LedgerStatement]]:
    """Return the edge of a ledger, and what it says of the run, by edge."""
    with ledger_snapshot(path.parent, below) as ledger:
        standings = [one for one in ledger.standings() if is_name_of(str(one.account.run), run)]
        edge_id = str(ledger.edge_id)
        return edge_id, {str(one.edge_id): LedgerStatement.of(str(path), one) for one in standings}


# -- runs ----------------------------------------------------------------------------------------------------


@dataclass
class RunFiles:
    """The files of a run, from its directory or from a bundle: bytes by name."""

    contents: dict[str, memoryview]
    ledgers: FoundLedgers = field(default_factory=FoundLedgers)

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return self._json(MANIFEST)

    @cached_property
    def summary(self) -> dict[str, Any]:
        return self._json(SUMMARY)

    def content(self, name: str, most: int) -> memoryview:
        """Return a file's bytes; raise UnreadableError if it is missing or has more than `most`."""
        content = self.contents.get(name)
        if content is None:
            raise UnreadableError(name, "missing")
        if len(content) > most:
            raise UnreadableError(name, f"{len(content)} bytes, at most {most}")
        return content

    def _json(self, name: str) -> dict[str, Any]:
        try:
            return strict_object(self.content(name, MOST_JSON), MOST_JSON)
        except ValueError as error:
            raise UnreadableError(name, error) from error

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of events.jsonl."""
        number, lines = 1, lines_of(pieces_of(self.content(EVENTS, sys.maxsize)))
        try:
            while line := next(lines, b""):
                if not line.endswith(b"\n"):
                    raise ValueError("cut off")
                yield strict_object(line, LONGEST_LINE)
                number += 1
        except ValueError as error:
            raise UnreadableError(EVENTS, f"line {number}: {error}") from error

    def model(self) -> tuple[dict[str, Vector], dict[str, object]]:
        """Return the tensors of the final model, `x` among them, and its metadata."""
        content = self.content(MODEL, MOST_MODEL)
        try:
            size = int.from_bytes(content[:8], "little")
            header = strict_object(content[8 : 8 + min(size, _HEADER + 1)], _HEADER)
            tensors = load(bytes(content))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise UnreadableError(MODEL, f"not a model: {error}") from error
        x = tensors.get("x")
        if x is None or x.ndim != 1 or x.dtype != np.float32:
            raise UnreadableError(MODEL, "no flat vector x in float32")
        return tensors, dict(table(header, "__metadata__"))

    @property
    def segments(self) -> list[str]:
        """Names of the log's segments, in order."""
        return sorted(name for name in self.contents if _SEGMENT.fullmatch(name))

    def head(self) -> SegmentHead:
        """Return the head of the first segment."""
        if not self.segments:
            raise UnreadableError("log", "missing: this run did not keep its gradients")
        return self._segment(1).head

    def _segment(self, number: int, like: SegmentHead | None = None) -> Segment:
        name = f"log/{segment_name(number)}"
        try:
            return Segment(self.content(name, sys.maxsize), number, like)
        except LogDamagedError as error:
            raise UnreadableError(name, error) from error

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """Yield each record of the log and its segment; raise UnreadableError at the first damaged or missing one."""
        first = self.head()
        for number in range(1, len(self.segments) + 1):
            segment, name = self._segment(number, first), f"log/{segment_name(number)}"
            try:
                yield from ((name, entry) for entry in segment)
            except LogDamagedError as error:
                raise UnreadableError(name, error) from error
            if segment.is_torn:
                raise UnreadableError(name, f"byte {segment.at}: no whole record with its checksum")


def of_directory(path: Path) -> RunFiles:
    """Return the files of a run's directory; raise ConfigurationError if one is a symbolic link or not regular."""
    names = [MANIFEST, EVENTS, SUMMARY, MODEL, *START]
    names += sorted(f"log/{segment.name}" for segment in (path / "log").glob("*.seg"))
    here = [name for name in names if FILES.fullmatch(name) and os.path.lexists(path / name)]
    try:
        return RunFiles({name: mapped(open_below(path, name)) for name in here})
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror or error}") from error
