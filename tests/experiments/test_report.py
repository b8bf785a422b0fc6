"""The report of a reproduction: its page, its tables, and pictures of seeds that do not end alike."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.reproduce import plots
from experiments.reproduce.catalogue import FigurePoint, Result, Results, catalogue
from experiments.reproduce.claims import ClaimCase, FigureClaim, Judged, Judgement, Verdict
from experiments.reproduce.plots import (
    draw_convergence,
    draw_norms,
    draw_sensitivity,
    draw_stragglers,
    interpolated,
)
from experiments.reproduce.report import (
    EXPLANATION,
    ReportContent,
    conventions,
    counted,
    made_with,
    rows_of,
    write_report,
)
from mapa import figures
from tests.reproduce_support import points as points_of
from tests.reproduce_support import result_of


def points(name: str, size: str = "quick") -> list[FigurePoint]:
    return points_of(size, name)


def result(point: FigurePoint, **fields: Any) -> Result:
    return result_of(point, **{"t": [10, 20], "accuracy": [0.5, 0.6], "loss": [1.0, 0.9], **fields})


def results_of(some: Sequence[FigurePoint], make: Callable[[FigurePoint], Result]) -> Results:
    return Results(some, {point.key: make(point) for point in some})


def twice(some: Sequence[FigurePoint]) -> list[FigurePoint]:
    """Return the points with a second seed."""
    return [*some, *(replace(point, seed=1, updates=(1,)) for point in some)]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Return the axes of a picture, which is written all the same."""
    kept: list[Any] = []
    save = figures.save

    def keep(figure: Any, stem: Path) -> list[Path]:
        kept.append(figure)
        return save(figure, stem)

    monkeypatch.setattr(figures, "save", keep)

    def draw(function: Callable[[Results, Path], list[Path]], results: Results) -> Any:
        assert len(function(results, tmp_path)) == 2
        return kept[-1].axes

    return draw


# -- pictures -----------------------------------------------------------------------------------------


def diverging(point: FigurePoint) -> Result:
    """Return a run of five evaluations, but of two with the second seed."""
    norms = {"t": [1.0, 40.0], "mean": [2.0, 1.0], "low": [1.0, 0.5], "high": [3.0, 2.0]}
    whole = result(
        point, t=[10, 20, 30, 40, 50], accuracy=[0.1, 0.2, 0.3, 0.4, 0.5], loss=[1.0] * 5, norms=norms
    )
    if point.seed == 0:
        return whole
    return replace(whole, t=[10, 17], accuracy=[0.1, 0.1], loss=[1.0, None])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "draw"), [("norms", draw_norms), ("sensitivity", draw_sensitivity)])
def test_a_seed_that_diverged_leaves_the_picture_to_the_others(
    name: str, draw: Callable[[Results, Path], list[Path]], drawn: Callable[..., Any]
) -> None:
    some = points(name)
    if name == "sensitivity":
        some = twice(some)
    axes = drawn(draw, results_of(some, diverging))
    axis = axes[3] if name == "norms" else axes[0]
    mean, *alone = axis.lines[:3]
    assert list(mean.get_xdata()) == [10, 17, 20, 30, 40, 50]
    assert mean.get_ydata()[0] == pytest.approx(0.1)
    assert all(math.isnan(y) for y in mean.get_ydata()[1:])  # no mean of those that are left
    assert any(list(line.get_ydata())[-1] == 0.5 for line in alone)


@pytest.mark.slow
def test_lines_of_norms_differ_by_more_than_their_colour(drawn: Callable[..., Any]) -> None:
    axes = drawn(draw_norms, results_of(points("norms"), diverging))
    for above in axes[:3]:
        shown = [line for line in above.lines if not line.get_label().startswith("_") and line.get_label()]
        assert len({(line.get_linestyle(), line.get_marker()) for line in shown}) == len(shown)
        assert all(line.get_marker() != "None" for line in above.lines)
    assert len(axes[1].lines) == 6  # three norms, three bounds


