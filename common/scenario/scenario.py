"""One scenario = one run: its tables, the checks between them, and what it says about the algorithm.

Pydantic stands here, at the border; the core gets `Problem` and plain values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, Self

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from common.algorithms import AlgorithmDescription, describe
from common.devices import DeviceProfile
from common.errors import ConfigurationError, require
from common.mechanism.guarantee import Scope
from common.mechanism.local_work import LocalWork
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.noise.law import NoiseLaw
from common.own_code import MECHANISM_KEYS, code_named_by
from common.problem import Problem, SensitivityRule
from common.scenario.algorithm_table import AlgorithmTable, check_clipping, check_required, filled
from common.scenario.data_table import DataTable
from common.scenario.privacy_table import PrivacyTable
from common.scenario.secure_table import SecureTable, check_secure, grid_of
from common.scenario.tables import (
    RECORD,
    CompressionTable,
    DelaysTable,
    DeviceTable,
    EvaluationTable,
    LinkTable,
    LocalTable,
    ModelTable,
    Positive,
    RecordsTable,
    Table,
    TestbedTable,
    WorkTable,
    checked,
)
from common.wire.codings.registry import PLAIN

_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # updates between evaluations


class Codings(NamedTuple):
    """How the messages of one edge are coded."""

    gradients: str = PLAIN
    models: str = PLAIN


class Scenario(Table):
    """One TOML file."""

    later = ("local", "devices", "time_limit", "compression", "secure")

    edges: int = Field(5, ge=1, le=100_000, description="K: how many edges, and shards")
    iterations: int = Field(..., ge=1, le=1_000_000_000, description="T: updates of the model")
    batch_size: int = Field(12, ge=1, le=1_000_000, description="b")
    seed: int | None = Field(None, ge=0, lt=2**63, description="absent: secure randomness, not replayable")
    time_limit: Positive | None = Field(
        None, le=1e9, description="seconds, virtual in a simulation, after which the run ends; absent: at T"
    )
    data: DataTable = DataTable()
    model: ModelTable = ModelTable()
    algorithm: AlgorithmTable = AlgorithmTable()
    privacy: PrivacyTable = Field(default_factory=lambda: PrivacyTable(noise_multiplier=[1.0]))
    secure: SecureTable | None = Field(None, description="absent: the cloud sees every edge's releases")
    local: LocalTable = LocalTable()
    delays: DelaysTable = DelaysTable()
    evaluation: EvaluationTable = EvaluationTable()
    records: RecordsTable = RecordsTable()
    links: list[LinkTable] = Field(
        default_factory=list, max_length=100_000, description="cycled over edges; none: no added delay"
    )
    devices: list[DeviceTable] = Field(
        default_factory=list, max_length=100_000, description="cycled over edges; none: as fast as they are"
    )
    compression: CompressionTable = CompressionTable()
    testbed: TestbedTable = TestbedTable()
    _work: WorkTable = PrivateAttr()  # by the algorithm's word, or on an edge by the welcome's

    @model_validator(mode="after")
    def _resolve(self, info: ValidationInfo) -> Self:
        """Learn from the algorithm, or from a welcome, what edges do; without either there is no scenario."""
        told = (info.context or {}).get("work")
        self._work = told or self._resolve_algorithm()
        if self.evaluation.every is None:  # a round number of updates, by T
            step = next((one for one in _STEPS if self.iterations <= 40 * one), _STEPS[-1])
            object.__setattr__(self, "evaluation", EvaluationTable(every=step))
        least, most = self.testbed.edges_at_least, f"at most {self.edges}, the number of edges"
        require(least <= self.edges, "testbed.edges_at_least", least, f"{most}, or the run would never begin")
        self._check_mechanism()
        if self.privacy.gradients_per_second is not None and self.time_limit is None:
            raise ValueError("time_limit: needed with privacy.gradients_per_second")
        if self.algorithm.weights == "noise" and not self.private:
            raise ValueError("algorithm.weights = 'noise': needs an algorithm whose edges clip and noise")
        if self.privacy.pace == "own" and not self.private:
            raise ValueError("privacy.pace = 'own': needs an algorithm whose edges clip and noise")
        check_secure(self, None if told else self.described)
        return self

    def _check_mechanism(self) -> None:
        """Refuse parts that state no cost, or do not go together, before anything is sent."""
        steps = self.work.releases()
        if not self.private and (self.local.work is not None or steps > 1):
            key = f"local.steps = {steps}" if self.local.work is None else f"local.work = {self.local.work!r}"
            raise ValueError(f"{key}: needs an algorithm whose edges clip and noise, and this one's do not")
        for law in self._laws():
            self.mechanism(law)

    def _laws(self) -> Iterator[NoiseLaw | None]:
        """Yield every law that an edge may have; one that a budget has yet to calibrate stands for all strengths."""
        privacy = self.privacy
        if not self.private:
            yield None
        elif len(privacy.given) < len(privacy.described.names):
            yield privacy.described.make({str(privacy.described.made.calibrated): 1.0}, "privacy.noise")
        else:
            strengths = (
                privacy.parameters(k) for k in range(max(map(len, privacy.given.values()), default=1))
            )
            for one in dict.fromkeys(tuple(strength.items()) for strength in strengths):
                yield privacy.described.make(dict(one), "privacy.noise")

    def _resolve_algorithm(self) -> WorkTable:
        """Let the algorithm check its table and fill it; return what its edges do."""
        described = self.described
        check_required(self.algorithm, described)
        check_clipping(self.privacy.clipped, described, weighted=self.weighted)
        table = filled(
            self.algorithm, described, model=self.model.name, dataset=self.data.set, edges=self.edges
        )
        object.__setattr__(self, "algorithm", table)
        return WorkTable(private=described.private, centralised=described.centralised)

    # -- what the core asks for -----------------------------------------------------------------------

    @property
    def described(self) -> AlgorithmDescription:
        """What the algorithm says of itself; not for edges, who are told what to do."""
        return describe(self.algorithm.name)

    @property
    def private(self) -> bool:
        """Whether edges clip and noise; where they do not, [privacy] means nothing."""
        return self._work.private

    @property
    def centralised(self) -> bool:
        """Whether one worker holds all data."""
        return self._work.centralised

    @property
    def workers(self) -> int:
        """How many edges take part."""
        return 1 if self.centralised else self.edges

    @property
    def updates(self) -> int:
        """How many updates a run can make: T, or ΣR_k where edges have caps that add up to less."""
        if self.privacy.release_caps is None:
            return self.iterations
        return min(self.iterations, sum(self.privacy.cap(k) or 0 for k in range(self.workers)))

    @property
    def evaluate_every(self) -> int:
        """Updates between evaluations; 0: only the last."""
        assert self.evaluation.every is not None  # filled in
        return self.evaluation.every

    @property
    def problem(self) -> Problem:
        """The constants in the core's own form."""
        table = self.algorithm
        keys = ("smoothness", "sigma", "tau_max", "theta", "delta", "loss_gap", "radius", "first_clip")
        return Problem(
            batch_size=self.batch_size,
            iterations=self.updates,
            rule=SensitivityRule(table.rule),
            measure_tau=table.tau_max_from == "measured",
            edges=self.workers,
            **{key: getattr(table, key) for key in keys},
        )

    @property
    def sampler(self) -> Sampler:
        """How an edge draws a batch."""
        return self.data.drawn

    @property
    def work(self) -> LocalWork:
        """How an edge makes a message out of releases."""
        return self.local.made

    def mechanism(self, law: NoiseLaw | None) -> Mechanism:
        """Return how an edge that noises by this law makes a release; None: it neither clips nor noises."""
        privacy, scope = self.privacy, Scope(self.privacy.scope)
        grid = grid_of(self) if self.private else None
        return Mechanism(law, self.batch_size, self.sampler, privacy.clipped, self.work, scope, grid)

    def law(self, index: int) -> NoiseLaw | None:
        """Return how edge k noises; None where the algorithm never does."""
        if not self.private:
            return None
        return self.privacy.described.make(self.privacy.parameters(index), "privacy.noise")

    def laws(self) -> list[NoiseLaw | None]:
        """Return how each edge noises; parameters that come again make one law."""
        if not self.private:
            return [None] * self.workers
        given, made, laws = list(self.privacy.given.values()), {}, []
        for k in range(self.workers):
            parameters = tuple(values[k % len(values)] for values in given)
            if parameters not in made:
                made[parameters] = self.law(k)
            laws.append(made[parameters])
        return laws

    @property
    def weighted(self) -> bool:
        """Whether gradients weigh by their edges' noise."""
        weights = self.algorithm.weights
        return weights == "noise" or (weights is None and self.privacy.pace == "own")

    def codings(self, index: int, asked: str | None = None) -> Codings:
        """Return how edge k's messages are coded: as it asks, where the run offers that; else as the run says."""
        table = self.compression
        if asked is not None and asked in table.offered:
            return Codings(asked, asked)
        if not self.links:
            return Codings(table.gradients, table.models)
        link = self.links[index % len(self.links)]
        return Codings(link.gradients or table.gradients, link.models or table.models)

    @property
    def every_coding(self) -> frozenset[str]:
        """All codings that a message of the run may have."""
        links = (self.codings(k) for k in range(len(self.links) or 1))
        return frozenset(self.compression.offered).union(*links)

    def for_edge(self, index: int, asked: str | None = None) -> dict[str, Any]:
        """Return what edge k needs: its own ε_k and link alone; the seed travels apart, where there is one.

        Not the algorithm: of that an edge learns only what to do. `asked` is the coding that its hello asks for.
        """
        left_out = {"seed", "algorithm", "evaluation", "records", "delays", "time_limit"}
        values = {**self._dumped(exclude=left_out, context=RECORD), "work": self._work.model_dump()}
        privacy = values["privacy"]
        for key, given in self.privacy.given.items():
            privacy[key] = [given[index % len(given)]]
        if self.privacy.release_caps is not None:
            privacy["release_caps"] = [self.privacy.cap(index)]
        for key in ("paces", "gradients_per_second"):
            privacy.pop(key, None)  # of all edges: no business of this one
        if self.links:
            link = values["links"][index % len(self.links)]
            values["links"] = [{key: value for key, value in link.items() if key not in Codings._fields}]
        values.pop("compression", None)
        if (codings := self.codings(index, asked)) != Codings():
            values["compression"] = codings._asdict()
        if devices := values.pop("devices", None):
            values["devices"] = [_own_phase(devices[index % len(devices)], index)]
        return values

    def device(self, index: int) -> DeviceProfile | None:
        """Return the device of edge k; None: the machine as it is."""
        return self.devices[index % len(self.devices)].profile(index) if self.devices else None

    @property
    def profiles(self) -> list[DeviceProfile]:
        """The devices of all edges, by k; none: the scenario names none."""
        tables = self.devices
        return [tables[k % len(tables)].profile(k) for k in range(self.workers)] if tables else []

    @property
    def longest_absence(self) -> float:
        """For how many seconds an edge may be away by its device's word; 0: all are always there."""
        spans = [table.profile(0).availability for table in self.devices]  # a phase does not change it
        return max((span.longest_absence for span in spans if span is not None), default=0.0)

    def canonical(self) -> dict[str, Any]:
        """Return what a record holds: every value, and of the algorithm's own options those not at their default."""
        values = self._dumped(context=RECORD)
        options = self.algorithm.options
        shared = {key: value for key, value in values["algorithm"].items() if key not in options}
        values["algorithm"] = shared | self.described.recorded(options)
        return values

    def resolved(self) -> dict[str, Any]:
        """Return every value, the algorithm's own options included."""
        return self._dumped()

    def _dumped(self, **options: Any) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, **options)

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved scenario."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _own_phase(device: dict[str, Any], index: int) -> dict[str, Any]:
    """Return what an edge is told of its device: of the phases its own."""
    availability = device["availability"]
    if availability is not None and availability["phase"] is not None:
        phases = availability["phase"]
        device = {**device, "availability": {**availability, "phase": [phases[index % len(phases)]]}}
    return device


def parse_scenario(values: Mapping[str, Any]) -> Scenario:
    """Check a whole scenario; a ConfigurationError names key, value and what is allowed."""
    return checked(Scenario, values)


def parse_welcome(values: Mapping[str, Any], *, allowed: Collection[str] = ()) -> Scenario:
    """Check a scenario as an edge gets it: `work` says what to do, and nothing is looked up by an algorithm's name.

    `allowed` are the parts of the mechanism by dotted path that may be imported; a model or data set is not imported
    here.
    """
    rest = dict(values)
    for key, name in code_named_by(rest):
        if key in MECHANISM_KEYS and name not in allowed:
            raise ConfigurationError(
                f"{key} = {name!r}: the run asks for code of its own; allow it with --allow {name}"
            )
    if "algorithm" in rest:
        raise ConfigurationError("algorithm: an edge is told by `work` what to do, not by an algorithm")
    work = rest.pop("work", None)
    if not isinstance(work, Mapping):
        raise ConfigurationError("work: missing; must say whether edges clip and noise")
    return checked(Scenario, rest, context={"work": checked(WorkTable, work, key="work.")})
