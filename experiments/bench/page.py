"""The live page in a real Chromium while updates pour in: how late it is, how fast it answers, what its tab takes."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import math
import os
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.bed import cloud_bed, cores, held_by, on_cores, repeating
from experiments.bench.edges import clock_of
from experiments.bench.rounds import Case, Figures, Ratio, Turn
from mapa.commands.dashboard import page_beside

_EDGES, _RATE = 20, 1000  # updates a second
_LOOK = 0.005  # seconds between two looks at the end of the events
_TAIL = 1 << 16  # bytes of its end that are read: more than a look's worth of lines
_SETTINGS = (
    "batch_size=64",
    "iterations=1000000000",
    "evaluation.every=2000",
    "records.keep_gradients=false",
)
_STAT = Path("/proc/stat")
_STEAL_LOOK = 0.02  # seconds between two looks at it
_TICKS = os.sysconf("SC_CLK_TCK")
_VIEWS = ("fleet", "training", "staleness", "privacy", "traffic", "events")  # by their keys
_EACH = 5.0  # seconds in a view
_BEGINNING = 15.0  # seconds in which the page's server reads what is there, and computes ε
_SCREEN = {"width": 1280, "height": 900}
_TIMED = """
window.seen = { inputs: [], long: [] };
const keep = (name) => (list) => {
  for (const one of list.getEntries()) window.seen[name].push([one.startTime, one.duration]);
};
new PerformanceObserver(keep("inputs")).observe({ type: "event", durationThreshold: 16, buffered: true });
new PerformanceObserver(keep("long")).observe({ type: "longtask", buffered: true });
"""
_SEEN = (
    """() => ({ ...window.seen, total: [...performance.eventCounts.values()].reduce((a, b) => a + b, 0) })"""
)


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


Span = tuple[float, float]  # of the monotonic clock


def stolen_ticks(text: str) -> dict[int, int]:
    """Return the stolen ticks of each processor, from the text of /proc/stat."""
    rows = (line.split() for line in text.splitlines() if line.startswith("cpu") and line[3:4].isdigit())
    return {int(row[0][3:]): int(row[8]) if len(row) > 8 else 0 for row in rows}


@dataclass(slots=True)
class Stolen:
    """How long the host of a virtual machine gave its processors to others, by the kernel's counters over time."""

    times: list[float] = field(default_factory=list)
    ticks: dict[int, list[int]] = field(default_factory=dict)  # by processor, at each of the times

    def look(self) -> None:
        if _STAT.exists():
            self.take(time.monotonic(), stolen_ticks(_STAT.read_text(encoding="ascii")))

    def take(self, when: float, ticks: Mapping[int, int]) -> None:
        self.times.append(when)
        for processor, count in ticks.items():
            self.ticks.setdefault(processor, []).append(count)

    def own(self, span: Span, processors: Collection[int] | None = None) -> float:
        """Return the length of a span without the time for which one of the processors was given to others.

        It is the one that was so for longest. Counts come in whole ticks, and between two looks they are taken to
        grow evenly: one tick less is counted.
        """
        begin, end = span
        looked = [self.ticks[one] for one in self.ticks if processors is None or one in processors]
        grown = (float(np.diff(np.interp(span, self.times, counts))[0]) for counts in looked)
        return end - begin - min(end - begin, max(0.0, max(grown, default=0.0) - 1) / _TICKS)

    @property
    def share(self) -> float:
        """Return the stolen share of all processors over the whole time."""
        if len(self.times) < 2:
            return 0.0
        taken = sum(counts[-1] - counts[0] for counts in self.ticks.values())
        return taken / _TICKS / len(self.ticks) / (self.times[-1] - self.times[0])


NOTHING_STOLEN = Stolen()


@dataclass(slots=True)
class Recorded:
    """When each update of a live run was on disk, read from the end of its events as they grow."""

    events: Path
    written: list[tuple[int, float]] = field(default_factory=list)  # (t, when it was seen on disk)

    def look(self) -> None:
        """Take the last update that is on disk now."""
        with self.events.open("rb") as stream:
            end, now = stream.seek(0, os.SEEK_END), time.monotonic()
            stream.seek(max(0, end - _TAIL))
            lines = stream.read().split(b"\n")[1:-1]  # whole ones
        applied = next((line for line in reversed(lines) if b"gradient_applied" in line), None)
        t = json.loads(applied)["t"] if applied is not None else 0
        if t and (not self.written or t > self.written[-1][0]):
            self.written.append((t, now))

    def lag(self, shown: int, now: float) -> float:
        """Return for how long the oldest update that is not shown has been on disk."""
        place = bisect.bisect_right(self.written, (shown, float("inf")))
        return max(0.0, now - self.written[place][1]) if place < len(self.written) else 0.0


