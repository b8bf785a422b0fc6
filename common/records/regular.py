"""Files as somebody else may have left them: regular ones alone, through no link, waited for never, bounded."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from stat import S_ISREG
from typing import Any

MOST_JSON = 1 << 27  # bytes of a manifest, a summary or a state; a larger one is nobody's record


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file, also as `opener`; OSError for a link, a pipe, a device or a folder."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def regular_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file; OSError where it is none, or has more than `most` bytes."""
    with open(path, "rb", opener=open_regular) as stream:
        if os.fstat(stream.fileno()).st_size <= most and len(content := stream.read()) <= most:
            return content
    raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))


def plain_json(content: bytes | str) -> Any:
    """Return a JSON value; ValueError for anything else, and for one that is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def regular_object(path: Path, most: int = MOST_JSON) -> dict[str, Any]:
    """Return the JSON object in a regular file; OSError or ValueError where there is none."""
    value = plain_json(regular_bytes(path, most))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
