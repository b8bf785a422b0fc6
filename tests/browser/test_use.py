"""The page as it is used: hover, zoom, pause, keys, looks, comparison, a token; records are shown as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser.visit import VIEWS, Opens
from tests.dashboard_support import append, applied, evaluated, refused, serving, some_run, write_live_run

TOKEN = "correct-horse-battery-staple"
REACHABLE = 'a[href], button:not(:disabled), input, select, [tabindex="0"]'


def test_a_live_run_has_the_counts_of_its_events(first: Opens) -> None:
    one = first("run/first/traffic")
    assert dict(one.rows("Refused gradients")) == {"old": "2", "size": "1"}
    assert one.tile("refused").inner_text() == "3"
    one.go("run/first/fleet")
    assert [row[6] for row in one.rows("A lane for each edge")] == ["20", "20"]
    one.go("run/first/staleness")
    assert one.read("updates over staleness") == [["0", "13"], ["1", "14"], ["2", "13"]]
    pointed = [one.hover("updates over staleness", share) for share in (0.02, 0.31, 0.35, 0.64, 0.68, 0.98)]
    assert [row[0] for row in pointed] == ["0", "0", "1", "1", "2", "2"]  # a bar is its whole width
    one.go("run/first/training")
    assert one.read("accuracy over") == [[str(t), f"{50 + t:.2f} %"] for t in (10, 20, 30, 40)]


def test_lanes_stay_while_their_figures_change(first: Opens, runs: Path) -> None:
    path, one = runs / "first", first("run/first/fleet")
    one.page.evaluate("window.before = [...document.querySelectorAll('.lanes td, .lanes canvas')]")
    append(path, applied(41, 1, 7, 10.25), applied(42, 2, 0, 10.5))
    one.shows("#run .tile:first-child strong", "42")
    assert [row[5:7] for row in one.rows("A lane for each edge")] == [
        ["1.05 / 2 / 1", "20"],
        ["1.24 / 7 / 7", "21"],
        ["0 / 0 / 0", "1"],
    ]
    assert one.page.evaluate("window.before.every((cell) => cell.isConnected)")
    filled = "all => all.map((one) => one.getContext('2d').getImageData(0, 0, 190, 24).data.some(Boolean))"
    assert one.page.locator(".lanes canvas").evaluate_all(filled) == [True] * 3


def test_older_events_stay_until_the_newest_are_asked_for(visit: Opens, address: str, runs: Path) -> None:
    path = write_live_run(runs, "first", *(applied(t, 0, 0, t / 4) for t in range(1, 131)))
    one = visit(address, "run/first/events")
    numbers = "main tbody tr:first-child td:first-child"
    one.shows(numbers, "130")
    older, newest = (one.page.get_by_role("button", name=name) for name in ("Older", "Newest"))
    assert newest.is_disabled()
    older.click()
    one.shows(numbers, "80")
    append(path, applied(131, 0, 0, 33.0))
    one.shows("#run .tile:first-child strong", "131")
    assert one.text(numbers) == "80"
    older.click()
    one.shows(numbers, "30")
    assert len(one.rows("Events, newest first")) == 30
    assert older.is_disabled()
    assert one.page.evaluate("document.activeElement.textContent") == "Newest"  # not lost with the button
    newest.click()
    one.shows(numbers, "131")
    assert len(one.rows("Events, newest first")) == 50


def test_what_an_audit_found_stands_beside_the_claim(first: Opens, runs: Path) -> None:
    path, one = runs / "first", first("run/first/privacy")
    assert one.page.get_by_role("heading", name="Audit").count() == 0
    game = {"kind": "scenario", "name": "<b>one</b> release", "claimed_epsilon": 0.92591, "violated": False}
    report = {
        "edge": 0,
        "confidence": 0.95,
        "delta": 1e-5,
        "games": [{**game, "lower_epsilon": 0.77777}, {**game, "kind": "planted"}],
        "one_run": {"releases": 101, "canaries": 1000, "claimed_epsilon": 1.69, "lower_epsilon": 0.38},
    }
    (path / "audit.json").write_text(json.dumps(report))
    one.page.get_by_role("heading", name="Audit").wait_for()
    assert one.rows("What the audit found") == [
        ["<b>one</b> release", "0.926", "0.7777", "not refuted"],
        ["a whole run: 101 releases, 1,000 canaries", "1.69", "0.38", "not refuted"],
    ]


def test_pointing_has_exact_values_and_a_drag_zooms(first: Opens, runs: Path) -> None:
    one = first("run/first/training", updates=400)
    assert one.hover("accuracy over", 0.002) == ["10", "60.00 %"]
    whole = [one.hover("accuracy over", share)[0] for share in (0.002, 0.998)]
    assert whole == ["10", "400"]
    box = one.chart("accuracy over").locator(".u-over").bounding_box()
    middle = box["y"] + box["height"] / 2
    one.page.mouse.move(box["x"] + 0.25 * box["width"], middle)
    one.page.mouse.down()
    one.page.mouse.move(box["x"] + 0.5 * box["width"], middle, steps=4)
    one.page.mouse.up()
    low, high = (int(one.hover("accuracy over", share)[0]) for share in (0.002, 0.998))
    assert 90 <= low <= 130 < high <= 230
    append(runs / "first", applied(401, 0, 0, 101.0))
    one.shows("#run .tile:first-child strong", "401")
    assert int(one.hover("accuracy over", 0.998)[0]) == high  # new data leaves the zoom alone
    one.page.keyboard.press("z")
    assert [one.hover("accuracy over", share)[0] for share in (0.002, 0.998)] == whole


def test_keys_zoom_and_read_a_chart(first: Opens) -> None:
    one = first("run/first/training", updates=400)
    chart = one.chart("accuracy over")
    chart.focus()
    one.page.keyboard.press("Home")
    one.page.keyboard.press("ArrowRight")
    assert chart.locator(".unseen").inner_text() == "update t: 20, accuracy: 70.00 %"
    one.page.keyboard.press("+")
    one.page.keyboard.press("+")
    assert int(one.hover("accuracy over", 0.998)[0]) < 200
    one.page.keyboard.press("z")
    assert one.hover("accuracy over", 0.998)[0] == "400"


def test_pause_pauses_every_view_while_a_second_viewer_sees_on(
    visit: Opens, address: str, runs: Path
) -> None:
    some_run(runs)
    one, other = visit(address, "run/first/fleet"), visit(address, "run/first/fleet")
    figure = "#run .tile:first-child strong"
    one.shows(figure, "40")
    one.page.keyboard.press("p")
    append(runs / "first", applied(41, 0, 0, 11.0), evaluated(41, 0.99))
    other.shows(figure, "41")
    for number, _ in enumerate(VIEWS, 1):
        one.page.keyboard.press(str(number))
        one.page.locator("main .view").wait_for()
        assert one.text(figure) == "40"
    one.page.keyboard.press("2")
    assert one.read("accuracy over")[-1] == ["40", "90.00 %"]
    one.page.keyboard.press("6")
    assert one.rows("Events, newest first")[0][1] == "gradient_refused"  # the last before the pause
    one.page.get_by_role("button", name="Go on").click()
    one.shows(figure, "41")


def test_focus_and_scroll_last_while_figures_change(first: Opens, runs: Path) -> None:
    one = first("run/first/fleet", viewport={"width": 360, "height": 700})
    region = one.page.get_by_role("region", name="A lane for each edge")
    region.focus()
    region.evaluate("element => { element.scrollLeft = 120; }")
    append(runs / "first", applied(41, 1, 0, 11.0))
    one.shows("#run .tile:first-child strong", "41")
    assert region.evaluate("element => [element.scrollLeft, element === document.activeElement]") == [
        120,
        True,
    ]


def test_dark_and_light_follow_the_system_until_chosen(visit: Opens, address: str, runs: Path) -> None:
    some_run(runs)
    light, dark = (
        visit(address, "run/first/training"),
        visit(address, "run/first/training", color_scheme="dark"),
    )
    back = "getComputedStyle(document.body).backgroundColor"
    first, second = light.page.evaluate(back), dark.page.evaluate(back)
    assert first != second
    light.page.get_by_role("button", name="Dark").click()
    assert light.page.evaluate(back) == second
    light.page.reload()
    light.page.locator("main .view").wait_for()
    assert light.page.evaluate(back) == second  # kept


def test_two_runs_are_compared(visit: Opens, address: str, runs: Path) -> None:
    some_run(runs, "first", 40)
    some_run(runs, "second", 30)
    one = visit(address)
    for name in ("first", "second"):
        one.page.get_by_label(f"compare {name}").check()
    one.page.get_by_role("button", name="Compare").click()
    one.page.get_by_role("heading", name="Compare").wait_for()
    shown = one.read("accuracy over")
    assert shown[1] == ["20", "70.00 %", "70.00 %"]
    assert shown[3][:2] == ["40", "90.00 %"]
    rows = {row[0]: row for row in one.rows("The runs side by side")}
    assert (rows["first"][4], rows["second"][4]) == ("40", "30")
    one.page.get_by_label("Metric").select_option("loss")
    assert one.read("loss over")[0] == ["10", "0.4", "0.4"]
    append(runs / "second", applied(31, 0, 0, 8.0))
    one.shows("main tbody tr:nth-child(2) td:nth-child(5)", "31")


@pytest.mark.parametrize(
    "place", ["runs", "compare?run=first&run=first", *(f"run/first/{view}" for view in VIEWS)]
)
def test_the_keyboard_alone_reaches_everything(first: Opens, place: str) -> None:
    one = first(place)
    if place.endswith(("events", "runs")):
        one.page.get_by_role("region").locator("tbody tr").first.wait_for()
    one.page.keyboard.press("p")  # so that nothing is replaced meanwhile
    one.page.evaluate("document.activeElement.blur()")
    unseen: list[str] = []
    for _ in range(one.page.locator(REACHABLE).count() + 2):
        one.page.keyboard.press("Tab")
        unseen += one.page.evaluate(
            "() => { const it = document.activeElement; it.dataset.reached = '1';"
            " return it === document.body || getComputedStyle(it).outlineStyle !== 'none' ? [] : [it.outerHTML]; }"
        )
    assert unseen == []  # the focus can be seen wherever it is
    missed = one.page.locator(REACHABLE).evaluate_all(
        "all => all.filter(one => one.checkVisibility() && !one.dataset.reached).map(one => one.outerHTML)"
    )
    assert missed == []


def test_keys_open_views_and_help(visit: Opens, address: str, runs: Path) -> None:
    some_run(runs)
    one = visit(address)
    one.page.get_by_role("link", name="first").focus()
    one.page.keyboard.press("Enter")
    one.page.wait_for_url("**/#/run/first**")
    for number, view in enumerate(VIEWS, 1):
        one.page.keyboard.press(str(number))
        one.page.wait_for_url(f"**/#/run/first/{view}")
        one.shows("nav [aria-current]", view.capitalize())
    one.page.keyboard.press("?")
    one.page.get_by_role("dialog").wait_for()
    one.page.keyboard.press("Escape")
    one.page.get_by_role("dialog").wait_for(state="hidden")
    one.page.keyboard.press("0")
    one.page.get_by_role("heading", name="Runs").wait_for()


def test_what_records_say_is_text(visit: Opens, address: str, runs: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    path = some_run(runs)
    manifest = json.loads((path / "manifest.json").read_text())
    table = {"name": hostile}
    manifest["scenario"] |= {"algorithm": table, "model": table, "data": {"set": hostile}, "links": [table]}
    (path / "manifest.json").write_text(json.dumps({**manifest, "name": hostile, "engine": hostile}))
    joined = {"event": "edge_joined", "edge": 1, "edge_id": hostile, "returned": False, "t": 0}
    gone = {"event": "edge_gone", "edge": 1, "edge_id": hostile, "reason": hostile}
    append(path, joined, gone, refused(hostile, hostile, 9.0), {"event": hostile, "note": hostile})
    append(path, {"event": "evaluated", "t": 40, hostile: 0.5})
    words = {
        hostile: hostile,
        "words": [hostile],
        "edges": [{"edge": 1, "edge_id": hostile, "reason": hostile}],
    }
    one = visit(address, "runs")
    assert hostile in one.text("main")
    for view in VIEWS:
        one.go(f"run/first/{view}")
        one.page.get_by_text(hostile).first.wait_for()
        assert one.page.locator("main img, #run img").count() == 0
    ended = {"updates": 40, "reason": hostile, "refused": {hostile: 1}, "warning": hostile, "privacy": words}
    (path / "summary.json").write_text(json.dumps(ended))
    one.page.locator("#run .badge", has_text=hostile).wait_for()
    for place in (*(f"run/first/{view}" for view in VIEWS), "compare?run=first", "runs"):
        one.go(place)
        assert hostile in one.text("body")
        assert one.page.locator("img").count() == 0


def test_the_browser_would_tell_of_a_request_elsewhere_and_of_a_breach(first: Opens) -> None:
    """The watch over every visit can fail."""
    one = first("run/first/fleet")
    one.page.evaluate("fetch('http://elsewhere.invalid/').catch(() => null)")
    one.page.evaluate(
        "() => { document.body.append(Object.assign(document.createElement('script'), { text: 'let x' })); }"
    )
    assert len([line for line in one.said if "Content Security Policy" in line]) >= 2
    with one.page.expect_event("requestfailed"):
        one.page.evaluate("() => { location.href = 'http://elsewhere.invalid/'; }")
    assert one.outside == ["http://elsewhere.invalid/"]
    one.outside.clear()
    one.said.clear()


def test_with_a_token_the_first_address_opens_the_page_and_is_forgotten(visit: Opens, runs: Path) -> None:
    some_run(runs)
    with serving(runs, TOKEN) as address:
        stranger = visit(address, None)
        assert stranger.page.goto(f"{address}/").status == 401
        assert "first" not in stranger.text("body")
        stranger.said.clear()  # the console tells of the 401
        one = visit(address, None)
        one.page.goto(f"{address}/?token={TOKEN}")
        one.page.get_by_role("link", name="first").click()
        one.shows("#run .tile:first-child strong", "40")
        assert TOKEN not in one.page.url
        one.page.go_back()
        assert TOKEN not in one.page.url
        assert TOKEN not in one.page.evaluate("document.cookie")
        one.page.close()
        stranger.page.close()


def test_a_run_that_has_just_begun_says_what_is_missing(visit: Opens, address: str, runs: Path) -> None:
    write_live_run(runs, "first")
    one = visit(address, "run/first/fleet")
    for view, said in (
        ("fleet", "No edge has joined yet"),
        ("training", "No evaluation"),
        ("traffic", "No edge yet"),
    ):
        one.go(f"run/first/{view}")
        one.page.get_by_text(said).wait_for()


@pytest.mark.parametrize("place", ["run/%ff/fleet", "compare/%ff", "compare/", "%"])
def test_an_address_that_is_none_shows_the_runs(visit: Opens, address: str, runs: Path, place: str) -> None:
    some_run(runs)
    one = visit(address, None)
    one.page.goto(f"{address}/#/{place}")
    one.page.get_by_role("heading", name="Runs").wait_for()
    assert one.said == []


@pytest.mark.parametrize("place", ["run/none/fleet", "compare?run=none"])
def test_a_run_that_is_not_there_is_said_to_be_missing(
    visit: Opens, address: str, runs: Path, place: str
) -> None:
    some_run(runs)
    one = visit(address, None)
    one.page.goto(f"{address}/#/{place}")
    one.page.locator("main").get_by_text("There is no such run").wait_for()
    one.page.get_by_role("link", name="All runs").click()
    one.page.get_by_role("heading", name="Runs").wait_for()
    one.said.clear()  # the console tells of the 404


def test_wrong_types_are_dashes_and_long_words_do_not_widen_the_page(
    visit: Opens, address: str, runs: Path
) -> None:
    long = "n" * 200
    path = some_run(runs, long)
    append(path, {"event": "evaluated", "t": 40, "m" * 190: 0.5, "k" * 190: 1.0})
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["scenario"] |= {"iterations": "many", "edges": {"a": 1}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    huge = dict.fromkeys(("mean", "p50", "p90", "p99", "max"), 9007199254740991)
    summary = {"updates": [1], "reason": "r" * 200, "staleness": huge, "warning": "w" * 400}
    (path / "summary.json").write_text(json.dumps(summary))
    one = visit(address, "runs", viewport={"width": 360, "height": 740})
    places = ("runs", f"compare?run={long}", *(f"run/{long}/{view}" for view in VIEWS))
    for place in places:
        one.go(place)
        assert one.width <= 360, place
        assert "NaN" not in one.text("body")
    assert one.text("#run .tile:first-child") == "update t\n–\nof –"


def test_runs_with_other_names_are_counted(visit: Opens, address: str, runs: Path) -> None:
    some_run(runs)
    some_run(runs, "my scen ünï-1")
    one = visit(address)
    one.page.get_by_text("not shown: 1 more (1 with names").wait_for()
