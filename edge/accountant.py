"""The privacy accountant in a process of its own, asked and answering in JSON.

It takes 120 MB and two seconds, and an edge asks it once in a run: what it took goes back with its process.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from common.accounting.releases import Budget, ReleaseKind, Spent
from common.errors import ConfigurationError, MapaError

PATIENCE = 600.0  # seconds; it needs two, or a minute where PLDs are wide


def epsilons_apart(kind: ReleaseKind, charges: Sequence[int], delta: float) -> list[float | None]:
    """Return ε at δ of so many charges each, zero-out adjacency, by the quick methods; None: no finite one."""
    answer = _ask({"kind": kind.fields(), "charges": list(charges), "delta": delta})
    found: list[float | None] = answer["epsilons"]
    return found


@functools.lru_cache(maxsize=1024)
def max_charges_apart(budget: Budget, kind: ReleaseKind, spent: tuple[Spent, ...]) -> int:
    """Return what common.accounting.budget.max_charges says, without importing it here."""
    question = {
        "budget": asdict(budget),
        "kind": kind.fields(),
        "spent": [{"kind": one.kind.fields(), "charges": one.charges} for one in spent],
    }
    charges: int = _ask(question)["charges"]
    return charges


def _ask(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "edge.accountant"],  # -P: not what lies in the caller's directory
            input=json.dumps(question),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired as error:
        raise MapaError(f"the privacy accountant gave no answer in {PATIENCE:g} s") from error
    if done.returncode != 0:
        raise MapaError(f"the privacy accountant failed ({done.returncode})")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "refused" in answer:
        raise ConfigurationError(answer["refused"])
    return answer


def main() -> None:
    """Answer the question on stdin."""
    from common.accounting.budget import max_charges

    question = json.load(sys.stdin)
    if "charges" in question:
        _answer(_epsilons(question))
        return
    spent = tuple(Spent(ReleaseKind.of_fields(one["kind"]), one["charges"]) for one in question["spent"])
    kind = ReleaseKind.of_fields(question["kind"])
    try:
        answer: dict[str, int | str] = {"charges": max_charges(Budget(**question["budget"]), kind, spent)}
    except ConfigurationError as error:
        answer = {"refused": str(error)}
    _answer(answer)


def _answer(answer: Mapping[str, Any]) -> None:
    """Print it; an edge that has ended meanwhile needs no answer, and its operator no traceback."""
    try:
        print(json.dumps(answer), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _epsilons(question: Mapping[str, Any]) -> dict[str, Any]:
    from common.accounting.total import total

    kind = ReleaseKind.of_fields(question["kind"])
    try:
        found = [
            total([Spent(kind, charges)], question["delta"], quick=True).epsilon
            for charges in question["charges"]
        ]
    except ConfigurationError as error:
        return {"refused": str(error)}
    return {"epsilons": [one if math.isfinite(one) else None for one in found]}


if __name__ == "__main__":
    main()
