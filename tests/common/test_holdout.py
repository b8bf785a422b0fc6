"""The held-out records: in no shard, out of the training set, and never the test set."""

from __future__ import annotations

import numpy as np
import pytest

from common.datasets.dataset import split_rows, with_holdout
from common.errors import ConfigurationError
from edge.joining import identity
from mapa.simulation.simulator import World
from tests.core_support import small_dataset, small_scenario

FIRST_HELD = [11, 15, 20, 30]  # of 10,000 among MNIST's 60,000


def rows_of(images: np.ndarray) -> set[bytes]:
    return {image.tobytes() for image in images}


def test_held_out_rows_and_the_rest_make_up_the_whole_and_share_nothing() -> None:
    kept, held = split_rows(1000, 130)
    assert (len(kept), len(held)) == (870, 130)
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.arange(1000))


def test_the_same_records_are_held_out_everywhere_and_they_are_spread() -> None:
    """Cloud and edges choose for themselves, so the choice is pinned."""
    _, held = split_rows(60_000, 10_000)
    assert held[:4].tolist() == FIRST_HELD
    assert abs(held.mean() - 30_000) < 600
    larger = split_rows(60_000, 12_000)[1]
    assert set(held.tolist()) < set(larger.tolist())


def test_training_and_evaluation_are_disjoint_parts_of_the_training_set() -> None:
    dataset = small_dataset()
    train, test = rows_of(dataset.train.inputs), rows_of(dataset.test.inputs)
    assert len(train) == 240
    assert not train & test
    held = with_holdout(dataset, 40)
    assert (len(held.train), len(held.test)) == (200, 40)
    assert rows_of(held.train.inputs) | rows_of(held.test.inputs) == train
    assert not rows_of(held.train.inputs) & rows_of(held.test.inputs)
    assert held.checksum == dataset.checksum


def test_labels_stay_with_their_images() -> None:
    dataset = small_dataset()
    label = {
        image.tobytes(): int(y) for image, y in zip(dataset.train.inputs, dataset.train.labels, strict=True)
    }
    held = with_holdout(dataset, 40)
    for samples in (held.train, held.test):
        assert [label[image.tobytes()] for image in samples.inputs] == samples.labels.tolist()


def test_no_shard_of_a_simulation_holds_a_record_that_it_is_evaluated_on() -> None:
    dataset = small_dataset()
    world = World.on(small_scenario(data={"holdout": 40}), dataset)
    used = np.concatenate(world.rows)
    assert len(used) == len(set(used.tolist())) == 200
    trained, evaluated = rows_of(world.features[used]), rows_of(world.evaluator.features)
    assert len(trained) == 200
    assert len(evaluated) == 40
    assert not trained & evaluated
    assert evaluated <= rows_of(world.model.features(dataset.train.inputs))


def test_without_a_holdout_nothing_changes() -> None:
    dataset = small_dataset()
    assert with_holdout(dataset, 0) is dataset


@pytest.mark.parametrize("count", [240, 10_000])
def test_a_holdout_that_leaves_nothing_is_refused(count: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"data\.holdout = {count}.*240"):
        with_holdout(small_dataset(), count)


def test_an_edge_keeps_the_cut_with_a_holdout_apart_from_the_cut_without() -> None:
    dataset = small_dataset()
    plain = identity(small_scenario(), dataset, 4, 1)
    apart = identity(small_scenario(data={"holdout": 40}), dataset, 4, 1)
    assert apart.partition != plain.partition
    assert apart.overlaps(identity(small_scenario(), dataset, 4, 2))  # a record may lie in both: both pay
