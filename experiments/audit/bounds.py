"""From counted errors to statements: Clopper–Pearson bounds, and the bound of one training run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError

Floats = npt.NDArray[np.float64]


def scipy_special() -> Any:
    """Return scipy.special, or say how to get it."""
    try:
        from scipy import special
    except ImportError as error:
        raise ConfigurationError("an audit needs scipy: pip install 'mapa-testbed[privacy]'") from error
    return special


def upper_rate(errors: npt.ArrayLike, trials: int, alpha: float) -> Floats:
    """Return Clopper and Pearson's upper bound: a true rate above it has probability at most α."""
    counted = np.asarray(errors, np.float64)
    missing = np.maximum(trials - counted, 1e-12)
    bound: Floats = scipy_special().betaincinv(counted + 1, missing, 1 - alpha)
    return np.where(counted >= trials, 1.0, bound)


def one_run_epsilon(*, canaries: int, guesses: int, correct: int, delta: float, alpha: float) -> float:
    """Return the ε that one training run refutes at level α.

    Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run" (2023), section 5 and
    appendix D: under (ε, δ)-DP the number of correct guesses is dominated by Binomial(r, e^ε/(1+e^ε)),
    up to a term of 2mδ·max_i Pr[v > Binomial ≥ v−i]/i.
    """

    def p_value(epsilon: float) -> float:
        terms = _binomial(guesses, 1 / (1 + math.exp(-epsilon)))
        tail = float(terms[correct:].sum())
        below = np.cumsum(terms[:correct][::-1])  # Pr[v > B ≥ v−i] for i = 1, 2, …
        worst = float((below / np.arange(1, correct + 1)).max(initial=0.0))
        return min(1.0, tail + 2 * canaries * delta * worst)

    if p_value(0.0) > alpha:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(high) <= alpha:
        low, high = high, 2 * high
        if high > 64:
            return low
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) <= alpha else (low, middle)
    return low


def _binomial(trials: int, rate: float) -> Floats:
    """Return Pr[B = 0 … trials]."""
    special = scipy_special()
    k = np.arange(trials + 1)
    log_choose = special.gammaln(trials + 1) - special.gammaln(k + 1) - special.gammaln(trials - k + 1)
    terms: Floats = np.exp(log_choose + special.xlogy(k, rate) + special.xlog1py(trials - k, -rate))
    return terms
