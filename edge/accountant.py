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
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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


MOST_KINDS = 8  # ways of releasing that are accounted in one process; each asks for itself
_STEPS = 8  # marks in an octave: a bound is that of at most 9 % more charges
_FIRST = 64  # charges that the first question goes up to; each further one goes four times as far
_MARKS = sorted({round(2 ** (step / _STEPS)) for step in range(40 * _STEPS)})

# ε at δ of so many charges of a kind, in their order; None: no finite one.
Ask = Callable[[ReleaseKind, Sequence[int], float], list[float | None]]


@dataclass(slots=True)
class _Curve:
    """ε at some numbers of charges, which grow."""

    charges: list[int] = field(default_factory=lambda: [0])
    epsilon: list[float | None] = field(default_factory=lambda: [0.0])
    asking: bool = False
    failed: bool = False


class Spending:
    """Curves of ε, made in a thread of their own so that nothing waits for them."""

    def __init__(self, ask: Ask, start: Callable[[Callable[[], None]], None] | None = None) -> None:
        self._ask = ask
        self._start = start or _in_a_thread
        self._curves: dict[tuple[ReleaseKind, float], _Curve] = {}

    def epsilon(self, kind: ReleaseKind, charges: int, delta: float) -> float | None:
        """Return a bound on ε at δ of so many charges, ∞ where there is none; None: not known, or not yet."""
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
        found = curve.epsilon[at]
        return float("inf") if found is None else found

    def _extend(self, curve: _Curve, kind: ReleaseKind, delta: float, behind: int) -> None:
        marks = [mark for mark in _MARKS if behind <= mark <= max(_FIRST, 4 * behind)]
        marks = [mark for mark in marks if mark > curve.charges[-1]]
        curve.asking = True

        def work() -> None:
            try:
                figures = self._ask(kind, marks, delta)
            except MapaError:
                curve.failed = True  # no accountant here: nothing is claimed
            else:
                # the figures first: whoever reads meanwhile looks for charges, then for what is there
                curve.epsilon, curve.charges = [*curve.epsilon, *figures], [*curve.charges, *marks]
            curve.asking = False

        self._start(work)


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="mapa-spending", daemon=True).start()
