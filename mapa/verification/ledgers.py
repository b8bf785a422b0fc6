"""What an edge's ledger says of one run, as a part of a bundle: counts and the mechanism, never the outbox."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from edge.account import Standing
from edge.sqlite_ledger import FILE_NAME, ledger_snapshot

PART = "ledgers"  # the folder in a bundle
_STAMP = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{8}")  # what a run's id has behind its name on the broker
_FIELDS = {
    "edge_id": str,
    "run": str,
    "shard": int,
    "releases": int,
    "charges": int,
    "kind": dict,
    "dataset": str,
    "partition": str,
    "reproducible": bool,
}


@dataclass(frozen=True, slots=True)
class LedgerStatement:
    """What an edge has released in a run, by its own account."""

    part: str  # where it stands
    edge_id: str
    run: str  # its name on the broker
    shard: int
    releases: int
    charges: int
    kind: Mapping[str, Any]  # law, mechanism and n_k
    dataset: str  # its checksum
    partition: str  # the cut that the shard is of
    reproducible: bool  # seeded noise

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "part"}

    @classmethod
    def of(cls, part: str, standing: Standing) -> LedgerStatement:
        account = standing.account
        return cls(
            part,
            str(standing.edge_id),
            str(account.run),
            account.shard.index,
            standing.releases,
            standing.charges,
            account.kind.fields(),
            account.shard.dataset,
            account.shard.partition,
            account.reproducible,
        )

    @classmethod
    def from_dict(cls, part: str, fields: Mapping[str, Any]) -> LedgerStatement:
        """Read a statement; ValueError where it is none."""
        if fields.keys() != _FIELDS.keys() or any(
            type(fields[key]) is not kind for key, kind in _FIELDS.items()
        ):
            raise ValueError("not the statement of a ledger")
        if min(fields["shard"], fields["releases"], fields["charges"]) < 0:
            raise ValueError("a negative count")
        return cls(part, **fields)


@dataclass(frozen=True, slots=True)
class FoundLedgers:
    """What is there of a run's ledgers."""

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

    ConfigurationError where a directory that was given has no ledger with this run, or one that cannot be read.
    """
    found: dict[str, LedgerStatement] = {}
    others, faults = dict[str, str](), dict[str, str]()
    for ledger in _ledgers_below(path / "state"):
        try:
            edge_id, told = _statements(ledger, run, below=path)
        except ConfigurationError as error:
            faults[str(ledger)] = str(error)
            continue
        found |= {one.edge_id: one for one in told}
        if not told:
            others[str(ledger)] = edge_id
    for directory in given:
        asked = [
            one
            for ledger in _ledgers_below(directory)
            for one in _statements(ledger, run, below=directory)[1]
        ]
        if not asked:
            raise ConfigurationError(f"--ledger {directory}: holds no ledger with an account of run {run}")
        found |= {one.edge_id: one for one in asked}
    return FoundLedgers([found[edge_id] for edge_id in sorted(found)], others, faults)


def _ledgers_below(directory: Path) -> list[Path]:
    return sorted({*directory.glob(FILE_NAME), *directory.glob(f"*/{FILE_NAME}")})


def _statements(path: Path, run: str, *, below: Path) -> tuple[str, list[LedgerStatement]]:
    """Return whose ledger it is, and what it says of the run."""
    with ledger_snapshot(path.parent, below) as ledger:
        return str(ledger.edge_id), list(_of_run(str(path), ledger.standings(), run))


def _of_run(part: str, standings: Iterable[Standing], run: str) -> Iterator[LedgerStatement]:
    for standing in standings:
        if is_name_of(str(standing.account.run), run):
            yield LedgerStatement.of(part, standing)
