"""Parquet, folders of images, saved Hugging Face data sets, numpy arrays: the same contract as CSV and .npz."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from common.datasets.dataset import check_dataset
from common.datasets.readers import dataset
from common.datasets.schema import Column, DataSchema
from common.datasets.source import read_samples
from common.errors import ConfigurationError, DataFaultError

TABLE = DataSchema(
    kind="table",
    columns=(Column(name="age", range=(0, 100), fill=50), Column(name="kind", categories=("a", "7"))),
    label="ill",
    class_names=("no", "yes"),
)
COLUMNS = {"age": [25.0, None, 400.0], "kind": ["a", "7", "a"], "ill": ["no", "yes", "no"]}
EXPECTED = np.float32([[0.25, 1, 0], [0.5, 0, 1], [1, 1, 0]])


def test_a_parquet_table_is_read_as_a_csv_is(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "some.parquet"
    parquet.write_table(pyarrow.table(COLUMNS), path)
    samples = read_samples(path, TABLE)
    np.testing.assert_array_equal(samples.inputs, EXPECTED)
    assert samples.labels.tolist() == [0, 1, 0]
    parquet.write_table(pyarrow.table({**COLUMNS, "age": [1.0, 2.0, float("nan")]}), path)
    with pytest.raises(DataFaultError, match="row 3, column 'age'"):
        read_samples(path, TABLE)
    parquet.write_table(pyarrow.table({**COLUMNS, "ill": [[1], [2], [3]]}), path)
    with pytest.raises(DataFaultError, match="row 1, column 'ill'"):
        read_samples(path, TABLE)
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"PAR1" + b"\xff" * 60 + b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(DataFaultError, match="Parquet"):
            read_samples(path, TABLE)


def pictures(folder: Path, size: tuple[int, int] = (4, 3)) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, level in (("zebra", 10), ("ant", 200)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for n in range(2):
            image.new("RGB", size, (level, level + n, 0)).save(folder / name / f"{n}.png")
    (folder / ".DS_Store").write_bytes(b"hidden")


def test_images_have_the_declared_classes_size_and_channels(tmp_path: Path) -> None:
    pictures(tmp_path)
    colour = DataSchema(kind="images", shape=(3, 3, 4), class_names=("zebra", "ant"))
    samples = read_samples(tmp_path, colour)
    assert samples.labels.tolist() == [1, 1, 0, 0], "rows follow the paths, labels the declaration"
    channels = samples.inputs.reshape(4, 3, 3, 4)
    assert channels[:, :, 0, 0].tolist() == [[200, 200, 0], [200, 201, 0], [10, 10, 0], [10, 11, 0]]
    grey = DataSchema(kind="images", shape=(6, 8), class_names=("ant", "zebra"), resize=True)
    assert read_samples(tmp_path, grey).inputs.shape == (4, 48)
    other = DataSchema(kind="images", shape=(3, 3), class_names=("ant", "zebra"))
    with pytest.raises(DataFaultError, match=r"0\.png: is 3×4, not 3×3"):
        read_samples(tmp_path, other)
    with pytest.raises(DataFaultError, match="'zebra' is not a declared class"):
        read_samples(tmp_path, DataSchema(kind="images", shape=(3, 3), class_names=("ant", "bee")))
    (tmp_path / "ant" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    with pytest.raises(DataFaultError, match=r"0\.png: is not a readable image"):
        read_samples(tmp_path, colour)


SMALL = DataSchema(kind="images", shape=(3, 4), class_names=("ant", "zebra"))


@pytest.mark.parametrize(("mode", "end"), [("I;16", "png"), ("I", "tif"), ("F", "tif")])
def test_an_image_of_more_than_8_bits_is_refused_and_not_cut_at_255(
    tmp_path: Path, mode: str, end: str
) -> None:
    pictures(tmp_path)
    pytest.importorskip("PIL.Image").new(mode, (4, 3)).save(tmp_path / "ant" / f"deep.{end}")
    with pytest.raises(
        DataFaultError, match=rf"deep\.{end}: has more than 8 bits for a channel \(mode {mode}\)"
    ):
        read_samples(tmp_path, SMALL)


def test_an_image_that_moves_is_refused_and_every_mode_of_8_bits_taken(tmp_path: Path) -> None:
    pictures(tmp_path)
    image = pytest.importorskip("PIL.Image")
    for mode in ("1", "L", "LA", "P", "RGBA"):
        image.new(mode, (4, 3)).save(tmp_path / "ant" / f"mode-{mode}.png")
    image.new("CMYK", (4, 3)).save(tmp_path / "ant" / "print.jpg")
    image.new("RGB", (4, 3)).save(tmp_path / "ant" / "still.gif")
    assert len(read_samples(tmp_path, SMALL).labels) == 11
    frames = [image.new("RGB", (4, 3), (level, 0, 0)) for level in (0, 99, 200)]
    frames[0].save(tmp_path / "ant" / "moves.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(DataFaultError, match=r"moves\.gif: has 3 frames"):
        read_samples(tmp_path, SMALL)


def test_what_is_no_file_is_refused_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataFaultError, match=r"pipe\.csv: is neither a file nor a folder"):
        read_samples(tmp_path / "pipe.csv", TABLE)
    pictures(tmp_path / "images")
    odd = tmp_path / "images" / "ant" / "odd.png"
    for make in (os.mkfifo, os.mkdir, lambda path: path.symlink_to("nothing")):
        make(odd)
        with pytest.raises(DataFaultError, match=r"odd\.png: is not a file"):
            read_samples(tmp_path / "images", SMALL)
        odd.rmdir() if odd.is_dir() else odd.unlink()


def test_a_saved_hugging_face_split_is_read_with_declared_columns(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the library `datasets`")
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(COLUMNS).save_to_disk(tmp_path / "table")
    np.testing.assert_array_equal(read_samples(tmp_path / "table", TABLE).inputs, EXPECTED)
    arrays = {"inputs": [[[1, 2], [3, 4]]] * 3, "labels": [0, 2, 1]}
    datasets.Dataset.from_dict(arrays).save_to_disk(tmp_path / "array")
    schema = DataSchema(kind="array", shape=(2, 2), classes=3)
    assert read_samples(tmp_path / "array", schema).values().tolist() == [[1, 2, 3, 4]] * 3
    with pytest.raises(DataFaultError, match="column 'inputs' is not declared"):
        read_samples(tmp_path / "array", TABLE)
    (tmp_path / "array" / "state.json").write_text("{")
    with pytest.raises(DataFaultError, match="not a readable data set"):
        read_samples(tmp_path / "array", schema)


def test_arrays_become_a_data_set_with_a_checksum_of_their_content() -> None:
    images, labels = np.zeros((6, 3, 2, 2), np.uint8), np.arange(6) % 2
    made = dataset("mine", (images, labels), (images[:2], labels[:2]), classes=2, groups=list("aabbcc"))
    assert check_dataset(made, "mine") is made
    assert (made.shape, made.classes, len(made.train)) == ((3, 2, 2), 2, 6)
    assert made.train.groups is not None
    assert made.train.groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert made.checksum != dataset("mine", (images + 1, labels), classes=2).checksum
    real = dataset("real", (np.ones((3, 2)), [1, 2.5, 9]), target_range=(0, 5), input_range=(0, 2))
    assert real.train.labels.tolist() == [1, 2.5, 5]
    assert real.train.values().tolist() == [[0.5, 0.5]] * 3
    assert check_dataset(real, "real").test is None


def test_arrays_that_break_the_contract_are_refused_with_their_name() -> None:
    ones = np.ones((2, 3))
    for arrays, kind, words in (
        ((ones * np.inf, [0, 1]), {"classes": 2}, "mine: train, row 1, value 0"),
        ((ones, [0, 2]), {"classes": 2}, "row 2, column 'labels'"),
        ((ones, [0.0, np.nan]), {"target_range": (0, 1)}, "row 2"),
        ((ones, [0, 1]), {}, "exactly one"),
        (([1, 2], [0, 1]), {"classes": 2}, "shape"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            dataset("mine", arrays, **kind)  # type: ignore[arg-type]
        assert words in str(caught.value)
