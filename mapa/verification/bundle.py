"""A run as one file: a canonical zip of its records, log and ledger statements, with a manifest of hashes.

The same parts always give the same bytes: stored uncompressed in the order given, dated 1980-01-01. A reader takes
names and sizes from the file, makes the zip again around them and compares, so every byte is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any

from common.errors import ConfigurationError, RecordsError
from common.records.directory import run_of, versions
from common.records.regular import mapped, open_regular, pieces_of, rows
from mapa.verification.check import Check, UnreadableError, failed, judged, passed, unlike
from mapa.verification.checks_privacy import why_not_private
from mapa.verification.untrusted_files import (
    FILES,
    LEDGERS,
    MANIFEST,
    SUMMARY,
    FoundLedgers,
    LedgerStatement,
    RunFiles,
    canonical_json,
    find_ledgers,
    of_directory,
    strict_object,
)

FORMAT = "mapa-bundle-2"
IN_BUNDLE = "run/"  # begins the names of a run's own files
_LEDGER = re.compile(LEDGERS + r"/\d{6}\.json")
NAMES = re.compile(f"{re.escape(MANIFEST)}|{IN_BUNDLE}(?:{FILES.pattern})|{_LEDGER.pattern}")
_MANIFEST_BYTES = 1 << 25
_LEDGER_BYTES = 1 << 16
LARGEST = (1 << 32) - 1  # bytes of a bundle
LARGEST_PART = 2_000_000_000  # bytes: beyond, its header has extra fields
MOST_PARTS = (1 << 16) - 2
DIRECTORY = "zip directory"  # what a failed check names that lies in no part
# in front of a part's name, of its name in the directory, and the end (APPNOTE 4.3)
_HEADER, _ENTRY, _END = (struct.Struct(form) for form in ("<4s5H3I2H", "<4s6H3I5H2I", "<4s4H2IH"))
_MARK, _ENTRY_MARK, _END_MARK = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_STORED = (20, 0, 0, 0, 33)  # version needed, no flags, uncompressed, 1980-01-01
_UNIX, _REGULAR = 3 << 8 | 20, 0o100644 << 16  # made by, and as what file


class NoBundleError(ConfigurationError):
    """A file that is no bundle at all."""


# -- the zip -------------------------------------------------------------------------------------------------


def check_size(parts: Mapping[str, memoryview]) -> None:
    """Raise ConfigurationError if parts are too large or too many for a bundle, before any is read."""
    whole = sum(map(len, parts.values())) + 1000 * len(parts)  # of a header and an entry: fewer bytes
    if whole > LARGEST or len(parts) > MOST_PARTS or any(len(part) > LARGEST_PART for part in parts.values()):
        raise ConfigurationError(
            f"{len(parts)} parts of {whole} bytes: a bundle has at most {MOST_PARTS} parts and {LARGEST} bytes,"
            f" {LARGEST_PART} in one part"
        )


def zip_of(parts: Mapping[str, memoryview]) -> Iterator[tuple[str, bytes | memoryview]]:
    """Yield the zip of these parts piece by piece, and to which of them each belongs; what is not theirs as bytes."""
    entries, at = b"", 0
    for name, content in parts.items():
        crc = 0
        for piece in pieces_of(content):
            crc = zlib.crc32(piece, crc)
        sizes = (crc, len(content), len(content), len(name), 0)
        yield name, _HEADER.pack(_MARK, *_STORED, *sizes) + name.encode()
        yield from ((name, piece) for piece in pieces_of(content))
        entries += _ENTRY.pack(_ENTRY_MARK, _UNIX, *_STORED, *sizes, 0, 0, 0, _REGULAR, at) + name.encode()
        at += _HEADER.size + len(name) + len(content)
    end = _END.pack(_END_MARK, 0, 0, len(parts), len(parts), len(entries), at, 0)
    yield DIRECTORY, entries + end


def write_zip(stream: IO[bytes], parts: Mapping[str, memoryview]) -> None:
    """Write parts in the order given; raise ConfigurationError if they are too large or too many."""
    check_size(parts)
    for _, piece in zip_of(parts):
        stream.write(piece)


@dataclass(slots=True)
class ReadZip:
    """The parts of a zip as far as they can be told, and all that is not as it would be written."""

    parts: dict[str, memoryview] = field(default_factory=dict)
    faults: list[tuple[str, str]] = field(default_factory=list)  # part, what


def read_zip(content: memoryview, name_pattern: re.Pattern[str]) -> ReadZip:
    """Read a canonical zip, damaged or not; raise NoBundleError if it neither begins nor ends like one."""
    if bytes(content[:4]) != _MARK and bytes(content[-_END.size :][:4]) != _END_MARK:
        raise NoBundleError("not a bundle: it neither begins nor ends like one")
    if len(content) > LARGEST:
        raise NoBundleError(f"{len(content)} bytes: a bundle has at most {LARGEST}")
    read, at = ReadZip(), 0
    while bytes(content[at : at + 4]) == _MARK and at + _HEADER.size <= len(content):
        fields = _HEADER.unpack_from(content, at)
        at, size = at + _HEADER.size + fields[9], fields[8]
        name = bytes(content[at - fields[9] : at]).decode("ascii", "replace")
        known = name in read.parts or len(read.parts) == MOST_PARTS
        if known or not name_pattern.fullmatch(name) or size > len(content):
            read.faults.append((f"{name!r:.80}", "a part with this name and size cannot be here"))
            break
        read.parts[name] = content[at : at + size]
        at += size
    at, odd = 0, list[str]()
    for owner, piece in zip_of(read.parts):
        if isinstance(piece, bytes) and content[at : at + len(piece)] != piece:
            odd.append(owner)
        at += len(piece)
    for owner in odd:
        what = "its end or an entry" if owner == DIRECTORY else "its header or its checksum"
        read.faults.append((owner, f"{what} is not the canonical one"))
    if at != len(content) and not read.faults:
        read.faults.append((DIRECTORY, f"{len(content)} bytes; canonical are {at}"))
    return read


# -- the bundle ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle as it was read: what is in it, and what is wrong with the file itself."""

    files: RunFiles
    manifest: dict[str, Any]  # empty: not readable
    checks: list[Check]


