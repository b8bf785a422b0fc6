"""The idx format of MNIST: magic, big-endian sizes, then bytes."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.datasets.files import damaged, read_content

_UNSIGNED_BYTE = 0x08
_LARGEST = 64 * 2**20  # MNIST's largest has 47 MB


def read_idx(path: Path, rank: int) -> npt.NDArray[np.uint8]:
    """Return the array of `rank` dimensions in an idx file, gzipped or not."""
    content = read_content(path, _LARGEST)
    header = 4 + 4 * rank
    if len(content) < header:
        raise damaged(path, f"has {len(content)} bytes, fewer than an idx header with {rank} sizes")
    zeros, kind, found = struct.unpack_from(">HBB", content)
    if (zeros, kind, found) != (0, _UNSIGNED_BYTE, rank):
        expected = bytes([0, 0, _UNSIGNED_BYTE, rank]).hex()
        raise damaged(
            path, f"begins with {content[:4].hex()}, not {expected} as an idx file with {rank} sizes does"
        )
    sizes = struct.unpack_from(f">{rank}I", content, 4)
    if len(content) != header + math.prod(sizes):
        promised = header + math.prod(sizes)
        raise damaged(path, f"has {len(content):,} bytes, but its header says {promised:,}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)
