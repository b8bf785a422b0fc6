"""Seeded mutants of messages: of their values, of their header, of their bytes."""

from __future__ import annotations

import copy
import json
import math
import random
import struct
from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgpack

from common.wire.v1 import HEADER, HEADER_BYTES


class Form(Enum):
    """How a message is built, so that a mutant can be wrong in one place alone."""

    MAP = "msgpack"
    HOT = "header and vector"
    JSON = "json"
    OCTETS = "bytes"


class Raw(bytes):
    """Bytes that stand in a packed value as they are."""


class Pairs(tuple[Any, ...]):
    """Entries of a map in which a key may come twice."""


EDGES_OF_RANGE = (0, 1, 2, 127, 128, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1)
INTEGERS = (*EDGES_OF_RANGE, -1, -(2**31), -(2**63), 2**63, 2**64 - 1)
FLOATS = (0.0, -0.0, 5e-324, 1e-300, 1.5, -1.0, 1e38, 1.7976931348623157e308, math.nan, math.inf, -math.inf)
LONGEST = 70_000  # bytes of a text that is too long for everything but a list of helpers
TEXTS = (
    "", "\0", "a" * 33, "a" * 129, "A", "ä", "\u202e", "\x1b]0;owned\x07", "../../etc/passwd", "NaN", "1", "-1",
    "e" * LONGEST, "gaussian", "hello", "leave", "halt", "budget", "lost", "0123456789abcdef", "no.such:Class", "%s{0}",
)  # fmt: skip
BYTES = (b"", b"\0" * 8, b"\xff" * 300, b"x" * 32, b"x" * 64)
RAW = tuple(
    map(
        Raw,
        (
            b"\xc1",  # never used
            b"\xd4\x05x", b"\xd6\xff\0\0\0\0", b"\xc7\x0c\xff" + b"\0" * 12, b"\xc7\xff\x05",  # extensions
            b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
            b"\xa2\xff\xfe", b"\xa3\xed\xa0\x80",  # no UTF-8; half a character
            b"\xcf" + b"\0" * 7 + b"\x01", b"\xd3" + b"\0" * 7 + b"\x01", b"\xca\x3f\x80\0\0",  # 1, otherwise
            b"\x91" * 2000 + b"\xc0", b"\x81\xa1x" * 1200 + b"\xc0",  # deep
        ),
    )
)  # fmt: skip
TOKENS = (
    b"\0", b"\xff", b"\r\n", b"\r\n\r\n", b"{", b"[" * 500, b"NaN", b"1e999", b"9" * 5000, b'"v"', b"mapa/v1/",
    b"$SYS/", b"+", b"#",
)  # fmt: skip
_LEAVES: tuple[Sequence[Any], ...] = (
    *(INTEGERS, FLOATS, TEXTS, (None, True, False), ([], {}, [[]], {"": 0})),
    *((), BYTES, RAW),  # (): deep ones are made
)