@pytest.mark.slow
def test_thousands_of_updates_are_short(drawn: Callable[..., Any]) -> None:
    axes = drawn(draw_sensitivity, results_of(points("sensitivity"), lambda p: result(p, t=[0, 15_000])))
    ticks = [label.get_text() for label in axes[0].get_xticklabels()]
    assert 2 < len(ticks) <= 7
    assert "10k" in ticks or "12k" in ticks


def test_seeds_that_converge_have_bars_and_one_that_does_not_makes_it_hollow(
    drawn: Callable[..., Any],
) -> None:
    times = list(range(100, 1100, 100))

    def run(point: FigurePoint) -> Result:
        late = 3 if point.seed else 1
        never = point.x == 100 and point.seed == 1
        loss = [9.0] * 10 if never else [9.0] * late + [0.0] * (10 - late)
        return result(point, t=times, accuracy=[0.5] * 10, loss=loss)

    some = [p for p in points("convergence") if p.line == "convergence-lr-mnist-mapa"]
    (axis,) = drawn(draw_convergence, results_of(twice(some), run))
    (bar,) = axis.containers
    line, _, (spans,) = bar
    assert list(line.get_xdata()) == [10, 1000]
    low, high = spans.get_segments()[0][:, 1]
    assert low < line.get_ydata()[0] < high
    (hollow,) = (one for one in axis.lines if one.get_markerfacecolor() == "none")
    assert list(hollow.get_xdata()) == [100]


@pytest.mark.slow
def test_a_straggler_point_that_a_seed_never_reached_is_not_drawn_as_reached(
    drawn: Callable[..., Any],
) -> None:
    def run(point: FigurePoint) -> Result:
        last = 0.9 if point.x != 10 or point.seed == 0 else 0.8
        return result(point, accuracy=[0.5, last], seconds=[1.0, 2.0 + point.seed])

    axes = drawn(draw_stragglers, results_of(points("stragglers"), run))
    times, alike = axes[0], axes[1]
    assert len(times.containers) == 4
    for bar in times.containers:
        assert list(bar[0].get_xdata()) == [1, 2, 5]
        assert bar[0].get_ydata()[0] == 2.5
        assert {tuple(segment[:, 1]) for segment in bar[2][0].get_segments()} == {(2.0, 3.0)}
    hollow = [one for one in times.lines if one.get_markerfacecolor() == "none"]
    assert [list(one.get_xdata()) for one in hollow] == [[10]] * 4
    assert len(alike.collections) == 4  # a band of both seeds for each line


def test_curves_over_seconds_are_compared_at_common_seconds() -> None:
    seconds, (first, second) = interpolated([([1.0, 3.0], [0.0, 1.0]), ([2.0, 4.0], [0.0, 1.0])])
    assert seconds == [2.0, 3.0, 4.0]
    assert first[:2] == [0.5, 1.0]
    assert math.isnan(first[2])  # it had ended
    assert second == [0.0, 0.5, 1.0]


def test_a_panel_is_marked_where_the_embedded_images_stood_for_its_data() -> None:
    some = [p for p in points("accuracy", "tiny") if p.panel == "lr-mnist"]
    assert {p.scenario.data.set for p in some} == {"mnist-5k"}
    assert results_of(some, result).title("lr-mnist") == "LR MNIST (mnist-5k)"
    data = some[0].scenario.data.model_copy(update={"set": "mnist"})
    real = [replace(p, scenario=p.scenario.model_copy(update={"data": data})) for p in some]
    assert results_of(real, result).title("lr-mnist") == "LR MNIST"


# -- tables -------------------------------------------------------------------------------------------


def test_the_testbed_table_has_the_staleness_of_all_seeds_beside_tau_max() -> None:
    some = [p for p in points("testbed") if p.line == "testbed-cnn-mnist-mapa" and p.x == 5]
    runs = twice(some)
    found = results_of(
        runs, lambda p: result(p, seconds=[1.0, 2.0 + p.seed], staleness={1: 6, 9 + p.seed: 4})
    )
    (row,) = rows_of(found, "testbed")
    assert row["τ_max"] == row["K"] == "5"
    assert row["staleness mean"] == "4.4"
    assert row["staleness max"] == "10"
    assert row["above τ_max"] == "40.0 %"
    assert row["seconds"] == "2.5"
    (alone,) = (p for p in points("testbed") if p.variant == "csgd")
    (row,) = rows_of(results_of([alone], lambda p: result(p, staleness={0: 5})), "testbed")
    assert (row["τ_max"], row["above τ_max"]) == ("0", "0.0 %")


