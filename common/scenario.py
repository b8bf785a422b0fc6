"""One scenario = one run: its tables, the checks between them, and what it says about the algorithm.

Pydantic stands here, at the border; the core gets `Problem` and plain values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from common.constants import NOMINAL, measured_constants
from common.errors import ConfigurationError
from common.explanation import explain
from common.noise import Clipping, Mechanism, NoiseLaw, Sampling, Scope, noise_law
from common.problem import Problem, RateDecay, SensitivityRule
from common.tables import (
    AlgorithmTable,
    DataTable,
    DelaysTable,
    EvaluationTable,
    LinkTable,
    ModelTable,
    PrivacyTable,
    RecordsTable,
    Table,
    TestbedTable,
)


class Scenario(Table):
    """One TOML file."""

    edges: int = Field(5, ge=1, le=100_000, description="K: how many edges, and shards")
    iterations: int = Field(..., ge=1, le=1_000_000_000, description="T: updates of the model")
    batch_size: int = Field(12, ge=1, le=1_000_000, description="b")
    seed: int | None = Field(None, ge=0, lt=2**63, description="absent: secure randomness, not replayable")
    data: DataTable = DataTable()
    model: ModelTable = ModelTable()
    algorithm: AlgorithmTable = AlgorithmTable()
    privacy: PrivacyTable = Field(default_factory=lambda: PrivacyTable(noise_multiplier=[1.0]))
    delays: DelaysTable = DelaysTable()
    evaluation: EvaluationTable = EvaluationTable()
    records: RecordsTable = RecordsTable()
    links: list[LinkTable] = Field(
        default_factory=list, max_length=100_000, description="cycled over edges; none: no added delay"
    )
    testbed: TestbedTable = TestbedTable()

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Fill what the problem's known constants say; ask for what nobody knows."""
        known = measured_constants(self.model.name, self.data.set)
        if known is None and self.algorithm.name == "constant":
            known = NOMINAL
        filled: dict[str, float | int] = {}
        for key in ("smoothness", "sigma", "radius", "loss_gap"):
            if getattr(self.algorithm, key) is None:
                if known is None:
                    raise ValueError(
                        f"algorithm.{key}: needed, since no constants are known for model "
                        f"{self.model.name!r} on {self.data.set!r}"
                    )
                filled[key] = getattr(known, key)
        if self.algorithm.tau_max is None:
            filled["tau_max"] = self.workers
        object.__setattr__(self, "algorithm", self.algorithm.model_copy(update=filled))
        if self.algorithm.first_clip is None and not self.algorithm.sigma:
            raise ValueError("algorithm.sigma = 0.0: must be greater than 0 where no first_clip is given")
        if self.testbed.edges_at_least > self.edges:
            raise ValueError(
                f"testbed.edges_at_least = {self.testbed.edges_at_least}: must be at most {self.edges}, "
                "the number of edges, or the run would never begin"
            )
        return self

    # -- what the core asks for -----------------------------------------------------------------------

    @property
    def private(self) -> bool:
        """ASGD and CSGD never clip or noise, whatever [privacy] says."""
        return self.algorithm.name in ("audp", "mapa", "constant")

    @property
    def workers(self) -> int:
        """How many edges take part: CSGD is one worker on all data."""
        return 1 if self.algorithm.name == "csgd" else self.edges

    @property
    def problem(self) -> Problem:
        """The constants in the core's own form."""
        a = self.algorithm
        assert a.smoothness is not None
        assert a.sigma is not None
        assert a.radius is not None
        assert a.loss_gap is not None
        assert a.tau_max is not None
        return Problem(
            batch_size=self.batch_size,
            smoothness=a.smoothness,
            sigma=a.sigma,
            tau_max=a.tau_max,
            iterations=self.iterations,
            theta=a.theta,
            delta=a.delta,
            loss_gap=a.loss_gap,
            radius=a.radius,
            first_clip=a.first_clip,
            rule=SensitivityRule(a.rule),
            rate=a.rate,
            rate_decay=RateDecay(a.rate_decay),
        )

    @property
    def mechanism(self) -> Mechanism:
        p = self.privacy
        return Mechanism(Clipping(p.clipping), Scope(p.scope), Sampling(self.data.sampler), self.batch_size)

    def law(self, index: int) -> NoiseLaw | None:
        """Return how edge k noises; None where the algorithm never does."""
        if not self.private:
            return None
        if self.privacy.noise == "gaussian":
            return noise_law("gaussian", noise_multiplier=self.privacy.parameter(index))
        return noise_law(self.privacy.noise, epsilon=self.privacy.parameter(index))

    def for_edge(self, index: int) -> dict[str, Any]:
        """Return what edge k needs: its own ε_k and link alone; the seed travels apart, where there is one."""
        values = self.model_dump(mode="json", exclude={"seed", "evaluation", "records", "delays"})
        for key in ("epsilon", "noise_multiplier"):
            if given := values["privacy"][key]:
                values["privacy"][key] = [given[index % len(given)]]
        if self.links:
            values["links"] = [values["links"][index % len(self.links)]]
        return values

    def canonical(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved scenario."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def parse_scenario(values: Mapping[str, Any]) -> Scenario:
    """Check a whole scenario; a ConfigurationError names key, value and what is allowed."""
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(explain(error, Scenario)) from error
