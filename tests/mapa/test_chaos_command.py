"""mapa chaos: what cannot be run, or not be judged, is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from common.errors import ConfigurationError
from mapa.chaos.faults import parse_container_fault
from mapa.commands import containers
from tests.program_support import Mapa


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--containers", "--iterations", "200000"), "must be at most 256 MB"),
        (("--edge-image", "mapa-edge"), "--edge-image: is for --containers"),
        (("--set", "records.events=false"), "records.events = false"),
        (("--set", "records.keep_gradients=false"), "records.keep_gradients"),
        (("--iterations", "30"), "at least 40 updates"),
        (("--only", "9"), "1 … 6"),
        (("--faults", "nowhere.txt"), "--faults nowhere.txt"),
        (("--count", "1001"), "--count 1001"),
        (("--kills", "0"), "--kills 0"),
        (("--kills", "3", "--faults", "faults.txt"), "give one of them"),
        (("--set", "data.set=local"), "local"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_starts(
    mapa: Mapa, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], named: str
) -> None:
    monkeypatch.setattr("mapa.chaos.trial.find_mosquitto", lambda: "mosquitto")
    done = mapa("chaos", "quickstart", *words)
    assert done.code == 2, done.out
    assert named in done.err
    assert not list(tmp_path.iterdir())


def test_without_a_broker_nothing_starts(mapa: Mapa, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapa.chaos.trial.find_mosquitto", lambda: None)
    done = mapa("chaos", "quickstart")
    assert done.code == 2
    assert "no mosquitto found" in done.err


def test_containers_have_each_fault_at_its_t_until_the_cloud_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`mapa containers --fault`: a run of containers played by hand, ten updates and a second with every look."""
    log: list[str] = []
    cloud = SimpleNamespace(status="running", reload=lambda: None)
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    tail = SimpleNamespace(updates=0)

    def sleep(_: float) -> None:
        clock.now, tail.updates = clock.now + 1, tail.updates + 10
        cloud.status = "exited" if tail.updates >= 60 else "running"

    clock.sleep = sleep
    monkeypatch.setattr(containers, "time", clock)
    stack = SimpleNamespace(
        container=lambda _: cloud,
        containers=lambda _: [],
        fault=lambda kind, name, on: log.append(
            f"{tail.updates}: {kind.value} {name}" if on else f"{tail.updates}: {name} is back"
        ),
    )
    run = SimpleNamespace(stack=stack, tail=tail, scale=lambda edges: log.append(f"scale {edges}"))
    texts = (
        "kill edge-1 at t=5 for 2s",
        "scale 2 at t=25",
        "kill cloud at t=40 for 3s",
        "crash edge-2 at t=12",
    )
    containers._inject(run, [parse_container_fault(text) for text in texts], Console(quiet=True), 100.0)
    first = ["10: kill edge-1", "20: crash edge-2", "scale 2", "30: edge-1 is back"]
    assert log == [*first, "40: kill cloud", "70: cloud is back"]
    with pytest.raises(ConfigurationError, match="--timeout"):
        containers._inject(run, [], Console(quiet=True), 0.0)
