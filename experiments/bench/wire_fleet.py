"""The children that carry bench edges, seen from the bench."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

from common.errors import BrokerUnavailableError
from common.quantities import EdgeId, RunId
from common.transport.connection import BrokerAddress
from mapa.process_run import edge_counts, one_thread_each


class BenchFleet:
    """Edge programs that live as long as the bench, and take part in one segment after the other."""

    def __init__(self, children: Sequence[subprocess.Popen[str]]) -> None:
        self._children = children
        self._busy: Sequence[subprocess.Popen[str]] = ()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def begin(self, run: RunId, edges: int, dimension: int) -> None:
        """Have K edges join a run; they say hello when its cloud is there."""
        counts = edge_counts(edges, len(self._children))
        self._busy = self._children[: len(counts)]
        first = 0
        for child, count in zip(self._busy, counts, strict=True):
            ids = [EdgeId(f"edge-{k}") for k in range(first, first + count)]
            first += count
            assert child.stdin is not None
            child.stdin.write(json.dumps({"run": run, "ids": ids, "dimension": dimension}) + "\n")
            child.stdin.flush()

    def end(self) -> None:
        """Wait until every edge of the segment has gone."""
        for child in self._busy:
            _expect(child, "done")


@contextlib.contextmanager
def bench_fleet(module: str, broker: BrokerAddress, processes: int) -> Iterator[BenchFleet]:
    """Run edges of this module; whatever happens, the children end with the bench."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(broker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=one_thread_each(),
        )
        for _ in range(processes)
    ]
    try:
        for child in children:
            _expect(child, "ready")
        yield BenchFleet(children)
    finally:
        for child in children:
            _stop(child)


def _expect(child: subprocess.Popen[str], word: str) -> None:
    assert child.stdout is not None
    if (said := child.stdout.readline().strip()) != word:
        raise BrokerUnavailableError(f"bench edges {child.args!r}: {said!r} instead of {word!r}")


def _stop(child: subprocess.Popen[str]) -> None:
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
