"""The dashboard over HTTP: read-only, strict headers, no way out of the folder; and a stream that tells what is new."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from common.errors import ConfigurationError
from mapa import output
from mapa.api import simulate
from mapa.commands.dashboard import one_line
from mapa.dashboard import listening as patience
from mapa.dashboard.folder import RunsFolder
from mapa.dashboard.listening import bind, is_loopback, page_address
from mapa.dashboard.server import FILES, STATIC, make_app
from mapa.scenario_files import SHIPPED
from tests.dashboard_support import append, applied, lines, serving, write_live_run
from tests.program_support import run_mapa, start_mapa

TOKEN = "correct-horse-battery-staple"
HERE = "http://127.0.0.1"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_live_run(tmp_path / "runs", "first", applied(1), applied(2))
    return tmp_path / "runs"


@pytest.fixture
def client(runs: Path) -> Iterator[TestClient]:
    with TestClient(make_app(runs), base_url=HERE) as found:
        yield found


@pytest.fixture
def served(runs: Path) -> Iterator[str]:
    """The address of a real server: a stream has no end, and only a socket can be left in the middle."""
    with serving(runs) as address:
        yield address


@pytest.mark.parametrize(
    "path", ["/", "/static/page.js", "/api/runs", "/api/runs/first", "/none", "/api/runs/none"]
)
def test_every_answer_carries_the_strict_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data:"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_there_is_no_way_to_write(client: TestClient, method: str) -> None:
    for path in ("/", "/api/runs", "/api/runs/first", "/static/page.js"):
        answer = client.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"
        assert "content-security-policy" in answer.headers


def test_a_head_has_no_body(client: TestClient) -> None:
    answer = client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "name",
    [
        *("%2e%2e", "..%2f..%2fsecret", "%2fetc", "out", "inside", "file", ".hidden", "first%00"),
        *("a" * 300, "first%2f..", "first\\"),
    ],
)
def test_only_folders_of_the_runs_directory_are_runs(runs: Path, client: TestClient, name: str) -> None:
    outside = write_live_run(runs.parent, "secret", applied(1))
    (runs / "out").symlink_to(outside)
    (runs / "inside").symlink_to(runs / "first")
    (runs / "file").write_text("not a run")
    write_live_run(runs, ".hidden", applied(1))
    assert all(
        RunsFolder(runs).find(odd) is None for odd in ("", ".", "..", "../secret", "/etc", "first/", "out")
    )
    for rest in ("", "/stream", "/events"):
        assert client.get(f"/api/runs/{name}{rest}").status_code == 404
    assert client.get("/api/compare", params={"run": name}).status_code == 404
    found = client.get("/api/runs").json()
    assert [run["run"] for run in found["runs"]] == ["first"]
    assert (found["hidden"], found["unnamed"]) == (1, 1)  # .hidden: it has records


def test_runs_that_are_not_shown_for_their_names_are_counted(runs: Path) -> None:
    for name in ("my scen ünï-1", "-x-1", ".hid-1", "a" * 201, "_fine-1"):
        write_live_run(runs, name, applied(1))
    write_live_run(runs, ".removing-12ab", applied(1))  # on its way out
    (runs / "no run").mkdir()
    found = RunsFolder(runs).lines()
    assert {run["run"] for run in found["runs"]} == {"first", "_fine-1"}
    assert (found["hidden"], found["unnamed"]) == (4, 4)


@pytest.mark.slow
@pytest.mark.parametrize("stem", ["my scen ünï", "-x", ".hid", "y" * 120])
def test_a_run_of_a_scenario_with_any_file_name_is_shown(tmp_path: Path, stem: str) -> None:
    file = tmp_path / f"{stem}.toml"
    file.write_text((SHIPPED / "quickstart.toml").read_text(encoding="utf-8"), encoding="utf-8")
    path = simulate(file, seed=1, iterations=3, edges=1, runs_dir=tmp_path / "runs", progress=False).path
    [line] = RunsFolder(tmp_path / "runs").lines()["runs"]
    assert (line["run"], line["name"]) == (path.name, stem)


@pytest.mark.parametrize(
    "name", ["../server.py", "%2e%2e/server.py", "..%2fserver.py", "uplot/../../server.py", "", "uplot"]
)
def test_only_the_listed_files_are_served(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


def test_every_file_of_the_page_is_there_and_none_is_inline_or_from_elsewhere(client: TestClient) -> None:
    there = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    assert there == set(FILES)
    for name, kind in FILES.items():
        answer = client.get(f"/static/{name}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    index = client.get("/").text
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", index)
    for name in FILES:
        if name.startswith("uplot/") or name == "icon.svg":
            continue
        source = (STATIC / name).read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", source
        ), name
        assert not re.search(r"https?://|//cdn", source), name
    assert "MIT" in client.get("/static/uplot/LICENSE").text


FOREIGN = (
    "evil.example 127.0.0.1.evil.example evil.example:8080 localhost.evil [::1].evil.com:80 [::1]evil.com"
    " localhost:evil.com localhost:80:evil [localhost ::1"
)


@pytest.mark.parametrize("host", ["", *FOREIGN.split()])
def test_a_name_that_was_made_to_point_here_is_not_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:8080", "LOCALHOST"])
def test_the_names_of_loopback_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers={"host": host}).status_code == 200


def test_with_a_token_nothing_is_shown_without_it(runs: Path) -> None:
    with TestClient(make_app(runs, TOKEN), base_url="http://vm.example", follow_redirects=False) as client:
        closed = ("/", "/api/runs", "/static/page.js", "/api/runs/first/stream", "/?token=wrong", "/?token=")
        for path in closed:
            answer = client.get(path)
            assert answer.status_code == 401
            assert TOKEN not in answer.text
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/runs", headers=bearer).status_code == 200
        foreign = {"authorization": "Bearer é".encode("latin-1")}
        assert client.get("/api/runs", headers=foreign).status_code == 401
        assert client.get(f"/api/runs?token={TOKEN}").status_code == 401  # in the first address alone
        first = client.get(f"/?token={TOKEN}")
        assert (first.status_code, first.headers["location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=strict"} <= set(first.headers["set-cookie"].split("; "))
        assert client.get("/api/runs").status_code == 200  # by the cookie
        assert client.post("/api/runs", headers=bearer).status_code == 405


def test_compare_takes_one_to_eight_runs(client: TestClient, runs: Path) -> None:
    write_live_run(runs, "second", applied(1), {"event": "evaluated", "t": 1, "accuracy": 0.5, "loss": 1.25})
    found = client.get("/api/compare", params={"run": ["second", "first"]}).json()["runs"]
    assert [run["head"]["run"] for run in found] == ["second", "first"]
    assert found[0]["training"]["curves"]["loss"]["value"] == [1.25]
    assert client.get("/api/compare").status_code == 400
    many = [f"run-{k}" for k in range(9)]
    assert client.get("/api/compare", params={"run": many}).status_code == 400


def test_the_events_of_a_run(client: TestClient) -> None:
    found = client.get("/api/runs/first/events", params={"event": "gradient_applied", "edge": "0"}).json()
    assert [row["t"] for row in found["events"]] == [2, 1]
    assert client.get("/api/runs/first/events", params={"before": "-1"}).status_code == 400
    assert client.get("/api/runs/first/events", params={"before": "9" * 400}).status_code == 400


def test_a_stream_tells_what_is_appended_and_only_what_has_changed(served: str, runs: Path) -> None:
    file = runs / "first" / "events.jsonl"
    with httpx.stream("GET", f"{served}/api/runs/first/stream", timeout=120) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = messages(answer)
        first = next(told)
        assert first["head"]["updates"] == 2
        sections = {"head", "fleet", "training", "staleness", "privacy", "traffic", "events"}
        assert set(first) == {"version", *sections}
        torn = lines(applied(4))
        with file.open("a") as stream:
            stream.write(lines(applied(3, 1, 1)) + torn[:20])
        change = next(told)
        assert change["head"]["updates"] == 3
        assert [lane["applied"] for lane in change["fleet"]["edges"]] == [2, 1]
        assert not {"privacy", "training"} & set(change)
        with file.open("a") as stream:
            stream.write(torn[20:])
        assert next(told)["head"]["updates"] == 4


def test_a_connection_that_asks_nothing_is_closed_and_a_stream_is_not(
    served: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.05)
    with httpx.stream("GET", f"{served}/api/runs/first/stream", timeout=120) as answer:
        told = messages(answer)
        next(told)
        # nothing; half a head; a whole request, and half of the next; a body that never comes
        ask = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n"
        for said in (b"", ask, ask + b"\r\n" + ask, ask + b"Content-Length: 9\r\n\r\n"):
            with connected(served) as idle:
                idle.sendall(said)
                assert (b"200 OK" in to_the_end(idle)) == (b"\r\n\r\n" in said)
        append(runs / "first", applied(3))
        assert next(told)["head"]["updates"] == 3


def test_of_too_many_idle_connections_the_oldest_goes(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 600.0)
    monkeypatch.setattr(patience, "CONNECTIONS", 4)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(served)) for _ in range(20)]
        assert httpx.get(f"{served}/api/runs", timeout=120).status_code == 200
        assert to_the_end(idle[0]) == b""
        idle[-1].sendall(b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in to_the_end(idle[-1])


def connected(address: str) -> socket.socket:
    host, _, port = address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=120)


def to_the_end(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(4096):
            found += part
    return found


def messages(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_a_port_that_is_taken_is_passed_over_unless_it_was_asked_for() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=str(port)):
            bind("127.0.0.1", port)
    with bind("127.0.0.1", None) as first, bind("127.0.0.1", None) as second:
        assert first.getsockname()[1] != second.getsockname()[1]


def test_an_error_of_the_server_is_one_line_unless_a_traceback_was_asked_for() -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 1, "%s", ("x",), sys.exc_info())
    output.begin({"MAPA_DEBUG": "1"})
    assert one_line(record)
    assert record.exc_info is not None
    output.begin({})
    assert one_line(record)
    text = logging.Formatter().format(record)
    assert text.startswith("unexpected error: ValueError: odd")
    assert "\n" not in text


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "vm.example.org", "")))
    assert page_address("::1", 80) == "http://[::1]:80/"


@pytest.mark.slow
def test_wrong_options_end_before_anything_is_served(tmp_path: Path) -> None:
    weak = tmp_path / "token"
    weak.write_text("short\n")
    for words, said in (
        (["--runs-dir", str(tmp_path / "none")], "no such folder"),
        (["--runs-dir", str(tmp_path), "--token-file", str(weak)], "at least 16"),
        (["--runs-dir", str(tmp_path), "--host", "no.such.host.invalid"], "--host"),
    ):
        done = run_mapa("dashboard", *words)
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.slow
def test_a_signal_ends_it_with_0_and_no_error_while_somebody_watches(runs: Path) -> None:
    started = start_mapa(
        "dashboard", "--runs-dir", str(runs), "--port", "0", stderr=subprocess.PIPE, text=True
    )
    try:
        assert started.stderr is not None
        found = re.search(r"http://\S+", started.stderr.readline())
        assert found is not None
        with httpx.stream("GET", f"{found[0]}api/runs/first/stream", timeout=120) as answer:
            told = messages(answer)
            next(told)
            started.terminate()
            list(told)  # to its end
        _, said = started.communicate(timeout=120)
        assert (started.returncode, said) == (0, "")
    finally:
        started.kill()
        started.wait()
