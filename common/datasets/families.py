"""Data sets that hold records of one another: an account for one is an account for the other."""

from __future__ import annotations

_MNIST = "ebb7739848f126177781482884716f0af02bae867511aa1f06814d594b889045"
_MNIST_5K = "f2ec551111b005f81f350641e34498a5f22ba412b932578ea269b524537dc175"

_PART_OF = {_MNIST_5K: _MNIST}


def records_of(checksum: str) -> str:
    """Return the checksum of the data set whose records these are; its own where nothing else is known."""
    return _PART_OF.get(checksum, checksum)