def make_bundle(run: Path, out: Path, ledgers: Iterable[Path], *, not_private: bool) -> dict[str, Any]:
    """Write the bundle of a run that has ended; return its manifest.

    Raise ConfigurationError if the run cannot be bundled, or is not private and `not_private` does not say so.
    """
    given = list(ledgers)
    _check_place(out, [run, *given])
    files = of_directory(run)
    if SUMMARY not in files:
        raise ConfigurationError(f"{run}: has no {SUMMARY}: a run is bundled once it has ended")
    try:
        record, summary = files.manifest, files.summary
    except UnreadableError as error:
        raise ConfigurationError(f"{run}: {error}") from error
    reasons = why_not_private(record, summary)
    if reasons and not not_private:
        raise ConfigurationError(
            f"{run}: not private ({'; '.join(reasons)}); whoever gets the bundle can learn about single records."
            " Bundle it with --not-private"
        )
    statements = _sound(find_ledgers(run, run_of(record), given), summary)
    parts = {f"{IN_BUNDLE}{name}": content for name, content in files.contents.items()}
    for number, statement in enumerate(statements, start=1):
        parts[f"{LEDGERS}/{number:06d}.json"] = memoryview(canonical_json(statement.model_dump()))
    check_size(parts)
    manifest = _manifest_of(record, reasons, _rows(parts), versions()["mapa-testbed"])
    _write(out, {MANIFEST: memoryview(canonical_json(manifest)), **dict(sorted(parts.items()))})
    return manifest


def _manifest_of(
    record: Mapping[str, Any], reasons: list[str], rows: list[dict[str, Any]], bundled_by: object
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "run": run_of(record),
        "private": not reasons,
        "not_private": reasons,
        "scenario_sha256": record.get("scenario_sha256"),
        "versions": record.get("versions"),
        "bundled_by": bundled_by,
        "parts": rows,
    }


def _rows(parts: Mapping[str, memoryview]) -> list[dict[str, Any]]:
    made = []
    for name, content in sorted(parts.items()):
        digest = hashlib.sha256()
        for piece in pieces_of(content):
            digest.update(piece)
        made.append({"name": name, "size": len(content), "sha256": digest.hexdigest()})
    return made


