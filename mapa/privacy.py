"""For a release mechanism of your own: the port of noise laws, and calibration. Further ports belong here."""
# ruff: noqa: F401
# mypy: implicit-reexport

from __future__ import annotations

from common.noise.law import Noise, NoiseLaw, parameter
from common.noise.mechanism import Adjacency, Guarantee, Mechanism, Norm
from mapa.api import calibrate
