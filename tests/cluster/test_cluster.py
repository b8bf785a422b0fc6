"""A fleet on a real Kubernetes cluster: to T, through deleted pods, scaling and a broker's rolling restart."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.records.reader import Record, read_events
from mapa.authority import CLOUD
from mapa.kubernetes_run import EDGE, MANIFESTS, Fleet, KubernetesError, Namespace, followed
from tests.program_support import assert_each_once, run_mapa

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(1800)]
_PATIENCE = 900.0  # seconds; reached only where something hangs
_SLOW = "links=[{delay_ms = 100.0}]; testbed.resend_after=2.0"  # 5 updates a second and edge at most


def until(condition: Callable[[], bool], what: str, namespace: Namespace) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > end:
            pods = namespace("get", "pods", "--output=wide")
            pytest.fail(f"in vain: {what}\n{pods}\n{namespace.last_words('cloud-0', CLOUD)}")
        time.sleep(1.0)


class Run:
    """One run, watched by the events on the cloud's claim."""

    def __init__(self, namespace: Namespace, edges: int, **variables: str) -> None:
        self.namespace = namespace
        names = {"SCENARIO": "quickstart", "RUN": "lab", "EDGES": str(edges), "GATHER": "600", "SET": _SLOW}
        limits = {EDGE: "256Mi", CLOUD: "1Gi", "broker": "256Mi"}
        Fleet(
            overlay=MANIFESTS / "single-node",
            edges=int(variables.pop("PODS", edges)),
            variables=names | variables,
            images={"mapa-edge-cnn": "mapa-edge"},
            memory=limits,
        ).apply(namespace)

    def events(self) -> list[dict[str, Any]]:
        """Return what is on record so far; none while the pod is away."""
        show = "cat /runs/lab-*/events.jsonl 2>/dev/null"
        try:
            text = self.namespace("exec", "cloud-0", "--container=page", "--", "sh", "-c", show)
        except KubernetesError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def applied(self) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["event"] == "gradient_applied"]

    def until_updates(self, updates: int) -> None:
        until(lambda: len(self.applied()) >= updates, f"t = {updates}", self.namespace)

    def until_edges(self, edges: int) -> None:
        def trained() -> bool:
            return len({event["edge"] for event in self.applied()}) >= edges

        until(trained, f"{edges} edges that train", self.namespace)

    def finish(self, runs: Path) -> Path:
        """Wait until the cloud has ended with 0, and return its records."""
        code, edges = followed(self.namespace, lambda _: None, time.monotonic() + _PATIENCE, 60.0)
        assert code == 0, self.namespace.last_words("cloud-0", CLOUD)
        assert set(edges.values()) <= {0}, edges
        runs.mkdir(exist_ok=True)
        self.namespace.records("lab", runs)
        (path,) = runs.iterdir()
        return path


def judged(path: Path, updates: int) -> list[Record]:
    """Check every (edge, sequence) and all that `mapa verify` knows; return the updates."""
    applied = [event for event in read_events(path) if event["event"] == "gradient_applied"]
    assert_each_once(applied, updates)
    done = run_mapa("verify", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    return applied


@pytest.mark.usefixtures("cluster")
def test_mapa_kubernetes_trains_twenty_edges_to_the_end(tmp_path: Path, record_property: Any) -> None:
    began = time.monotonic()
    words = (
        "--edges",
        "20",
        "--iterations",
        "3000",
        "--set",
        "links=[{delay_ms = 20.0}]",
        "--edge-image",
        "mapa-edge",
    )
    done = run_mapa(
        "kubernetes", "quickstart", *words, "--runs-dir", str(tmp_path), "--json", env=dict(os.environ)
    )
    record_property("seconds", round(time.monotonic() - began))
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = tmp_path.iterdir()
    assert {event["edge"] for event in judged(path, 3000)} == set(range(20))


def test_a_clouds_pod_is_deleted_twice_and_an_edges_pod_once(namespace: Namespace, tmp_path: Path) -> None:
    run = Run(namespace, 20, ITERATIONS="3000")
    run.until_edges(20)
    before = {event["edge_id"]: event["sequence"] for event in run.applied()}
    namespace("delete", "pod", "edge-3", "--wait=false")
    for further in (300, 900):
        run.until_updates(sum(before.values()) + further)
        namespace("delete", "pod", "cloud-0")
    path = run.finish(tmp_path / "runs")
    applied = judged(path, 3000)
    assert sum(event["event"] == "resumed" for event in read_events(path)) == 2
    last = max(event["sequence"] for event in applied if event["edge_id"] == "edge-3")
    assert last > before["edge-3"]  # on its own ledger: another would have begun at 1


def test_a_fleet_is_scaled_and_its_broker_is_restarted_in_mid_run(
    namespace: Namespace, tmp_path: Path
) -> None:
    run = Run(namespace, 20, PODS="5", EDGES_AT_LEAST="5", ITERATIONS="6000")
    run.until_edges(5)
    namespace("scale", "statefulset", "edge", "--replicas=20")
    run.until_edges(20)
    namespace("rollout", "restart", "deployment", "broker")
    namespace("rollout", "status", "deployment", "broker", "--timeout=300s")
    run.until_updates(len(run.applied()) + 200)
    namespace("scale", "statefulset", "edge", "--replicas=10")
    edges = ("get", "pods", "--selector=app.kubernetes.io/name=edge", "--output=name")
    until(lambda: len(namespace(*edges).split()) == 10, "ten edges that left", namespace)
    count = len(run.applied())
    path = run.finish(tmp_path / "runs")
    applied = judged(path, 6000)
    assert count < 6000, "the run ended before it was scaled down"
    assert len({event["edge_id"] for event in applied[count + 20 :]}) == 10
