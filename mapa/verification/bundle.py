"""A zip with one form only: the same parts always give the same bytes, so that every byte of it can be checked.

Parts are stored one behind the other without gaps, in the order given, never compressed; time stamps are 1980-01-01;
there are no extra fields and no comments. Any zip program reads it. A reader takes nothing from it but names, sizes and
checksums, writes the rest anew from these, and compares: a difference anywhere is a fault that names its part.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, NamedTuple

from common.errors import ConfigurationError, RecordsError
from common.records.regular import mapped, open_regular, pieces_of
from common.records.rundir import run_of, versions
from mapa.verification.check import Check, failed, passed
from mapa.verification.checks_privacy import why_not_private
from mapa.verification.untrusted_files import (
    FILES,
    MANIFEST,
    PART,
    SUMMARY,
    FoundLedgers,
    LedgerStatement,
    RunFiles,
    UnreadableError,
    canonical_json,
    find_ledgers,
    of_directory,
    strict_object,
)

_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCAL_MARK, _ENTRY_MARK, _END_MARK = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_VERSION, _MADE_BY = 20, 3 << 8 | 20  # zip 2.0; by Unix
_TIME, _DATE = 0, 33  # 1980-01-01 00:00
_MODE = 0o100644 << 16
LARGEST = (1 << 32) - 1  # bytes: beyond it a zip needs extra fields
MOST_PARTS = (1 << 16) - 2
DIRECTORY = "zip directory"  # what a fault names that lies in no part


class Member(NamedTuple):
    """One part, as the headers of a zip state it."""

    name: str
    crc: int
    size: int

    @property
    def local(self) -> bytes:
        """The bytes in front of the part."""
        name = self.name.encode()
        head = (_LOCAL_MARK, _VERSION, 0, 0, _TIME, _DATE, self.crc, self.size, self.size, len(name), 0)
        return _LOCAL.pack(*head) + name

    def entry(self, offset: int) -> bytes:
        """The bytes in the directory."""
        name = self.name.encode()
        sizes = (self.crc, self.size, self.size, len(name))
        head = (_ENTRY_MARK, _MADE_BY, _VERSION, 0, 0, _TIME, _DATE, *sizes)
        return _ENTRY.pack(*head, 0, 0, 0, 0, _MODE, offset) + name


class Fault(NamedTuple):
    """A place where the bytes are not the one form."""

    part: str
    what: str


class NoBundleError(ConfigurationError):
    """A file that is no bundle at all."""


def offsets(members: Iterable[Member]) -> Iterator[tuple[Member, int]]:
    """Yield each member and where it begins."""
    at = 0
    for member in members:
        yield member, at
        at += len(member.local) + member.size


def directory(members: list[Member]) -> bytes:
    """Return the bytes behind the last part."""
    entries = b"".join(member.entry(at) for member, at in offsets(members))
    begin = sum(len(member.local) + member.size for member in members)
    count = len(members)
    return entries + _END.pack(_END_MARK, 0, 0, count, count, len(entries), begin, 0)


def check_size(parts: Mapping[str, memoryview]) -> None:
    """Raise ConfigurationError where parts are too large or too many for a plain zip, before any is read."""
    whole = sum(map(len, parts.values())) + 1000 * len(parts)  # of a header and an entry: fewer bytes
    if whole > LARGEST or len(parts) > MOST_PARTS:
        raise ConfigurationError(
            f"{len(parts)} parts of {whole} bytes: a bundle has at most {MOST_PARTS} parts and {LARGEST} bytes"
        )


def write_zip(stream: BinaryIO, parts: Mapping[str, memoryview]) -> None:
    """Write parts in the order given; ConfigurationError where they are too large or too many for a plain zip."""
    check_size(parts)
    members = [Member(name, _crc(content), len(content)) for name, content in parts.items()]
    for member, content in zip(members, parts.values(), strict=True):
        stream.write(member.local)
        for piece in pieces_of(content):
            stream.write(piece)
    stream.write(directory(members))


def _crc(content: memoryview) -> int:
    return reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces_of(content), 0)


@dataclass(frozen=True, slots=True)
class ReadZip:
    """The parts of a zip as far as they can be told, and all that is not as it would be written."""

    parts: dict[str, memoryview]
    faults: list[Fault]


def read_zip(content: memoryview, name_pattern: re.Pattern[str]) -> ReadZip:
    """Read a canonical zip, damaged or not; NoBundleError where it begins and ends like none.

    The directory at the end says where the parts are; where it contradicts itself, the headers in front of the parts
    do. One of the two is whole as long as not both were changed.
    """

    def permitted(name: bytes) -> str | None:
        try:
            text = name.decode("ascii")
        except UnicodeDecodeError:
            return None
        return text if name_pattern.fullmatch(text) else None

    members = _by_directory(content, permitted)
    walked = members is None
    if members is None:
        members = _by_headers(content, permitted)
    if not members:
        if bytes(content[:4]) == _LOCAL_MARK or content[-_END.size :][:4] == _END_MARK:
            fault = Fault(DIRECTORY, "neither the directory nor the headers of the parts can be read")
            return ReadZip({}, [fault])
        raise NoBundleError("not a bundle: it neither begins nor ends like one")
    faults: list[Fault] = []
    parts: dict[str, memoryview] = {}
    for member, at in offsets(members):
        begin = at + len(member.local)
        found, part = bytes(content[at:begin]), content[begin : begin + member.size]
        if found != member.local:
            faults.append(Fault(_named(member, found), "its zip header is not the canonical one"))
        if member.name in parts:
            faults.append(Fault(member.name, "is there twice"))
        if _crc(part) != member.crc:
            faults.append(Fault(member.name, "its bytes do not have the zip's checksum"))
        parts[member.name] = part
    end = sum(len(member.local) + member.size for member in members)
    faults += _directory_faults(
        members, bytes(content[end : end + len(directory(members)) + 1]), walked=walked
    )
    return ReadZip(parts, faults)


def _named(member: Member, found: bytes) -> str:
    """Name the part of a header that differs; where it is the name that differs, both names."""
    other = found[_LOCAL.size :].decode("ascii", "replace")
    return member.name if other == member.name else f"{member.name} ({other!r} in its own header)"


def _directory_faults(members: list[Member], found: bytes, *, walked: bool) -> Iterator[Fault]:
    expected = directory(members)
    if found == expected:
        if walked:  # cannot be: the directory would have been read
            yield Fault(DIRECTORY, "contradicts itself")
        return
    at = 0
    for member, offset in offsets(members):
        entry = member.entry(offset)
        if found[at : at + len(entry)] != entry:
            yield Fault(member.name, "its entry in the zip directory is not the canonical one")
        at += len(entry)
    if found[at:] != expected[at:]:
        yield Fault(DIRECTORY, "the end of the zip is not the canonical one")


_Permitted = Callable[[bytes], str | None]


def _by_directory(content: memoryview, permitted: _Permitted) -> list[Member] | None:
    """Return the members by the directory; None where it does not describe the whole file."""
    size = len(content)
    if size < _END.size:
        return None
    mark, disk, first, count, total, length, begin, comment = _END.unpack_from(content, size - _END.size)
    if mark != _END_MARK or disk or first or comment or count != total or count > MOST_PARTS:
        return None
    if begin + length + _END.size != size:
        return None
    members: list[Member] = []
    at, expected = begin, 0
    for _ in range(count):
        if at + _ENTRY.size > size - _END.size:
            return None
        fields = _ENTRY.unpack_from(content, at)
        crc, packed, unpacked, name_bytes, offset = *fields[7:11], fields[16]
        name = permitted(bytes(content[at + _ENTRY.size : at + _ENTRY.size + name_bytes]))
        if fields[0] != _ENTRY_MARK or packed != unpacked or offset != expected or name is None:
            return None
        members.append(Member(name, crc, unpacked))
        expected += len(members[-1].local) + unpacked
        at += _ENTRY.size + name_bytes
    return members if at == begin + length and expected == begin else None


def _by_headers(content: memoryview, permitted: _Permitted) -> list[Member]:
    """Return the members by the headers in front of them, as far as these lead."""
    members: list[Member] = []
    at = 0
    while at + _LOCAL.size <= len(content) and len(members) <= MOST_PARTS:
        fields = _LOCAL.unpack_from(content, at)
        mark, crc, unpacked, name_bytes = fields[0], fields[6], fields[8], fields[9]
        name = permitted(bytes(content[at + _LOCAL.size : at + _LOCAL.size + name_bytes]))
        if mark != _LOCAL_MARK or name is None or at + _LOCAL.size + name_bytes + unpacked > len(content):
            break
        members.append(Member(name, crc, unpacked))
        at += _LOCAL.size + name_bytes + unpacked
    return members


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
