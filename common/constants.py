"""Constants of the paper's problems, measured on the public data sets (b = 12, x₁ = 0).

They stand in where a scenario leaves a key open. L is a quarter of the measured one for LR and nominal
for the others: γ only needs its order. Measuring them on private data would cost privacy (D-09).
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """Return the constants of a known problem; None for anybody's own model or data."""
    return _MEASURED.get((model, "mnist" if dataset == "mnist-5k" else dataset))
