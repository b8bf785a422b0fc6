"""One style, files that do not change by themselves, and `mapa compare`."""

from __future__ import annotations

import json
import math
import shutil
from itertools import combinations
from pathlib import Path

import pytest

from common.metrics import ACCURACY
from common.records.reader import read_run
from mapa.commands.compare import compare_command, describe, draw_comparison, told_apart
from mapa.figures import LOOKS, PALETTE, aligned, bars, curve, look, panels, save, shared_legend
from mapa.recording import record_simulation
from tests.core_support import small_world

OKABE_ITO = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}


def draw(stem: Path) -> list[Path]:
    with panels(1, 1) as (figure, axes):
        curve(axes[0, 0], [1, 2, 3], [[0.1, 0.2, 0.3], [0.2, 0.3, 0.5]], look("mapa"), markers=True)
        shared_legend(figure, axes)
        return save(figure, stem)


def test_colours_are_of_okabe_and_ito_and_never_the_only_difference() -> None:
    assert {how.colour for how in LOOKS.values()} | set(PALETTE) <= OKABE_ITO
    for a, b in combinations(LOOKS.values(), 2):
        assert a.colour != b.colour
        assert (a.dash, a.marker) != (b.dash, b.marker)
    unknown = [look("run", place) for place in range(7)]
    assert len({(how.colour, how.dash, how.marker) for how in unknown}) == 7


def test_a_picture_is_written_as_svg_and_png_and_comes_out_the_same_twice(tmp_path: Path) -> None:
    first, second = draw(tmp_path / "a"), draw(tmp_path / "b")
    assert [path.suffix for path in first] == [".svg", ".png"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert first[0].read_text(encoding="utf-8").count("MAPA") == 1  # the legend's text stays text


def test_several_runs_have_a_band_and_one_has_none() -> None:
    with panels(1, 1) as (_, axes):
        axis = axes[0, 0]
        curve(axis, [1, 2], [[0.1, 0.2]], look("mapa"))
        assert not axis.collections
        curve(axis, [1, 2], [[0.1, 0.2], [0.3, 0.2]], look("mapa"))
        (band,) = axis.collections
        assert axis.lines[-1].get_ydata() == pytest.approx([0.2, 0.2])
        assert band.get_datalim(axis.transData).height > 0


@pytest.mark.slow
def test_runs_of_any_kind_are_laid_over_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cyclic = record_simulation(small_world(), name="cyclic", runs=tmp_path)
    timed = record_simulation(small_world(delays={"kind": "exponential"}), name="timed", runs=tmp_path)
    compare_command([cyclic["run"], timed["path"]], out=tmp_path / "both", runs=tmp_path, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in report["runs"]] == [cyclic["run"], timed["run"]]
    assert [row["accuracy"] for row in report["runs"]] == [cyclic["final_accuracy"], timed["final_accuracy"]]
    assert [row["seconds"] is None for row in report["runs"]] == [True, False]
    drawn = (tmp_path / "both.svg").read_text(encoding="utf-8")
    assert cyclic["run"] in drawn
    assert "seconds" in drawn
    compare_command([cyclic["run"]], out=tmp_path / "one", runs=tmp_path)
    assert "wrote" in capsys.readouterr().out


def test_a_run_without_a_summary_can_be_compared(tmp_path: Path) -> None:
    summary = record_simulation(small_world(), name="small", runs=tmp_path)
    (Path(summary["path"]) / "summary.json").unlink()
    row = describe(read_run(Path(summary["path"])), ACCURACY)
    assert row["end"] == "unfinished"
    assert row["accuracy"] == summary["final_accuracy"]


def test_runs_of_unequal_length_share_an_axis() -> None:
    xs, runs = aligned([([1, 2, 3], [0.1, 0.2, 0.3]), ([1, 2], [0.3, None])])
    assert xs == [1, 2, 3]
    assert runs[0] == [0.1, 0.2, 0.3]
    assert runs[1][0] == 0.3
    assert all(math.isnan(value) for value in runs[1][1:])
    with panels(1, 1) as (_, axes):
        axis = axes[0, 0]
        curve(axis, xs, runs, look("mapa"))
        assert axis.lines[0].get_ydata()[0] == pytest.approx(0.2)
        assert len(axis.lines) == 3  # the mean while there is one, and what is left of each run


def test_bars_reach_from_the_least_to_the_largest() -> None:
    with panels(1, 1) as (_, axes):
        bars(axes[0, 0], [1, 2], [[1.0, 2.0, 6.0], [4.0]], look("mapa"))
        ((line, _, (spans,)),) = axes[0, 0].containers
        assert list(line.get_ydata()) == [3.0, 4.0]
        assert [tuple(segment[:, 1]) for segment in spans.get_segments()] == [(1.0, 6.0), (4.0, 4.0)]


# -- mapa compare -------------------------------------------------------------------------------------


def test_runs_of_one_name_are_told_apart_by_their_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Path(record_simulation(small_world(), name="same", runs=tmp_path / "a")["path"])
    second = tmp_path / "b" / first.name
    shutil.copytree(first, second)
    compare_command([str(first), str(second)], out=tmp_path / "both", runs=tmp_path, as_json=True)
    names = [row["run"] for row in json.loads(capsys.readouterr().out)["runs"]]
    assert names == [f"a/{first.name}", f"b/{first.name}"]
    drawn = (tmp_path / "both.svg").read_text(encoding="utf-8")
    assert all(name in drawn for name in names)
    assert told_apart([read_run(first), read_run(first)]) == [f"{first.name} (1)", f"{first.name} (2)"]


def test_the_folder_one_stands_in_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(record_simulation(small_world(), name="small", runs=tmp_path)["path"])
    monkeypatch.chdir(path)
    assert describe(read_run(Path()), ACCURACY)["run"] == path.name
    assert told_apart([read_run(Path())]) == [path.name]


@pytest.mark.slow
def test_simulated_seconds_are_not_taken_for_real_ones(tmp_path: Path) -> None:
    world = small_world(delays={"kind": "exponential"})
    simulated = Path(record_simulation(world, name="simulated", runs=tmp_path)["path"])
    real = tmp_path / "real"
    shutil.copytree(simulated, real)
    manifest = json.loads((real / "manifest.json").read_text(encoding="utf-8"))
    (real / "manifest.json").write_text(json.dumps({**manifest, "engine": "testbed"}), encoding="utf-8")
    draw_comparison([read_run(simulated), read_run(real)], ACCURACY, tmp_path / "both")
    drawn = (tmp_path / "both.svg").read_text(encoding="utf-8")
    assert f"{simulated.name} (simulated seconds)" in drawn
    assert "real (seconds)" in drawn
    assert "seconds or simulated seconds since the first update" in drawn
    draw_comparison([read_run(simulated)], ACCURACY, tmp_path / "one")
    drawn = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert "simulated seconds since the first update" in drawn
    assert f"{simulated.name} (" not in drawn
