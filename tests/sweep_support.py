"""Work for sweeps: importable by name, since it travels to other processes."""

from __future__ import annotations

import os
import signal
import threading

from experiments.harness import ONE_THREAD


def square(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number}: no square of a negative")
    return number * number


def one_thread_here(_: int) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in ONE_THREAD}


def where_it_ran(_: int) -> int:
    return os.getpid()


def die_if_negative(number: int) -> int:
    if number < 0:
        os._exit(9)
    return square(number)


def say_and_wait(path: str) -> None:
    """Tell one's id through a named pipe, then stay until somebody ends this process."""
    with open(path, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a pipe
        stream.write(str(os.getpid()))
    threading.Event().wait()


def stop_when_terminated(path: str) -> None:
    """Behave as a simulation: SIGTERM stops it, and its worker would take the next."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with open(path, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a pipe
        stream.write(str(os.getpid()))
    stopped.wait()
