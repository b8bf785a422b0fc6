"""What identifies a data set: its content, whatever file it came from."""

from __future__ import annotations

import hashlib

import numpy as np

from common.datasets.dataset import Samples


def content_checksum(*parts: Samples) -> str:
    """Return the sha256 over each part's inputs and labels: type, shape, then little-endian values."""
    digest = hashlib.sha256()
    for part in parts:
        for values in (part.inputs, part.labels):
            portable = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
            digest.update(f"{portable.dtype.str} {portable.shape}\n".encode())
            digest.update(portable.data)
    return digest.hexdigest()
