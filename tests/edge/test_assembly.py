"""An edge that deals for itself gets the shard that the simulation and the cloud deal for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.errors import ConfigurationError
from common.models.gradients import RowGradients
from common.models.linear import Softmax
from common.models.model import feature_length
from common.models.scattering_softmax import ScatteringSoftmax
from edge.shards import shard_for, shards_for
from mapa.run_parts import assemble
from tests.core_support import small_dataset, small_scenario
from tests.mechanism_support import NORMALISED, clip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"edges": 1},
        {"algorithm": {"name": "csgd"}},
        {"data": {"partition": "shared"}},
        {"data": {"partition": "dirichlet", "alpha": 3.0}},
        {"data": {"partition": "label", "labels_per_edge": 1}},
        {"data": {"holdout": 40}},
    ],
    ids=str,
)
def test_every_shard_is_the_same_wherever_it_is_dealt(changes: dict[str, Any]) -> None:
    parts = assemble(small_scenario(**changes), lambda _: small_dataset())
    assert len(parts.rows) == parts.scenario.workers
    for k, rows in enumerate(parts.rows):
        np.testing.assert_array_equal(shard_for(parts.scenario, parts.dataset.train, k), rows)
    assert parts.shard_sizes == [len(rows) for rows in shards_for(parts.scenario, parts.dataset.train)]


def test_one_worker_holds_all_data() -> None:
    parts = assemble(small_scenario(algorithm={"name": "csgd"}), lambda _: small_dataset())
    assert parts.shard_sizes == [240]


def test_a_shard_too_small_for_a_batch_is_refused_on_either_side() -> None:
    scenario = small_scenario(batch_size=100, data={"sampler": "shuffled"})
    with pytest.raises(ConfigurationError, match=r"smallest shard has 60 rows"):
        assemble(scenario, lambda _: small_dataset())
    with pytest.raises(ConfigurationError, match=r"smallest shard has 60 rows"):
        shard_for(scenario, small_dataset().train, 1)


def test_a_normalised_gradient_that_is_short_for_the_model_is_not_brought_to_the_bound() -> None:
    """Nor is any longer than C, so the charge of `normalised` stays."""
    seen = ScatteringSoftmax(shape=(16, 16), classes=10, landmarks=25)
    plain = Softmax(shape=(16, 16), classes=10)
    fitted = NORMALISED.fitted(feature_length(seen) or 0.0)
    assert fitted.scaling(np.ones(1))[1] == pytest.approx(0.05)
    assert feature_length(plain) is None
    lengths = []
    for norm in (0.0, 0.05, 0.5, 5.0, 5e4):
        row = np.array([[norm, 0.0]], np.float32)
        clipped = clip(RowGradients(row), fitted, 2.0, 1)
        lengths.append(float(np.linalg.norm(clipped)))
    np.testing.assert_allclose(lengths, [0, 1, 2 / 1.1, 2 / 1.01, 2], rtol=3e-4)
    assert max(lengths) <= 2
