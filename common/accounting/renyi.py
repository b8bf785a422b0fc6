"""Rényi divergences of a Poisson-sampled Gaussian release (Mironov, Talwar, Zhang 2019), and ε from them.

As dp-accounting 0.6 (Apache License 2.0) computes them, operation by operation, with arrays where a term has no
predecessor: each figure is that library's to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[Any]  # of float64

ORDERS = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *map(float, range(11, 64)),
    128.0,
    256.0,
    512.0,
    1024.0,
)
_MOST_TERMS = 1000  # of a fractional order; beyond, it says nothing
_BLOCK = 50  # terms that are computed together


def divergence(noise_multiplier: float, rate: float, order: float) -> float:
    """Return the divergence of one release at an order, under zero-out adjacency."""
    if rate == 1:
        return order / (2 * noise_multiplier**2)
    log_moment = _log_moment_whole if float(order).is_integer() else _log_moment
    return log_moment(rate, noise_multiplier, order) / (order - 1)


def epsilon(orders: Iterable[float], divergences: Iterable[float], delta: float) -> float:
    """Return the least ε at δ > 0 that a divergence shows (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    least = math.inf
    for order, divergence in zip(orders, divergences, strict=True):
        if delta**2 + math.expm1(-divergence) > 0:
            return 0.0  # by the Kullback–Leibler divergence
        if order > 1.01:  # below, rounding grows
            bound = divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
            least = min(least, bound)
    return max(0.0, least)


def _log_moment_whole(rate: float, std: float, order: float) -> float:
    k = np.arange(int(order) + 1)
    log_weights = _log_binomial(int(order), k) + k * math.log(rate) + (int(order) - k) * math.log1p(-rate)
    return float(np.logaddexp.reduce(log_weights + (k * k - k) / (2 * std**2)))


def _log_moment(rate: float, std: float, order: float) -> float:
    """Sum both halves of the integral as series, until their terms fall and no longer count."""
    border = std**2 * math.log(1 / rate - 1) + 0.5
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    last = sums = np.full((2, 1), -math.inf)
    for start in range(0, _MOST_TERMS, _BLOCK):
        i = np.arange(start, start + _BLOCK)
        j = order - i
        log_binomial = _log_binomial(order, i)
        series = [
            log_binomial + a * log_rate + b * log_rest + (a * a - a) / (2 * std**2) + _log_tail(x, std)
            for a, b, x in ((i, j, i - border), (j, i, border - j))
        ]
        terms = np.concatenate((last, series), axis=1)
        sums = np.logaddexp.accumulate(np.concatenate((sums, series), axis=1), axis=1)[:, 1:]
        total = np.logaddexp(*sums)
        ended = (np.diff(terms) < 0).all(axis=0) & (terms[:, 1:].max(axis=0) < total - 30)
        if ended.any():
            return float(total[np.argmax(ended)])
        last, sums = terms[:, -1:], sums[:, -1:]
    return math.inf


def _log_tail(x: Array, std: float) -> Array:
    """Return log(erfc(x/(√2·σ))/2)."""
    return np.asarray(math.log(0.5) + (math.log(2) + special.log_ndtr(-(x / (math.sqrt(2) * std)) * 2**0.5)))


def _log_binomial(n: float, k: npt.NDArray[np.int64]) -> Array:
    return np.asarray(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))
