"""The metrics of x on the test set, off the hot path."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from common.datasets.dataset import Samples
from common.messages import EvaluationDue
from common.metrics import LOSS, check_values
from common.models.features import FeatureCache, features_of
from common.models.model import Features, Model, Targets
from common.quantities import Vector
from common.records.tally import Evaluation
from common.transport.channel import Loop


@dataclass(frozen=True, slots=True)
class Evaluator:
    """The model's metrics on public test data; without any, no number."""

    model: Model
    features: Features | None  # None: there is no test data
    targets: Targets | None
    regularization: float  # λ

    @classmethod
    def of(
        cls, model: Model, test: Samples | None, regularization: float, cache: FeatureCache | None = None
    ) -> Evaluator:
        if test is None:
            return cls(model, None, None, regularization)
        return cls(model, features_of(model, test, cache), model.targets(test.labels), regularization)

    def evaluate(self, x: Vector, updates: int, stage: int) -> Evaluation:
        if self.features is None or self.targets is None:
            return Evaluation(updates, stage, dict.fromkeys(self.model.metrics, math.nan))
        with np.errstate(over="ignore", invalid="ignore"):  # a run that diverges is evaluated too
            found = self.model.evaluate(x, self.features, self.targets)
            values = check_values(self.model.metrics, found, self.model.name)
            values[LOSS] += self.regularization / 2 * float(x @ x)
        return Evaluation(updates, stage, values)


_WAITING_MODELS = 1 << 26  # bytes of models that may wait for their evaluation


@dataclass(slots=True)
class Evaluations:
    """The evaluations of one run, one after the other."""

    evaluator: Evaluator | None  # None: there are no test data, and no metric is claimed
    loop: Loop
    take: Callable[[Evaluation], None]  # a result, in the loop's thread
    say: Callable[[str], None]  # a line for the operator
    executor: Executor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="mapa-evaluation")
    )
    dues: list[EvaluationDue] = field(default_factory=list)  # being evaluated, or waiting for it
    _left_out: int = 0

    def evaluate_in_time(self, due: EvaluationDue) -> None:
        """Evaluate unless too many models wait for it; the last one is evaluated at the end in any case."""
        if self.evaluator is None:
            return
        if len(self.dues) * due.model.nbytes < _WAITING_MODELS:
            self.evaluate(due)
            return
        self._left_out += 1
        if self._left_out == 1:
            self.say(f"evaluation too slow for evaluation.every; skipped at t = {due.updates}")

    def evaluate(self, due: EvaluationDue) -> None:
        """Evaluate, however many wait."""
        evaluator = self.evaluator
        if evaluator is None:
            return
        self.dues.append(due)

        def work() -> None:
            try:
                evaluation = evaluator.evaluate(due.model, due.updates, due.stage)
            except BaseException as error:  # the executor's future would keep it to itself
                self.loop.post(partial(_fail, error))
            else:
                self.loop.post(lambda: self._evaluated(evaluation, due))

        self.executor.submit(work)

    def _evaluated(self, evaluation: Evaluation, due: EvaluationDue) -> None:
        self.dues = [other for other in self.dues if other is not due]
        self.take(evaluation)

    def shutdown(self, *, wait: bool) -> None:
        """Begin no more."""
        self.executor.shutdown(wait=wait)


def _fail(error: BaseException) -> None:
    """Raise in the loop's thread an error of another thread, so that the cloud ends with it."""
    raise error
