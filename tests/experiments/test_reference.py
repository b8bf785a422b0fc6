"""The reference table: its cells, what is chosen on held-out records, rows of others, and a table from end to end."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.accounting.releases import ReleaseKind
from common.errors import ConfigurationError
from common.mechanism.mechanism import Mechanism
from common.noise.gaussian import Gaussian
from experiments import harness
from experiments.audit.battery import scenario_games
from experiments.audit.claims import GdpClaim
from experiments.audit.game import Finding, Game
from experiments.audit.one_run import OneRun
from experiments.commands import audit as audit_command
from experiments.harness import Done
from experiments.reference import audited
from experiments.reference import table as reference_table
from experiments.reference.audited import (
    Audit,
    Audited,
    audited_table,
    read_audited,
    row_of,
    section,
)
from experiments.reference.cells import (
    Chosen,
    Search,
    TableCell,
    all_cells,
    asked_of,
    choice_for,
    methods,
    read_choices,
    write_choices,
)
from experiments.reference.table import ReferenceOrder, Row, make_table, markdown, read_rows, write_values
from experiments.reproduce import results_page
from mapa.simulation.simulator import World
from tests.mechanism_support import NORMALISED, POISSON, work_of
from tests.reproduce_support import invoked

ROW = Row(
    data="mnist",
    edges=5,
    epsilon=3.0,
    links="lan",
    method="tuned",
    seed=1,
    accuracy=0.98,
    stated_epsilon=2.99,
    own_epsilon=2.97,
    delta=1e-5,
    updates=1496,
    releases=1500,
    megabytes=120.5,
    virtual_seconds=30.0,
    seconds=20.0,
    evaluated_on="test",
    digest="0" * 64,
    command="mapa simulate private-mnist-eps3",
)
CELL = TableCell(data="mnist", edges=5, epsilon=3, method="tuned", links="lan", seed=1, size="full")


def test_the_full_table_is_the_one_that_was_asked_for() -> None:
    cells = all_cells("full")
    assert {cell.data for cell in cells} == {"mnist", "fashion", "cifar10"}
    assert {cell.edges for cell in cells} == {5, 20}
    sums = {"secure-sum-5", "secure-sum-10", "secure-sum-20"}
    main = {cell.method for cell in cells if cell.epsilon == 3}
    assert main == {"tuned", "tuning-free", "fedasync", "fedbuff", "audp", "mapa", "local-steps", *sums}
    assert {cell.method for cell in cells if cell.epsilon in (2, 8)} == {"tuned", "tuning-free", "mapa"}
    assert {cell.method for cell in cells if cell.epsilon == 1} == {"tuned", "tuning-free", "mapa", *sums}
    assert {(cell.edges, cell.links) for cell in cells if cell.method in sums} == {(20, "lan")}
    assert {cell.epsilon for cell in cells} == {1, 2, 3, 8}
    assert {cell.links for cell in cells if cell.epsilon == 3} == {"lan", "heterogeneous"}
    assert {cell.links for cell in cells if cell.epsilon != 3} == {"lan"}
    assert len({(cell.group, cell.seed) for cell in cells}) == len(cells)
    assert set(main) == set(methods())
    assert len(all_cells("full", seeds=1, only=["*fashion*/lan/tuning-free"])) == 8
    with pytest.raises(ConfigurationError, match="matches none"):
        all_cells("full", only=["nothing"])


@pytest.mark.parametrize("size", ["full", "tiny"])
def test_every_cell_is_a_scenario(size: str) -> None:
    """Choices stand for themselves here: any of a grid makes a scenario that is checked as a whole."""
    for cell in all_cells(size, seeds=1):
        method = methods()[cell.method]
        for choice in method.candidates():
            scenario, words = cell.scenario(choice, rate=0.4, length=30.0)
            assert scenario.edges == cell.edges
            assert scenario.privacy.total_epsilon == cell.epsilon
            assert all("=" in word for word in words)
            assert scenario.data.holdout == 0


def test_units_become_numbers() -> None:
    scenario, words = CELL.scenario({"algorithm.rate": "1.4 rate"}, rate=0.5, length=30.0)
    assert scenario.algorithm.options["rate"] == pytest.approx(0.7)
    assert scenario.algorithm.first_clip == pytest.approx(3.0)
    assert "algorithm.rate=0.7" in words


def test_choices_are_made_on_held_out_records_and_never_on_the_test_set() -> None:
    trials = asked_of([CELL, replace(CELL, links="heterogeneous"), replace(CELL, seed=2)])
    assert len(trials) == 5  # the grid once: seeds and other links share the choice
    for cell, choice in trials:
        scenario, _ = cell.scenario(choice, rate=0.5, length=30.0)
        assert scenario.data.holdout == 10_000
        assert cell.links == "lan"
    apart = asked_of([replace(CELL, method="fedasync", links=links) for links in ("lan", "heterogeneous")])
    assert {cell.links for cell, _ in apart} == {"lan", "heterogeneous"}
    assert asked_of([replace(CELL, method="tuning-free")]) == []


def test_a_choice_at_the_end_of_its_grid_goes_on_beyond_it_until_that_is_worse() -> None:
    search = Search({"rate": ["1 rate", "2 rate"], "smoothness": [0.3, 1.0, 3.0]})
    reached = {("1 rate", 0.3): 0.90, ("2 rate", 0.3): 0.92, ("4 rate", 0.3): 0.94, ("8 rate", 0.3): 0.93}
    reached |= {("1 rate", 1.0): 0.5, ("2 rate", 1.0): 0.5, ("1 rate", 3.0): 0.5, ("2 rate", 3.0): 0.5}
    asked: list[tuple[object, ...]] = []
    trials = [
        dict(zip(search.grid, place, strict=True)) for place in reached if place[0] in ("1 rate", "2 rate")
    ]
    while trials:
        for choice in trials:
            place = tuple(choice.values())
            asked.append(place)
            search.learn(choice, reached.get(place, 0.1))
        trials = search.further()
    assert asked[6:] == [("4 rate", 0.3), ("2 rate", 0.09), ("8 rate", 0.3)]
    assert search.chosen == Chosen({"rate": "4 rate", "smoothness": 0.3}, 0.94, 9)
    endless = Search({"rate": [1.0, 2.0]})
    endless.learn({"rate": 2.0}, 0.1)
    rises = []
    while more := endless.further():
        rises += more
        endless.learn(more[0], 0.1 + len(rises))
    assert rises == [{"rate": 4.0}, {"rate": 8.0}, {"rate": 16.0}]  # and no further


def test_choices_are_kept_and_found_again(tmp_path: Path) -> None:
    chosen = Chosen({"algorithm.rate": "2 rate"}, 0.95, 2)
    trial = CELL.on_held_out()
    path = tmp_path / "choices.toml"
    write_choices(path, {trial.group: chosen, ("mnist", 5, 3, "lan", "audp"): Chosen({"a.b": 0.3}, 0.5, 6)})
    again = read_choices(path)
    assert again[trial.group] == chosen
    assert choice_for(CELL, again) == {"algorithm.rate": "2 rate"}
    assert choice_for(replace(CELL, links="heterogeneous"), again) == {"algorithm.rate": "2 rate"}
    assert choice_for(replace(CELL, method="tuning-free"), again) == {}
    assert read_choices(tmp_path / "absent.toml") == {}


def test_rows_go_to_csv_and_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = [ROW, replace(ROW, seed=2, accuracy=0.99), replace(ROW, method="theirs", by="another lab")]
    write_values(path, Row, rows)
    assert read_rows(path) == rows
    text = markdown(rows)
    assert "| updates | MB | virtual s | simulated in (s) | seeds |" in text
    assert "| `tuned` | 98.50 ± 0.71 | 2.990 | 1496 | 120 | 30.0 | 20 | 2 |" in text
    assert "`theirs` (another lab)" in text


@pytest.mark.slow
def test_a_table_is_made_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    only = ["*/lan/tuned", "*/lan/tuning-free", "*/lan/local-steps"]
    order = ReferenceOrder(size="tiny", out=tmp_path, data_dir=tmp_path, tune=True, only=only)
    first = make_table(order)
    assert first.failures == {}
    assert first.looks > 5 + 6  # the grids, and a step beyond them at least: local.rate has two values
    assert first.runs == first.looks + 3
    assert {row.method for row in first.rows} == {"tuned", "tuning-free", "local-steps"}
    for row in first.rows:
        assert 0.5 < row.accuracy <= 1
        assert 0 < row.stated_epsilon <= row.epsilon
        assert row.evaluated_on == "test"
    by_method = {row.method: row for row in first.rows}
    assert by_method["local-steps"].megabytes < by_method["tuned"].megabytes / 3
    again = make_table(replace(order, tune=False))
    assert (again.runs, again.cached) == (0, 3)
    assert again.rows == first.rows
    assert read_rows(again.files[0]) == read_rows(first.files[0])
    assert json.loads(next((tmp_path / "cache").glob("*.json")).read_text())["method"] in by_method


def test_a_cell_without_a_choice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_table, "CHOICES", tmp_path / "absent.toml")
    with pytest.raises(ConfigurationError, match="run it with --tune first"):
        make_table(ReferenceOrder(size="tiny", out=tmp_path, data_dir=tmp_path, only=["*/lan/tuned"]))


def test_the_overview_has_means_over_seeds_and_every_budget() -> None:
    seeds = [replace(ROW, seed=seed, accuracy=0.96 + seed / 100) for seed in (1, 2, 3)]
    free = [replace(row, method="tuning-free", accuracy=row.accuracy - 0.002) for row in seeds]
    free.append(replace(free[0], epsilon=1.0, accuracy=0.9))
    uneven = replace(ROW, links="heterogeneous", edges=20, accuracy=0.5)
    rows = [*seeds, *free, uneven]
    assert "virtual s, K = 5" in results_page.every_method(rows, results_page.EVEN).splitlines()[0]
    assert results_page.every_method(rows, results_page.EVEN).splitlines()[2:] == [
        "| `tuning-free` | 97.80 ± 1.00 | 2.990 | 1496 | 120 | 30.0 |",
        "| `tuned` | 98.00 ± 1.00 | 2.990 | 1496 | 120 | 30.0 |",
    ]
    other = results_page.every_method([*rows, ROW], results_page.UNEVEN)
    assert other.startswith("|  | MNIST, K = 20 |")
    assert results_page.every_budget(rows, results_page.EVEN).splitlines() == [
        "| accuracy in % | method | ε = 1 | ε = 3 |",
        "|---|---|---|---|",
        "| MNIST, K = 5 | `tuning-free` | 90.00 | 97.80 ± 1.00 |",
    ]
    assert results_page.in_short(rows).splitlines()[2:] == ["| `tuning-free` | 97.8 |", "| `tuned` | 98.0 |"]
    summed = replace(ROW, method="secure-sum-20", edges=20, accuracy=0.99, own_epsilon=28.97)
    shown = results_page.in_sums([*rows, summed, replace(ROW, method="tuning-free", edges=20)])
    assert shown.splitlines()[2:] == ["| 3 | MNIST, K = 20 | 98.00 | 99.00 | 29.0 |"]
    said = results_page.behind(rows, "tuning-free")
    assert said == "`tuning-free` is 0.20 points behind `tuned` on average over 1 cells, 0.20 at most."


AUDITED = Audited(
    mechanism="normalised",
    methods="tuning-free fedbuff",
    recipe="private-fashion-eps3",
    noise="gaussian noise_multiplier=2.25",
    batches="poisson 1024 of 12000",
    game="one release, canary in the batch",
    figure="μ",
    claimed=0.445,
    at_least=0.371,
    claimed_epsilon=1.75,
    epsilon_at_least=1.43,
    run_claimed_epsilon=3.0,
    run_epsilon_at_least=0.5,
    run_messages=300,
    run_canaries=1000,
    delta=1e-5,
    rounds=8000,
    games=11,
    confidence=0.95,
    refuted="none",
    digest="0" * 64,
    command="mapa audit private-fashion-eps3",
)


def without_battery(world: World, **how: Any) -> list[Game]:
    """The scenario's own releases: the battery is the same for all scenarios, and has tests of its own."""
    games = scenario_games(world, **how)
    return games[: 2 if world.scenario.work.releases() > 1 else 1]


