"""The two forms that a batch's per-sample gradients come in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.quantities import Vector

Matrix = npt.NDArray[np.float32]

_ZERO = np.float32(0)


class OuterGradients:
    """∇F(x, ξ_i) = D_i ⊗ X_i of a model that is linear in its scores; b × N is never formed."""

    __slots__ = ("_d", "_x")

    def __init__(self, d: Matrix, x: Matrix) -> None:
        self._d = d  # b × c
        self._x = x  # b × d

    def norms(self) -> npt.NDArray[np.float32]:
        """Return ‖D_i‖·‖X_i‖."""
        squares: npt.NDArray[np.float32] = np.vecdot(self._x, self._x)
        squares *= np.vecdot(self._d, self._d)
        return np.sqrt(squares, out=squares)

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