@dataclass(slots=True)
class Watched:
    """What was seen of a page: spans of the monotonic clock, and what its tab took."""

    waits: list[Span] = field(default_factory=list)  # of the oldest update that was not shown
    inputs: list[Span] = field(default_factory=list)  # from an event to its paint, from 16 ms
    long: list[float] = field(default_factory=list)  # tasks from 50 ms, in ms
    events: int = 0
    tasks: list[float] = field(default_factory=list)  # the processor's time of each of the tab's tasks, in ms
    heaps: list[float] = field(default_factory=list)  # MB
    tabs: list[tuple[float, float]] = field(default_factory=list)  # own and resident MB
    served: list[tuple[float, float]] = field(
        default_factory=list
    )  # (when, the server's seconds of processor)

    def server_share(self, begin: float, end: float) -> float:
        """Return the server's share of a processor in % between two times, which count from the page's opening."""
        times = [when - self.served[0][0] for when, _ in self.served]
        end = min(end, times[-1])
        used = np.diff(np.interp((begin, end), times, [spent for _, spent in self.served]))
        return 100 * float(used[0]) / (end - begin)

    def slowest(self, stolen: Stolen = NOTHING_STOLEN, processors: set[int] | None = None) -> float:
        """Return the slowest answer to an input in ms; with `stolen`, without what the host took meanwhile."""
        return 1000 * max((stolen.own(span, processors) for span in self.inputs), default=0.016)

    def moments(self, stolen: Stolen, processors: set[int]) -> int:
        """Return at how many moments an answer took more than 100 ms so; events that waited together are one."""
        late = sorted(span for span in self.inputs if stolen.own(span, processors) > 0.1)
        ends = itertools.accumulate((end for _, end in late), max)
        return len(late) - sum(begin <= end for (begin, _), end in zip(late[1:], ends, strict=False))

    def usual(self) -> float:
        """Return within how many ms 99 of 100 inputs were answered."""
        answers = sorted((end - begin for begin, end in self.inputs), reverse=True)
        place = self.events // 100
        return 1000 * (answers[place] if place < len(answers) else 0.016)

    def inputs_told(self, stolen: Stolen, processors: set[int]) -> Figures:
        return {
            "slowest input ms": self.slowest(stolen, processors),
            "input with the host's ms": self.slowest(),
            "99 % ms": self.usual(),
            "inputs": self.events,
            "moments above 100 ms": self.moments(stolen, processors),
        }


def page_cases(minutes: float) -> Iterator[Case]:
    """Yield a live run that is watched, and an empty page, which tells what the browser itself takes."""
    bars = (
        Ratio("latest update s", "the page", at_most=1.0),
        Ratio("slowest input ms", "the page", at_most=100),
        Ratio("longest task ms", "the page", at_most=50),
        Ratio("own MB", "the page", at_most=200),
        Ratio("server's first 15 s %", "the page", at_most=15),
        Ratio("server %", "the page", at_most=10),
    )
    name = f"page, {minutes:g} min, {_EDGES} edges; without what the host took, unless said"
    empty: list[Figures] = []
    turns: dict[str, Turn] = {"the page": lambda: _page(minutes, empty), "an empty page": lambda: empty[-1]}
    yield Case(name, turns, bars, rounds=1)


def _page(minutes: float, empty: list[Figures]) -> Figures:
    """Watch a live run of 20 edges and 1,000 updates a second, moving, zooming and changing views all the while.

    The run has one half of the processors and the browser the other, as if it were watched from another machine: what
    else a busy machine does is not the page's. An empty page is watched afterwards, for a tenth of the time.
    """
    from playwright.sync_api import sync_playwright

    stolen, middle = Stolen(), len(cores()) // 2
    of_run, of_browser = cores()[:middle] or cores(), set(cores()[middle:])
    with contextlib.ExitStack() as stack:
        with on_cores(of_run):
            bed = stack.enter_context(cloud_bed("quickstart", _EDGES, _SETTINGS))
            bed.lean_edges(_EDGES, _RATE, 60 * minutes, 1)
            beside = stack.enter_context(page_beside(bed.runs))
        stack.enter_context(on_cores(of_browser))
        playwright = stack.enter_context(sync_playwright())
        (run,) = bed.runs.iterdir()
        recorded = Recorded(run / "events.jsonl")
        browser = playwright.chromium.launch(executable_path=find_chromium())
        try:
            with repeating(recorded.look, _LOOK), repeating(stolen.look, _STEAL_LOOK):
                address = f"{beside.address}#/run/{run.name}/fleet"
                seen = _watched(browser, address, recorded, minutes * 60, clock_of(beside.child.pid))
                unused = _watched_empty(browser, minutes * 6)
        finally:
            browser.close()
        bed.check()
        bed.end()
    (first, began), (last, ended) = recorded.written[0], recorded.written[-1]
    waits = sorted(end - begin for begin, end in seen.waits)
    own, resident = (max(column) for column in zip(*seen.tabs, strict=True))
    empty.append(unused.inputs_told(stolen, of_browser))
    return {
        "latest update s": max(map(stolen.own, seen.waits)),
        "with the host's s": waits[-1],
        "median s": statistics.median(waits),
        "99 % s": waits[int(0.99 * (len(waits) - 1))],
        **seen.inputs_told(stolen, of_browser),
        "longest task ms": max(seen.tasks),
        "tasks": len(seen.tasks),
        "long tasks": len(seen.long),
        "own MB": own,
        "resident MB": resident,
        "heap MB": max(seen.heaps),
        "server's first 15 s %": seen.server_share(0, _BEGINNING),
        "server %": seen.server_share(_BEGINNING, math.inf),
        "updates/s": (last - first) / (ended - began),
        "host took %": 100 * stolen.share,
    }


