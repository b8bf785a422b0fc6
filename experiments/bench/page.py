"""The live page in a real Chromium while updates pour in: how late it is, how fast it answers, what its tab takes."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import os
import re
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.bench.beside import looking
from experiments.bench.ratios import Ratio
from experiments.bench.soak import running
from experiments.bench.stolen import Stolen
from mapa.dashboard.child import page_beside

EDGES, RATE = 20, 1000  # updates a second
_LOOK = 0.005  # seconds between two looks at the end of the events
_TAIL = 1 << 16  # bytes of its end that are read: more than a look's worth of lines
SETTINGS = ("batch_size=64", "iterations=1000000000", "evaluation.every=2000", "records.keep_gradients=false")
_VIEWS = ("fleet", "training", "staleness", "privacy", "traffic", "events")  # by their keys
_EACH = 5.0  # seconds in a view
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

    waits: list[tuple[float, float]] = field(default_factory=list)  # of the oldest update that was not shown
    inputs: list[tuple[float, float]] = field(default_factory=list)  # from an event to its paint, from 16 ms
    long: list[float] = field(default_factory=list)  # tasks from 50 ms, in ms
    events: int = 0
    tasks: list[float] = field(default_factory=list)  # the processor's time of each of the tab's tasks, in ms
    heaps: list[float] = field(default_factory=list)  # MB
    tabs: list[tuple[float, float]] = field(default_factory=list)  # own and resident MB

    def slowest(self, stolen: Stolen | None = None, processors: set[int] | None = None) -> float:
        """Return the slowest answer to an input in ms; with `stolen`, without what the host took meanwhile."""
        return 1000 * max((length(span, stolen, processors) for span in self.inputs), default=0.016)

    def moments(self, stolen: Stolen, processors: set[int]) -> int:
        """Return at how many moments an answer took more than 100 ms so; events that waited together are one."""
        late = sorted(span for span in self.inputs if length(span, stolen, processors) > 0.1)
        ends = itertools.accumulate((end for _, end in late), max)
        return len(late) - sum(begin <= end for (begin, _), end in zip(late[1:], ends, strict=False))

    def usual(self) -> float:
        """Return within how many ms 99 of 100 inputs were answered."""
        answers = sorted((length(span) for span in self.inputs), reverse=True)
        place = self.events // 100
        return 1000 * (answers[place] if place < len(answers) else 0.016)


def length(
    span: tuple[float, float], stolen: Stolen | None = None, processors: set[int] | None = None
) -> float:
    begin, end = span
    return end - begin - (0.0 if stolen is None else stolen.within(begin, end, processors))


@contextlib.contextmanager
def on(processors: set[int]) -> Iterator[None]:
    """Start processes on these processors alone; where the system cannot say so, on all."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def halves() -> tuple[set[int], set[int]]:
    """Return the processors in two halves, for the run and for the browser; all for both where there is one."""
    everything = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    middle = len(everything) // 2
    return set(everything[:middle] or everything), set(everything[middle:])


def page_ratios(minutes: float) -> Iterator[Ratio]:
    """Watch a live run of 20 edges and 1,000 updates a second, moving, zooming and changing views all the while.

    The run has one half of the processors and the browser the other, as if it were watched from another machine: what
    else a busy machine does is not the page's. Time that the host of a virtual machine gave to others is taken off.
    An empty page that is watched afterwards, for a tenth of the time, tells what the browser itself takes.
    """
    from playwright.sync_api import sync_playwright

    program = find_chromium()
    assert program is not None
    stolen = Stolen()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        of_run, of_browser = halves()
        with ExitStack() as stack:
            with on(of_run):
                bed = stack.enter_context(running(EDGES, minutes, RATE, 1, folder, SETTINGS))
                beside = stack.enter_context(page_beside(bed.runs))
            stack.enter_context(on(of_browser))
            playwright = stack.enter_context(sync_playwright())
            (run,) = bed.runs.iterdir()
            recorded = Recorded(run / "events.jsonl")
            browser = playwright.chromium.launch(executable_path=program)
            try:
                with looking(recorded.look, _LOOK), stolen.looking():
                    address = f"{beside.address}#/run/{run.name}/fleet"
                    seen = _watched(browser, address, recorded, minutes * 60)
                    empty = _watched_empty(browser, minutes * 6)
            finally:
                browser.close()
            bed.check()
            bed.end()
    (first, began), (last, ended) = recorded.written[0], recorded.written[-1]
    what = f"{minutes:g} min, {(last - first) / (ended - began):,.0f} updates/s of {EDGES} edges"
    waits = sorted(length(span) for span in seen.waits)
    detail = f"median {statistics.median(waits):.2f} s, 99 % {waits[int(0.99 * (len(waits) - 1))]:.2f} s"
    detail += (
        f", with what the host took {waits[-1]:.2f} s; {what}; the host took {stolen.share:.0%} of the time"
    )
    latest = max(length(span, stolen) for span in seen.waits)
    yield Ratio("page: latest an update is shown / 1 s", latest, 1.0, True, detail)
    tasks = f"{len(seen.long)} long tasks, the longest {max(seen.long, default=0):.0f} ms"
    detail = f"above 100 ms at {seen.moments(stolen, of_browser)} moments; "
    detail += f"with what the host took {seen.slowest():.0f} ms, 99 % of {seen.events:,} events within "
    detail += f"{seen.usual():.0f} ms; {tasks}; an empty page: {empty.slowest(stolen, of_browser):.0f} ms, "
    detail += f"with what the host took {empty.slowest():.0f} ms, 99 % within {empty.usual():.0f} ms"
    yield Ratio(
        "page: slowest input to paint / 100 ms", seen.slowest(stolen, of_browser) / 100, 1.0, True, detail
    )
    worst = max(seen.tasks)
    detail = f"a long task has 50 ms; {len(seen.tasks):,} tasks in a round through all views, traced"
    yield Ratio("page: longest task, on the processor / 50 ms", worst / 50, 1.0, True, detail)
    own, resident = (max(column) for column in zip(*seen.tabs, strict=True))
    detail = f"{own:.0f} MB its own, {resident:.0f} MB resident, JavaScript heap {max(seen.heaps):.0f} MB"
    yield Ratio("page: its tab's own memory / 200 MB", own / 200, 1.0, True, f"{detail}; the largest seen")