def in_this_process(
    work: Callable[[Any], Any], tasks: Sequence[Any], **_: object
) -> Iterator[Done[Any, Any]]:
    for task in tasks:
        yield Done(task, work(task))


@pytest.mark.slow
def test_an_audited_table_is_made_kept_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audited, "scenario_games", without_battery)
    monkeypatch.setattr(audit_command, "scenario_games", without_battery)
    monkeypatch.setattr(harness, "sweep", in_this_process)
    only = ["*/lan/tuning-free"]
    order = ReferenceOrder(size="tiny", out=tmp_path, data_dir=tmp_path, only=only, audit=True)
    table = make_table(order)
    assert table.failures == {}
    found = {row.mechanism: row for row in table.audited}
    assert {name: row.methods for name, row in found.items()} == {
        "normalised": "tuning-free fedasync fedbuff",
        "per-sample": "tuned audp mapa",
        "normalised, 4 local steps": "local-steps",
    }
    for row in table.audited:
        assert not row.is_refuted
        assert 0 < row.at_least < row.claimed
        assert 0 < row.epsilon_at_least < row.claimed_epsilon
        assert 0 <= row.run_epsilon_at_least < row.run_claimed_epsilon <= 3
        assert (row.rounds, row.run_canaries) == (1000, 400)
    message, release = found["normalised, 4 local steps"], found["normalised"]
    assert message.claimed == pytest.approx(2 * release.claimed, rel=1e-4)  # √4
    assert (message.run_messages, release.run_messages) == (3, 9)
    assert table.files[2].name == "audited.csv"
    assert read_audited(table.files[2]) == table.audited
    again = make_table(replace(order, audit=False))
    assert again.audited == table.audited
    text = again.files[1].read_text(encoding="utf-8")
    assert "### Audited: claimed → at least" in text
    assert f"`{release.command}`" in text

    said = invoked(*shlex.split(message.command)[1:], "--json", "--data-dir", str(tmp_path))
    report = json.loads(said.stdout)
    assert report["scenario_sha256"] == message.digest
    assert report["games"][1]["lower_bound"] == pytest.approx(message.at_least, rel=1e-5)
    assert report["games"][1]["lower_epsilon"] == pytest.approx(message.epsilon_at_least, rel=1e-5)
    assert report["one_run"]["lower_epsilon"] == pytest.approx(message.run_epsilon_at_least, rel=1e-5)


