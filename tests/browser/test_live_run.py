"""A run of real processes on a real Mosquitto, watched from start to halt; the page says what the records say."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser.visit import Visit, visiting
from tests.program_support import PATIENCE, require_mosquitto, start_mapa

pytestmark = pytest.mark.xdist_group("watched-run")  # one run for all of them
EDGES, UPDATES = 4, 120
LINKS = (*("satellite",) * 3, "4g")  # a run of this length lasts long enough to be seen live


@dataclass(frozen=True)
class Watched:
    """What was on the page while the run went on, and the records that it left."""

    visit: Visit
    began: str  # what the page said before there was a run
    counts: list[int]  # t, as it was seen
    states: list[str]
    name: str
    summary: dict[str, Any]
    events: list[dict[str, Any]]

    def applied(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == "gradient_applied"]


@pytest.fixture(scope="module")
def watched(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    require_mosquitto()
    runs = tmp_path_factory.mktemp("runs")
    page = start_mapa("dashboard", "--runs-dir", str(runs), "--port", "0", stderr=subprocess.PIPE, text=True)
    try:
        found = re.search(r"http://\S+", page.stderr.readline())
        assert found is not None
        with visiting(chromium) as visit:
            one = visit(found[0].rstrip("/"))
            began = one.text("main")
            words = (
                f"run quickstart --broker mosquitto --edges {EDGES} --links {','.join(LINKS)} --iterations {UPDATES}"
                " --set evaluation.every=20 --set privacy.total_epsilon=50.0 --json --runs-dir"
            )
            run = start_mapa(*words.split(), str(runs), stdout=subprocess.DEVNULL)
            try:
                yield _watch(one, began, run, runs)
            finally:
                run.kill()
                run.wait()
    finally:
        page.terminate()
        page.communicate(timeout=PATIENCE)


def _watch(visit: Visit, began: str, run: subprocess.Popen[Any], runs: Path) -> Watched:
    link = visit.page.locator("main a", has_text="quickstart")
    link.first.click()
    visit.page.locator("#run .badge").wait_for()
    counts, states = [0], ["?"]
    while states[-1] != "finished":
        before = visit.page.locator("#run").text_content()
        states.append(visit.text("#run .badge"))
        counts.append(int(visit.tile("update t").inner_text().replace(",", "")))
        assert run.poll() in (None, 0)
        if states[-1] != "finished":
            visit.changed("#run", before)
    assert run.wait(PATIENCE) == 0
    (folder,) = runs.iterdir()
    lines = (folder / "events.jsonl").read_text().splitlines()
    summary = json.loads((folder / "summary.json").read_text())
    visit.go(f"run/{folder.name}/privacy")  # the statement is written last: with it the page has everything
    visit.page.locator(".statement p").get_by_text(summary["privacy"]["words"][0], exact=True).wait_for()
    return Watched(visit, began, counts, states, folder.name, summary, list(map(json.loads, lines)))


def upward(value: float, digits: int = 6) -> str:
    """Return an ε as the page writes it: rounded up."""
    unit = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return f"{math.ceil(value * unit * (1 - 1e-12)) / unit:.{digits}g}"


def test_it_is_seen_from_start_to_halt(watched: Watched) -> None:
    assert "No runs yet" in watched.began
    assert "live" in watched.states
    assert watched.states[-1] == "finished"
    assert watched.counts == sorted(watched.counts)
    assert len(set(watched.counts)) > 3  # it grew before the eyes
    assert watched.counts[-1] == watched.summary["updates"] == UPDATES


def test_the_fleet_has_the_counts_of_each_edge(watched: Watched) -> None:
    watched.visit.go(f"run/{watched.name}/fleet")
    rows = watched.visit.rows("A lane for each edge")
    counts = Counter(event["edge"] for event in watched.applied())
    assert [(int(row[0]), row[1], int(row[6])) for row in rows] == [
        (edge["edge"], edge["edge_id"], edge["applied"]) for edge in watched.summary["edges"]
    ]
    assert {int(row[0]): int(row[6]) for row in rows} == counts
    stated = {row["edge"]: row["epsilon"] for row in watched.summary["privacy"]["edges"]}
    for row in rows:
        of_edge = [event["staleness"] for event in watched.applied() if event["edge"] == int(row[0])]
        mean, largest, last = row[5].split(" / ")
        assert float(mean) == pytest.approx(sum(of_edge) / len(of_edge), rel=0.01)
        assert (int(largest), int(last)) == (max(of_edge), of_edge[-1])
        assert row[7] == f"{len(of_edge) / UPDATES * 100:.1f} %"
        assert row[8] == upward(stated[int(row[0])], 4)
        assert row[3].startswith(LINKS[int(row[0])])


def test_each_bar_of_the_histogram_is_the_count_in_the_records(watched: Watched) -> None:
    watched.visit.go(f"run/{watched.name}/staleness")
    counts = Counter(event["staleness"] for event in watched.applied())
    assert [[int(text) for text in pair] for pair in watched.visit.read("updates over staleness")] == [
        [value, counts[value]] for value in range(max(counts) + 1)
    ]


def test_every_metric_has_the_values_of_the_records(watched: Watched) -> None:
    watched.visit.go(f"run/{watched.name}/training")
    evaluated = [event for event in watched.events if event["event"] == "evaluated"]
    assert len(evaluated) == UPDATES // 20 + 1  # x₁ too
    shown = watched.visit.read("accuracy over")
    assert shown == [[str(event["t"]), f"{event['accuracy'] * 100:.2f} %"] for event in evaluated]
    for (t, loss), event in zip(watched.visit.read("loss over"), evaluated, strict=True):
        assert (int(t), float(loss)) == (event["t"], pytest.approx(event["loss"], rel=1e-6))
    assert watched.visit.hover("accuracy over", 0.999) == shown[-1]
    assert watched.visit.hover("accuracy over", 0.001) == shown[0]


def test_the_statement_and_each_epsilon_are_those_of_the_summary(watched: Watched) -> None:
    watched.visit.go(f"run/{watched.name}/privacy")
    privacy = watched.summary["privacy"]
    assert watched.visit.page.locator(".statement p").all_inner_texts() == privacy["words"]
    rows = watched.visit.rows("Each edge's records")
    assert [(int(row[0]), row[1], int(row[3]), row[6]) for row in rows] == [
        (edge["edge"], edge["edge_id"], edge["releases"], upward(edge["epsilon"]))
        for edge in privacy["edges"]
    ]
    last = watched.visit.read("ε over")[-1]
    assert sorted(last[1 : EDGES + 1]) == sorted(row[6] for row in rows)


def test_traffic_has_the_round_trips_of_the_summary(watched: Watched) -> None:
    watched.visit.go(f"run/{watched.name}/traffic")
    if watched.summary["refused"]:  # what came after the halt
        refused = {row[0]: int(row[1]) for row in watched.visit.rows("Refused gradients")}
        assert refused == watched.summary["refused"]
    else:
        watched.visit.page.get_by_text("None.").wait_for()
    rows = watched.visit.rows("Latency of each edge")
    measured = [row["round_trip_ms"] for row in watched.summary["network"]]
    assert [float(row[6]) for row in rows] == pytest.approx(measured, rel=1e-3)
    for row in rows:
        turns = [float(text) for text in row[2:5]]
        assert turns == sorted(turns)
        assert turns[0] > float(row[5])  # a turn holds the link's delay


def test_events_can_be_filtered(watched: Watched) -> None:
    visit = watched.visit
    visit.go(f"run/{watched.name}/events")
    table = visit.page.get_by_role("region", name="Events, newest first")
    visit.page.get_by_label("Event", exact=True).select_option("evaluated")
    table.locator("tbody tr").nth(UPDATES // 20).wait_for()  # x₁, too
    table.get_by_text("gradient_applied").first.wait_for(state="detached")
    assert table.locator("tbody tr").count() == UPDATES // 20 + 1
    visit.page.get_by_label("Event", exact=True).select_option("")
    edge = watched.summary["edges"][2]["edge_id"]
    visit.page.get_by_label("Edge", exact=True).fill(edge)
    table.get_by_text("evaluated").first.wait_for(state="detached")
    shown = visit.rows("Events, newest first")
    expected = [n for n, event in enumerate(watched.events, 1) if event.get("edge_id") == edge]
    assert [int(row[0].replace(",", "")) for row in shown] == expected[::-1]
    visit.page.get_by_label("Text", exact=True).fill("no such words")
    table.locator("tbody tr").first.wait_for(state="detached")
