"""Clouds in turns: the C programs speak the protocol and write the log; what is told of a turn and of a failure."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import MapaError
from common.records.gradient_log import FOLDER, Kind, LogReader
from experiments.bench import clouds
from experiments.bench.clouds import (
    CCloud,
    Cell,
    Plan,
    Task,
    arena,
    authors_turn,
    cloud_cases,
    compiled,
    plan_of,
    proof_cases,
    ratios_of,
)
from experiments.bench.rounds import Ratio, measure
from mapa.brokers import find_mosquitto

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(find_mosquitto() is None, reason="no mosquitto on PATH"),
]
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
CELL = Cell(3, 300)
PLAN = Plan(cells=[CELL], seconds=0.2, warm=0.05)


def test_a_cell_asks_for_the_bars_that_its_size_has() -> None:
    def bars(cell: Cell) -> set[tuple[str, str, str | None, float | None]]:
        asked = (ratio for ratio in ratios_of(cell, ["process", None]) if ratio.bar)
        return {(one.figure, one.of, one.over, one.at_most or one.at_least) for one in asked}

    heard = ("rate", "ours, log", "libmosquitto", 0.55)
    assert bars(Cell(5, 785)) == {("cloud", "ours, log", "raw C, log", 3.5), heard}
    of_raw, of_library = ("cloud", "ours, log", "raw C, log", 1.6), ("cloud", "ours", "libmosquitto", 2.8)
    assert bars(Cell(20, 7_850)) == {of_raw, of_library, heard}
    large = bars(Cell(20, 1_000_000))
    assert large == {(*of_raw[:3], 1.8), ("cloud", "ours", "raw C", 1.8), of_library}


def test_options_make_the_product_of_their_values() -> None:
    plan = plan_of([5, 20], [785], ["on", "power"], ["off", "on"])
    assert plan.logs == ["process", "power"]
    assert plan.cells == [Cell(k, 785, tls) for k in (5, 20) for tls in (False, True)]
    assert Ratio("rate", "ours, log: power", "ours, log") in ratios_of(CELL, plan.logs)
    assert plan_of([], [], ["off"], ["off"]).cells == clouds.CELLS


@needs_compiler
@pytest.mark.parametrize("lean", [True, False], ids=["C edges", "Python edges"])
def test_every_cloud_that_can_run_here_serves_both_kinds_of_edges(
    lean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not lean:  # as on a machine without a compiler, where ours is the only cloud
        monkeypatch.setattr(clouds, "compiled", lambda *_, **__: None)
    (outcome,) = (measure(case, 1) for case in cloud_cases(replace(PLAN, against=Path(__file__).parents[2])))
    trees = {"ours, log", "ours", "against, log", "against"}
    assert trees <= set(outcome.case.turns)
    assert lean or trees == set(outcome.case.turns)
    assert not outcome.failures
    for figures in outcome.rounds[0].values():
        assert min(figures[name] for name in ("rate", "cloud", "broker", "edges", "first model s")) > 0
    measured = {(ratio.of, ratio.over) for ratio in outcome.case.ratios if outcome.each(ratio)}
    assert {("ours, log", "against, log"), ("ours", "against"), ("ours, log", "ours")} <= measured


@needs_compiler
@pytest.mark.slow
def test_proven_messages_are_measured_with_edges_that_seal_and_open_and_tls_beside_a_bare_echo() -> None:
    sealed, secured = (measure(case, 1) for case in proof_cases(replace(PLAN, logs=[None])))
    assert not sealed.failures
    assert not secured.failures
    assert min(figures["rate"] for figures in sealed.rounds[0].values()) > 0
    assert {"plain", "TLS", "extra"} == set(secured.rounds[0]["bare echo"]) == set(secured.rounds[0]["ours"])


@needs_compiler
def test_an_edge_in_c_notices_a_model_that_is_not_sealed_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        arena(CELL.dimension) as place,
        clouds.clouds(place, replace(PLAN, logs=[None], only=["ours"])) as taking,
    ):
        cloud, cell = taking["ours"], replace(CELL, sealed=True)
        assert place.turn(cloud, cell, 0.05, 0.2)["rate"] > 0
        begin = type(cloud).begin

        def other_keys(self: clouds.TreeCloud, task: Task) -> tuple[int, str, clouds.Meanwhile]:
            pid, name, meanwhile = begin(self, task)  # type: ignore[arg-type]
            lines = [line.split() for line in Path(name).read_text().splitlines()]
            Path(name).write_text("\n".join(" ".join([*line[:3], "00" * 32]) for line in lines))
            return pid, name, meanwhile

        monkeypatch.setattr(clouds.TreeCloud, "begin", other_keys)
        with pytest.raises(MapaError, match="not sealed for this edge"):
            place.turn(cloud, cell, 0.05, 0.2)


def test_tls_lies_between_cloud_and_broker_alone() -> None:
    plan = replace(PLAN, cells=[Cell(2, 100, tls=True)], logs=[None], only=["ours"])
    (outcome,) = (measure(case, 1) for case in cloud_cases(plan))
    assert not outcome.failures
    assert outcome.rounds[0]["ours"]["rate"] > 0


def test_the_authors_way_runs_beside_it() -> None:
    with arena(7_850) as place:
        assert authors_turn(place, 1.0)["rate"] > 0


@needs_compiler
def test_the_log_of_the_ceiling_is_one_that_we_read(tmp_path: Path) -> None:
    with arena(CELL.dimension) as place:
        binary = compiled("ceiling_cloud.c", tmp_path, "-lz")
        if binary is None:
            pytest.skip("no zlib headers")
        kept: list[Path] = []

        class Keeping(CCloud):
            def end(self) -> dict[str, object]:
                counted = super().end()
                (segment,) = place.directory.glob("*.seg")
                kept.append(segment.rename(tmp_path / FOLDER / "000001.seg"))
                return counted

        (tmp_path / FOLDER).mkdir()
        assert place.turn(Keeping("raw C", "process", binary), CELL, 0.0, 0.1)["rate"] > 0
    assert kept
    entries = list(LogReader(tmp_path))
    assert [entry.t for entry in entries] == list(range(1, len(entries) + 1))
    assert {entry.kind for entry in entries} == {Kind.GRADIENT}
    assert {entry.edge_id for entry in entries} == {"edge-0", "edge-1", "edge-2"}
    assert all(entry.arrived.gradient.size == CELL.dimension for entry in entries)


@needs_compiler
def test_a_cloud_that_answers_nobody_is_told_as_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds, "_PATIENCE", 0.3)

    class Deaf(CCloud):
        def begin(self, task: Task) -> tuple[int, str, clouds.Meanwhile]:
            return super().begin({**task, "run": "elsewhere"})

    with arena(CELL.dimension) as place:
        binary = compiled("ceiling_cloud.c", place.directory, "-lz")
        assert binary is not None
        with pytest.raises(MapaError, match="0 of 3 edges had a model"):
            place.turn(Deaf("raw C", None, binary), CELL, 0.0, 0.1)
