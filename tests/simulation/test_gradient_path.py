"""The path of one gradient through the code: which files it visits, and how often it changes between them.

`pytest -s tests/simulation/test_gradient_path.py` prints it, call by call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import FrameType

from edge.sqlite_ledger import SqliteLedger
from tests.mapa.test_conversation import Talk, talk
from tests.memory_broker import MemoryBroker

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("common", "cloud", "edge", "mapa")
BROKER = Path("tests/memory_broker.py")  # in the place of a broker: not counted
# The most files and changes of file: from the model's bytes to the gradient's, and from these to the next model's.
# 32 and 113 before the house was rebuilt; 20 and 52 before debits had a journal that many edges share, and ordinary
# gradients a quick way
MOST_FILES, MOST_CHANGES = 22, 60


class Tracer:
    """Collects the project's functions in the order in which they are called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []  # file, function

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(REPOSITORY):
            file = path.relative_to(REPOSITORY)
            if file.parts[0] in PACKAGES or file == BROKER:
                self.calls.append((str(file), frame.f_code.co_qualname))


def trace(tmp_path: Path) -> list[tuple[str, str]]:
    """Return the calls from one model's delivery to the next model's publishing, after the path is warm."""
    privacy = {"noise": "gaussian", "noise_multiplier": 1.0}
    run = Talk(talk(seed=None, iterations=400, edges=1, data={"sampler": "poisson"}, privacy=privacy))
    with SqliteLedger(tmp_path) as ledger:
        run.edge(ledger=ledger)
        run.until(lambda: run.service.server.updates >= 20)
        _deliver_until(run.broker, "/model")
        tracer = Tracer()
        sys.setprofile(tracer)
        try:
            _deliver_until(run.broker, "/model")
        finally:
            sys.setprofile(None)
    return tracer.calls


def _deliver_until(broker: MemoryBroker, leaf: str) -> None:
    """Deliver messages up to the publishing of the next one whose topic ends so."""
    known = len(broker.published)
    while not any(topic.endswith(leaf) for topic, _ in broker.published[known:]):
        assert broker.step()


def halves(calls: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Split the path where the broker has the gradient and delivers it."""
    deliveries = [at for at, (_, function) in enumerate(calls) if function == "MemoryBroker._deliver"]
    assert len(deliveries) == 2
    return list(calls[deliveries[0] : deliveries[1]]), list(calls[deliveries[1] :])


def measure(calls: Sequence[tuple[str, str]]) -> tuple[int, int]:
    """Return how many of our files the calls visit, and how often the file changes from one call to the next."""
    ours = [file for file, _ in calls if file != str(BROKER)]
    visits = [file for file, _ in groupby(ours)]
    return len(set(visits)), len(visits) - 1


def test_one_gradient_visits_few_files(tmp_path: Path) -> None:
    calls = trace(tmp_path)
    edge, cloud = halves(calls)
    for title, half in (("edge", edge), ("cloud", cloud)):
        files, changes = measure(half)
        print(f"\n{title}: {len(half)} calls, {files} files, {changes} changes of file")
        for file, group in groupby(half, key=lambda call: call[0]):
            print(f"  {file}: {', '.join(function for _, function in group)}")
    files, changes = measure(calls)
    print(f"whole path: {len(calls)} calls, {files} files, {changes} changes of file")
    assert files <= MOST_FILES
    assert changes <= MOST_CHANGES
