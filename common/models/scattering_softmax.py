"""Softmax on fixed scattering features: closed form, numpy alone, the transform done once per shard."""

from __future__ import annotations

import math

import numpy as np

from common.errors import ConfigurationError
from common.models.linear import Softmax
from common.models.model import Features, Images
from common.models.scattering import CHANNELS, Scattering, group_normalised


class ScatteringSoftmax(Softmax):
    """Ten-way softmax on 81 normalised channels of 7×7 for 28×28 images, of 4×4 for 16×16."""

    name = "scattering"

    def __init__(self, *, shape: tuple[int, int], classes: int, groups: int = 27) -> None:
        if type(groups) is not int or groups < 1 or CHANNELS % groups:
            raise ConfigurationError(
                f"model.options.groups = {groups!r}: must divide the {CHANNELS} channels: 1, 3, 9, 27 or 81"
            )
        self._scattering = Scattering(shape)
        self._pixels = math.prod(shape)
        self._groups = groups
        # to a linear model the coefficients are what pixels are to softmax: one row of numbers
        super().__init__(shape=(CHANNELS, math.prod(self._scattering.out)), classes=classes)

    def features(self, images: Images) -> Features:
        if images.shape[1:] != (self._pixels,):
            raise ConfigurationError(
                f"images of {images.shape[1:]} pixels: {self.name} was made for {self._pixels}"
            )
        features = np.empty((len(images), self.inputs), np.float32)
        features[:, -1] = 1
        for rows, coefficients in self._scattering(images):
            features[rows, :-1] = group_normalised(coefficients, self._groups).reshape(-1, self.inputs - 1)
        return features