def test_audits_go_to_csv_and_back_and_a_refuted_claim_is_loud(tmp_path: Path) -> None:
    path = tmp_path / "audited.csv"
    bad = replace(
        AUDITED, mechanism="per-sample", at_least=0.6, refuted="one release; a run", claimed_epsilon=math.inf
    )
    write_values(path, Audited, [AUDITED, bad])
    assert read_audited(path) == [AUDITED, bad]
    assert audited_table([AUDITED, bad]).splitlines()[2:] == [
        "| normalised | `tuning-free`, `fedbuff` | μ 0.445 → 0.371 | 1.750 → 1.430 | ε 3.000 → 0.500"
        " (300 messages, 1,000 canaries) | no |",
        "| per-sample | `tuning-free`, `fedbuff` | μ 0.445 → 0.600 | ∞ → 1.430 | ε 3.000 → 0.500"
        " (300 messages, 1,000 canaries) | **REFUTED**: one release; a run |",
    ]
    assert section([]) == ""
    assert "- per-sample: `mapa audit private-fashion-eps3`" in section([AUDITED, bad])


def test_what_is_refuted_is_named_in_the_row() -> None:
    mechanism = Mechanism(None, 1024, POISSON, NORMALISED, work=work_of(4))
    kind = ReleaseKind(replace(mechanism, law=Gaussian(2.25)), 12_000)
    audit = Audit(replace(CELL, method="local-steps"), {}, kind, ("local-steps",), Path(), 8000)
    claims = {"one release": 0.445, "one message of 4 local steps": 0.89}
    releases: list[Any] = [SimpleNamespace(name=name, claim=GdpClaim(mu)) for name, mu in claims.items()]
    rates = {"false_positives": 0.1, "false_negatives": 0.1, "rounds": 8000, "alpha": 0.01}
    findings = [
        Finding(name=game.name, figure="μ", claimed=game.claim.value, lower_bound=bound, **rates)
        for game, bound in zip(releases, (0.4, 0.95), strict=True)
    ]
    told = {"canaries": 1000, "guesses": 100, "correct": 99, "releases": 75}
    whole = OneRun(lower_bound=3.1, claimed=3.0, delta=1e-5, confidence=0.95, **told)
    row = row_of(audit, releases, findings, whole, digest="0", command="mapa audit")
    assert row.refuted == "one message of 4 local steps; a whole training run"
    assert (row.game, row.claimed, row.at_least) == ("one message of 4 local steps", 0.89, 0.95)
    assert row.epsilon_at_least > row.claimed_epsilon
    assert "**REFUTED**: one message of 4 local steps" in audited_table([row])
    sound = replace(findings[1], lower_bound=0.7)
    right = replace(whole, lower_bound=0.5)
    assert not row_of(audit, releases, [findings[0], sound], right, digest="", command="").is_refuted


