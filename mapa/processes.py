"""Child processes, environment variables that give options, signals, and the threads of numerical libraries."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

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


def start_child(command: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
    """Start a program of ours that ends with this one; its options are its arguments, and Ctrl-C is not its to hear."""
    return subprocess.Popen(
        ends_with_parent(command),
        **{"stdin": subprocess.DEVNULL, "env": without_options(one_thread_each()), **more},
        start_new_session=True,
    )


def await_children(children: Iterable[subprocess.Popen[Any]], seconds: float) -> None:
    """Wait for all together, at most so long."""
    until = time.monotonic() + seconds
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, until - time.monotonic()))


def stop_children(*children: subprocess.Popen[Any], number: signal.Signals = signal.SIGTERM) -> None:
    """Tell children to go, and wait for all together; SIGKILL to those that do not react."""
    for child in children:
        child.send_signal(number)
    await_children(children, 5.0)
    for child in children:
        child.kill()
        child.wait()


def last_lines(log: Path, lines: int = 3) -> str:
    """Return the last lines of a program's output."""
    output = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return " / ".join(output[-lines:])[-2000:]


# -- options as environment variables, outside a container as MAPA_<NAME> only --------------------------------

PREFIX = "MAPA_"  # a shell may well have a RUN, SEED or LINK that means something else
_CONNECTION = (
    *("BROKER", "RUN", "BROKER_USERNAME", "BROKER_PASSWORD_FILE", "PLAIN_PASSWORD", "CONNECT_TIMEOUT"),
    *("TLS", "TLS_CA", "TLS_CERT", "TLS_KEY", "IDENTITY", "AUTHENTIC", "METRICS_PORT", "METRICS_ADDRESS"),
)
_PRIVACY = ("EPSILON", "NOISE_MULTIPLIER", "TOTAL_EPSILON", "TOTAL_DELTA")
RESUMED = (*_CONNECTION, "RUNS_DIR", "TEST_DATA", "SUSPEND")  # of a cloud that goes on with a run
CLOUD = (
    *(*RESUMED, *_PRIVACY, "EDGES", "EDGES_AT_LEAST", "GATHER", "ITERATIONS", "SEED", "LINKS"),
    "STARTED_BY",
)
EDGE = (
    *(*_CONNECTION, *_PRIVACY, "NOISE", "LINK", "CODING", "ALLOW", "CODE", "ALLOW_SEED", "ALLOW_UNPROTECTED"),
    *("MOST_LOCAL_STEPS", "ACCOUNTS", "ENROL", "STATE_DIR", "EDGE_DATA", "DATA_NAME"),
)


def text(environ: Mapping[str, str], name: str) -> str:
    """Return a variable without the white space around it; unset and empty are the same."""
    return environ.get(name, "").strip()


def prefixed(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return MAPA_<NAME> of every name with a value under its short or prefixed name; the prefixed one wins."""
    values = {PREFIX + name: text(environ, PREFIX + name) or text(environ, name) for name in names}
    return {name: value for name, value in values.items() if value}


def without_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without our variables, for a command whose options are all arguments."""
    options = {PREFIX + name for name in (*CLOUD, *EDGE)}
    return {name: value for name, value in environ.items() if name not in options}


# -- signals and threads ------------------------------------------------------------------------------------


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


def one_thread_each() -> dict[str, str]:
    """Return an environment for children in which numpy and torch keep to one core, likewise."""
    environ = dict(os.environ)
    one_thread(environ)
    return environ
