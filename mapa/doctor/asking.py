"""Other programs, asked with a time limit: whatever they do, the doctor ends."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE = 8.0  # seconds for one answer


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said."""

    code: int | None  # None: no answer in time, or it could not be started
    out: str
    err: str

    @property
    def fine(self) -> bool:
        return self.code == 0


def ask(words: Sequence[str], patience: float = PATIENCE) -> Answer:
    """Run a program that only tells something, and return what it said."""
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(None, "", f"no answer within {patience:g} s")
    except OSError as error:
        return Answer(None, "", str(error.strerror or error))
    return Answer(done.returncode, _text(done.stdout), _text(done.stderr))


def _text(content: bytes) -> str:
    text = content[: 1 << 16].decode("utf-8", "replace").strip()
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)
