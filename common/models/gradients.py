"""The two forms that a batch's per-sample gradients come in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.quantities import Vector

Matrix = npt.NDArray[np.float32]

_ZERO = np.float32(0)
_LOSSY = np.float32(1e-24)  # below, what squares lose in float32 may be more than a millionth of their sum


class OuterGradients:
    """∇F(x, ξ_i) = D_i ⊗ X_i of a model that is linear in its scores; b × N is never formed."""

    __slots__ = ("_d", "_x")

    def __init__(self, d: Matrix, x: Matrix) -> None:
        self._d = d  # b × c
        self._x = x  # b × d

    def norms(self) -> npt.NDArray[np.float32]:
        """Return ‖D_i‖·‖X_i‖."""
        squares: npt.NDArray[np.float32] = np.vecdot(self._x, self._x)
        of_d: npt.NDArray[np.float32] = np.vecdot(self._d, self._d)
        least = min(of_d.min(initial=1), squares.min(initial=1))
        lossy = None if least > _LOSSY else self._lossy(of_d, squares)
        squares *= of_d
        if lossy is not None:
            d, x = self._d[lossy], self._x[lossy]
            # in float64, where no square of a float32 vanishes
            squares[lossy] = np.vecdot(d, d, dtype=np.float64) * np.vecdot(x, x, dtype=np.float64)
        return np.sqrt(squares, out=squares)

    def _lossy(self, of_d: npt.NDArray[np.float32], of_x: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
        """Return the rows of which a factor's squares vanish: it must not hide a gradient that the other makes long."""
        rows = np.flatnonzero(~((of_d > _LOSSY) & (of_x > _LOSSY)))
        return rows[self._d[rows].any(axis=1)]  # of D_i = 0 nothing is hidden

    def l1_norms(self) -> npt.NDArray[np.float32]:
        """Return ‖D_i‖₁·‖X_i‖₁."""
        sums: npt.NDArray[np.float32] = np.abs(self._x).sum(axis=1)
        sums *= np.abs(self._d).sum(axis=1)
        return sums

    def nulled(self, rows: npt.NDArray[np.bool_]) -> OuterGradients:
        kept = ~rows[:, None]
        return OuterGradients(np.where(kept, self._d, _ZERO), np.where(kept, self._x, _ZERO))

    def weighted_sum(self, weights: npt.NDArray[np.float32] | None) -> Vector:
        """Return Σ w_i D_i ⊗ X_i = (D∘w)ᵀX."""
        d: Matrix = self._d if weights is None else self._d * weights[:, None]
        total: Vector = d.T @ self._x
        return total.ravel()


class RowGradients:
    """∇F(x, ξ_i) as the rows of a b × N matrix, for models without a closed form."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Matrix) -> None:
        self._rows = rows

    def norms(self) -> npt.NDArray[np.float32]:
        squares: npt.NDArray[np.float32] = np.vecdot(self._rows, self._rows)
        return np.sqrt(squares, out=squares)

    def l1_norms(self) -> npt.NDArray[np.float32]:
        sums: npt.NDArray[np.float32] = np.abs(self._rows).sum(axis=1)
        return sums

    def nulled(self, rows: npt.NDArray[np.bool_]) -> RowGradients:
        return RowGradients(np.where(~rows[:, None], self._rows, _ZERO))

    def weighted_sum(self, weights: npt.NDArray[np.float32] | None) -> Vector:
        total: Vector = self._rows.sum(axis=0) if weights is None else weights @ self._rows
        return total