def test_a_count_of_the_first_window_is_an_upper_bound() -> None:
    (point, *_) = (p for p in points("convergence") if p.line == "convergence-lr-mnist-mapa")
    times = list(range(100, 1100, 100))
    for loss, words in (([0.1] * 10, "≤ 500"), ([9.0] + [0.1] * 9, "600"), ([9.0] * 10, "not within T")):
        run = result(point, t=times, accuracy=[0.5] * 10, loss=loss)
        (row,) = rows_of(Results([point], {point.key: run}), "convergence")
        assert row["updates to taken"] == f"{words} (loss ≤ 0.4)"


# -- the page -----------------------------------------------------------------------------------------


def judged(name: str, verdict: Verdict, *holds: bool | None, ours: bool = False) -> Judged:
    said: dict[str, Any] = {"where": "fig:a", "text": f"Say {name}.", "judge": "b", "why": "by `luck`"}
    claim = FigureClaim(name=name, experiment="accuracy", ours=ours, **said)
    cases = tuple(ClaimCase(f"case {n}", held, "1 : 2") for n, held in enumerate(holds))
    summary = f"holds in {holds.count(True)} of {len(holds)}"
    return Judged(claim, Judgement(verdict, summary, cases, explain=False in holds))


def page_of(tmp_path: Path, told: Sequence[Judged], **more: Any) -> str:
    png = tmp_path / "accuracy.png"
    png.write_bytes(b"png")
    some = [p for p in points("accuracy", "tiny") if p.panel == "lr-mnist"]
    story = ReportContent(
        command="mapa reproduce",
        size="tiny",
        seconds=1.0,
        machine={"Python": "3"},
        experiments=catalogue().chosen(["accuracy", "norms"]),
        results=results_of(some, result),
        judged=told,
        pictures={"accuracy": [png, tmp_path / "accuracy.svg"]},
        **more,
    )
    write_report(story, tmp_path)
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_verdict_shows_its_summary_and_unfolds_its_cases_failed_ones_first(tmp_path: Path) -> None:
    few = judged("few", Verdict.PARTLY, True, None, False)
    many = judged("many", Verdict.REPRODUCED, *[True] * 5)
    page = page_of(tmp_path, [few, many, judged("none", Verdict.UNDECIDED)])
    assert (
        "<details open><summary>holds in 1 of 3</summary><ul><li>case 2 1 : 2 ✗</li>"
        "<li>case 1 1 : 2 ?</li><li>case 0 1 : 2</li></ul></details>"
    ) in page
    assert "<details><summary>holds in 5 of 5</summary><ul><li>case 0 1 : 2</li>" in page
    assert "<td class='undecided'>undecided</td><td>holds in 0 of 0</td>" in page
    assert ".undecided {" in page


def test_the_page_counts_its_verdicts_links_claims_and_says_what_made_it(tmp_path: Path) -> None:
    told = [
        judged("a", Verdict.PARTLY, True, False),
        judged("b", Verdict.REPRODUCED, True),
        judged("c", Verdict.REPRODUCED, True),
        judged("d", Verdict.NOT, False, ours=True),
        judged("e", Verdict.REPRODUCED, True, ours=True),
        judged("f", Verdict.REPRODUCED, True, ours=True),
    ]
    words = "The paper's claims: 2 reproduced, 1 partly. Our own questions: 2 hold, 1 does not hold."
    assert counted(told) == words
    page = page_of(tmp_path, told, made_with="mapa 9.9, commit abc, changed")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert words.replace("'", "&#x27;") in page
    assert words in text
    assert "<code>mapa reproduce</code> (mapa 9.9, commit abc, changed) in 1 s" in page
    assert "(mapa 9.9, commit abc, changed)" in text
    assert "<a href='#accuracy'>Say a.</a>" in page
    assert "Claims: <a href='#claim-0'>a</a> (partly), <a href='#claim-1'>b</a> (reproduced)" in page
    for anchor in ("verdicts", "conventions", "accuracy", "norms", "claim-0"):
        assert f"id='{anchor}'" in page
        assert f"href='#{anchor}'" in page


