"""HKDF-SHA256 in its two steps, and names as bytes that no other names have; pure.

Shared by sealed boxes and by the sessions of signed messages, so that both derive keys in one way.
"""

from __future__ import annotations

import hmac

from common.quantities import RunId


def named(run: RunId, incarnation: int, edge_id: str = "", sequence: int = 0) -> bytes:
    """Return the names in bytes that no other names have: each text with its length before it."""
    texts = b"".join(len(text).to_bytes(2, "big") + text for text in (run.encode(), edge_id.encode()))
    return texts + incarnation.to_bytes(8, "big") + sequence.to_bytes(8, "big")


def extracted(salt: bytes, secret: bytes) -> bytes:
    """HKDF-SHA256's first step."""
    return hmac.digest(salt, secret, "sha256")


def expanded(key: bytes, info: bytes) -> bytes:
    """HKDF-SHA256's second step, for 32 bytes."""
    return hmac.digest(key, info + b"\x01", "sha256")
