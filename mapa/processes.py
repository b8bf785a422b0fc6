"""Processes: commands for children, signals, and the threads of numerical libraries."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from types import FrameType

# By the kernel: a pipe would need the program's help, and Mosquitto reads no stdin. The setting survives exec;
# a launcher makes it, because code between fork and exec is not safe in a program with threads.
_LAUNCHER = """
import ctypes, os, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone
if prctl is not None:
    prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit(143)  # the parent went first
os.execv(sys.argv[2], sys.argv[2:])
"""


def ends_with_parent(command: Sequence[str]) -> list[str]:
    """Return a command that gets SIGTERM when the thread that started it ends; the process id is the command's."""
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]


# A signal that is ignored stays so over exec, and a shell's background job ignores SIGINT.
_LISTENER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def interruptible(command: Sequence[str]) -> list[str]:
    """Return a command that SIGINT ends even where this process ignores it; the process id is the command's."""
    return [sys.executable, "-I", "-S", "-c", _LISTENER, *command]


@contextlib.contextmanager
def on_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let SIGINT and SIGTERM call a handler; only the main thread gets signals, in others this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def interrupted_by_signals() -> contextlib.AbstractContextManager[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt, so that whatever was started is ended and tidied up.

    A non-interactive shell starts its background jobs with SIGINT ignored, and Python leaves it so: the first
    signal would reach the handlers of a run, and the second, while it waits for its edges, would be lost.
    """
    return on_signals(signal.default_int_handler)


# One BLAS thread: models here are small, and a second thread mostly spins while it waits for the first.
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def one_thread(environ: MutableMapping[str, str] = os.environ) -> None:
    """Ask for one thread, unless the user has said how many, by any of the variables."""
    if not any(environ.get(name) for name in VARIABLES):
        environ.update(dict.fromkeys(VARIABLES, "1"))
