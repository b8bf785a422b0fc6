"""Experiment 1: what the inference attack sees, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.noise import Clipping
from experiments.world import World

EPSILONS = (0.01, 0.1, 1.0)
LAWS = ("exponential-norm", "gamma-norm")
_RELEASES = 20  # of which the figures are means


def attack_cells(world: World, updates: Sequence[int]) -> list[dict[str, Any]]:
    """Return the cells with their pictures; b = 1, as in the method that the paper cites."""
    from experiments.attack.reconstruction import attack

    cells = attack(
        world,
        epsilons=EPSILONS,
        iterations=updates,
        batch_size=1,
        releases=_RELEASES,
        laws=LAWS,
        clippings=(Clipping.BATCH_MEAN,),
    )
    return [
        {
            "law": cell.law,
            "epsilon": cell.epsilon,
            "t": cell.t,
            "psnr": cell.psnr,
            "ssim": cell.ssim,
            "correlation": cell.correlation,
            "label_accuracy": cell.label_accuracy,
            "picture": [round(float(pixel), 3) for pixel in cell.picture],
            "truth": [round(float(pixel), 3) for pixel in cell.truth],
            "shape": list(world.dataset.shape),
        }
        for cell in cells
    ]
