"""The unequal privacy of asynchrony: fast devices release more and lose more."""

from __future__ import annotations

from pathlib import Path

import pytest

import mapa
from experiments.unequal import draw, main, spending, spread


@pytest.mark.slow
def test_the_fastest_of_five_devices_releases_ten_times_as_much_and_pays_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = mapa.simulate("unequal-privacy", seed=1, iterations=250, evaluation={"every": 0}, runs_dir=tmp_path)
    edges = spending(run.path, points=2)
    assert [one.device for one in edges] == ["speed-1", "speed-2", "speed-4", "speed-8", "speed-10"]
    counts = [one.releases[-1] for one in edges]
    assert sum(counts) == 250
    assert counts == pytest.approx([10, 20, 40, 80, 100], abs=1)
    spent = [one.last for one in edges]
    assert spent == sorted(spent)
    assert spread(spent) > 2.0
    assert all(one.epsilon == sorted(one.epsilon) and one.seconds == sorted(one.seconds) for one in edges)
    drawn = draw({"one noise for all": edges, "again": edges}, tmp_path / "figure")
    assert "speed-10: 100 releases" in drawn[0].read_text(encoding="utf-8")
    assert main([str(tmp_path / "absent"), "--runs-dir", str(tmp_path)]) == 2
    assert "absent" in capsys.readouterr().err


def test_a_run_without_times_has_no_such_figure(tmp_path: Path) -> None:
    run = mapa.simulate("quickstart", seed=1, iterations=5, runs_dir=tmp_path)
    assert main([str(run.path), "--out", str(tmp_path / "figure")]) == 2
