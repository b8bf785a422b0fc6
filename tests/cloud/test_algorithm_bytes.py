"""Replay needs it: an algorithm gives the same bytes however vectors lie in memory, with any number of threads."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from cloud.algorithm import Algorithm, Update, averaged, descend
from common.algorithms import algorithm_names, describe
from common.noise.gaussian import Gaussian
from common.problem import Problem
from common.quantities import NoisyGradient, Vector
from tests.program_support import run_program

OWN = (
    "tests.algorithms.fedbuff:FedBuff",
    "tests.algorithms.fedasync:FedAsync",
    "tests.algorithms.averaged:Averaged",
)
VARIANTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "fedasync of models": ("fedasync", {"mix": "model", "mixing": 0.5}, "none"),
    "fedasync hinge": ("fedasync", {"weight": "hinge", "grace": 1}, "none"),
    "fedbuff scaled": ("fedbuff", {"buffer": 3, "staleness_scaling": True}, "none"),
    "multi-krum": ("krum", {"chosen": 3}, "none"),
    "mapa ema": ("mapa", {}, "ema"),
    "adam tail": ("adam", {}, "tail"),
}
ALL = (*algorithm_names(), *OWN, *VARIANTS)
N, T = 7_850, 40
PROBLEM = Problem(
    batch_size=4, smoothness=1.0, sigma=1.0, tau_max=2, iterations=T, first_clip=2.0, measure_tau=True
)

Lay = Callable[[Vector], Vector]


def begun(name: str) -> Algorithm:
    name, options, average = VARIANTS.get(name, (name, {}, "none"))
    described = describe(name)
    given = {one.name: 0.25 for one in described.options if one.default is None or one.name == "rate"}
    values = described.resolve(given | options)
    return averaged(described.make(values), average, None, None).begin(PROBLEM, 2.0)


def digest(name: str, lay: Lay) -> str:
    """Return the hash of the result after T updates, with every vector brought into another place in memory."""
    rng = np.random.default_rng(5)
    law = Gaussian(1.0)
    algorithm, x = begun(name), lay(rng.standard_normal(N).astype(np.float32))
    hashes = hashlib.sha256()
    for t in range(1, T + 1):
        if t == T // 2:
            algorithm = algorithm.with_moment(3.0, t)
        staleness = int(rng.integers(0, min(t, 4)))
        gradient = lay(rng.standard_normal(N).astype(np.float32))
        update = Update(NoisyGradient(gradient), t, t - staleness, staleness, t % 5, law, 2.0, 1, 1.0)
        x, algorithm = algorithm.apply(x, update)
        assert x.dtype == np.float32
        x = lay(x)
        hashes.update(x.tobytes())
    hashes.update(np.asarray(algorithm.result(x)).tobytes())
    return hashes.hexdigest()


def plain(vector: Vector) -> Vector:
    return np.ascontiguousarray(vector)


def unaligned(vector: Vector) -> Vector:
    """The same numbers at an odd address: no SIMD path begins where it did."""
    memory = np.empty(vector.nbytes + 1, np.uint8)
    placed = memory[1:].view(np.uint8)
    placed[:] = np.frombuffer(vector.tobytes(), np.uint8)
    return np.ndarray(vector.shape, np.float32, buffer=memory.data, offset=1)


def shifted(vector: Vector) -> Vector:
    memory = np.empty(vector.size + 3, np.float32)
    memory[3:] = vector
    return memory[3:]


def strided(vector: Vector) -> Vector:
    memory = np.empty((vector.size, 3), np.float32)
    memory[:, 1] = vector
    return memory[:, 1]


def reversed_in_memory(vector: Vector) -> Vector:
    return np.ascontiguousarray(vector[::-1])[::-1]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("lay", [unaligned, shifted, strided, reversed_in_memory])
def test_the_bytes_do_not_depend_on_where_vectors_lie(name: str, lay: Lay) -> None:
    assert digest(name, lay) == digest(name, plain)


def test_the_bytes_do_not_depend_on_the_number_of_threads() -> None:
    program = "from tests.cloud.test_algorithm_bytes import *\nfor name in ALL: print(digest(name, plain))"
    said = []
    for threads in ("1", "2"):
        counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        done = run_program(sys.executable, "-c", program, env={**os.environ, **counts})
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert len(said[0]) == len(ALL)
    assert said[0] == said[1]


@dataclass(frozen=True)
class SumsAsItLies(Algorithm):
    """Divides by a sum that is taken in the order of memory."""

    private: ClassVar[bool] = False

    def apply(self, x: Vector, update: Update) -> tuple[Vector, SumsAsItLies]:
        gradient = update.gradient
        ordered = gradient if gradient.flags.c_contiguous else gradient[::-1]
        return descend(x, gradient, 1e-3 * float(np.cumsum(ordered)[-1])), self


def test_an_algorithm_that_sums_in_the_order_of_memory_is_caught() -> None:
    name = "tests.cloud.test_algorithm_bytes:SumsAsItLies"
    assert digest(name, reversed_in_memory) != digest(name, plain)
