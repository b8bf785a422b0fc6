"""The features of samples, taken from a cache where one is given and the model's take long."""

from __future__ import annotations

import hashlib
from typing import Protocol, runtime_checkable

import numpy as np

from common.datasets.dataset import Samples
from common.models.feature_cache import FeatureCache
from common.models.model import Features, Model

_ROWS = (
    4096  # that are unpacked at a time; a multiple of the transform's chunk, so that parts round as the whole
)


@runtime_checkable
class Keyed(Protocol):
    """A model whose features take long: a flat row for each image, by that image and this key alone."""

    inputs: int

    @property
    def feature_key(self) -> str: ...


def features_of(model: Model, samples: Samples, cache: FeatureCache | None = None) -> Features:
    """Return the features of all samples; without a key of the model's own they are made anew."""
    if not isinstance(model, Keyed):
        return model.features(samples.values())
    key = None if cache is None else content_key(model, samples)
    if cache is not None and key is not None:
        found = cache.read(key, len(samples), model.inputs)
        if found is not None:
            return found
    features = np.empty((len(samples), model.inputs), np.float32)
    for start in range(0, len(samples), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(samples)))
        features[rows[0] : rows[-1] + 1] = model.features(samples.values(rows))
    if cache is not None and key is not None:
        cache.write(key, features)
    return features


def content_key(model: Keyed, samples: Samples) -> bytes:
    """Return the name of these features: the hash of the inputs and of all that is done to them."""
    inputs = np.ascontiguousarray(samples.inputs)
    about = f"mapa features\0{model.feature_key}\0{inputs.dtype.str}\0{inputs.shape}\0"
    found = hashlib.sha256(about.encode())
    found.update(inputs.data)
    return found.digest()
