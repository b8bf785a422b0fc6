"""An edge that deals for itself gets the shard that the simulation and the cloud deal for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.errors import ConfigurationError
from edge.assembly import shard_for, shards_for
from mapa.run_parts import assemble
from tests.core_support import small_dataset, small_scenario


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
