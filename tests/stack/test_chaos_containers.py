"""mapa chaos --containers in its short form: real containers, real faults, the same judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.program_support import run_mapa as mapa
from tests.stack.compose_support import MARKS, names_on

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]
# a link gives every machine about the same pace: else a fast one is done before anybody has come back
QUICK = (
    *("--set", "testbed.silent_after=1", "--set", "testbed.resend_after=0.3", "--set", "evaluation.every=0"),
    *("--set", "links=[{delay_ms = 10.0}]", "--edges", "2", "--iterations", "200"),
)


def test_a_seeded_run_in_containers_comes_through(engine: Any, tmp_path: Path) -> None:
    """Of all seeds this one has the most kinds of faults in the least time, and fills the cloud's disk."""
    before = names_on(engine, "mapa-chaos-")
    words = ("--containers", "--edge-image", "mapa-edge", "--seed", "155", "--count", "7", "--runs", "1")
    done = mapa("chaos", "quickstart", *QUICK, *words, "--runs-dir", str(tmp_path))
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    for fault in ("kill cloud", "fill cloud", "scale 1", "restart broker", "disorder cloud", "slow edge-2"):
        assert f": {fault} at t=" in said, said  # it was applied
    assert "cloud resumed 0 times" not in said
    assert "released" in said
    assert "= distinct; mapa verify: " in said
    assert not list(tmp_path.iterdir())  # what passed is not kept
    assert names_on(engine, "mapa-chaos-") <= before