class Mutator:
    """Makes mutants; the same ones for the same seed."""

    def __init__(self, seed: object) -> None:
        self.luck = random.Random(f"mutants {seed}")

    def mutant(self, message: bytes, form: Form, others: Sequence[bytes] = ()) -> bytes:
        """Return a message that is wrong in its values, in its bytes, or in both; it may happen to be right."""
        luck = self.luck
        if form is not Form.OCTETS and luck.random() < 0.8:
            changed = {Form.MAP: self._map, Form.HOT: self._hot, Form.JSON: self._json}[form](message, others)
            if luck.random() < 0.85:
                return changed
            message = changed
        for _ in range(luck.choice((1, 1, 1, 2, 3, 6))):
            message = self._octets(message, others)
        return message

    # values

    def _map(self, message: bytes, others: Sequence[bytes]) -> bytes:
        try:
            value, other = (msgpack.unpackb(one) for one in (message, self._other(message, others)))
        except Exception:  # what was mutated before
            return self._octets(message, others)
        return packed(self.value(value, other))

    def _json(self, message: bytes, others: Sequence[bytes]) -> bytes:
        try:
            value, other = (json.loads(one) for one in (message, self._other(message, others)))
        except ValueError:
            return self._octets(message, others)
        return json.dumps(self.value(value, other, raw=False), default=repr).encode()

    def value(self, value: Any, other: Any = None, *, raw: bool = True) -> Any:
        """Return a copy of a tree with one to three changes; `other` lends branches."""
        holder = [copy.deepcopy(value)]
        for _ in range(self.luck.choice((1, 1, 1, 2, 3))):
            places = list(_places(holder))
            parent, key = self.luck.choice(places[1:] or places)
            parent[key] = self._changed(parent[key], other, raw)
        return holder[0]

    def _changed(self, node: Any, other: Any, raw: bool) -> Any:
        luck, choice = self.luck, self.luck.random()
        if isinstance(node, dict) and choice < 0.7:
            return self._entries(dict(node), other, raw)
        if isinstance(node, list) and choice < 0.5:
            return self._items(list(node))
        if isinstance(node, bool):
            return luck.choice((not node, int(node), self._leaf(raw)))
        if isinstance(node, int) and choice < 0.6:
            return luck.choice(
                (node + 1, node - 1, -node, node ^ 1 << luck.randrange(64), float(node), *INTEGERS)
            )
        if isinstance(node, float) and choice < 0.6:
            return luck.choice(
                (node * 1.0001, -node, node * 1e30, int(node) if math.isfinite(node) else 0, *FLOATS)
            )
        if isinstance(node, str) and choice < 0.4 and node:
            at = luck.randrange(len(node))
            return node[:at] + luck.choice(("\0", "x", "\n", "é", "")) + node[at + 1 :]
        if isinstance(node, bytes) and choice < 0.6:
            return self._octets(node, ())
        if choice < 0.7 and other is not None:
            places = list(_places([other]))
            parent, key = luck.choice(places)
            return copy.deepcopy(parent[key])
        return self._leaf(raw)

    def _entries(self, entries: dict[Any, Any], other: Any, raw: bool) -> Any:
        luck = self.luck
        keys = list(entries) or ["v"]
        key = luck.choice(keys)
        match luck.randrange(6):
            case 0:
                entries.pop(key, None)
            case 1:
                entries[luck.choice((*TEXTS, "kind", "v", "__class__"))] = self._leaf(raw)
            case 2 if isinstance(other, dict) and other:
                name = luck.choice(list(other))
                entries[name] = copy.deepcopy(other[name])
            case 3:
                entries[str(key) + "x"] = entries.pop(key, None)
            case 4 if raw:
                return Pairs([*entries.items(), (key, self._leaf(raw))])
            case 5 if raw:
                return Pairs([*entries.items(), (luck.choice((1, None, b"v", 2.5, Raw(b"\x90"))), 1)])
            case _:
                return {f"f{number}": 1 for number in range(luck.choice((64, 65, 1500)))} | entries
        return entries

    def _items(self, items: list[Any]) -> list[Any]:
        luck = self.luck
        match luck.randrange(4):
            case 0:
                return items[: luck.randrange(len(items) + 1)]
            case 1:
                return items * luck.choice((2, 300))
            case 2:
                return [*items, self._leaf(False)]
            case _:
                return items[::-1]

    def _leaf(self, raw: bool) -> Any:
        luck = self.luck
        kind = luck.randrange(8 if raw else 6)
        if kind == 5:
            deep: Any = 1
            for _ in range(luck.choice((3, 9, 100))):
                deep = [deep] if luck.random() < 0.5 else {"x": deep}
            return deep
        pools: tuple[Sequence[Any], ...] = (
            INTEGERS,
            FLOATS,
            TEXTS,
            (None, True, False),
            ([], {}, [[]], {"": 0}),
            (),
            BYTES,
            RAW,
        )
        return copy.deepcopy(luck.choice(pools[kind]))

    # header and vector

    def _hot(self, message: bytes, others: Sequence[bytes]) -> bytes:
        luck = self.luck
        if len(message) < HEADER_BYTES:
            return self._octets(message, others)
        head = list(HEADER.unpack_from(message))
        body = bytearray(message[HEADER_BYTES:])
        for _ in range(luck.choice((1, 1, 1, 2))):
            match luck.randrange(6):
                case 0:
                    head[0] = luck.choice(
                        (message[:4], *(one[:4].ljust(4, b"\0") for one in others), b"\x96\x01\xa1z")
                    )
                case 1:
                    head[luck.choice((1, 3, 5, 7))] = luck.choice((0xCF, 0xCB, 0xD3, 0xCE, 0, 255))
                case 2 | 3:
                    place = luck.choice((2, 4, 6))
                    near = (head[place] + 1, head[place] - 1, head[place] ^ 1 << luck.randrange(64))
                    head[place] = luck.choice((*near, *INTEGERS)) % 2**64
                case 4:
                    head[8] = luck.choice((head[8] * (1 + 2**-52), -head[8], *FLOATS))
                case _:
                    body = self._vector(body)
        return HEADER.pack(*head) + body

    def _vector(self, body: bytearray) -> bytearray:
        luck = self.luck
        match luck.randrange(4):
            case 0:
                return body[: luck.randrange(len(body) + 1)]
            case 1:
                return body + bytes(luck.choice((1, 4, 8, 4096)))
            case _ if len(body) >= 4:
                bad = luck.choice(
                    (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f", b"\1\0\0\0")
                )
                for _ in range(luck.choice((1, 1, len(body) // 4))):
                    at = 4 * luck.randrange(len(body) // 4)
                    body[at : at + 4] = bad
        return body

    # bytes

    def _octets(self, message: bytes, others: Sequence[bytes]) -> bytes:
        luck, made = self.luck, bytearray(message)
        at, size = luck.randrange(len(made) + 1), luck.choice((1, 2, 4, 8, 30, 300))
        match luck.randrange(9):
            case 0 if at < len(made):
                made[at] ^= 1 << luck.randrange(8)
            case 1 if at < len(made):
                made[at] = luck.randrange(256)
            case 2:
                del made[at:]
            case 3:
                made[at:at] = luck.randbytes(size)
            case 4:
                del made[at : at + size]
            case 5:
                made[at:at] = made[at : at + size] * luck.choice((1, 2, 20))
            case 6:
                other = self._other(message, others)
                made[at:] = other[luck.randrange(len(other) + 1) :]
            case 7:
                width, order = luck.choice(("H", "I", "Q")), luck.choice("<>")
                number = luck.choice(INTEGERS) % 2 ** (8 * struct.calcsize(width))
                made[at : at + struct.calcsize(width)] = struct.pack(order + width, number)
            case _:
                made[at:at] = luck.choice(TOKENS)
        return bytes(made)

    def _other(self, message: bytes, others: Sequence[bytes]) -> bytes:
        return self.luck.choice(others) if others else message


def _places(holder: Any) -> Any:
    """Yield every place of a tree as (container, key); the first is the whole."""
    waiting = [holder]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            yield node, key
            if isinstance(node[key], dict | list):
                waiting.append(node[key])


def packed(value: Any) -> bytes:
    """Return msgpack of a tree, with what no encoder would write."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, Pairs):
        return _head(0x80, 0xDE, len(value)) + b"".join(packed(key) + packed(one) for key, one in value)
    if isinstance(value, dict):
        return packed(Pairs(value.items()))
    if isinstance(value, list | tuple):
        return _head(0x90, 0xDC, len(value)) + b"".join(map(packed, value))
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        value = float(value)
    content: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return content


def _head(short: int, long: int, count: int) -> bytes:
    return bytes([short | count]) if count < 16 else struct.pack(">BH", long, count % 2**16)
