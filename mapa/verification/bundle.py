"""A run as one file: a canonical zip of its records, log and ledger statements, with a manifest of hashes.

The same parts always give the same bytes: `zipfile` stores them uncompressed in the order given, dated 1980-01-01. A
reader takes names and sizes from the file, writes the zip again around them and compares, so every byte is checked.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any, cast

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
_HEADER = struct.Struct("<4s5H3I2H")  # in front of a part's name
_MARK, _END_MARK, _END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22  # of a part, and of the directory's end


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


def _open_part(archive: zipfile.ZipFile, name: str, size: int) -> IO[bytes]:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.create_system, info.external_attr, info.file_size = 3, 0o100644 << 16, size  # as on Unix
    return archive.open(info, "w")


def write_zip(stream: IO[bytes], parts: Mapping[str, memoryview]) -> None:
    """Write parts in the order given; raise ConfigurationError if they are too large or too many."""
    check_size(parts)
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in parts.items():
            with _open_part(archive, name, len(content)) as part:
                for piece in pieces_of(content):
                    part.write(piece)


@dataclass(slots=True)
class ReadZip:
    """The parts of a zip as far as they can be told, and all that is not as it would be written."""

    parts: dict[str, memoryview] = field(default_factory=dict)
    faults: list[tuple[str, str]] = field(default_factory=list)  # part, what


class _Frame:
    """A file that keeps what a zip writer puts around the contents of the parts."""

    def __init__(self) -> None:
        self.at, self.in_part = 0, False
        self.written: dict[int, bytes] = {}

    def write(self, data: bytes) -> int:
        if data and not self.in_part:
            self.written[self.at] = bytes(data)  # a header is written again once its checksum is known
        self.at += len(data)
        return len(data)

    def seek(self, at: int) -> int:
        self.at = at
        return at

    def tell(self) -> int:
        return self.at

    def flush(self) -> None: ...


def read_zip(content: memoryview, name_pattern: re.Pattern[str]) -> ReadZip:
    """Read a canonical zip, damaged or not; raise NoBundleError if it neither begins nor ends like one."""
    if bytes(content[:4]) != _MARK and bytes(content[-_END_BYTES:][:4]) != _END_MARK:
        raise NoBundleError("not a bundle: it neither begins nor ends like one")
    if len(content) > LARGEST:
        raise NoBundleError(f"{len(content)} bytes: a bundle has at most {LARGEST}")
    read, frame, headers = ReadZip(), _Frame(), dict[int, str]()
    with zipfile.ZipFile(cast(IO[bytes], frame), "w") as archive:
        while (member := _member(content, frame.at)) is not None:
            name, size = member
            known = name in read.parts or len(read.parts) == MOST_PARTS
            if known or not name_pattern.fullmatch(name) or size > len(content):
                read.faults.append((f"{name!r:.80}", "a part with this name and size cannot be here"))
                break
            headers[frame.at] = name
            with _open_part(archive, name, size) as part:
                read.parts[name] = content[frame.at : frame.at + size]
                frame.in_part = True
                for piece in pieces_of(read.parts[name]):
                    part.write(piece)
                frame.in_part = False
    odd = [at for at, data in frame.written.items() if bytes(content[at : at + len(data)]) != data]
    for owner in dict.fromkeys(headers.get(at, DIRECTORY) for at in odd):
        what = "its end or an entry" if owner == DIRECTORY else "its header or its checksum"
        read.faults.append((owner, f"{what} is not the canonical one"))
    if frame.at != len(content) and not read.faults:
        read.faults.append((DIRECTORY, f"{len(content)} bytes; canonical are {frame.at}"))
    return read


def _member(content: memoryview, at: int) -> tuple[str, int] | None:
    """Return name and size of the part that begins here; None if none does."""
    head = content[at : at + _HEADER.size]
    if len(head) < _HEADER.size or bytes(head[:4]) != _MARK:
        return None
    fields = _HEADER.unpack(head)
    at += _HEADER.size
    return bytes(content[at : at + fields[9]]).decode("ascii", "replace"), fields[8]


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
    checks = [failed("zip", part, what) for part, what in zipped.faults]
    if not checks:
        checks.append(
            passed("zip", "zip", f"canonical: {len(zipped.parts)} parts, written again byte for byte")
        )
    manifest: dict[str, Any] = {}
    try:
        manifest = _manifest(zipped.parts)
        checks += _check_hashes(manifest["parts"], zipped.parts)
    except ValueError as error:
        checks.append(failed("hashes", MANIFEST, str(error)))
    of_run = {
        name.removeprefix(IN_BUNDLE): part
        for name, part in zipped.parts.items()
        if name.startswith(IN_BUNDLE)
    }
    files = RunFiles(of_run)
    for name, content in zipped.parts.items():
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
