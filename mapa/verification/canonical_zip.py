"""A zip with one form only: the same parts always give the same bytes, so that every byte of it can be checked.

Parts are stored one behind the other without gaps, in the order given, never compressed; time stamps are 1980-01-01;
there are no extra fields and no comments. Any zip program reads it. A reader takes nothing from it but names, sizes and
checksums, writes the rest anew from these, and compares: a difference anywhere is a fault that names its part.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import BinaryIO, NamedTuple

from common.errors import ConfigurationError
from common.records.regular import pieces_of

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
