"""What a viewer has chosen stays while a run goes on: a place, an axis, a filter, a look, the focus, a zoom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.browser.visit import Opens, Visit
from tests.dashboard_support import append, applied, evaluated, some_run

FIGURE = "#run .tile:first-child strong"
FOCUSED = "document.activeElement.textContent"


def stage(number: int, t: int) -> dict[str, Any]:
    fields = {"sensitivity": 1 / number, "variance": 1.0, "p": 1.0, "learning_rate": 0.1 / number}
    return {"event": "stage_opened", "stage": number, "t": t, "length": 20, "tau_max": 2, **fields}


def zoomed_over_seconds(one: Visit) -> list[str]:
    """Choose the axis and a part of it; return what stands at the right edge then."""
    one.page.get_by_role("button", name="over seconds").click()
    one.chart("accuracy over").focus()
    for key in ("Home", "+", "+"):
        one.page.keyboard.press(key)
    return one.hover("accuracy over", 0.998)


def test_an_answer_that_comes_late_belongs_to_the_place_that_asked(
    visit: Opens, address: str, runs: Path
) -> None:
    for name in ("first", "second"):
        some_run(runs, name)
    one = visit(address, "compare?run=first")
    held: list[Any] = []
    asked: list[str] = []
    one.page.on("request", lambda request: asked.append(request.url.partition("?")[2]))
    one.page.route("**/api/compare?run=first", lambda route: held.append(route))
    with one.page.expect_request("**/api/compare?run=first"):
        pass
    one.go("compare?run=second")
    one.page.locator("main tbody").get_by_role("link", name="second").wait_for()
    asked.clear()
    with one.page.expect_response("**/api/compare?run=first"):
        held[0].continue_()
    for _ in range(2):
        with one.page.expect_request("**/api/compare?run=second"):
            pass
    assert [row[0] for row in one.rows("The runs side by side")] == ["second"]
    assert set(asked) == {"run=second"}


def test_the_skip_link_goes_to_the_content_of_the_same_view(first: Opens) -> None:
    one = first("run/first/fleet")
    one.page.locator(".skip").focus()
    one.page.keyboard.press("Enter")
    assert one.page.evaluate("document.activeElement.id") == "main"
    one.shows("nav [aria-current]", "Fleet")
    assert one.page.url.endswith("#/run/first/fleet")


def test_seconds_and_updates_do_not_point_at_each_other(visit: Opens, address: str, runs: Path) -> None:
    path = some_run(runs)
    append(path, stage(1, 1))
    one = visit(address, "run/first/training")
    chart = one.chart("accuracy over")
    assert "Vertical lines" not in one.text("main")
    append(path, stage(2, 21), applied(41, 0, 0, 11.0))
    one.page.get_by_text("Vertical lines: a stage opened.").first.wait_for()  # also of a later stage
    one.page.get_by_role("button", name="over seconds").click()
    other = one.chart("ΔS over").locator(".u-legend .u-value")
    before = other.all_inner_texts()
    assert chart.count() == 1
    one.hover("accuracy over", 0.1)
    assert other.all_inner_texts() == before


def test_the_list_of_runs_goes_on_after_a_click_and_keeps_its_ticks(
    visit: Opens, address: str, runs: Path
) -> None:
    path = some_run(runs)
    one = visit(address)
    tick = one.page.get_by_label("compare first")
    tick.check()
    one.page.locator("main tbody td").nth(5).click()
    append(path, applied(41, 0, 0, 11.0))
    one.shows("main tbody tr:first-child td:nth-child(6)", "41 of 100")
    tick.focus()
    some_run(runs, "second")
    one.page.get_by_label("compare second").wait_for()
    assert tick.is_checked()
    assert one.page.evaluate("document.activeElement.ariaLabel") == "compare first"
    names = [row[1] for row in one.rows("Newest first")]
    links = one.page.locator("main tbody a").evaluate_all("all => all.map((one) => one.hash.split('/')[2])")
    assert sorted(names) == ["first", "second"]
    assert links == names


def test_whoever_comes_back_to_a_view_finds_it_as_it_was_with_the_figures_of_now(
    first: Opens, runs: Path
) -> None:
    path, one = runs / "first", first("run/first/training", updates=400)
    edge = zoomed_over_seconds(one)
    one.go("run/first/events")
    one.page.get_by_label("Text", exact=True).fill("evaluated")
    one.shows("main tbody tr:first-child td:nth-child(2)", "evaluated")
    one.page.keyboard.press("Escape")
    one.go("run/first/fleet")
    one.page.keyboard.press("d")  # in the colours of now too
    one.page.keyboard.press("z")  # which is meant for what can be seen
    append(path, applied(401, 0, 0, 110.0))
    one.shows(FIGURE, "401")
    one.go("run/first/training")
    assert one.page.get_by_role("button", name="over seconds").get_attribute("aria-pressed") == "true"
    assert one.hover("accuracy over", 0.998) == edge
    one.go("run/first/events")
    assert one.page.get_by_label("Text", exact=True).input_value() == "evaluated"
    one.page.get_by_label("Text", exact=True).fill("")
    one.shows("main tbody tr:first-child td:nth-child(3)", "401")
    some_run(runs, "second")
    one.go("run/second/training")  # of another run nothing is kept
    assert one.page.get_by_role("button", name="over updates").get_attribute("aria-pressed") == "true"


def test_a_chart_that_is_left_points_at_nothing_when_it_is_seen_again(first: Opens, runs: Path) -> None:
    path, one = runs / "first", first("run/first/training", updates=40)
    pointed = one.hover("accuracy over", 0.02)
    one.page.keyboard.press("1")
    one.page.locator('main .view[data-view="fleet"]').wait_for()
    append(path, applied(41, 0, 0, 11.0), evaluated(41, 0.99))
    one.shows(FIGURE, "41")
    one.page.mouse.move(2, 2)
    one.page.keyboard.press("2")
    legend = one.chart("accuracy over").locator(".u-legend .u-value")
    one.page.wait_for_function("all => all[1].textContent === '99.00 %'", arg=legend.element_handles())
    assert legend.all_inner_texts() != pointed


def test_another_look_leaves_axis_zoom_filter_and_focus(first: Opens) -> None:
    one = first("run/first/training", updates=400)
    edge = zoomed_over_seconds(one)
    chart = one.chart("accuracy over")
    chart.focus()
    one.page.keyboard.press("d")
    assert one.page.get_by_role("button", name="over seconds").get_attribute("aria-pressed") == "true"
    assert chart.evaluate("element => element === document.activeElement")
    assert one.hover("accuracy over", 0.998) == edge
    one.go("run/first/events")
    one.page.get_by_label("Text", exact=True).fill("evaluated")
    one.shows("main tbody tr:first-child td:nth-child(2)", "evaluated")
    one.page.get_by_role("button", name="Light").click()
    assert one.page.get_by_label("Text", exact=True).input_value() == "evaluated"


def test_a_chosen_look_outlasts_a_change_of_the_system(first: Opens) -> None:
    one = first("run/first/training")
    one.page.get_by_role("button", name="Dark").click()
    for scheme in ("dark", "light"):
        one.page.emulate_media(color_scheme=scheme)
        assert one.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_focus_stays_on_the_view_that_was_opened(first: Opens) -> None:
    one = first("run/first/fleet")
    one.page.get_by_role("link", name="Traffic").focus()
    one.page.keyboard.press("Enter")
    one.shows("nav [aria-current]", "Traffic")
    assert one.page.evaluate(FOCUSED) == "Traffic"


def test_keys_move_a_zoomed_window_along_and_leave_no_value_behind(first: Opens) -> None:
    one = first("run/first/training", updates=400)
    chart = one.chart("accuracy over")
    rest = chart.locator(".u-legend .u-value").all_inner_texts()
    chart.focus()
    for key in ("End", "+", "+"):
        one.page.keyboard.press(key)
    read = []
    for _ in range(30):
        one.page.keyboard.press("ArrowLeft")
        read.append(int(chart.locator(".u-legend .u-value").first.inner_text()))
    assert read == list(range(390, 90, -10))
    chart.blur()
    assert chart.locator(".u-legend .u-value").all_inner_texts() == rest


def test_a_run_that_begins_later_appears(visit: Opens, address: str, runs: Path) -> None:
    one = visit(address, None)
    one.page.goto(f"{address}/#/run/late/training")
    one.page.locator("main").get_by_text("There is no such run").wait_for()
    some_run(runs, "late")
    one.shows(FIGURE, "40")
    assert one.read("accuracy over")[-1] == ["40", "90.00 %"]
    one.said.clear()  # the console tells of the 404


def test_keys_do_nothing_behind_the_list_of_keys(first: Opens, runs: Path) -> None:
    path, one = runs / "first", first("run/first/fleet")
    one.page.keyboard.press("?")
    one.page.get_by_role("dialog").wait_for()
    one.page.keyboard.press("3")
    one.page.keyboard.press("p")
    append(path, applied(41, 0, 0, 11.0), evaluated(41, 0.9))
    one.shows(FIGURE, "41")
    assert one.page.url.endswith("/fleet")
