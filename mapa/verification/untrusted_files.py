"""Read runs, bundle parts and ledgers of unknown origin: bounded, strict JSON, known file names only."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.numpy import load

from common.errors import ConfigurationError
from common.quantities import Vector
from common.records.gradient_log import (
    HEAD_BYTES,
    Entry,
    LogDamagedError,
    SegmentHead,
    parse_head,
    parse_record,
)
from common.records.regular import (
    LONGEST_LINE,
    MOST_JSON,
    MOST_MODEL,
    few_values,
    forget,
    lines_of,
    mapped,
    open_below,
    pieces_of,
)
from edge.ledger import Standing
from edge.sqlite_ledger import FILE_NAME, ledger_snapshot

MANIFEST, EVENTS, SUMMARY, MODEL = "manifest.json", "events.jsonl", "summary.json", "model.safetensors"
START = ("checkpoints/000001/state.json", "checkpoints/000001/arrays.safetensors")  # the cloud at t = 1
START_OF_LOG = "log/000001.seg"
LEDGERS = "ledgers"  # the folder in a bundle
_SEGMENT = re.compile(r"log/\d{6}\.seg")
FILES = re.compile("|".join([*map(re.escape, (MANIFEST, EVENTS, SUMMARY, MODEL, *START)), _SEGMENT.pattern]))
_STAMP = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{8}")  # what a run's id has behind its name on the broker
_DEPTH = 32  # of lists and objects in each other; records need 6
_KEPT = 1 << 24  # bytes of a segment in memory
_HEADER = 1 << 24  # bytes of a model's header


class UnreadableError(Exception):
    """A part of a run that cannot be read as what it is; says which."""

    def __init__(self, part: str, why: object) -> None:
        self.part = part
        super().__init__(f"{part}: {why}")


class NotCheckedError(Exception):
    """Something that cannot be checked here; says why, and what would be needed."""


# -- JSON ----------------------------------------------------------------------------------------------------


def strict_json(content: bytes | memoryview, most: int) -> Any:
    """Return the value; raise ValueError if it is longer than `most` bytes, not JSON, not finite or too deep."""
    if len(content) > most:
        raise ValueError(f"{len(content)} bytes, at most {most}")
    try:
        value = json.loads(
            few_values(bytes(content)).decode("utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            object_pairs_hook=_distinct,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not _is_shallow(value, _DEPTH):
        raise ValueError(f"nested more than {_DEPTH} deep")
    return value


def strict_object(content: bytes | memoryview, most: int) -> dict[str, Any]:
    """Return a JSON object; raise ValueError for any other value."""
    value = strict_json(content, most)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def canonical_json(value: Any) -> bytes:
    """Return the one way to write a value."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


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


@dataclass(frozen=True, slots=True)
class FoundLedgers:
    """The ledgers of a run that are here."""

    statements: list[LedgerStatement]
    others: dict[str, str] = field(default_factory=dict)  # file → edge: in RUN/state, without this run
    faults: dict[str, str] = field(default_factory=dict)  # file → why a ledger in RUN/state cannot be read


def is_name_of(run: str, recorded: str) -> bool:
    """Tell whether the run with this id has this name on the broker."""
    return recorded == run or (
        recorded.startswith(run) and _STAMP.fullmatch(recorded[len(run) :]) is not None
    )


def find_ledgers(path: Path, run: str, given: Iterable[Path]) -> FoundLedgers:
    """Return what the ledgers below these state directories, and those in the run's own, say of the run of this id.

    Raise ConfigurationError if a given directory has no ledger with this run, or one that cannot be read.
    """
    statements: dict[str, LedgerStatement] = {}
    others, faults = dict[str, str](), dict[str, str]()
    for ledger in _ledgers_below(path / "state"):
        try:
            edge_id, of_run = _statements(ledger, run, below=path)
        except ConfigurationError as error:
            faults[str(ledger)] = str(error)
            continue
        statements |= {statement.edge_id: statement for statement in of_run}
        if not of_run:
            others[str(ledger)] = edge_id
    for directory in given:
        of_run = [
            statement
            for ledger in _ledgers_below(directory)
            for statement in _statements(ledger, run, below=directory)[1]
        ]
        if not of_run:
            raise ConfigurationError(f"--ledger {directory}: holds no ledger with an account of run {run}")
        statements |= {statement.edge_id: statement for statement in of_run}
    return FoundLedgers([statements[edge_id] for edge_id in sorted(statements)], others, faults)


