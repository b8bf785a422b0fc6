"""The privacy accountant in a process of its own, asked in JSON; and ε over charges, kept for an edge's metrics.

The accountant takes 80 MB and half a second, and an edge asks it once in a run: the memory goes back with its process.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.accounting.releases import Budget, ReleaseKind, Spent
from common.errors import ConfigurationError, MapaError
from common.own_code import add_code, code_folders

TIMEOUT = 600.0  # seconds; it needs half of one, or some where PLDs are wide
MOST_KINDS = 8  # kinds of releases that are accounted in one process; each asks for itself
_STEPS = 8  # marks in an octave: a bound is that of at most 9 % more charges
_FIRST = 64  # charges that the first question goes up to; each further one goes four times as far
_asked: set[subprocess.Popen[str]] = set()  # accountants that have not answered yet
_MARKS = sorted({round(2 ** (step / _STEPS)) for step in range(40 * _STEPS)})

# ε at δ of each number of charges of a kind; None: no finite one.
Ask = Callable[[ReleaseKind, Sequence[int], float], list[float | None]]


def epsilons_apart(kind: ReleaseKind, charges: Sequence[int], delta: float) -> list[float | None]:
    """Return ε at δ of each number of charges, zero-out adjacency, by the quick methods; None: no finite one."""
    epsilons: list[float | None] = _ask(kind=kind.fields(), charges=list(charges), delta=delta)
    return epsilons


@functools.lru_cache(maxsize=1024)
def max_charges_apart(budget: Budget, kind: ReleaseKind, spent: tuple[Spent, ...]) -> int:
    """Return what common.accounting.budget.max_charges says, without importing it here."""
    before = [{"kind": each.kind.fields(), "charges": each.charges} for each in spent]
    charges: int = _ask(budget=asdict(budget), kind=kind.fields(), spent=before)
    return charges


def end_accountants() -> None:
    """End those under way: nobody awaits their answers any more."""
    for process in list(_asked):
        process.kill()


def _ask(**question: Any) -> Any:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "edge.accountant"],  # -P: not what lies in the caller's directory
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        _asked.add(process)
        try:
            told, _ = process.communicate(json.dumps({**question, "code": code_folders()}), TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise MapaError(f"the privacy accountant gave no answer in {TIMEOUT:g} s") from error
        finally:
            _asked.discard(process)
            process.kill()
    if process.returncode != 0:
        raise MapaError(f"the privacy accountant failed ({process.returncode})")
    answer = json.loads(told)
    if "refused" in answer:
        raise ConfigurationError(answer["refused"])
    return answer["found"]


def main() -> None:
    """Answer the question on stdin; an edge that has ended meanwhile needs neither an answer nor a traceback."""
    question = json.load(sys.stdin)
    for folder in question["code"]:  # an edge's operator allowed it: parts of one's own say what they cost
        add_code(Path(folder))
    try:
        answer: dict[str, Any] = {"found": _found(question)}
    except ConfigurationError as error:
        answer = {"refused": str(error)}
    try:
        print(json.dumps(answer), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _found(question: Mapping[str, Any]) -> int | list[float | None]:
    from common.accounting.budget import max_charges
    from common.accounting.total import total

    kind = ReleaseKind.of_fields(question["kind"])
    if "charges" in question:
        spent = ([Spent(kind, charges)] for charges in question["charges"])
        epsilons = (total(each, question["delta"], quick=True).epsilon for each in spent)
        return [epsilon if math.isfinite(epsilon) else None for epsilon in epsilons]
    before = (Spent(ReleaseKind.of_fields(each["kind"]), each["charges"]) for each in question["spent"])
    return max_charges(Budget(**question["budget"]), kind, tuple(before))


@dataclass(slots=True)
class _Curve:
    """Numbers of charges, which grow, and ε of each."""

    bounds: list[tuple[int, float]] = field(default_factory=lambda: [(0, 0.0)])
    asking: bool = False  # for good, where no accountant is here: nothing is claimed


class SpentCurves:
    """Upper bounds on the ε spent, asked for in a thread of their own, a few times a run: the training never waits."""

    def __init__(self, ask: Ask, start: Callable[[Callable[[], None]], None] | None = None) -> None:
        self._ask = ask
        self._start = start or _in_a_thread
        self._curves: dict[tuple[ReleaseKind, float], _Curve] = {}

    def epsilon(self, kind: ReleaseKind, charges: int, delta: float) -> float | None:
        """Return a bound on ε at δ of this many charges, ∞ if there is none; None: not known, or not yet."""
        if (kind, delta) not in self._curves and len(self._curves) >= MOST_KINDS:
            return None
        curve = self._curves.setdefault((kind, delta), _Curve())
        last, _ = curve.bounds[-1]
        if not curve.asking and 2 * max(charges, 1) > last:
            self._extend(curve, kind, delta, max(charges, last))
        return next((epsilon for known, epsilon in curve.bounds if known >= charges), None)

    def _extend(self, curve: _Curve, kind: ReleaseKind, delta: float, start: int) -> None:
        last, _ = curve.bounds[-1]
        marks = [mark for mark in _MARKS if start <= mark <= max(_FIRST, 4 * start) and mark > last]
        curve.asking = True

        def work() -> None:
            try:
                epsilons = [math.inf if e is None else e for e in self._ask(kind, marks, delta)]
            except MapaError:
                return
            curve.bounds = [*curve.bounds, *zip(marks, epsilons, strict=True)]
            curve.asking = False

        self._start(work)


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="mapa-spending", daemon=True).start()


if __name__ == "__main__":
    main()
