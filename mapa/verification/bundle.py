"""A run as one file: a canonical zip of its records, log and ledger statements, with a manifest of hashes."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from common.errors import ConfigurationError, RecordsError
from common.records.directory import run_of, versions
from common.records.regular import mapped, open_regular, pieces_of
from mapa.verification.canonical_zip import NoBundleError, check_size, read_zip, write_zip
from mapa.verification.check import Check, failed, passed
from mapa.verification.ledgers import PART, FoundLedgers, LedgerStatement, find_ledgers
from mapa.verification.of_privacy import why_not_private
from mapa.verification.run_files import (
    FILES,
    MANIFEST,
    SUMMARY,
    RunFiles,
    UnreadableError,
    of_directory,
)
from mapa.verification.strict_json import canonical_json, strict_object

FORMAT = "mapa-bundle-2"
_RUN = "run/"
_LEDGER = re.compile(PART + r"/\d{6}\.json")
NAMES = re.compile(f"{re.escape(MANIFEST)}|{_RUN}(?:{FILES.pattern})|{_LEDGER.pattern}")
_MANIFEST_BYTES = 1 << 25
_LEDGER_BYTES = 1 << 16
_KEYS = {"format", "run", "private", "not_private", "scenario_sha256", "versions", "bundled_by", "parts"}


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle as it was read: what is in it, and what is wrong with the file itself."""

    files: RunFiles
    manifest: dict[str, Any]  # empty: not readable
    checks: list[Check]


def make_bundle(run: Path, out: Path, ledgers: Iterable[Path], *, not_private: bool) -> dict[str, Any]:
    """Write the bundle of a run that has ended; return its manifest.

    ConfigurationError where the run cannot be bundled, or is not private and `not_private` does not say so.
    """
    given = list(ledgers)
    _check_place(out, [run, *given])
    files = of_directory(run)
    if SUMMARY not in files:
        raise ConfigurationError(f"{run}: has no {SUMMARY}: a run is bundled once it has ended")
    try:
        record, summary = files.json(MANIFEST), files.json(SUMMARY)
    except UnreadableError as error:
        raise ConfigurationError(f"{run}: {error}") from error
    reasons = why_not_private(record, summary)
    if reasons and not not_private:
        raise ConfigurationError(
            f"{run}: not private ({'; '.join(reasons)}); whoever gets the bundle can learn about single records."
            " Bundle it with --not-private"
        )
    statements = _sound(find_ledgers(run, run_of(record), given), summary)
    parts = {f"{_RUN}{name}": content for name, content in files.contents.items()}
    for number, one in enumerate(statements, start=1):
        parts[f"{PART}/{number:06d}.json"] = memoryview(canonical_json(one.as_dict()))
    check_size(parts)
    manifest = {
        "format": FORMAT,
        "run": run_of(record),
        "private": not reasons,
        "not_private": reasons,
        "scenario_sha256": record.get("scenario_sha256"),
        "versions": record.get("versions"),
        "bundled_by": versions()["mapa-testbed"],
        "parts": [
            {"name": name, "size": len(parts[name]), "sha256": _sha256(parts[name])} for name in sorted(parts)
        ],
    }
    whole = {MANIFEST: memoryview(canonical_json(manifest)), **{name: parts[name] for name in sorted(parts)}}
    _write(out, whole)
    return manifest


def _check_place(out: Path, kept: Iterable[Path]) -> None:
    """Raise ConfigurationError where a bundle would take the place of a record, a ledger or no file at all."""
    try:
        place = out.parent.resolve() / out.name
        for folder in (one.resolve() for one in kept):
            if place.is_relative_to(folder):
                raise ConfigurationError(
                    f"--out {out}: must be outside of {folder}, whose records are bundled"
                )
        if not S_ISREG(out.lstat().st_mode):
            raise ConfigurationError(f"--out {out}: must be a new file or a regular one, to be replaced")
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError) as error:  # a loop of links
        raise ConfigurationError(f"--out {out}: {error}") from error


