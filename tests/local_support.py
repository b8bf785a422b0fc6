"""Records of edges' own, as CSV files, and a scenario that declares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA: dict[str, Any] = {
    "kind": "table",
    "classes": 2,
    "label": "ill",
    "columns": [{"name": "age", "range": [0, 100]}, {"name": "dose", "range": [0, 5]}],
}


def write_csv(path: Path, rows: int, seed: int = 0) -> Path:
    """Write rows whose label follows from the columns."""
    rng = np.random.default_rng(seed)
    age, dose = rng.uniform(0, 100, rows), rng.uniform(0, 5, rows)
    ill = (age / 100 > dose / 5).astype(int)
    lines = [f"{a:.3f},{d:.3f},{i}" for a, d, i in zip(age, dose, ill, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["age,dose,ill", *lines]) + "\n")
    return path


def local_values(**changes: Any) -> dict[str, Any]:
    """Return a scenario whose edges bring tables of their own; tables of it are merged."""
    values: dict[str, Any] = {
        "edges": 2,
        "iterations": 60,
        "batch_size": 8,
        "data": {"set": "local", "schema": SCHEMA},
        "model": {"name": "softmax"},
        "algorithm": {
            "name": "mapa",
            "first_clip": 2.0,
            "smoothness": 1.0,
            "sigma": 1.0,
            "radius": 10.0,
            "loss_gap": 0.7,
        },
        "privacy": {"noise_multiplier": 4.0},
        "evaluation": {"every": 20},
        "testbed": {"resend_after": 0.5},
    }
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return values


def write_toml(path: Path, values: dict[str, Any]) -> Path:
    """Write a scenario as a file."""

    def inline(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key} = {inline(one)}" for key, one in value.items()) + "}"
        return f"[{', '.join(map(inline, value))}]" if isinstance(value, list) else json.dumps(value)

    path.write_text("".join(f"{key} = {inline(value)}\n" for key, value in values.items()))
    return path


def declared(**changes: Any) -> dict[str, Any]:
    """Return [data] with a schema that differs in this."""
    return {"set": "local", "schema": {**SCHEMA, **changes}}
