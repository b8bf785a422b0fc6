"""The file and the scenario that docs/your-own-model.md prints, in a folder of their own."""

from __future__ import annotations

from pathlib import Path

from tests.pages_support import blocks

PAGE = "your-own-model.md"
COLOUR = '''
import hashlib
import numpy as np
import mapa


class Tints:
    """Noisy 3×32×32 images, each with one channel that is brighter: ten classes would be CIFAR-10's form."""

    def load(self, data_dir):
        rng = np.random.default_rng(3)
        labels = rng.integers(0, 3, 700)
        values = rng.random((700, 3, 32, 32)) * 0.5
        values[np.arange(700), labels] += 0.3
        images = np.rint(255 * values).astype(np.uint8).reshape(700, -1)
        parts = [mapa.data.Samples(images[rows], labels[rows]) for rows in (np.s_[:600], np.s_[600:])]
        return mapa.Dataset("tints", (3, 32, 32), 3, *parts, hashlib.sha256(images.tobytes()).hexdigest())
'''


def write_project(folder: Path) -> Path:
    """Write what the page prints, and a data set of colour images."""
    (folder / "my_model.py").write_text(blocks(PAGE, "python")[0])
    (folder / "my_data.py").write_text(COLOUR)
    (folder / "my.toml").write_text(blocks(PAGE, "toml")[0])
    return folder