def _ledgers_below(directory: Path) -> list[Path]:
    return sorted({*directory.glob(FILE_NAME), *directory.glob(f"*/{FILE_NAME}")})


def _statements(path: Path, run: str, *, below: Path) -> tuple[str, list[LedgerStatement]]:
    """Return the edge of a ledger, and what it says of the run."""
    with ledger_snapshot(path.parent, below) as ledger:
        return str(ledger.edge_id), [
            LedgerStatement.of(str(path), standing)
            for standing in ledger.standings()
            if is_name_of(str(standing.account.run), run)
        ]


# -- runs ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RunFiles:
    """The files of a run, from its directory or from a bundle: bytes by name."""

    contents: dict[str, memoryview]
    ledgers: list[LedgerStatement] = field(default_factory=list)
    other_ledgers: dict[str, str] = field(default_factory=dict)  # file → edge: kept here, without this run
    prefix: str = ""  # of these names in a bundle

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    def content(self, name: str, most: int) -> memoryview:
        """Return a file's bytes; raise UnreadableError if it is missing or has more than `most`."""
        content = self.contents.get(name)
        if content is None:
            raise UnreadableError(name, "missing")
        if len(content) > most:
            raise UnreadableError(name, f"{len(content)} bytes, at most {most}")
        return content

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the run."""
        try:
            return strict_object(self.content(name, MOST_JSON), MOST_JSON)
        except ValueError as error:
            raise UnreadableError(name, error) from error

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of events.jsonl."""
        content = self.contents.get(EVENTS)
        if content is None:
            raise UnreadableError(EVENTS, "missing")
        number, lines = 1, lines_of(pieces_of(content))
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
        metadata = header.get("__metadata__")
        return tensors, metadata if isinstance(metadata, dict) else {}

    @property
    def segments(self) -> list[str]:
        """Names of the log's segments, in order."""
        return sorted(name for name in self.contents if _SEGMENT.fullmatch(name))

    def head(self) -> SegmentHead:
        """Return the head of the first segment."""
        names = self.segments
        if not names:
            raise UnreadableError("log", "missing: this run did not keep its gradients")
        return self._head(names[0])

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """Yield each record of the log and its segment; raise UnreadableError at the first damaged or missing one."""
        first = self.head()
        for number, name in enumerate(self.segments, start=1):
            if name != f"log/{number:06d}.seg":
                raise UnreadableError(f"log/{number:06d}.seg", "missing")
            head = self._head(name)
            if head.segment != number or head[1:] != first[1:]:
                raise UnreadableError(name, f"says that it is segment {head.segment}, or is of another run")
            yield from ((name, entry) for entry in self._records(name))

    def _head(self, name: str) -> SegmentHead:
        try:
            return parse_head(bytes(self.contents[name][:HEAD_BYTES]))
        except LogDamagedError as error:
            raise UnreadableError(name, error) from error

    def _records(self, name: str) -> Iterator[Entry]:
        content, at, kept = self.contents[name], HEAD_BYTES, 0
        while at < len(content):
            try:
                record = parse_record(content, at)
            except LogDamagedError as error:
                raise UnreadableError(name, f"byte {at}: {error}") from error
            if record is None:
                raise UnreadableError(name, f"byte {at}: no whole record with its checksum")
            entry, at = record
            yield entry
            if at - kept > _KEPT:
                forget(content)
                kept = at


def of_directory(path: Path) -> RunFiles:
    """Return the files of a run's directory; raise ConfigurationError if one is a symbolic link or not regular."""
    names = [MANIFEST, EVENTS, SUMMARY, MODEL, *START]
    names += [f"log/{segment.name}" for segment in sorted((path / "log").glob("*.seg"))]
    here = [name for name in names if FILES.fullmatch(name) and os.path.lexists(path / name)]
    try:
        return RunFiles({name: mapped(open_below(path, name)) for name in here})
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror or error}") from error