def _check_place(out: Path, kept: Iterable[Path]) -> None:
    """Raise ConfigurationError if a bundle would take the place of a record, a ledger or no file at all."""
    try:
        place = out.parent.resolve() / out.name
        for folder in (path.resolve() for path in kept):
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
        with draft.open("xb") as stream, contextlib.ExitStack() as undo:
            undo.callback(draft.unlink)
            write_zip(stream, parts)
            stream.flush()
            os.fsync(stream.fileno())
            draft.replace(out)
            undo.pop_all()
    except OSError as error:
        raise RecordsError(f"--out {out}: cannot be written: {error.strerror or error}") from error


def _sound(ledgers: FoundLedgers, summary: Mapping[str, Any]) -> list[LedgerStatement]:
    """Return the statements; raise ConfigurationError if a ledger in the run's own directory contradicts the run."""
    for why in ledgers.faults.values():
        raise ConfigurationError(why)
    known = [row.get("edge_id") for row in rows(summary, "edges") if row.get("applied")]
    for part, edge_id in ledgers.others.items():
        if known and (edge_id in known or not ledgers.statements):
            raise ConfigurationError(f"ledger {part}: of edge {edge_id}, without an account of this run")
    return ledgers.statements


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and check its own bytes; raise NoBundleError if it is none."""
    try:
        content = mapped(open_regular(path.resolve()))  # a link that the caller names may lead to it
    except OSError as error:
        raise NoBundleError(f"{path}: {error.strerror or error}") from error
    zipped = read_zip(content, NAMES)
    parts, faults = zipped.parts, [failed("zip", part, what) for part, what in zipped.faults]
    checks = faults or [passed("zip", "zip", f"canonical: {len(parts)} parts, written again byte for byte")]
    manifest: dict[str, Any] = {}
    try:
        manifest = _manifest(parts)
        checks += _check_hashes(manifest["parts"], parts)
    except ValueError as error:
        checks.append(failed("hashes", MANIFEST, str(error)))
    of_run = [name for name in parts if name.startswith(IN_BUNDLE)]
    files = RunFiles({name.removeprefix(IN_BUNDLE): parts[name] for name in of_run})
    for name, content in parts.items():
        if _LEDGER.fullmatch(name):
            try:
                fields = strict_object(content, _LEDGER_BYTES)
                if "part" in fields:
                    raise ValueError("part: unknown key")
                files.ledgers.statements.append(LedgerStatement.model_validate({**fields, "part": name}))
            except ValueError as error:
                checks.append(failed("ledgers", name, f"not the statement of a ledger: {error!s:.200}"))
    return Bundle(files, manifest, checks)


def _manifest(parts: Mapping[str, memoryview]) -> dict[str, Any]:
    if MANIFEST not in parts:
        raise ValueError("missing")
    manifest = strict_object(parts[MANIFEST], _MANIFEST_BYTES)
    if manifest.get("format") != FORMAT:
        raise ValueError(f"format = {manifest.get('format')!r:.40}: this version reads {FORMAT!r} alone")
    if canonical_json(manifest) != bytes(parts[MANIFEST]) or not isinstance(manifest.get("parts"), list):
        raise ValueError("not in its canonical form, or without a list of parts")
    return manifest


def _check_hashes(stated: list[Any], parts: dict[str, memoryview]) -> Iterator[Check]:
    here = _rows({name: content for name, content in parts.items() if name != MANIFEST})
    listed = {str(row.get("name")): row for row in stated if isinstance(row, dict)}
    odd = [row["name"] for row in here if listed.get(row["name"]) != row]
    if not odd and (stated != here or list(parts) != [MANIFEST, *(row["name"] for row in here)]):
        odd = [MANIFEST]
    what = "not the bytes and the order that the manifest states"
    yield from (failed("hashes", name, what) for name in odd)
    if not odd:
        yield passed("hashes", MANIFEST, f"size and SHA-256 of {len(here)} parts")


def check_claims(bundle: Bundle) -> Iterator[Check]:
    """Check what the manifest of a bundle says of the run, and whether it is private."""
    record, stated = bundle.files.manifest, bundle.manifest
    reasons = why_not_private(record, bundle.files.summary)
    again = _manifest_of(record, reasons, stated["parts"], stated.get("bundled_by"))
    wrong = unlike(stated, again)
    other = [f"by its parts it is another: {wrong.lstrip('.')}"] if wrong else []
    privacy = "private" if not reasons else f"not private: {'; '.join(reasons)}"
    yield from judged("manifest", MANIFEST, other, f"says what its parts say; {privacy}")