def _write(out: Path, parts: Mapping[str, memoryview]) -> None:
    """Put the whole file in its place, or leave nothing."""
    draft = out.with_name(f".{out.name}.{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(
            draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
        try:
            with os.fdopen(descriptor, "wb") as stream:
                write_zip(stream, parts)
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(out)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RecordsError(f"--out {out}: cannot be written: {error.strerror or error}") from error


def _sound(found: FoundLedgers, summary: Mapping[str, Any]) -> list[LedgerStatement]:
    """Return the statements; ConfigurationError where a ledger in the run's own directory contradicts the run."""
    for why in found.faults.values():
        raise ConfigurationError(why)
    rows = summary.get("edges")
    told = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    known = [row.get("edge_id") for row in told if row.get("applied")]
    for part, edge_id in found.others.items():
        if known and (edge_id in known or not found.statements):
            raise ConfigurationError(f"ledger {part}: of edge {edge_id}, without an account of this run")
    return found.statements


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and check its own bytes; NoBundleError where it is none."""
    try:
        content = mapped(open_regular(path.resolve()))  # a link that the caller names may lead to it
    except OSError as error:
        raise NoBundleError(f"{path}: {error.strerror or error}") from error
    zipped = read_zip(content, NAMES)
    checks = [failed("zip", fault.part, fault.what) for fault in zipped.faults]
    if not checks:
        checks.append(
            passed("zip", "zip", f"canonical: {len(zipped.parts)} parts, written again byte for byte")
        )
    manifest: dict[str, Any] = {}
    try:
        manifest = _manifest(zipped.parts.get(MANIFEST))
        checks += _hashes(manifest, zipped.parts)
    except ValueError as error:
        checks.append(failed("hashes", MANIFEST, str(error)))
    files = RunFiles(
        str(path),
        {name.removeprefix(_RUN): one for name, one in zipped.parts.items() if name.startswith(_RUN)},
        prefix=_RUN,
    )
    for name, content in zipped.parts.items():
        if _LEDGER.fullmatch(name):
            try:
                fields = strict_object(content, _LEDGER_BYTES)
                files.ledgers.append(LedgerStatement.from_dict(name, fields))
            except ValueError as error:
                checks.append(failed("ledgers", name, str(error)))
    return Bundle(files, manifest, checks)


def _manifest(content: memoryview | None) -> dict[str, Any]:
    if content is None:
        raise ValueError("missing")
    manifest = strict_object(content, _MANIFEST_BYTES)
    if manifest.get("format") != FORMAT:
        raise ValueError(f"format = {manifest.get('format')!r:.40}: this version reads {FORMAT!r} alone")
    if manifest.keys() != _KEYS:
        raise ValueError(f"keys {sorted(manifest.keys() ^ _KEYS)!r:.200} are missing or unknown")
    if canonical_json(manifest) != bytes(content):
        raise ValueError("not in its canonical form")
    rows = manifest["parts"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("parts: not a list of objects")
    for row in rows:
        types = {"name": str, "size": int, "sha256": str}
        if row.keys() != types.keys() or any(type(row[key]) is not kind for key, kind in types.items()):
            raise ValueError(f"parts: {row!r:.200} is not name, size and sha256")
    return manifest


def _sha256(content: memoryview) -> str:
    digest = hashlib.sha256()
    for piece in pieces_of(content):
        digest.update(piece)
    return digest.hexdigest()


def _hashes(manifest: dict[str, Any], parts: dict[str, memoryview]) -> Iterator[Check]:
    rows: list[dict[str, Any]] = manifest["parts"]
    listed = [row["name"] for row in rows]
    if [MANIFEST, *listed] != list(parts) or listed != sorted(set(listed)):
        odd = sorted({*listed} ^ ({*parts} - {MANIFEST}))
        yield failed(
            "hashes", odd[0] if odd else MANIFEST, "parts and manifest do not list the same in one order"
        )
    wrong = 0
    for row in rows:
        content = parts.get(row["name"])
        if content is not None and (len(content) != row["size"] or _sha256(content) != row["sha256"]):
            wrong += 1
            yield failed("hashes", row["name"], "not the bytes that the manifest states")
    if not wrong:
        yield passed("hashes", MANIFEST, f"size and SHA-256 of {len(rows)} parts")


def claims(bundle: Bundle, record: Mapping[str, Any], reasons: Collection[str]) -> Iterator[Check]:
    """Check what the manifest of a bundle says of the run, whose own is `record`, and whether it is private."""
    expected = {
        "private": not reasons,
        "not_private": list(reasons),
        **{key: record.get(key) for key in ("run", "scenario_sha256", "versions")},
    }
    wrong = [key for key, value in expected.items() if bundle.manifest.get(key) != value]
    for key in wrong:
        yield failed(
            "manifest",
            MANIFEST,
            f"{key} = {bundle.manifest.get(key)!r:.200}; by its parts {expected[key]!r:.200}",
        )
    if not wrong:
        words = "private" if not reasons else f"not private: {'; '.join(reasons)}"
        yield passed("manifest", MANIFEST, f"says what its parts say; {words}")
