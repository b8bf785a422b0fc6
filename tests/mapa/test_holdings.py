"""mapa data show: who holds what, of data that all hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.program_support import Mapa

CONSTANT = '[algorithm]\nname = "constant"\nrate = 0.1\nfirst_clip = 1.0\n'


def test_the_counts_are_those_of_the_cut(mapa: Mapa, tmp_path: Path) -> None:
    picture = tmp_path / "who.svg"
    cut = ("data", "show", "quickstart", "--set", "data.partition=label", "--set", "edges=5")
    found = json.loads(mapa(*cut, "--json", "--svg", str(picture)).out)
    assert found["sizes"] == [800] * 5
    assert [sum(row) for row in zip(*found["counts"], strict=True)] == [400] * 10
    assert max(sum(count > 0 for count in row) for row in found["counts"]) <= 4
    assert picture.read_text(encoding="utf-8").count("<svg") == 1
    text = mapa(*cut).out
    assert "800" in text
    assert "by label" in text


def test_real_targets_are_counted_by_parts_of_their_range(mapa: Mapa, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    scenario = tmp_path / "diabetes.toml"
    scenario.write_text(
        'edges = 3\niterations = 10\nbatch_size = 4\n[data]\nset = "diabetes"\npartition = "sizes-power"\n'
        f'[model]\nname = "least-squares"\n{CONSTANT}'
    )
    found = json.loads(mapa("data", "show", str(scenario), "--json").out)
    assert sum(found["sizes"]) == 353
    assert found["sizes"] == sorted(found["sizes"], reverse=True)
    assert found["labels"][0].startswith("25 to ")


def test_local_data_are_never_shown(mapa: Mapa, tmp_path: Path) -> None:
    scenario = tmp_path / "local.toml"
    scenario.write_text(
        'iterations = 10\n[data]\nset = "local"\nschema = { kind = "array", shape = [2], classes = 2 }\n'
        + CONSTANT
    )
    assert "would leak" in mapa.refusal("data", "show", str(scenario))


@pytest.mark.slow
def test_a_comparison_draws_every_cut_once(mapa: Mapa, tmp_path: Path) -> None:
    simulate = ("simulate", "quickstart", "--runs-dir", str(tmp_path), "--iterations", "20", "--seed", "1")
    for partition in ("iid", "iid", "label"):
        assert mapa(*simulate, "--set", f"data.partition={partition}").code == 0
    runs = [str(path) for path in sorted(tmp_path.iterdir())]
    done = mapa("compare", *runs, "--out", str(tmp_path / "c"), "--holdings", "--json")
    assert done.code == 0, done.err
    pictures = [Path(path).name for path in json.loads(done.out)["pictures"]]
    assert pictures[-2:] == ["c-holdings.svg", "c-holdings-2.svg"]
    first, second = ((tmp_path / name).read_text(encoding="utf-8") for name in pictures[-2:])
    assert first != second
