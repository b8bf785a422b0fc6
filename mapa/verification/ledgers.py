"""What an edge's ledger says of one run, as a part of a bundle: counts and the mechanism, never the outbox."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from edge.ledger_file import FILE_NAME
from edge.ledger_snapshot import ledger_snapshot

PART = "ledgers"  # the folder in a bundle
_STAMP = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{8}")  # what a run's directory has behind its name on the broker


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

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "part"}

    @classmethod
    def from_dict(cls, part: str, fields: Mapping[str, Any]) -> LedgerStatement:
        """Read a statement; ValueError where it is none."""
        types = {"edge_id": str, "run": str, "shard": int, "releases": int, "charges": int, "kind": dict}
        if fields.keys() != types.keys() or any(type(fields[key]) is not kind for key, kind in types.items()):
            raise ValueError("not the statement of a ledger")
        if min(fields["shard"], fields["releases"], fields["charges"]) < 0:
            raise ValueError("a negative count")
        return cls(part, **fields)


def is_name_of(run: str, directory: str) -> bool:
    """Tell whether a run's directory has this name on the broker."""
    return directory == run or (
        directory.startswith(run) and _STAMP.fullmatch(directory[len(run) :]) is not None
    )


def ledger_statements(run: Path, given: Iterable[Path]) -> list[LedgerStatement]:
    """Return what the ledgers below these state directories, and those that the run itself holds, say of the run.

    ConfigurationError where a directory that was given has no ledger with this run.
    """
    found: dict[str, LedgerStatement] = {}
    name = run.resolve().name
    for directory, asked in [(run / "state", False), *((path, True) for path in given)]:
        before = len(found)
        paths = sorted({*directory.glob(FILE_NAME), *directory.glob(f"*/{FILE_NAME}")})
        for path in paths:
            with ledger_snapshot(path.parent) as ledger:
                for standing in ledger.standings():
                    of = str(standing.account.run)
                    if not is_name_of(of, name):
                        continue
                    found[str(standing.edge_id)] = LedgerStatement(
                        str(path),
                        str(standing.edge_id),
                        of,
                        standing.account.shard.index,
                        standing.releases,
                        standing.charges,
                        standing.account.kind.fields(),
                    )
        if asked and len(found) == before and not any(one.part in map(str, paths) for one in found.values()):
            raise ConfigurationError(f"--ledger {directory}: holds no ledger with an account of run {name}")
    return [found[edge_id] for edge_id in sorted(found)]
