"""Commands for child processes: one that ends with its parent, and one that receives SIGINT."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

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
