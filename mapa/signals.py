"""SIGTERM ends a command as Ctrl-C does, and Ctrl-C also where a shell started it in the background."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt, so that whatever was started is ended and tidied up.

    A non-interactive shell starts its background jobs with SIGINT ignored, and Python leaves it so: the first
    signal would reach the handlers of a run, and the second, while it waits for its edges, nobody.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are not ours
        return
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
