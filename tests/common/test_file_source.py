"""data.set = "file": files under the data directory, one account for their records whatever is declared of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.datasets.catalogue import load_dataset
from common.errors import ConfigurationError
from common.scenario.scenario import Scenario, parse_scenario, parse_welcome
from edge.joining import identity
from mapa.simulation.simulator import World, simulate

SCHEMA = {
    "kind": "table",
    "columns": [{"name": "a", "range": [0, 1]}, {"name": "b", "range": [-1, 1]}],
    "label": "y",
    "target_range": [-2, 2],
}


def write(folder: Path) -> None:
    rng = np.random.default_rng(3)
    for name, count in (("train.csv", 300), ("test.csv", 100)):
        a, b = rng.uniform(0, 1, count), rng.uniform(-1, 1, count)
        rows = [f"{x},{z},{1.5 * x - 0.5 * z}" for x, z in zip(a, b, strict=True)]
        (folder / name).write_text("\n".join(["a,b,y", *rows]) + "\n")


def scenario(data: dict[str, Any] | None = None, **schema: Any) -> Scenario:
    given = {"set": "file", "train_path": "train.csv", "test_path": "test.csv", "schema": SCHEMA | schema}
    return parse_scenario(
        {
            "edges": 3,
            "iterations": 600,
            "seed": 1,
            "data": given | (data or {}),
            "model": {"name": "least-squares", "regularization": 0.0},
            "algorithm": {"name": "constant", "rate": 0.1, "first_clip": 1.0},
            "privacy": {"noise_multiplier": 0.05},
        }
    )


def test_a_regression_on_a_csv_trains_without_torch(tmp_path: Path) -> None:
    write(tmp_path)
    world = World.of(scenario(), tmp_path)
    assert (world.dataset.shape, world.dataset.classes) == ((2,), 0)
    before = world.evaluator.evaluate(np.zeros(world.model.dimension, np.float32), 0, 1)
    after = simulate(world).tally.evaluations[-1]
    metric = world.model.metrics[0]
    assert metric.name == "rmse"
    assert after.values[metric] < 0.25 * before.values[metric]


def test_another_declaration_is_another_cut_of_the_same_records(tmp_path: Path) -> None:
    write(tmp_path)
    told, other = scenario(), scenario(target_range=[-3, 3])
    first, second = (load_dataset(one.data.source, tmp_path) for one in (told, other))
    without = load_dataset(scenario({"test_path": None}).data.source, tmp_path)
    assert first.checksum == second.checksum == without.checksum
    assert without.test is None
    mine, theirs = identity(told, first, 3, 0), identity(other, second, 3, 1)
    assert mine.cut != theirs.cut
    assert mine.overlaps(theirs)
    (tmp_path / "train.csv").write_text((tmp_path / "train.csv").read_text() + "0,0,0\n")
    assert load_dataset(told.data.source, tmp_path).checksum != first.checksum


def test_a_schema_travels_to_edges_and_into_records_unchanged() -> None:
    told = scenario()
    assert parse_scenario(told.canonical()) == told
    assert parse_welcome(told.for_edge(0)).data.source == told.data.source


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"train_path": "../train.csv"}, "data.train_path = '../train.csv': must be a path under"),
        ({"train_path": "/etc/passwd"}, "under the data directory"),
        ({"test_path": "a\\b.csv"}, "under the data directory"),
        ({"train_path": "mnist-5k.npz"}, "known data set"),
        ({"train_path": None}, "data.train_path"),
        ({"test_path": "train.csv"}, "data.test_path = 'train.csv': is the same file as data.train_path ="),
        ({"test_path": "./train.csv"}, "is the same file as data.train_path = 'train.csv'"),
        ({"schema": None}, "data.schema"),
        ({"set": "mnist-5k"}, "data.schema"),
        ({"set": "local"}, "data.train_path"),
        ({"schema": SCHEMA | {"columns": []}}, "data.schema.columns"),
        ({"schema": SCHEMA | {"knd": 1}}, "data.schema.knd = 1: unknown key; allowed are kind, shape"),
        ({"schema": SCHEMA | {"columns": [{"name": "a", "rnge": [0, 1]}]}}, "allowed are name, range"),
    ],
)
def test_what_is_not_declared_soundly_is_refused(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        scenario(data)
    assert words in str(caught.value)


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_the_training_file_under_another_name_is_no_test_file(tmp_path: Path, link: str) -> None:
    write(tmp_path)
    (tmp_path / "test.csv").unlink()
    getattr(tmp_path / "test.csv", link)(tmp_path / "train.csv")
    with pytest.raises(
        ConfigurationError, match=r"data\.test_path = 'test\.csv': is the same file as data\.train"
    ):
        load_dataset(scenario().data.source, tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"train\.csv: does not exist") as caught:
        load_dataset(scenario().data.source, tmp_path)
    for words in (
        "data.train_path = ",
        f"relative to the data directory {tmp_path}",
        "--data-dir",
        "MAPA_DATA_DIR",
    ):
        assert words in str(caught.value)
