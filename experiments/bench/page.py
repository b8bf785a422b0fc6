"""The live page in a real Chromium while updates pour in: how late it is, how fast it answers, what its tab takes."""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.bench.ratios import Ratio
from experiments.bench.soak import running
from mapa.dashboard.child import page_beside

EDGES, RATE = 20, 1000  # updates a second
_LOOK = 0.005  # seconds between two looks at the end of the events
_TAIL = 1 << 16  # bytes of its end that are read: more than a look's worth of lines
SETTINGS = ("batch_size=64", "iterations=1000000000", "evaluation.every=2000", "records.keep_gradients=false")
_VIEWS = "123456"
_EACH = 5.0  # seconds in a view
_TIMED = """
window.seen = { inputs: [], long: [] };
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.seen.inputs.push(one.duration); })
  .observe({ type: "event", durationThreshold: 16, buffered: true });
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.seen.long.push(one.duration); })
  .observe({ type: "longtask", buffered: true });
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
    _stop: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        """Look every few milliseconds until told to stop."""
        with self.events.open("rb") as stream:
            while not self._stop.wait(_LOOK):
                end, now = stream.seek(0, os.SEEK_END), time.monotonic()
                stream.seek(max(0, end - _TAIL))
                lines = stream.read().split(b"\n")[1:-1]  # whole ones
                applied = next((line for line in reversed(lines) if b"gradient_applied" in line), None)
                t = json.loads(applied)["t"] if applied is not None else 0
                if t and (not self.written or t > self.written[-1][0]):
                    self.written.append((t, now))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        thread = threading.Thread(target=self.read)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def lag(self, shown: int, now: float) -> float:
        """Return for how long the oldest update that is not shown has been on disk."""
        place = bisect.bisect_right(self.written, (shown, float("inf")))
        return max(0.0, now - self.written[place][1]) if place < len(self.written) else 0.0


def page_ratios(minutes: float) -> Iterator[Ratio]:
    """Watch a live run of 20 edges and 1,000 updates a second, moving, zooming and changing views all the while."""
    from playwright.sync_api import sync_playwright

    program = find_chromium()
    assert program is not None
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with (
            running(EDGES, minutes, RATE, 1, folder, SETTINGS) as bed,
            page_beside(bed.runs) as beside,
            sync_playwright() as playwright,
        ):
            (run,) = bed.runs.iterdir()
            recorded = Recorded(run / "events.jsonl")
            browser = playwright.chromium.launch(executable_path=program)
            try:
                with recorded.reading():
                    address = f"{beside.address}#/run/{run.name}/fleet"
                    lags, heaps, tabs = _watched(browser, address, recorded, minutes * 60)
                seen = browser.contexts[0].pages[0].evaluate(_SEEN)
            finally:
                browser.close()
            bed.check()
            bed.end()
    (first, began), (last, ended) = recorded.written[0], recorded.written[-1]
    what = f"{minutes:g} min, {(last - first) / (ended - began):,.0f} updates/s of {EDGES} edges"
    lags.sort()
    detail = f"median {statistics.median(lags):.2f} s, 99 % {lags[int(0.99 * (len(lags) - 1))]:.2f} s; {what}"
    yield Ratio("page: latest an update is shown / 1 s", lags[-1], 1.0, True, detail)
    slow, long, total = sorted(seen["inputs"], reverse=True), seen["long"], seen["total"]
    slowest, usual = (slow[place] if place < len(slow) else 16.0 for place in (0, total // 100))
    tasks = f"{len(long)} long tasks, the longest {max(long, default=0):.0f} ms"
    detail = f"99 % of {total:,} events within {usual:.0f} ms; {tasks}"
    yield Ratio("page: slowest input to paint / 100 ms", slowest / 100, 1.0, True, detail)
    own, resident = (max(column) for column in zip(*tabs, strict=True))
    detail = f"{own:.0f} MB its own, {resident:.0f} MB resident, JavaScript heap {max(heaps):.0f} MB; the largest seen"
    yield Ratio("page: its tab's own memory / 200 MB", own / 200, 1.0, True, detail)


def _watched(
    browser: Any, address: str, recorded: Recorded, seconds: float
) -> tuple[list[float], list[float], list[tuple[float, float]]]:
    """Return how late the page was, its heap in MB, and its tab's own and resident memory in MB, over the time."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.add_init_script(_TIMED)
    page.goto(address)
    page.locator("main .view").wait_for()
    control, metrics = browser.new_browser_cdp_session(), page.context.new_cdp_session(page)
    metrics.send("Performance.enable")
    figure = page.locator("#run .tile strong").first
    lags: list[float] = []
    heaps: list[float] = []
    tabs: list[tuple[float, float]] = []
    began = time.monotonic()
    step = 0
    while (now := time.monotonic() - began) < seconds:
        if now >= step * _EACH:
            page.keyboard.press(_VIEWS[step % len(_VIEWS)])
            page.locator("main .view").wait_for()
            found = {row["name"]: row["value"] for row in metrics.send("Performance.getMetrics")["metrics"]}
            heaps.append(found["JSHeapUsedSize"] / 1e6)
            tabs.append(_tab(control))
            step += 1
        shown = int(figure.inner_text().replace(",", ""))
        lags.append(recorded.lag(shown, time.monotonic()))
        page.mouse.move(200 + (now * 160) % 900, 420 + (now * 40) % 200)
        page.keyboard.press("ArrowRight")
        time.sleep(0.05)
    return lags, heaps, tabs


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
