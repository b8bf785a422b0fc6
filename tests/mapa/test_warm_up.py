"""mapa pace: measured on made-up rows alone, so no record has a part in R_k and z_k."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.datasets import catalogue
from common.errors import ConfigurationError
from common.scenario.scenario import parse_scenario
from edge.device import gradients_per_second, made_up_worker
from tests.core_support import small_scenario
from tests.program_support import Mapa

NOWHERE = Path("nowhere")


def test_messages_are_counted_by_the_clock() -> None:
    ticks = iter(np.arange(0, 100, 0.25).tolist())
    assert gradients_per_second(small_scenario(), NOWHERE, seconds=2.0, clock=lambda: next(ticks)) == 4.0


def test_no_record_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("records were read")

    monkeypatch.setattr(catalogue, "load_dataset", read)
    worker = made_up_worker(small_scenario(model={"name": "softmax"}), NOWHERE)
    assert (len(worker.shard), worker.shard.features.shape[1]) == (5, 28 * 28 + 1)
    assert worker.mechanism.law is not None


def test_noise_that_a_budget_has_not_set_yet_is_drawn_all_the_same() -> None:
    privacy = {"pace": "own", "paces": [1.0, 2.0], "total_epsilon": 3.0}
    scenario = small_scenario(privacy=privacy, algorithm={"name": "constant", "rate": 0.1})
    assert made_up_worker(scenario, NOWHERE).mechanism.law is not None


def test_data_whose_shape_only_records_tell_are_refused() -> None:
    values = small_scenario().canonical() | {"data": {"set": "tests.core_support:small_dataset"}}
    values["algorithm"] = {**values["algorithm"], "first_clip": 1.0}
    with pytest.raises(ConfigurationError, match="must not depend on them"):
        made_up_worker(parse_scenario(values), NOWHERE)


def test_the_command_prints_a_number(mapa: Mapa) -> None:
    done = mapa("pace", "quickstart", "--seconds", "0.1", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["gradients_per_second"] > 0
    assert "on made-up rows" in mapa("pace", "quickstart", "--seconds", "0.1").out
