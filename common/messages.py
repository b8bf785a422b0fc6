"""Domain events that cloud and edge speak; frozen, and free of any transport. Those of every update are tuples.

Words (docs/paper.md): update t turns x_t into x_{t+1}; a model's version is its t;
staleness = t − version read; a sequence counts from 1 per edge id and is never reused for other bytes.

Three names tell old messages from new ones (docs/protocol.md): the run's `incarnation`, drawn when it begins at
t = 1; the `nonce` of an edge's process; the `number` of a hello, which counts from 1 in its process. Their
defaults are for engines without a wire, where there is one incarnation, one process and one hello.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from common.quantities import EdgeId, NoisyGradient, Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """An edge asks to take part and says how it will noise (line 1, edge side: "send ε_k").

    What it leaves open it takes from the run's scenario, for its index.
    """

    edge_id: EdgeId
    noise: str | None = None  # name of the law; None: the run's
    parameters: Mapping[str, float] = field(default_factory=dict)  # of the law, as ε_k; none: the run's
    last_sequence: int = 0  # highest sequence its ledger holds for this run; 0: none
    index: int | None = None  # k that it held before, in this run or another, where its ledger knows one
    nonce: str = ""  # of the process that says it
    number: int = 1  # of this hello among those of its process
    incarnation: int = 0  # of the run that it is meant for
    preparing: bool = False  # it has its records still to read: it says hello again when it can train
    coding: str | None = None  # that it asks for, both ways, where the run offers it
    # with secure sums: its key for the run, digest of the terms that it accepted, certificate, signature
    entry: tuple[bytes, bytes, bytes, bytes] | None = None


class GradientArrived(NamedTuple):
    """g̃ of one edge."""

    edge_id: EdgeId
    sequence: int
    version: int  # t − τ(t, k): the model that the edge read
    sensitivity: float  # ΔS that it was clipped and noised under
    gradient: NoisyGradient  # g̃
    incarnation: int = 0  # of the run whose model it read
    norm: float | None = None  # ‖g̃‖, where decoding has found it; never sent


AWAY = "away"  # reason of a leave: the edge comes back by itself


@dataclass(frozen=True, slots=True)
class Leave:
    """An edge leaves on purpose, by its last will (`lost`), or is long silent (`silent`).

    On purpose: `budget`, `shutdown`, `refused` (it cannot follow the welcome), `failed`, `away` (for a while). The
    cloud's own word is `banned-…`.
    """

    edge_id: EdgeId
    reason: str
    nonce: str = ""  # of the process that goes

    @property
    def on_purpose(self) -> bool:
        return self.reason not in ("lost", "silent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The cloud's answer to a hello, with all that an edge needs to begin.

    The server, which is pure, leaves scenario and seed out; the shell adds them.
    """

    edge_id: EdgeId
    index: int  # k ≥ 0, and with it shard k
    edges: int  # K, the number of shards
    last_sequence: int  # last sequence applied, at most the hello's; the edge continues at its own + 1
    scenario: Mapping[str, object] = field(default_factory=dict)
    seed: int | None = None  # only in seeded scenarios
    incarnation: int = 0  # of the run
    nonce: str = ""  # of the hello that it answers
    number: int = 1  # of the hello that it answers
    coding: str | None = None  # that the hello asks for; never sent: the scenario says what is agreed
    terms: bytes | None = None  # of secure sums, where the run has them


@dataclass(frozen=True, slots=True)
class Refuse:
    """A message that cannot be served.

    To a hello: `incarnation` (it is meant for another incarnation of the run), `fleet-full`, `epsilon-floor`,
    `ledger-lost`, `mechanism`, `halted`, `banned`. To a gradient: `stranger` (say hello first), `full` (send the same
    bytes again later; no cloud of this project says so).
    """

    edge_id: EdgeId
    reason: str
    detail: str
    nonce: str | None = None  # of the hello that it answers; None where it answers a gradient
    number: int | None = None
    incarnation: int = 0  # of the run, now
    last_sequence: int | None = None  # `ledger-lost` alone: the last of this edge's that the cloud knows


class SendModel(NamedTuple):
    """x_t and ΔS for one edge (line 12, cloud side). The vector is a snapshot and never changes."""

    edge_id: EdgeId
    version: int  # t
    sensitivity: float  # ΔS
    acknowledged: int  # last sequence of this edge that was applied
    model: Vector  # x_t
    incarnation: int = 0  # of the run
    norm: float | None = None  # ‖x_t‖, where the sender has found it, so that x_t is finite; never sent


@dataclass(frozen=True, slots=True)
class Halt:
    """Training is over for all edges: `finished`, `no-budget`, `interrupted`, `diverged`, `failed`."""

    reason: str
    updates: int
    incarnation: int = 0  # of the run that has ended


@dataclass(frozen=True, slots=True)
class Presence:
    """Whether the cloud is there, and which process it is."""

    online: bool
    nonce: str
    incarnation: int = 0  # of the run that it serves
    over: bool = False  # the run has ended, and the cloud leaves on purpose


# Facts for the record. Their fields are the keys of events.jsonl.


@dataclass(frozen=True, slots=True)
class EdgeJoined:
    edge: int
    edge_id: EdgeId
    t: int
    noise: str
    epsilon: float | None
    noise_multiplier: float | None
    returned: bool
    parameters: Mapping[str, float] = field(default_factory=dict)  # other parameters: keys beside these
    device: str | None = None  # its name, where the scenario gives this edge one; else no key


@dataclass(frozen=True, slots=True)
class EdgeGone:
    edge: int
    edge_id: EdgeId
    t: int
    reason: str


class GradientApplied(NamedTuple):
    edge: int
    edge_id: EdgeId
    sequence: int
    version: int
    t: int
    staleness: int
    stage: int  # stage it was made in
    sensitivity: float  # ΔS it was made under


@dataclass(frozen=True, slots=True)
class GradientRefused:
    """A gradient that was not applied.

    `duplicate`, `stranger`, `after-halt`, `banned`; `incarnation` (another life of the run), `sequence` (not the next
    one), `future`, `no-such-model` (version 0, or before the first model), `sensitivity` (that version had another
    ΔS), `norm` (no honest edge makes so long a gradient), `cap` (beyond the releases that its own pace allows).
    """

    edge_id: EdgeId
    sequence: int
    t: int
    reason: str


@dataclass(frozen=True, slots=True)
class StageOpened:
    stage: int
    t: int  # its first update
    sensitivity: float  # ΔS
    variance: float  # Δ_b
    p: float
    learning_rate: float  # γ
    length: int  # T_s
    tau_max: int
    reopened: bool


@dataclass(frozen=True, slots=True)
class EvaluationDue:
    """x_{t+1} after `updates` updates waits to be evaluated, off the hot path."""

    updates: int
    stage: int
    model: Vector


# The same two values from the edge's side, which makes what arrives and receives what is sent.
GradientMade = GradientArrived
ModelReceived = SendModel

quick = (
    tuple.__new__
)  # makes one of the tuples above of all its values: their own way costs three times as much

Event = Hello | GradientArrived | Leave
Fact = EdgeJoined | EdgeGone | GradientApplied | GradientRefused | StageOpened
Effect = Welcome | Refuse | SendModel | Halt | EvaluationDue | Fact
