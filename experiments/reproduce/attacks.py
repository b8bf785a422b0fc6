"""Experiment 1: what the inference attack sees, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.noise import Clipping
from experiments.world import World

EPSILONS = (0.01, 0.1, 1.0)
LAWS = ("exponential-norm", "gamma-norm")
_CLIPPING = Clipping.BATCH_MEAN
_RELEASES = 20  # of which the figures are means
_BATCH_SIZE = 1  # as in the method that the paper cites
# The same for `mapa attack`.
OPTIONS = (
    *("--epsilon", ",".join(f"{epsilon:g}" for epsilon in EPSILONS)),
    *(word for law in LAWS for word in ("--law", law)),
    *("--clipping", _CLIPPING.value),
    *("--releases", str(_RELEASES)),
    *("--batch-size", str(_BATCH_SIZE)),
    "--retrain",
)


def attack_cells(world: World, updates: Sequence[int]) -> list[dict[str, Any]]:
    """Return the cells with their pictures."""
    from experiments.attack.reconstruction import attack

    cells = attack(
        world,
        epsilons=EPSILONS,
        iterations=updates,
        batch_size=_BATCH_SIZE,
        releases=_RELEASES,
        laws=LAWS,
        clippings=(_CLIPPING,),
        retrain=True,
    )
    return [
        {
            "law": cell.law,
            "epsilon": cell.epsilon,
            "t": cell.t,
            "psnr": cell.psnr,
            "ssim": cell.ssim,
            "correlation": cell.correlation,
            "correlations": [round(r, 4) for r in cell.correlations],
            "label_accuracy": cell.label_accuracy,
            "picture": [round(float(pixel), 3) for pixel in cell.picture],
            "truth": [round(float(pixel), 3) for pixel in cell.truth],
            "shape": list(world.dataset.shape),
        }
        for cell in cells
    ]
