"""What may be declared of samples."""

from __future__ import annotations

from typing import Any

import pytest

from common.datasets.schema import Column, DataSchema
from common.errors import ConfigurationError

X = Column(name="x", range=(0, 1))


def test_a_table_has_the_shape_that_its_columns_make() -> None:
    wide = Column(name="c", categories=("a", "b"), other=True)
    assert DataSchema(kind="table", columns=(X, wide), classes=2).shape == (4,)
    assert DataSchema(kind="table", columns=(X, wide), classes=2, shape=(2, 2)).width == 4


def test_another_declaration_has_another_digest() -> None:
    schemas = [DataSchema(kind="array", shape=(2,), classes=n) for n in (2, 3)]
    assert schemas[0].digest != schemas[1].digest
    assert schemas[0].digest == DataSchema(kind="array", shape=(2,), classes=2).digest


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"kind": "list", "shape": (2,), "classes": 2}, "kind"),
        ({"kind": "array", "classes": 2}, "shape"),
        ({"kind": "array", "shape": (2, 0), "classes": 2}, "shape"),
        ({"kind": "array", "shape": (2,)}, "target_range"),
        ({"kind": "array", "shape": (2,), "classes": 1}, "classes"),
        ({"kind": "array", "shape": (2,), "classes": 2, "target_range": (0, 1)}, "exactly one"),
        ({"kind": "array", "shape": (2,), "target_range": (1, 1)}, "target_range"),
        ({"kind": "array", "shape": (2,), "classes": 3, "class_names": ("a", "b")}, "class_names"),
        ({"kind": "array", "shape": (2,), "classes": 2, "columns": (X,)}, "columns"),
        ({"kind": "array", "shape": (2,), "classes": 2, "resize": True}, "resize"),
        ({"kind": "table", "classes": 2}, "columns"),
        ({"kind": "table", "columns": (X, X), "classes": 2}, "distinct"),
        ({"kind": "table", "columns": (X,), "classes": 2, "label": "x"}, "distinct"),
        ({"kind": "table", "columns": (X,), "classes": 2, "shape": (2,)}, "shape"),
        ({"kind": "images", "shape": (4, 4), "classes": 2}, "class_names"),
        ({"kind": "images", "shape": (4, 4, 3), "class_names": ("a", "b")}, "shape"),
    ],
)
def test_a_declaration_that_says_too_little_or_too_much_is_refused(values: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        DataSchema(**values)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({}, "exactly one"),
        ({"range": (0, 1), "categories": ("a",)}, "exactly one"),
        ({"range": (1, 0)}, "range"),
        ({"range": (0, float("inf"))}, "range"),
        ({"range": (0, 1), "fill": 2}, "fill"),
        ({"range": (0, 1), "other": True}, "other"),
        ({"categories": ("a", "a")}, "distinct"),
        ({"categories": ("a",), "fill": "b"}, "fill"),
    ],
)
def test_a_column_has_a_range_or_categories_and_a_fill_of_its_own(values: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        Column(name="c", **values)
