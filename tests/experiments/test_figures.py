"""One style, files that do not change by themselves, and `mapa compare`."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from experiments.commands.compare import compare_command, describe
from experiments.figures import LOOKS, PALETTE, curve, look, panels, save, shared_legend
from experiments.recording import record_simulation
from experiments.records import read_run
from tests.core_support import small_world

OKABE_ITO = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}


def draw(stem: Path) -> list[Path]:
    with panels(1, 1) as (figure, axes):
        curve(axes[0, 0], [1, 2, 3], [[0.1, 0.2, 0.3], [0.2, 0.3, 0.5]], look("mapa"), markers=True)
        shared_legend(figure, axes)
        return save(figure, stem)


def test_every_colour_is_of_okabe_and_ito() -> None:
    assert {how.colour for how in LOOKS.values()} | set(PALETTE) <= OKABE_ITO


def test_colour_is_never_the_only_difference() -> None:
    for a, b in combinations(LOOKS.values(), 2):
        assert a.colour != b.colour
        assert (a.dash, a.marker) != (b.dash, b.marker)


def test_lines_that_nobody_knows_differ_by_their_place() -> None:
    looks = [look("run", place) for place in range(7)]
    assert len({(how.colour, how.dash, how.marker) for how in looks}) == 7


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
    row = describe(read_run(Path(summary["path"])))
    assert row["end"] == "no summary"
    assert row["accuracy"] == summary["final_accuracy"]
