"""An upper bound on the ε that an edge has spent, for its metrics: asked for beside the training, a few times a run."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.accounting.releases import ReleaseKind
from common.errors import MapaError

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
