"""The live page in a real Chromium while updates pour in: how late it is, how fast it answers, what its tab takes."""

from __future__ import annotations

import bisect
import contextlib
import json
import random
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
from mapa.dashboard.child import page_beside

EDGES, RATE = 20, 1000  # updates a second
_BATCH = 0.01  # seconds between two writes
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
class Writer:
    """Records of a 20-edge run, written as a cloud writes them, at a given rate."""

    folder: Path
    rate: int = RATE
    written: list[tuple[int, float]] = field(default_factory=list)  # (t, when it was on disk)
    _stop: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        self.folder.mkdir(parents=True)
        scenario = {"edges": EDGES, "iterations": 10_000_000, "algorithm": {"name": "constant"}}
        manifest = {"format": 1, "run": "bench", "name": "bench", "engine": "processes", "scenario": scenario}
        (self.folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")

    def write(self) -> None:
        """Write until told to stop: never more than is due by the clock."""
        draw, began, t = random.Random(1), time.monotonic(), 0
        sequences = [0] * EDGES
        with (self.folder / "events.jsonl").open("w", encoding="utf-8") as stream:
            while not self._stop.wait(_BATCH):
                now = time.monotonic() - began
                while t < now * self.rate:
                    t += 1
                    edge = min(EDGES - 1, int(draw.expovariate(0.15)))
                    sequences[edge] += 1
                    stream.write(
                        _applied(t, edge, sequences[edge], min(t - 1, int(draw.expovariate(0.1))), now)
                    )
                    if t % 500 == 0:
                        accuracy = 0.97 - 0.4 / (1 + t / 2000) + draw.gauss(0, 0.002)
                        record = {
                            "event": "evaluated",
                            "t": t,
                            "accuracy": accuracy,
                            "loss": 1 - accuracy,
                            "time": now,
                        }
                        stream.write(json.dumps(record) + "\n")
                stream.flush()
                self.written.append((t, time.monotonic()))

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        thread = threading.Thread(target=self.write)
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


def _applied(t: int, edge: int, sequence: int, staleness: int, now: float) -> str:
    record = {
        "event": "gradient_applied",
        "edge": edge,
        "edge_id": f"edge-{edge}",
        "sequence": sequence,
        "version": t - staleness,
        "t": t,
        "staleness": staleness,
        "stage": 1,
        "sensitivity": 0.01,
    }
    return json.dumps({**record, "time": round(now, 6)}) + "\n"


def page_ratios(minutes: float) -> Iterator[Ratio]:
    """Watch a run of 1,000 updates a second, moving, zooming and changing views all the while."""
    from playwright.sync_api import sync_playwright

    program = find_chromium()
    assert program is not None
    with tempfile.TemporaryDirectory() as text:
        writer = Writer(Path(text) / "runs" / "bench")
        writer.begin()
        with writer.writing(), page_beside(Path(text) / "runs") as beside, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program)
            try:
                lags, heaps, tabs = _watched(
                    browser, f"{beside.address}#/run/bench/fleet", writer, minutes * 60
                )
                seen = browser.contexts[0].pages[0].evaluate(_SEEN)
            finally:
                browser.close()
        (first, began), (last, ended) = writer.written[0], writer.written[-1]
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
    browser: Any, address: str, writer: Writer, seconds: float
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
        lags.append(writer.lag(shown, time.monotonic()))
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
