"""The two forms that a batch's per-sample gradients come in, and how they are measured and added.

Clipping bounds what a record can move only as far as norms and sums are right, for any float32 input. So sums are
made in float32 over short pieces alone and across them in float64, whose errors `CLIP_MARGIN` covers
(common/mechanism/guarantee.py); what lies outside the range in which that holds goes through float64, row by row. How
one row is treated never depends on another row: their rounding must not tell of each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from common.quantities import Floats, Indices

Matrix = npt.NDArray[np.float32]
Lengths = npt.NDArray[np.float64]
Total = npt.NDArray[np.float64]
Powers = tuple[int, Lengths]  # p, and the sums of p-th powers

COLUMNS = 1024  # of a vector that are measured in float32
ROWS = 32  # of a batch that are added in float32
_EXACT_VALUES = 1 << 20  # that are copied to float64 at a time

L1, L2 = 1, 2  # which powers of the coordinates are added
_ZERO = np.float32(0)
_NO_ROWS: Indices = np.empty(0, np.int64)
# The norms that float32 can be relied on for, 1e-12 to 1e10, to the first and the second power: squares neither vanish
# nor overflow, and a weight C/‖g‖, times a factor of the gradient, is not denormal.
_SHORTEST, _LONGEST = (1.0, 1e-12, 1e-24), (1.0, 1e10, 1e20)


def powers(vectors: Floats, power: int) -> Floats:
    """Return Σ|v|^p along the last axis, in the vectors' own precision over COLUMNS and in float64 across them."""
    if vectors.shape[-1] < COLUMNS:
        return _powers(vectors, power)
    count = vectors.shape[-1] // COLUMNS
    whole = count * COLUMNS
    pieces = vectors[..., :whole].reshape(*vectors.shape[:-1], count, COLUMNS)
    total: Lengths = _powers(pieces, power).sum(axis=-1, dtype=np.float64)
    total += _powers(vectors[..., whole:], power)
    return total


def _powers(vectors: Floats, power: int) -> Floats:
    if vectors.shape[-1] == 1:  # a sum of one, at a third of the cost
        alone: Floats = vectors[..., 0]
        return np.square(alone) if power == L2 else np.abs(alone)
    found: Floats = np.vecdot(vectors, vectors) if power == L2 else np.abs(vectors).sum(axis=-1)
    return found


def unreliable(of: Floats, power: int) -> npt.NDArray[np.bool_] | None:
    """Tell of which sums of powers float32 cannot be relied on, NaN among them; None: of none."""
    low, high = _SHORTEST[power], _LONGEST[power]
    # argmin and argmax find a NaN where there is one, and take a third of the time of min and max
    if not of.size or (of.item(of.argmin()) > low and of.item(of.argmax()) < high):
        return None
    return ~((of > low) & (of < high))