@pytest.mark.parametrize(
    ("kind", "old", "new", "words"),
    [
        (Row, ",0.98,", ",1.2,", "line 2: accuracy = 1.2: must be from 0 to 1"),
        (Row, ",0.98,", ",nan,", "line 2: accuracy = nan"),
        (Row, ",5,", ",five,", "line 2: edges = 'five': not int"),
        (Row, ",2.99,", ",-1,", "line 2: stated_epsilon = -1.0: must be at least 0"),
        (Row, ",2.99,", ",inf,", "line 2: stated_epsilon = inf"),
        (Row, "this project", "\x1b[31m", "line 2: by: not printable"),
        (Row, "data,", "set,", "the columns must be data,edges,"),
        (Audited, "mechanism,", "release,", "the columns must be mechanism,methods,"),
        (Audited, ",0.371,", ",nan,", "line 2: at_least = nan: must be at least 0"),
        (Audited, ",0.371,", ",-1,", "line 2: at_least = -1.0: must be at least 0"),
        (Audited, ",none,", ",none,none,", "line 2: must have 22 values"),
    ],
)
def test_a_wrong_row_of_somebody_else_is_named(
    tmp_path: Path, kind: type[Row | Audited], old: str, new: str, words: str
) -> None:
    path = tmp_path / "rows.csv"
    write_values(path, kind, [ROW if kind is Row else AUDITED])
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        (read_rows if kind is Row else read_audited)(path)
