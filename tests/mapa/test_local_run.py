"""The edges of `mapa run`: when their end is the end of the run."""

from __future__ import annotations

import pytest

from common.transport.loop import SelectorLoop
from mapa.process_run import EdgeProcesses


@pytest.mark.parametrize("halted", [True, False])
def test_edges_that_end_after_the_halt_do_not_end_the_last_evaluation(halted: bool) -> None:
    loop, edges, evaluated = SelectorLoop(), EdgeProcesses(), list[bool]()

    def evaluation_ends() -> None:
        evaluated.append(True)
        loop.stop()

    edges.watch(loop, lambda: halted)  # none is left
    loop.call_later(0.01, evaluation_ends)
    loop.run()
    loop.close()
    assert (bool(evaluated), bool(edges.failure)) == (halted, not halted)
