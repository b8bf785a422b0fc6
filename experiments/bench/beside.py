"""Something that is looked at again and again, beside what is measured."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def looking(look: Callable[[], None], seconds: float) -> Iterator[None]:
    """Look at the beginning, after each so many seconds, and at the end."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(seconds):
            look()

    look()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        look()