def _watched_empty(browser: Any, seconds: float) -> Watched:
    """Return how an empty page answers: one that writes a text on each event."""
    page = browser.new_context(viewport=_SCREEN).new_page()
    page.goto("about:blank")
    page.set_content("<p id=seen>0</p>")
    page.evaluate(_TIMED)
    page.evaluate("""() => { for (const name of ["keydown", "mousemove"])
      document.addEventListener(name, () => { seen.textContent = Number(seen.textContent) + 1; }); }""")
    found, began = Watched(), time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        _used(page, now)
    _timed(page, found)
    page.context.close()
    return found


def _watched(browser: Any, address: str, recorded: Recorded, seconds: float) -> Watched:
    """Return how a live run's page was over the time."""
    page = browser.new_context(viewport=_SCREEN).new_page()
    page.add_init_script(_TIMED)
    opened = time.monotonic()
    page.goto(address)
    page.locator("main .view").wait_for()
    control, metrics = browser.new_browser_cdp_session(), page.context.new_cdp_session(page)
    metrics.send("Performance.enable")
    figure = page.locator("#run .tile strong").first
    found, began, step = Watched(), time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        if now >= step * _EACH:
            _turned(page, step)
            values = {row["name"]: row["value"] for row in metrics.send("Performance.getMetrics")["metrics"]}
            found.heaps.append(values["JSHeapUsedSize"] / 1e6)
            found.tabs.append(_tab(control))
            step += 1
        shown, looked = int(figure.inner_text().replace(",", "")), time.monotonic()
        found.waits.append((max(opened, looked - recorded.lag(shown, looked)), looked))
        _used(page, now)
    _timed(page, found)
    found.tasks = _traced(browser, page)
    page.context.close()
    return found


def _turned(page: Any, step: int) -> None:
    """Press the key of a view, one after the other, and wait for it."""
    place = step % len(_VIEWS)
    page.keyboard.press(str(place + 1))
    page.locator(f'main .view[data-view="{_VIEWS[place]}"]').wait_for()


def _traced(browser: Any, page: Any) -> list[float]:
    """Return how many ms each task of the page's main thread had on the processor, in a round through the views."""
    browser.start_tracing(
        page=page, categories=["-*", "devtools.timeline", "disabled-by-default-devtools.timeline"]
    )
    for step in range(len(_VIEWS)):
        _turned(page, step)
        began = time.monotonic()
        while (now := time.monotonic() - began) < _EACH:
            _used(page, now)
    return task_times(json.loads(browser.stop_tracing())["traceEvents"])


def task_times(events: list[dict[str, Any]]) -> list[float]:
    """Return the processor's ms of each task of the thread that lays out most: the page's."""
    threads = Counter((one["pid"], one["tid"]) for one in events if one["name"] == "Layout")
    (busiest, _), *_ = threads.most_common(1)
    mine = (one for one in events if one["name"] == "RunTask" and (one["pid"], one["tid"]) == busiest)
    return [one["tdur"] / 1000 for one in mine if "tdur" in one]


def _used(page: Any, now: float) -> None:
    """Move the pointer and press a key, as somebody who looks around."""
    page.mouse.move(200 + (now * 160) % 900, 420 + (now * 40) % 200)
    page.keyboard.press("ArrowRight")
    time.sleep(0.05)


def _timed(page: Any, found: Watched) -> None:
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


def _tab(control: Any) -> tuple[float, float]:
    """Return what the renderer process holds itself, and what is resident, in MB: the largest renderer."""
    found = []
    for process in control.send("SystemInfo.getProcessInfo")["processInfo"]:
        if process["type"] == "renderer":
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process['id']}/status").read_text(encoding="utf-8")
                sizes = (re.search(rf"{name}:\s+(\d+) kB", status) for name in ("RssAnon", "VmRSS"))
                found.append(tuple(int(size[1]) * 1024 / 1e6 if size else 0.0 for size in sizes))
    own, resident = max(found, key=lambda pair: pair[1], default=(0.0, 0.0))
    return own, resident
