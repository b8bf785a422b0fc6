"""Files that others made: read as declared, or refused with file, row and column."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.datasets.dataset import Samples
from common.datasets.schema import Column, DataSchema
from common.datasets.source import read_samples
from common.errors import ConfigurationError, DataFaultError

ARRAY = DataSchema(kind="array", shape=(2, 3), classes=3)
TABLE = DataSchema(
    kind="table",
    columns=(
        Column(name="age", range=(0, 100), fill=50),
        Column(name="colour", categories=("red", "green"), other=True),
    ),
    label="ill",
    class_names=("no", "yes"),
    group="site",
    ignore=("id",),
)
GOOD = "id,age,colour,ill,site\n1,25,red,no,b\n2,,blue,yes,a\n3,400,green,no,b\n"
REAL = DataSchema(kind="table", columns=(Column(name="x", range=(-1, 1)),), label="y", target_range=(0, 10))


def npz(folder: Path, **arrays: object) -> Path:
    path = folder / "some.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def csv(folder: Path, text: str | bytes) -> Path:
    path = folder / "some.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_table_is_clipped_scaled_and_filled_as_declared(tmp_path: Path) -> None:
    for text in (GOOD, "\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), GOOD.replace("red", '"red"')):
        samples = read_samples(csv(tmp_path, text), TABLE)
        expected = [[0.25, 1, 0, 0], [0.5, 0, 0, 1], [1, 0, 1, 0]]
        np.testing.assert_array_equal(samples.inputs, np.float32(expected))
        assert samples.inputs.dtype == np.float32
        assert samples.labels.tolist() == [0, 1, 0]
        assert samples.labels.dtype == np.int64
        assert samples.groups is not None
        assert samples.groups.tolist() == [1, 0, 1]


def test_real_targets_are_clipped_to_the_declared_range(tmp_path: Path) -> None:
    samples = read_samples(csv(tmp_path, "x,y\n0,3.5\n-1,11\n1,-2\n"), REAL)
    assert samples.labels.tolist() == [3.5, 10, 0]
    assert samples.labels.dtype == np.float32


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["column 'age' is missing"]),
        ("id,age,colour,ill,site\n", ["no records"]),
        (GOOD.replace("25", "nan"), ["row 1", "column 'age'", "'nan'"]),
        (GOOD.replace("400", "1e999"), ["row 3", "column 'age'"]),
        (GOOD.replace("25", "2_5"), ["row 1", "column 'age'"]),
        (GOOD.replace("red", ""), ["row 1", "column 'colour'", "fill"]),
        (GOOD.replace("yes", "maybe"), ["row 2", "column 'ill'", "no, yes"]),
        (GOOD.replace("400,", ""), ["row 3", "4 cells"]),
        (GOOD.replace("id,", "number,"), ["'number'", "ignore"]),
        (GOOD.replace("id,", "age,"), ["'age'", "twice"]),
        (GOOD.replace(",a\n", ",\n"), ["row 2", "column 'site'"]),
        (GOOD.replace("25", '"25'), ["not CSV"]),
        (GOOD.encode().replace(b"red", b"r\xff"), ["UTF-8"]),
        (GOOD.replace("25", "9" * 200_000), ["not CSV"]),
    ],
)
def test_a_fault_in_a_table_names_its_place(tmp_path: Path, text: str | bytes, words: list[str]) -> None:
    path = csv(tmp_path, text)
    with pytest.raises(DataFaultError) as caught:
        read_samples(path, TABLE)
    for word in (str(path), *words):
        assert word in str(caught.value)
    assert len(str(caught.value)) < 400


def test_arrays_keep_uint8_and_flatten_the_rest(tmp_path: Path) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    samples = read_samples(npz(tmp_path, inputs=pixels, labels=np.array([0, 2], np.uint8)), ARRAY)
    assert samples.inputs.dtype == np.uint8
    assert samples.inputs.tolist() == pixels.reshape(2, 6).tolist()
    assert samples.labels.dtype == np.int64
    ranged = DataSchema(
        kind="array", shape=(2, 3), target_range=(-1, 1), input_range=(0, 10), inputs="x", label="y"
    )
    found = read_samples(npz(tmp_path, x=pixels.astype(np.int32), y=np.array([0.5, -9])), ranged)
    assert found.values().max() == 1
    assert found.values()[0, 5] == np.float32(0.5)
    assert found.labels.tolist() == [0.5, -1]


ONES = np.ones((2, 2, 3), np.float32)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"inputs": ONES}, "no array 'labels'"),
        ({"inputs": ONES, "labels": np.array([0, 3])}, "row 2, column 'labels': 3"),
        ({"inputs": ONES, "labels": np.array([0, -1])}, "row 2, column 'labels': -1"),
        ({"inputs": ONES, "labels": np.array([0.0, 1.0])}, "whole numbers"),
        ({"inputs": ONES, "labels": np.array([0])}, "(1,), not (2,)"),
        ({"inputs": ONES.reshape(2, 6), "labels": np.array([0, 1])}, "(2, 6), not (n, 2, 3)"),
        ({"inputs": ONES * np.nan, "labels": np.array([0, 1])}, "row 1, value 0: nan"),
        ({"inputs": ONES.astype(float) * 1e300, "labels": np.array([0, 1])}, "1e+300"),
        ({"inputs": ONES.astype(object), "labels": np.array([0, 1])}, "object"),
        ({"inputs": ONES.astype(str), "labels": np.array([0, 1])}, "must be numbers"),
        ({"inputs": ONES[:0], "labels": np.array([], np.int64)}, "no records"),
    ],
)
def test_a_fault_in_arrays_names_its_place(tmp_path: Path, arrays: dict[str, object], words: str) -> None:
    with pytest.raises(DataFaultError) as caught:
        read_samples(npz(tmp_path, **arrays), ARRAY)
    assert words in str(caught.value)


def test_a_header_that_claims_a_huge_array_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, shape in (("inputs", (2**40, 2, 3)), ("labels", (2**40,))):
            head = io.BytesIO()
            fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(head, fields)
            archive.writestr(f"{name}.npy", head.getvalue())
    with pytest.raises(DataFaultError, match="at most"):
        read_samples(path, ARRAY)


def test_a_kind_that_does_not_go_with_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFaultError, match="does not exist"):
        read_samples(tmp_path / "none.csv", TABLE)
    with pytest.raises(DataFaultError, match='kind = "array"'):
        read_samples(csv(tmp_path, GOOD), ARRAY)


def good_npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, inputs=ONES, labels=np.array([0, 1]))
    return stream.getvalue()


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_read_or_refused_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["npz", "csv"]))
    content = bytearray(good_npz() if kind == "npz" else GOOD.encode())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    path = tmp_path / f"damaged.{kind}"
    path.write_bytes(bytes(content[:cut]))
    schema = ARRAY if kind == "npz" else TABLE
    try:
        found = read_samples(path, schema)
    except ConfigurationError:
        return
    assert isinstance(found, Samples)
    assert found.inputs.shape == (len(found), schema.width)
    assert np.isfinite(found.values()).all()
    assert 0 <= found.labels.min() <= found.labels.max() < schema.classes
