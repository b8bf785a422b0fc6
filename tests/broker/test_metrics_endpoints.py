"""Metrics of a real run between processes, scraped by an honest program while a hostile one does its worst."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest

from cloud.metrics import FAMILIES as CLOUD
from edge.metrics import FAMILIES as EDGE
from mapa.brokers import Broker
from tests.common.test_telemetry import read
from tests.program_support import PATIENCE, eventually, journal_has, run_mapa, start_mapa

pytestmark = pytest.mark.broker


def port_of(printed: Path) -> int | None:
    found = re.search(r"metrics on http://127\.0\.0\.1:(\d+)/metrics", printed.read_text())
    return None if found is None else int(found[1])


def scrape(port: int) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return read(answer.read())


def flood(port: int, ended: threading.Event) -> None:
    """Open connections and say little, as fast as they are accepted."""
    held: list[socket.socket] = []
    while not ended.is_set():
        with contextlib.suppress(OSError):
            one = socket.create_connection(("127.0.0.1", port), timeout=1)
            held.append(one)
            one.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        if len(held) > 100:
            held.pop(0).close()
    for one in held:
        one.close()


def test_a_run_tells_both_sides_and_no_scraper_stops_it(mosquitto: Broker, tmp_path: Path) -> None:
    common = ("--broker", str(mosquitto.address), "--run", "told", "--metrics-port", "0")
    runs, printed = tmp_path / "runs", {name: tmp_path / name for name in ("cloud", "edge")}
    ended, threads, children = threading.Event(), list[threading.Thread](), list[subprocess.Popen[bytes]]()
    try:
        with printed["cloud"].open("wb") as cloud, printed["edge"].open("wb") as edge:
            shape = ("--set", "iterations=1000000", "--edges", "2", "--runs-dir", str(runs))
            children.append(
                start_mapa("cloud", "quickstart", *common, *shape, stdout=subprocess.PIPE, stderr=cloud)
            )
            own = ("--count", "2", "--state-dir", str(tmp_path / "state"))
            children.append(start_mapa("edge", *common, *own, stderr=edge))
        eventually(
            lambda: all(port_of(path) for path in printed.values()) or children[0].poll() is not None,
            "endpoints",
        )
        ports = {name: port_of(path) or 0 for name, path in printed.items()}
        threads = [threading.Thread(target=flood, args=(port, ended)) for port in ports.values()]
        for thread in threads:
            thread.start()
        eventually(
            lambda: journal_has(runs, '"t": 200,') or children[0].poll() is not None, "updates in the flood"
        )
        ended.set()
        for thread in threads:
            thread.join()
        seen: dict[str, dict[tuple[str, str], float]] = {}

        def told() -> bool:
            for name, port in ports.items():
                with contextlib.suppress(OSError):  # what is left of the flood may be before it in the queue
                    seen[name] = scrape(port)
            return len(seen) == 2 or children[0].poll() is not None

        eventually(told, "answers after the flood")
        children[0].send_signal(signal.SIGTERM)
        children[0].communicate(timeout=PATIENCE)
        assert [children[0].returncode, children[1].wait(PATIENCE)] == [130, 0], printed["cloud"].read_text()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        for child in children:
            child.kill()
            child.wait()
    [path] = runs.glob("*/summary.json")
    summary = json.loads(path.read_text())
    assert 200 <= seen["cloud"]["mapa_cloud_updates_total", ""] <= summary["updates"]
    assert seen["cloud"]["mapa_cloud_staleness_count", ""] == seen["cloud"]["mapa_cloud_updates_total", ""]
    assert seen["cloud"]["mapa_cloud_edges", "present"] == 2
    known = {family.name for family in CLOUD}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name, _ in seen["cloud"]} <= known
    assert {name for name, _ in seen["edge"]} <= {family.name for family in EDGE}


@pytest.mark.parametrize("command", ["cloud", "edge"])
def test_a_port_that_is_taken_is_said_before_anything_starts(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        first = (
            ("cloud", "quickstart", "--runs-dir", str(tmp_path / "runs")) if command == "cloud" else ("edge",)
        )
        more = ("--broker", "127.0.0.1:1", "--run", "r", "--metrics-port", port)
        state = ("--state-dir", str(tmp_path / "state")) if command == "edge" else ()
        done = run_mapa(*first, *more, *state)
    assert done.returncode == 2, done.stderr
    assert f"--metrics-port {port}: cannot listen on '127.0.0.1'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_it_says_how_to_get_it(tmp_path: Path) -> None:
    from tests.program_support import environment

    (tmp_path / "prometheus_client.py").write_text("raise ImportError('not installed')\n")
    env = {**environment(), "PYTHONPATH": str(tmp_path)}
    done = run_mapa("edge", "--broker", "127.0.0.1:1", "--run", "r", "--metrics-port", "0", env=env)
    assert done.returncode == 2, done.stderr
    assert "pip install 'mapa-testbed[metrics]'" in done.stderr
