"""The constants of a run, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from common.errors import require


class SensitivityRule(Enum):
    """How ΔS of the next stage follows from this one's.

    D-07: Algorithm line 15 says θΔS. The parameter table prints 2√Δ_s/b without saying what Δ_s is; by the text it is
    2Δ_b/(P(τ_max+1)). They are equal while P_raw ≥ 1; where P clamps to 1 the table's shrinks faster.
    """

    THETA = "theta"
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The constants of algorithm:MAPA and of table: key parameters."""

    batch_size: int  # b
    smoothness: float  # L
    sigma: float  # σ, standard deviation of ∇F(x, ξ)
    tau_max: int  # τ_max
    iterations: int  # T; ΣR_k where edges have caps that add up to less
    theta: float = 0.5  # θ
    delta: float = 1e-3  # δ of Theorem 3 alone; the privacy δ is another
    loss_gap: float = 1.0  # f₀ = f(x₁) − f(x*)
    radius: float = 1.0  # R
    first_clip: float | None = None  # C₁ = bΔS₁/2; None: Theorem 3
    rule: SensitivityRule = SensitivityRule.THETA
    measure_tau: bool = False  # τ_max follows the staleness seen
    edges: int | None = None  # K, where it is known

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        require(self.iterations >= 1, "iterations", self.iterations, "at least 1")
        require(self.tau_max >= 0, "tau_max", self.tau_max, "at least 0")
        require(0 < self.theta < 1, "theta", self.theta, "between 0 and 1, both excluded")
        require(0 < self.delta < 1, "delta", self.delta, "between 0 and 1, both excluded")
        require(math.isfinite(self.sigma) and self.sigma >= 0, "sigma", self.sigma, "finite and at least 0")
        for key in ("smoothness", "loss_gap", "radius"):
            value = getattr(self, key)
            require(math.isfinite(value) and value > 0, key, value, "finite and greater than 0")
        if self.first_clip is None:
            require(self.sigma > 0, "sigma", self.sigma, "greater than 0 where no first_clip is given")
        else:
            valid = math.isfinite(self.first_clip) and self.first_clip > 0
            require(valid, "first_clip", self.first_clip, "finite and greater than 0")


@dataclass(frozen=True, slots=True)
class Constants:
    smoothness: float  # L
    sigma: float  # σ at x₁
    radius: float  # R = ‖x* − x₁‖
    loss_gap: float  # f(x₁), the losses being ≥ 0


_MEASURED = {
    ("lr", "mnist"): Constants(2.45, 4.7, 4.9, 0.693147),
    ("lr", "usps"): Constants(1.725, 3.7, 6.3, 0.693147),
    ("svm", "mnist"): Constants(7.5, 12.3, 2.4, 1.0),
    ("svm", "usps"): Constants(7.5, 9.9, 2.8, 1.0),
    ("softmax", "mnist"): Constants(7.5, 9.0, 5.0, 2.302585),
    ("softmax", "usps"): Constants(7.5, 7.0, 5.0, 2.302585),
    ("cnn", "mnist"): Constants(10.0, 10.0, 10.0, 2.302585),
    ("cnn", "usps"): Constants(10.0, 10.0, 10.0, 2.302585),
}

# What the schedule `constant` gets where nothing was measured: it asks for none of them.
NOMINAL = Constants(1.0, 1.0, 1.0, 1.0)


def measured_constants(model: str, dataset: str) -> Constants | None:
    """Return the constants of a known problem; None for a user's own model or data."""
    return _MEASURED.get((model, "mnist" if dataset == "mnist-5k" else dataset))
