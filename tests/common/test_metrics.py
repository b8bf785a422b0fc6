"""Metrics by name: a model declares them, and records, summaries and views take any."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from cloud.evaluation import Evaluator
from common.errors import ConfigurationError
from common.metrics import ACCURACY, CLASSIFICATION, LOSS, Better, Metric, check_metrics, check_values
from common.models.linear import LogisticRegression
from common.quantities import Vector
from common.records.recorder import Journal, Recorder
from common.records.tally import Evaluation, Tally, headline

RMSE = Metric("rmse", Better.LOWER)
TOP5 = Metric("top_5", Better.HIGHER, share=True)


def test_the_better_value_follows_the_direction_and_a_number_beats_none() -> None:
    assert ACCURACY.is_better(0.9, than=0.8)
    assert not ACCURACY.is_better(0.8, than=0.8)
    assert RMSE.is_better(1.0, than=2.0)
    assert RMSE.is_better(1.0, than=math.nan)
    assert not RMSE.is_better(math.nan, than=1.0)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ((ACCURACY,), "must include"),
        ((LOSS, LOSS), "'loss'"),
        ((LOSS, Metric("t", Better.LOWER)), "'t'"),
        ((LOSS, Metric("a b", Better.LOWER)), "'a b'"),
    ],
)
def test_what_records_could_not_hold_is_refused(metrics: tuple[Metric, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_metrics(metrics, "mine")


@pytest.mark.parametrize("values", [{"loss": 1.0}, {"loss": 1.0, "accuracy": 0.5, "f1": 0.5}])
def test_a_missing_or_undeclared_value_is_an_error(values: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="evaluate returned"):
        check_values(CLASSIFICATION, values, "mine")


def test_the_summary_names_whatever_the_model_is_measured_by() -> None:
    tally = Tally()
    for updates, rmse in ((10, 3.0), (20, 1.5), (30, 2.0)):
        tally.evaluated(Evaluation(updates, 1, {RMSE: rmse, LOSS: rmse**2}))
    summary = tally.summary()
    assert (summary["final_rmse"], summary["final_loss"]) == (2.0, 4.0)
    assert (summary["best_rmse"], summary["best_rmse_at"]) == (1.5, 20)
    assert [metric["name"] for metric in summary["metrics"]] == ["rmse", "loss"]
    assert "final_accuracy" not in summary
    assert headline(tally.evaluations[-1]) == "rmse 2"


def test_a_journal_line_has_the_metrics_by_name(tmp_path: Path) -> None:
    with (tmp_path / "events.jsonl").open("w", encoding="utf-8") as stream:
        Recorder(Journal(stream)).evaluated(Evaluation(10, 2, {TOP5: 0.75, LOSS: math.inf}), 1.5)
    line = json.loads((tmp_path / "events.jsonl").read_text())
    assert line == {"event": "evaluated", "t": 10, "stage": 2, "top_5": 0.75, "loss": None, "time": 1.5}


class WithTop2(LogisticRegression):
    """A metric of one's own is one declaration and one number."""

    metrics = (*CLASSIFICATION, TOP5)

    def evaluate(self, x: Vector, features: np.ndarray, targets: np.ndarray) -> dict[str, float]:  # type: ignore[type-arg]
        return {**super().evaluate(x, features, targets), "top_5": 1.0}


def test_an_evaluator_adds_the_regulariser_to_the_loss_alone() -> None:
    model = WithTop2(shape=(1, 2), classes=2)
    features = model.features(np.zeros((3, 2), np.float32))
    evaluator = Evaluator(model, features, model.targets(np.array([0, 1, 1])), regularization=2.0)
    x = np.array([3.0, 4.0, 0.0], np.float32)
    found = evaluator.evaluate(x, 7, 1)
    assert found["loss"] == pytest.approx(math.log(2) + 25.0)
    assert found["top_5"] == 1.0
    assert found.headline is ACCURACY
