"""Clouds in turns: the C programs speak the protocol and write the log; what is told of a turn and of a failure."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from common.records.gradient_log import FOLDER, Kind, LogReader
from experiments.bench import clouds
from experiments.bench.clouds import Cell, Cloud, Score, Scores, Turn, arena, compiled, race
from experiments.bench.clouds import main as bench_cloud
from mapa.brokers import find_mosquitto

needs_broker = pytest.mark.skipif(find_mosquitto() is None, reason="no mosquitto on PATH")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
CELL = Cell(3, 300)


def scored(name: str, log: str | None, *rates: float) -> Score:
    turns = [Turn(rate, 1e6 / rate) if rate else Turn(failure="gone") for rate in rates]
    return Score(CELL, name, log, turns)


def test_a_turn_is_compared_with_the_other_clouds_turn_of_the_same_round() -> None:
    ours, raw = scored("ours", "process", 100, 0, 400), scored("raw C", "process", 200, 200, 1600)
    against, library = scored("against", "process", 50, 50, 100), scored("libmosquitto", None, 400, 400, 800)
    found = Scores([ours, raw, against, library]).ratios(ours)
    assert found["cpu / raw C"] == pytest.approx([2, 4])
    assert found["cpu / against"] == pytest.approx([0.5, 0.25])
    assert found["rate / against"] == pytest.approx([2, 4])
    assert found["rate / libmosquitto"] == pytest.approx([0.25, 0.5])
    assert "cpu / against" not in Scores([ours, raw, against]).ratios(against)
    assert "cpu / raw C" not in Scores([scored("ours", None, 1), raw]).ratios(scored("ours", None, 1))
    assert ours.failures == ["gone"]


@pytest.mark.parametrize(
    ("words", "said"), [(["--against", "/nonexistent"], "no checkout"), (["--log", "of"], "--log of")]
)
def test_a_wrong_option_is_told_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_cloud(words) == 2
    assert said in capsys.readouterr().out


@pytest.mark.broker
@needs_broker
@needs_compiler
@pytest.mark.parametrize("lean", [True, False], ids=["C edges", "Python edges"])
def test_every_cloud_that_can_run_here_serves_both_kinds_of_edges(
    lean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not lean:  # as on a machine without a compiler, where ours is the only cloud
        monkeypatch.setattr(clouds, "compiled", lambda *_, **__: None)
    scores = race(
        [CELL], ["process", None], rounds=1, seconds=0.2, warm=0.05, against=Path(__file__).parents[2]
    )
    named = {(score.cloud, score.log) for score in scores.all}
    trees = {(name, log) for name in ("ours", "against") for log in ("process", None)}
    assert trees <= named
    assert lean or trees == named
    for score in scores.all:
        assert not score.failures, (score.cloud, score.log)
        (turn,) = score.turns
        assert min(turn.rate, turn.cloud, turn.broker, turn.edges, turn.first) > 0
    assert len(scores.plain()) == len(scores.all) == scores.table().row_count


@pytest.mark.broker
@needs_broker
def test_tls_lies_between_cloud_and_broker_alone() -> None:
    cell = Cell(2, 100, tls=True)
    scores = race([cell], [None], rounds=1, seconds=0.1, warm=0.0, only=["ours"])
    (score,) = scores.all
    assert score.failures == []
    assert score.turns[0].rate > 0


@pytest.mark.broker
@needs_broker
@needs_compiler
def test_the_log_of_the_ceiling_is_one_that_we_read(tmp_path: Path) -> None:
    with arena(CELL.dimension) as place:
        binary = compiled("ceiling_cloud.c", tmp_path, "-lz")
        if binary is None:
            pytest.skip("no zlib headers")
        kept: list[Path] = []

        class Keeping(clouds.CCloud):
            def end(self) -> dict[str, object]:
                counted = super().end()
                (segment,) = place.directory.glob("*.seg")
                kept.append(shutil.copy(segment, tmp_path / FOLDER / "000001.seg"))
                return counted

        (tmp_path / FOLDER).mkdir()
        cloud: Cloud = Keeping("raw C", "process", binary)
        turn = place.turn(cloud, CELL, 0.0, 0.1)
    assert turn.failure == ""
    assert kept
    entries = list(LogReader(tmp_path))
    assert [entry.t for entry in entries] == list(range(1, len(entries) + 1))
    assert {entry.kind for entry in entries} == {Kind.GRADIENT}
    assert {entry.edge_id for entry in entries} == {"edge-0", "edge-1", "edge-2"}
    assert all(entry.arrived.gradient.size == CELL.dimension for entry in entries)


@pytest.mark.broker
@needs_broker
@needs_compiler
def test_a_cloud_that_answers_nobody_is_told_as_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds, "_PATIENCE", 0.3)

    class Deaf(clouds.CCloud):
        def begin(self, place: clouds.Place) -> tuple[int, str]:
            pid, _ = super().begin(clouds.Place("elsewhere", place.cell, place.port, None, place.directory))
            return pid, "00"

    with arena(CELL.dimension) as place:
        binary = compiled("ceiling_cloud.c", place.directory, "-lz")
        assert binary is not None
        turn = place.turn(Deaf("raw C", None, binary), CELL, 0.0, 0.1)
    assert turn.failure == "0 of 3 edges had a model"