def known_powers(x: Matrix, power: int) -> Powers | None:
    """Return p and Σ|X|^p of every row of a pool, for the batches of it; None where float32 will not do for one.

    A row's sum is the same whatever lies around it, so a batch of the pool's rows has the pool's sums.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        of = powers(x, power)
    return None if unreliable(of, power) is not None else (power, of.astype(np.float64))


def lengths(of: Lengths, power: int) -> Lengths:
    """Return norms from sums of powers, in the same array."""
    return np.sqrt(of, out=of) if power == L2 else of


def summed(d: Matrix, x: Matrix) -> Total:
    """Return Σ_i D_i ⊗ X_i over the rows (…, b, ·): in float32 over ROWS and in float64 across them."""
    turned = d.swapaxes(-1, -2)
    if d.shape[-2] <= ROWS:
        whole: Total = np.matmul(turned, x).astype(np.float64)
        return whole
    total: Total = np.matmul(turned[..., :ROWS], x[..., :ROWS, :]).astype(np.float64)
    for start in range(ROWS, d.shape[-2], ROWS):
        part = slice(start, start + ROWS)
        total += np.matmul(turned[..., part], x[..., part, :])
    return total


def _blocks(rows: Indices, width: int) -> Iterator[Indices]:
    """Cut chosen rows into parts of which copies in float64 take little memory."""
    step = max(1, min(ROWS, _EXACT_VALUES // width))
    return (rows[start : start + step] for start in range(0, len(rows), step))


def even_parts(count: int, most: int) -> Iterator[slice]:
    """Cut `count` samples into as few parts of at most `most` as there can be, as even as they can be."""
    cuts = -(-count // most)
    ends = [count * cut // max(cuts, 1) for cut in range(cuts + 1)]
    yield from (slice(start, stop) for start, stop in itertools.pairwise(ends))


def _exact(vectors: Matrix) -> npt.NDArray[np.float64]:
    return vectors.astype(np.float64)


class OuterGradients:
    """∇F(x, ξ_i) = D_i ⊗ X_i of a model that is linear in its scores; b × N is never formed."""

    __slots__ = ("_d", "_hard", "_of_x", "_x")

    def __init__(self, d: Matrix, x: Matrix, of_x: Powers | None = None) -> None:
        self._d: Matrix = np.asarray(d, np.float32)  # b × c
        self._x: Matrix = np.asarray(x, np.float32)  # b × d
        self._of_x = of_x  # by `known_powers`, of these rows
        self._hard: Indices | None = None  # rows that float32 cannot be relied on for, once they are measured

    def norms(self) -> Floats:
        """Return ‖D_i‖·‖X_i‖."""
        return self._lengths(L2)

    def l1_norms(self) -> Floats:
        """Return ‖D_i‖₁·‖X_i‖₁."""
        return self._lengths(L1)

    def _lengths(self, power: int) -> Lengths:
        known, of_d = self._of_x, powers(self._d, power)
        if known is not None and known[0] == power:
            of_x, unsure = known[1], [of_d]
        else:
            of_x = powers(self._x, power)  # type: ignore[assignment]
            unsure = [of_x, of_d]
        found: Lengths = np.multiply(of_x, of_d, dtype=np.float64)
        self._hard = _NO_ROWS
        doubtful = [apart for of in unsure if (apart := unreliable(of, power)) is not None]
        if doubtful:
            rows = np.flatnonzero(np.any(doubtful, axis=0))
            # 0 ⊗ X_i adds nothing; where X_i is not finite, its norm is NaN
            self._hard = rows[self._d[rows].any(axis=1)]
            for part in _blocks(self._hard, self._x.shape[1]):
                found[part] = powers(_exact(self._d[part]), power) * powers(_exact(self._x[part]), power)
        return lengths(found, power)

    def nulled(self, rows: npt.NDArray[np.bool_]) -> OuterGradients:
        kept = ~rows[:, None]
        nulled = OuterGradients(np.where(kept, self._d, _ZERO), np.where(kept, self._x, _ZERO))
        nulled._hard = self._hard
        return nulled

    def weighted_sum(self, weights: Floats | None) -> Floats:
        """Return Σ w_i D_i ⊗ X_i = (D∘w)ᵀX."""
        if weights is None:
            plain: Floats = self._d.T @ self._x
            return plain.ravel()
        if self._hard is None:
            self._lengths(L2)
        hard = self._hard
        assert hard is not None
        if not hard.size:
            return summed(self._d * weights.astype(np.float32)[:, None], self._x).ravel()
        easy = weights.copy()
        easy[hard] = 0  # these are added in float64
        total = summed(self._d * easy.astype(np.float32)[:, None], self._x)
        for rows in _blocks(hard, self._x.shape[1]):
            total += (_exact(self._d[rows]) * weights[rows, None]).T @ _exact(self._x[rows])
        return total.ravel()


class RowGradients(OuterGradients):
    """∇F(x, ξ_i) = 1 ⊗ row i of a b × N matrix, for models without a closed form."""

    __slots__ = ()

    def __init__(self, rows: Matrix) -> None:
        super().__init__(np.ones((len(rows), 1), np.float32), rows)

    def weighted_sum(self, weights: Floats | None) -> Floats:
        if weights is None:
            plain: Floats = self._x.sum(axis=0)
            return plain
        return super().weighted_sum(weights)