def _watched_empty(browser: Any, seconds: float) -> Watched:
    """Return how an empty page answers: one that writes a text on each event."""
    page = browser.new_context(viewport=_SCREEN).new_page()
    page.goto("about:blank")
    page.set_content("<p id=seen>0</p>")
    page.evaluate(_TIMED)
    page.evaluate("""() => { for (const name of ["keydown", "mousemove"])
      document.addEventListener(name, () => { seen.textContent = Number(seen.textContent) + 1; }); }""")
    for _ in _used(page, seconds):
        pass
    return _timed(page, Watched())


def _watched(browser: Any, address: str, recorded: Recorded, seconds: float, server: int) -> Watched:
    """Return how a live run's page was over the time, and in a traced round through its views."""
    page, found = browser.new_context(viewport=_SCREEN).new_page(), Watched()
    page.add_init_script(_TIMED)
    opened = time.monotonic()
    found.served.append((opened, time.clock_gettime(server)))
    page.goto(address)
    page.locator("main .view").wait_for()
    control, metrics = browser.new_browser_cdp_session(), page.context.new_cdp_session(page)
    metrics.send("Performance.enable")
    figure = page.locator("#run .tile strong").first
    for step in range(math.ceil(seconds / _EACH)):
        _turn(page, step)
        values = {row["name"]: row["value"] for row in metrics.send("Performance.getMetrics")["metrics"]}
        found.heaps.append(values["JSHeapUsedSize"] / 1e6)
        found.tabs.append(_tab(control))
        for _ in _used(page, min(_EACH, seconds - step * _EACH)):
            shown, looked = int(figure.inner_text().replace(",", "")), time.monotonic()
            found.served.append((looked, time.clock_gettime(server)))
            found.waits.append((max(opened, looked - recorded.lag(shown, looked)), looked))
    _timed(page, found)
    browser.start_tracing(
        page=page, categories=["-*", "devtools.timeline", "disabled-by-default-devtools.timeline"]
    )
    for step in range(len(_VIEWS)):
        _turn(page, step)
        for _ in _used(page, _EACH):
            pass
    found.tasks = task_times(json.loads(browser.stop_tracing())["traceEvents"])
    return found


def _turn(page: Any, step: int) -> None:
    """Press the key of a view, one after the other, and wait for it."""
    place = step % len(_VIEWS)
    page.keyboard.press(str(place + 1))
    page.locator(f'main .view[data-view="{_VIEWS[place]}"]').wait_for()


def _used(page: Any, seconds: float) -> Iterator[None]:
    """Move the pointer and press a key again and again, as a user who looks around; yield in between."""
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        yield
        page.mouse.move(200 + (now * 160) % 900, 420 + (now * 40) % 200)
        page.keyboard.press("ArrowRight")
        time.sleep(0.05)


def task_times(events: list[dict[str, Any]]) -> list[float]:
    """Return the processor's ms of each task of the thread that lays out most: the page's."""
    threads = Counter((one["pid"], one["tid"]) for one in events if one["name"] == "Layout")
    (busiest, _), *_ = threads.most_common(1)
    mine = (one for one in events if one["name"] == "RunTask" and (one["pid"], one["tid"]) == busiest)
    return [one["tdur"] / 1000 for one in mine if "tdur" in one]


def _timed(page: Any, found: Watched) -> Watched:
    """Take what the browser timed, as spans of our clock; the two are set side by side where asking was fastest."""
    asked = []
    for _ in range(20):
        before = time.monotonic()
        there = page.evaluate("performance.now()") / 1000
        asked.append((time.monotonic() - before, before - there))
    offset = min(asked)[1]
    seen = page.evaluate(_SEEN)
    found.inputs = [(offset + at / 1000, offset + (at + took) / 1000) for at, took in seen["inputs"]]
    found.long = [took for _, took in seen["long"]]
    found.events = seen["total"]
    return found


def _tab(control: Any) -> tuple[float, float]:
    """Return what the largest renderer process holds itself, and what is resident, in MB."""
    found = [(0.0, 0.0)]
    for process in control.send("SystemInfo.getProcessInfo")["processInfo"]:
        if process["type"] == "renderer":
            with contextlib.suppress(OSError):
                found.append(held_by(process["id"]))
    own, resident = max(found, key=lambda pair: pair[1])
    return own / 1e6, resident / 1e6