def test_the_page_needs_no_pictures_wide_screen_or_scripts_and_names_explanations(tmp_path: Path) -> None:
    page = page_of(tmp_path, [judged("a", Verdict.PARTLY, True, False)])
    assert "not tested" in EXPLANATION
    assert f"<th scope='col'>{EXPLANATION}</th>" in page
    assert "<td>by <code>luck</code></td>" in page
    assert EXPLANATION.lower() in (tmp_path / "tables" / "verdicts.csv").read_text(encoding="utf-8")
    assert "alt='Figure: Accuracy against ε. The table below has its numbers.'" in page
    assert "name='viewport'" in page
    assert page.count("<table") == page.count("<div class='wide'><table") == 2
    assert "<script" not in page
    assert "loading=" not in page


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_checkout_is_named_by_its_commit_and_whether_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        given = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *given, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    version = made_with(tmp_path)
    assert version.startswith("mapa ")
    assert "commit" not in version
    git("init", "-q")
    assert made_with(tmp_path) == version  # nothing was committed yet
    (tmp_path / "file").write_text("a", encoding="utf-8")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    assert made_with(tmp_path) == f"{version}, commit {git('rev-parse', '--short', 'HEAD')}"
    (tmp_path / "file").write_text("b", encoding="utf-8")
    assert made_with(tmp_path).endswith(", changed")
    (tmp_path / "inside").mkdir()
    assert made_with(tmp_path / "inside") == version  # somebody else's repository around it
    monkeypatch.setenv("PATH", str(tmp_path))
    assert made_with(tmp_path) == version  # no git


def test_conventions_say_what_was_taken() -> None:
    said = " ".join(conventions(Results([], {})))
    for words in (
        "L is a quarter of the measured one for LR and 7.5 for the SVM",
        "L = σ = R = 10 are nominal, not measured",
        "testbed and in `sensitivity`, where it starts from Theorem 3's first bound",
        "at least 5 × `evaluation.every`",
        "the paper gives no T; this one is ours",
        "x_t and C_t come from a MAPA training at that ε",
        "all edges draw from one shared data set",
        "the schedules take τ_max = K",
    ):
        assert words in said


def test_conventions_are_those_of_the_scenario_files() -> None:
    for point in points("convergence", "tiny"):
        assert point.scenario.data.partition == "shared"
    for point in points("testbed", "tiny"):
        assert point.scenario.problem.tau_max == point.scenario.workers
    for name in ("testbed", "sensitivity"):
        for point in points(name):
            assert (point.scenario.problem.first_clip is None) == (point.variant in ("mapa", "asgd", "csgd"))
    for name in ("accuracy", "convergence"):
        bounds: dict[tuple[str, str], float | None] = {
            (p.panel, p.variant): p.scenario.problem.first_clip for p in points(name)
        }
        for (panel, variant), bound in bounds.items():
            if variant == "mapa":
                assert bound == bounds[panel, "audp"]
    constants = {
        m: next(p for p in points("accuracy") if p.panel == f"{m}-mnist") for m in ("lr", "svm", "cnn")
    }
    found = {m: p.scenario.problem for m, p in constants.items()}
    assert found["lr"].smoothness == pytest.approx(9.8 / 4)
    assert found["svm"].smoothness == 7.5
    assert {found["cnn"].smoothness, found["cnn"].sigma, found["cnn"].radius} == {10.0}


def test_a_bound_with_fewer_seeds_than_another_is_drawn_all_the_same(drawn: Callable[..., Any]) -> None:
    some = [p for p in points("bounds") if p.line == "bounds-lr-mnist-audp"]
    more = [replace(p, seed=1, updates=(1,)) for p in some if p.x == 1.0]
    axes = drawn(plots.DRAWN["bounds"], results_of([*some, *more], result))
    (line,) = (one for one in axes[0].get_lines() if one.get_label() == "AUDP")
    assert list(line.get_xdata()) == sorted(p.x for p in some if p.x is not None)
