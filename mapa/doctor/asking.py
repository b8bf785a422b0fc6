"""Other programs, asked with a time limit: whatever they do, the doctor ends."""

from __future__ import annotations

import contextlib
import os
import signal
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


def ask(words: Sequence[str], patience: float | None = None) -> Answer:
    """Run a program that only tells something, and return what it said."""
    patience = PATIENCE if patience is None else patience
    try:
        child = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that its children, a plugin of docker's, end with it
        )
    except OSError as error:
        return Answer(None, "", str(error.strerror or error))
    try:
        out, err = child.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return Answer(None, "", f"no answer within {patience:g} s")
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
    return Answer(child.returncode, _text(out), _text(err))


def _text(content: bytes) -> str:
    text = content[: 1 << 16].decode("utf-8", "replace").strip()
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)
