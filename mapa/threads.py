"""One BLAS thread: models here are small, and a second thread mostly spins while it waits for the first.

Read when numpy or torch is imported, so it must be said before.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def one_thread(environ: MutableMapping[str, str] = os.environ) -> None:
    """Ask for one thread, unless the user has said how many, by any of the variables."""
    if not any(environ.get(name) for name in VARIABLES):
        environ.update(dict.fromkeys(VARIABLES, "1"))
