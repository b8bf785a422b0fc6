"""A run's records as the tests of the dashboard write them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from mapa.api import simulate
from mapa.dashboard.listening import bind, limits
from mapa.dashboard.server import make_app


def applied(t: int, edge: int = 0, staleness: int = 0, time: float | None = None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "event": "gradient_applied",
        "edge": edge,
        "edge_id": f"edge-{edge}",
        "sequence": t,
        "version": max(1, t - staleness),
        "t": t,
        "staleness": staleness,
        "stage": 1,
        "sensitivity": 0.5,
    }
    return record if time is None else {**record, "time": time}


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def write_live_run(runs: Path, name: str = "first", *records: dict[str, Any]) -> Path:
    """Write a run that has not ended."""
    path = runs / name
    path.mkdir(parents=True)
    manifest = {
        "format": 1,
        "run": name,
        "name": name,
        "engine": "processes",
        "scenario": {"edges": 2, "iterations": 100},
    }
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (path / "events.jsonl").write_text(lines(*records), encoding="utf-8")
    return path


def evaluated(t: int, accuracy: float) -> dict[str, Any]:
    return {"event": "evaluated", "t": t, "stage": 1, "accuracy": accuracy, "loss": 1 - accuracy}


def refused(edge_id: str, reason: str, time: float) -> dict[str, Any]:
    record = {"event": "gradient_refused", "edge_id": edge_id, "sequence": 1, "t": 1}
    return {**record, "reason": reason, "time": time}


def some_run(runs: Path, name: str = "first", updates: int = 40) -> Path:
    """Write a run of two edges that has not ended, with evaluations and refusals."""
    records: list[dict[str, Any]] = []
    for t in range(1, updates + 1):
        records.append(applied(t, t % 2, t % 3, time=t / 4))
        if t % 10 == 0:
            records.append(evaluated(t, 0.5 + t / 100))
    records += [refused("edge-1", "old", 3.0), refused("edge-1", "old", 4.0), refused("edge-0", "size", 5.0)]
    return write_live_run(runs, name, *records)


def append(path: Path, *records: dict[str, Any]) -> None:
    """Write more events of a run."""
    with (path / "events.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(lines(*records))


def simulated(runs: Path, **changes: Any) -> Path:
    """Simulate a small run, return its folder."""
    return simulate("quickstart", seed=1, runs_dir=runs, progress=False, **changes).path


@contextlib.contextmanager
def serving(runs: Path, token: str | None = None) -> Iterator[str]:
    """Serve the page of a folder from a thread; yields its address, without a slash at its end."""
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(
        make_app(runs, token), log_level="warning", timeout_graceful_shutdown=1, **limits()
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
