"""The privacy accountant in a process of its own, asked in JSON; and ε over charges, kept for an edge's metrics.

The accountant takes 120 MB and two seconds, and an edge asks it once in a run: the memory goes back with its process.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.accounting.releases import Budget, ReleaseKind, Spent
from common.errors import ConfigurationError, MapaError
from common.own_code import add_code, code_folders

TIMEOUT = 600.0  # seconds; it needs two, or a minute where PLDs are wide
MOST_KINDS = 8  # kinds of releases that are accounted in one process; each asks for itself
_STEPS = 8  # marks in an octave: a bound is that of at most 9 % more charges
_FIRST = 64  # charges that the first question goes up to; each further one goes four times as far
_MARKS = sorted({round(2 ** (step / _STEPS)) for step in range(40 * _STEPS)})

# ε at δ of each number of charges of a kind; None: no finite one.
Ask = Callable[[ReleaseKind, Sequence[int], float], list[float | None]]


def epsilons_apart(kind: ReleaseKind, charges: Sequence[int], delta: float) -> list[float | None]:
    """Return ε at δ of each number of charges, zero-out adjacency, by the quick methods; None: no finite one."""
    answer = _ask({"kind": kind.fields(), "charges": list(charges), "delta": delta})
    epsilons: list[float | None] = answer["epsilons"]
    return epsilons


@functools.lru_cache(maxsize=1024)
def max_charges_apart(budget: Budget, kind: ReleaseKind, spent: tuple[Spent, ...]) -> int:
    """Return what common.accounting.budget.max_charges says, without importing it here."""
    before = [{"kind": each.kind.fields(), "charges": each.charges} for each in spent]
    charges: int = _ask({"budget": asdict(budget), "kind": kind.fields(), "spent": before})["charges"]
    return charges


def _ask(question: Mapping[str, Any]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "edge.accountant"],  # -P: not what lies in the caller's directory
            input=json.dumps({**question, "code": code_folders()}),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise MapaError(f"the privacy accountant gave no answer in {TIMEOUT:g} s") from error
    if done.returncode != 0:
        raise MapaError(f"the privacy accountant failed ({done.returncode})")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "refused" in answer:
        raise ConfigurationError(answer["refused"])
    return answer


def main() -> None:
    """Answer the question on stdin; an edge that has ended meanwhile needs neither an answer nor a traceback."""
    question = json.load(sys.stdin)
    for folder in question["code"]:  # an edge's operator allowed it: parts of one's own say what they cost
        add_code(Path(folder))
    try:
        answer = _epsilons(question) if "charges" in question else _max_charges(question)
    except ConfigurationError as error:
        answer = {"refused": str(error)}
    try:
        print(json.dumps(answer), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _max_charges(question: Mapping[str, Any]) -> dict[str, Any]:
    from common.accounting.budget import max_charges

    spent = tuple(Spent(ReleaseKind.of_fields(each["kind"]), each["charges"]) for each in question["spent"])
    kind = ReleaseKind.of_fields(question["kind"])
    return {"charges": max_charges(Budget(**question["budget"]), kind, spent)}


def _epsilons(question: Mapping[str, Any]) -> dict[str, Any]:
    from common.accounting.total import total

    kind = ReleaseKind.of_fields(question["kind"])
    spent = ([Spent(kind, charges)] for charges in question["charges"])
    epsilons = [total(each, question["delta"], quick=True).epsilon for each in spent]
    return {"epsilons": [epsilon if math.isfinite(epsilon) else None for epsilon in epsilons]}


@dataclass(slots=True)
class _Curve:
    """ε at some numbers of charges, which grow."""

    charges: list[int] = field(default_factory=lambda: [0])
    epsilon: list[float | None] = field(default_factory=lambda: [0.0])
    asking: bool = False
    failed: bool = False


class SpentCurves:
    """Upper bounds on the ε spent, asked for in a thread of their own, a few times a run: the training never waits."""

    def __init__(self, ask: Ask, start: Callable[[Callable[[], None]], None] | None = None) -> None:
        self._ask = ask
        self._start = start or _in_a_thread
        self._curves: dict[tuple[ReleaseKind, float], _Curve] = {}

    def epsilon(self, kind: ReleaseKind, charges: int, delta: float) -> float | None:
        """Return a bound on ε at δ of this many charges, ∞ if there is none; None: not known, or not yet."""
        curve = self._curves.get((kind, delta))
        if curve is None:
            if len(self._curves) >= MOST_KINDS:
                return None
            curve = self._curves[kind, delta] = _Curve()
        last = curve.charges[-1]
        if not (curve.asking or curve.failed) and 2 * max(charges, 1) > last:
            self._extend(curve, kind, delta, max(charges, last))
        at = bisect_left(curve.charges, charges)
        if at == len(curve.charges):
            return None
        bound = curve.epsilon[at]
        return math.inf if bound is None else bound

    def _extend(self, curve: _Curve, kind: ReleaseKind, delta: float, start: int) -> None:
        marks = [mark for mark in _MARKS if start <= mark <= max(_FIRST, 4 * start)]
        marks = [mark for mark in marks if mark > curve.charges[-1]]
        curve.asking = True

        def work() -> None:
            try:
                epsilons = self._ask(kind, marks, delta)
            except MapaError:
                curve.failed = True  # no accountant here: nothing is claimed
            else:
                # ε first: a reader in another thread looks for charges, then for their ε
                curve.epsilon, curve.charges = [*curve.epsilon, *epsilons], [*curve.charges, *marks]
            curve.asking = False

        self._start(work)


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="mapa-spending", daemon=True).start()


if __name__ == "__main__":
    main()
