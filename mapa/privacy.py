"""For a release mechanism of your own: the ports of samplers, clippings, local work and noise laws; calibration."""
# ruff: noqa: F401
# mypy: implicit-reexport

from __future__ import annotations

from common.mechanism.clipping import Clipping, check_bound, finite_norms, move_of_samples, scaled_sum
from common.mechanism.guarantee import Adjacency, Guarantee, Norm
from common.mechanism.local_work import LocalWork, Release
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import NONE, POISSON, Amplification, Sampler
from common.noise.law import Noise, NoiseLaw, parameter
from mapa.api import calibrate
