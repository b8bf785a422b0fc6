"""The metrics of x on the test set, off the hot path."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from common.datasets.dataset import Samples
from common.messages import EvaluationDue
from common.metrics import LOSS, check_values
from common.models.features import FeatureCache, cores, features_of
from common.models.model import Features, Model, Targets
from common.quantities import Vector
from common.records.tally import Evaluation
from common.transport.channel import Loop


@dataclass(frozen=True, slots=True)
class Evaluator:
    """The model's metrics on public test data."""

    model: Model
    features: Features
    targets: Targets
    regularization: float  # λ

    @classmethod
    def of(
        cls, model: Model, test: Samples, regularization: float, cache: FeatureCache | None = None
    ) -> Evaluator:
        features = features_of(model, test, cache, threads=cores())
        return cls(model, features, model.targets(test.labels), regularization)

    def evaluate(self, x: Vector, updates: int, stage: int) -> Evaluation:
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
        if len(self.dues) * due.model.nbytes < _WAITING_MODELS:
            self.evaluate(due)
        elif self.evaluator is not None:
            self._left_out += 1
            if self._left_out == 1:
                self.say(f"evaluation too slow for evaluation.every; skipped at t = {due.updates}")

    def evaluate(self, due: EvaluationDue) -> None:
        """Evaluate, however many wait."""
        if self.evaluator is not None:
            self.dues.append(due)
            future = self.executor.submit(self.evaluator.evaluate, due.model, due.updates, due.stage)
            future.add_done_callback(lambda done: self.loop.post(partial(self._evaluated, done, due)))

    def _evaluated(self, done: Future[Evaluation], due: EvaluationDue) -> None:
        """Take a result; the error of an evaluation is raised here, in the loop's thread, and ends the cloud."""
        self.dues = [other for other in self.dues if other is not due]
        self.take(done.result())

    def shutdown(self, *, wait: bool) -> None:
        """Begin no further evaluation."""
        self.executor.shutdown(wait=wait)
