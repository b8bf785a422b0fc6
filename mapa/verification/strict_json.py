"""JSON from somebody else: bounded, finite, each key once; ValueError for anything else."""

from __future__ import annotations

import json
import math
from typing import Any

from common.records.regular import few_values

_DEPTH = 32  # of lists and objects in each other; records need 6


def strict_json(content: bytes | memoryview, most: int) -> Any:
    """Return the value; ValueError where it is longer than `most` bytes, not JSON, not finite or too deep."""
    if len(content) > most:
        raise ValueError(f"{len(content)} bytes, at most {most}")
    try:
        value = json.loads(
            few_values(bytes(content)).decode("utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            object_pairs_hook=_once,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not _shallow(value, _DEPTH):
        raise ValueError(f"nested more than {_DEPTH} deep")
    return value


def strict_object(content: bytes | memoryview, most: int) -> dict[str, Any]:
    """Return a JSON object; ValueError for any other value."""
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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _shallow(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return not isinstance(value, list) or (depth > 0 and all(_shallow(one, depth - 1) for one in value))
