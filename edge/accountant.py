"""The privacy accountant in a process of its own.

It takes 120 MB and two seconds, and an edge asks it once in a run: what it took goes back with its process.
Pickle is right here as nowhere else: the pipe is between two processes of ours, and nobody else can write to it.
"""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys

from common.accounting.releases import Budget, ReleaseKind, Spent
from common.errors import MapaError


@functools.lru_cache(maxsize=1024)
def max_charges_apart(budget: Budget, kind: ReleaseKind, spent: tuple[Spent, ...]) -> int:
    """Return what common.accounting.budget.max_charges says, without importing it here."""
    done = subprocess.run(
        [sys.executable, "-m", "edge.accountant"],
        input=pickle.dumps((budget, kind, spent)),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        raise MapaError(f"the privacy accountant failed ({done.returncode})")
    answer: int | MapaError = pickle.loads(done.stdout)
    if isinstance(answer, MapaError):
        raise answer
    return answer


def main() -> None:
    """Answer the question on stdin."""
    from common.accounting.budget import max_charges

    answer: int | MapaError
    try:
        answer = max_charges(*pickle.load(sys.stdin.buffer))
    except MapaError as error:
        answer = error
    pickle.dump(answer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
