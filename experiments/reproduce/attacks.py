"""Experiment 1: what the inference attack sees, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common.mechanism.clippings.batch_mean import BatchMean
from experiments.attack.reconstruction import Cell, attack
from mapa.simulation.world import World

EPSILONS = (0.01, 0.1, 1.0)
LAWS = ("exponential-norm", "gamma-norm")
_CLIPPING = BatchMean()
_RELEASES = 20  # of which the figures are means
_NUMBERS = ("law", "epsilon", "t", "psnr", "ssim", "correlation", "label_accuracy")
_BATCH_SIZE = 1  # as in the method that the paper cites
# The same for `mapa attack`.
OPTIONS = (
    *("--epsilon", ",".join(f"{epsilon:g}" for epsilon in EPSILONS)),
    *(word for law in LAWS for word in ("--law", law)),
    *("--clipping", _CLIPPING.name),
    *("--releases", str(_RELEASES)),
    *("--batch-size", str(_BATCH_SIZE)),
    "--retrain",
)


def attack_cells(world: World, updates: Sequence[int]) -> list[dict[str, Any]]:
    """Return the cells with their pictures, as JSON can hold them."""
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
            **{key: getattr(cell, key) for key in _NUMBERS},
            "correlations": [round(r, 4) for r in cell.correlations],
            "picture": [round(float(pixel), 3) for pixel in cell.picture],
            "truth": [round(float(pixel), 3) for pixel in cell.truth],
            "shape": list(world.dataset.shape),
        }
        for cell in cells
    ]


def cell_of(values: Mapping[str, Any]) -> Cell:
    """Return the cell that `attack_cells` wrote, as far as it was rounded."""
    return Cell(
        clipping=_CLIPPING.name,
        **{key: values[key] for key in _NUMBERS},
        correlations=tuple(values["correlations"]),
        picture=np.array(values["picture"]),
        truth=np.array(values["truth"]),
    )
