"""mapa reproduce on containers: the testbed's experiment, small, from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.reproduce.catalogue import catalogue
from experiments.reproduce.reproduction import ReproductionOrder, reproduce
from tests.stack.compose_support import MARKS, names_on

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]


def test_the_testbed_runs_in_containers_and_leaves_none(engine: Any, tmp_path: Path) -> None:
    before = names_on(engine, "mapa-")
    order = ReproductionOrder(
        experiments=catalogue().chosen(["testbed"]),
        size="tiny",
        out=tmp_path,
        data_dir=tmp_path / "no-data",  # the embedded images are in ours
        command="mapa reproduce testbed --tiny --testbed containers",
        testbed="containers",
    )
    outcome = reproduce(order)
    assert not outcome.failures
    assert outcome.runs == 2
    assert names_on(engine, "mapa-") <= before
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Runs of the testbed (testbed) were containers on this machine." in page
    assert "mapa containers " in page
    rows = (tmp_path / "tables" / "testbed.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 3
    assert all(",containers," in row for row in rows[1:])
    assert len(list((tmp_path / "runs").iterdir())) == 2
    again = reproduce(order)
    assert (again.cached, again.runs) == (2, 0)
