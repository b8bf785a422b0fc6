"""Who may take part, on which terms, and what the cloud knows of each edge and its restarts; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from common.accounting.releases import ReleaseKind
from common.errors import ConfigurationError
from common.messages import Hello, Refuse
from common.noise.law import NoiseLaw
from common.noise.registry import describe_law, law_names, noise_law, paced_law
from common.own_code import is_dotted
from common.quantities import EdgeId

if TYPE_CHECKING:
    from cloud.server import CloudServer


BANS = {  # the cloud's reasons to be rid of an edge, which nobody but that edge can have caused
    "banned-malformed": "it sent a message of its own, proven to be so, that breaks the protocol",
    "banned-sequence": "it sent a gradient of its own, proven to be so, that its ledger cannot have come to",
}
FOR_GOOD = ("budget", "refused", "failed", *BANS)  # reasons of a leave after which an edge does not return
_MODELS_KEPT = 256  # an algorithm may change ΔS at every update; no edge is that many models late
_REMEMBERED = 16  # processes of one edge that were replaced
_NO_MORE = 2**63  # above the number of any hello
_ROUNDING = 1e-3  # share by which float32 may lengthen a gradient
_EARLIER_RUNS = 100  # of the same name: an edge that claims more releases than they can have is not believed
_MOST_STARTS = 10_000  # of one edge that are kept; beyond, every release counts as a separate epoch
_REOPENINGS = 2  # of a stage by one edge: as a newcomer, and when it learns which shard its ledger is of


class _Opening(NamedTuple):
    version: int  # the first one sent so
    stage: int
    sensitivity: float
    beside: bool  # that version had been sent with the opening before, too


@dataclass(slots=True)
class SentModels:
    """The stage and ΔS that each model version was sent to one edge with: the newest changes of the two."""

    _all: list[_Opening] = field(default_factory=list)
    _sent: int = 0  # the newest version that was sent

    def sent(self, version: int, stage: int, sensitivity: float) -> None:
        """Note what a model is sent with; versions never go back."""
        last = self._all[-1] if self._all else None
        if last is None or last.stage != stage or last.sensitivity != sensitivity:
            beside = last is not None and self._sent == version
            self._all.append(_Opening(version, stage, sensitivity, beside))
            del self._all[:-_MODELS_KEPT]
        self._sent = version

    def plain(self) -> list[Any]:
        """Return all of it in lists and numbers."""
        return [self._sent, [list(opening) for opening in self._all]]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Self:
        sent, openings = plain
        return cls([_Opening(*opening) for opening in openings], sent)

    def newest(self, version: int, stage: int, sensitivity: float) -> bool:
        """Return whether the model that was sent last is this one."""
        last = self._all[-1] if self._all else None
        return (
            last is not None
            and self._sent == version
            and last.stage == stage
            and last.sensitivity == sensitivity
        )

    def stage_of(self, version: int, sensitivity: float) -> int | None:
        """Return the stage of a version that was sent with exactly this ΔS; None: it never was."""
        for opening in reversed(self._all):
            if opening.version > version:
                continue
            if opening.sensitivity == sensitivity:
                return opening.stage
            if not (opening.beside and opening.version == version):
                return None
        return None


class BelowFloorError(ConfigurationError):
    """An edge wants more privacy than the run can bear: its noise would ruin the learning rate of all edges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the cloud asks of edges and of itself; the constants of the algorithm are in the schedule."""

    edges: int  # K: how many shards there are to assign
    iterations: int  # T
    private: bool  # False for ASGD and CSGD, which neither clip nor noise
    noise: str  # the run's law
    # parameters of the law, where a hello leaves them open; each cycled over k
    parameters: Mapping[str, Sequence[float]] = field(default_factory=dict)
    noised_dimension: int = 1  # how many coordinates η has
    limits: Mapping[str, float] = field(default_factory=dict)  # `epsilon_floor` and the like, as far as set
    edges_at_least: int = 1  # edges that must be able to train before the first model is sent
    evaluate_every: int = 0  # 0: never, else x₁ too
    most_samples: float = math.inf  # of norm C, as long as a batch, at most; ∞: no length is checked
    regularization: float = 0.0  # λ
    batch_size: int = 1  # b
    steps: int = 1  # E: a message is the mean of E noised gradients
    local_rate: float = 0.0  # ρ_local between them
    devices: Sequence[str] = ()  # names, cycled over k; none: nothing is said of devices
    caps: Sequence[int] = ()  # R_k, cycled over k; none: all edges keep one pace
    stretch: float = 1.0  # factor by which a coding lengthens a vector at most

    def cap(self, index: int) -> float:
        """Return how many gradients of edge k the run takes."""
        return self.caps[index % len(self.caps)] if self.caps else math.inf

    def _own_parameters(self, index: int) -> dict[str, float]:
        return {key: values[index % len(values)] for key, values in self.parameters.items()}

    def law(self, hello: Hello, index: int) -> NoiseLaw:
        """Return how edge k will noise: by its own hello, else as the run's scenario says."""
        name = hello.noise or self.noise
        if name != self.noise and is_dotted(name):  # an edge must not have the cloud import anything
            raise ConfigurationError(
                f"noise = {name!r}: allowed are {', '.join(law_names())} or the run's law"
            )
        if self.caps:
            return paced_law(noise_law(self.noise, self._own_parameters(index)), name, hello.parameters)
        if not hello.parameters and name == self.noise:
            return noise_law(name, self._own_parameters(index))
        return noise_law(name, hello.parameters)

    def moment(self, law: NoiseLaw) -> float:
        """Return v_k of a message; raise BelowFloorError if a release has more noise than the run bears.

        γ knows an edge's noise by v alone, so the run's limit holds for v whatever law the edge chose. A mean of E
        independent draws has v/E.
        """
        for parameter in describe_law(law.name).options:
            value, bound = law.parameters[parameter.name], self.limits.get(parameter.limit)
            if bound is not None and parameter.passes(value, bound):
                most = "at most" if parameter.range.larger_is_noisier else "at least"
                raise BelowFloorError(
                    f"{parameter.name} = {value}: must be {most} {bound}, this run's privacy.{parameter.limit}"
                )
        moment, limit = law.relative_second_moment(self.noised_dimension), self.moment_limit
        if moment > limit:
            raise BelowFloorError(
                f"noise = {law.name!r}: has E‖η‖²/ΔS² = {moment:.6g}, which must be at most {limit:.6g}"
                f" by this run's privacy.{' and '.join(describe_law(self.noise).limits)}"
            )
        return moment / self.steps

    def device(self, index: int) -> str | None:
        return self.devices[index % len(self.devices)] if self.devices else None

    def reach(self, law: NoiseLaw | None, steps: int | None = None) -> float:
        """Return ‖g̃‖/ΔS, the regulariser's part left out, that no honest edge exceeds; ∞ where nothing is clipped.

        Each of the batch's samples moves the mean by C/b = ΔS/2 at most, and the law knows its tail, of one release
        and of the mean of E.
        """
        if law is None:
            return math.inf
        tail = law.relative_tail_of_mean(self.noised_dimension, steps or self.steps)
        return (1 + _ROUNDING) * self.stretch * (self.most_samples / 2 + tail)

    def regular_part(self, law: NoiseLaw | None, sensitivity: float, longest: float) -> float:
        """Return the length that λx adds to g̃ at most, where no model that was sent is longer than `longest`.

        A model is lengthened by its coding on the way to the edge, and its part in g̃ on the way back.
        Local steps move x: x⁽ᵉ⁾ = (1 − γλ)x⁽ᵉ⁻¹⁾ − γg, with γ = ρ_local/C and g a release without its regulariser.
        """
        longest *= self.stretch
        if self.steps > 1 and law is not None and self.regularization:
            rate = 2 * self.local_rate / (self.batch_size * sensitivity)
            moved = rate * sensitivity * self.reach(law, steps=1)
            for _ in range(self.steps - 1):
                longest = max(longest, abs(1 - rate * self.regularization) * longest + moved)
        return 1.001 * self.stretch * self.regularization * longest

    @property
    def moment_limit(self) -> float:
        """v of the run's own law at the limits of its parameters; infinite where one of them has none."""
        law = describe_law(self.noise)
        if not law.options or any(key not in self.limits for key in law.limits):
            return math.inf
        noisiest = law.make({parameter.name: self.limits[parameter.limit] for parameter in law.options})
        return noisiest.relative_second_moment(self.noised_dimension)


@dataclass(slots=True)
class EdgeAccount:
    """What the cloud knows of one edge."""

    edge_id: EdgeId
    index: int  # k
    last_sequence: int = 0  # last sequence applied (or refused for good)
    announced: int = 0  # last_sequence of its newest hello
    earlier: int = 0  # last_sequence of its first hello to this cloud: releases in earlier runs of this name
    applied: int = 0
    present: bool = True
    left: str = ""  # why it went on purpose; only the hello of another process takes it back
    nonce: str = ""  # of the process that speaks for it
    number: int = 0  # of the newest hello of that process
    preparing: bool = False  # by that hello: it cannot train yet
    former: dict[str, int] = field(default_factory=dict)  # nonce → newest hello of replaced processes
    reach: float = math.inf  # ‖g̃‖/ΔS of an honest gradient, at most
    moment: float = 0.0  # v_k
    law: NoiseLaw | None = None  # how it said that it noises
    reopenings: int = 0  # how often its noise has opened a stage again
    sent_models: SentModels = field(default_factory=SentModels)  # what it was sent

    def has_heard(self, hello: Hello) -> bool:
        """Return whether a hello is late or comes twice; any hello of a process that left on purpose is late."""
        if hello.nonce == self.nonce:
            return bool(self.left) or hello.number <= self.number
        return hello.number <= self.former.get(hello.nonce, 0)

    def spoken_for_by(self, hello: Hello) -> None:
        """Let the process of this hello speak for the edge from now on."""
        if hello.nonce != self.nonce and self.number:
            self.former.pop(hello.nonce, None)
            self.former[self.nonce] = _NO_MORE if self.left else self.number
            while len(self.former) > _REMEMBERED:
                del self.former[next(iter(self.former))]
        self.nonce, self.number, self.announced = hello.nonce, hello.number, hello.last_sequence
        self.present, self.left, self.preparing = True, "", hello.preparing

    def is_vacant(self, *, begun: bool) -> bool:
        """Return whether it left without having released anything in this run: another edge may take its place.

        `begun`: models have been sent, so an edge that was shut down may have a gradient on its way.
        """
        reasons = ("refused", "budget") if begun else ("refused", "budget", "shutdown")
        return self.left in reasons and not self.last_sequence and not self.announced


@dataclass(slots=True)
class ShardIndices:
    """The indices 0 … K − 1, each held by one edge id at most."""

    edges: int  # K
    dealt: set[int] = field(default_factory=set)
    _unused: int = 0  # no index below is free

    def deal(self, asked: int | None, otherwise: int | None = None) -> int:
        """Return the index that is asked for if it is free, else the edge's own, or the first unused."""
        if asked is not None and 0 <= asked < self.edges and asked not in self.dealt:
            return asked
        if otherwise is not None:
            return otherwise
        while self._unused in self.dealt:
            self._unused += 1
        return self._unused

    def exchange(self, held: int, index: int) -> None:
        self.dealt.discard(held)
        self._unused = min(self._unused, held)
        self.dealt.add(index)


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a hello that is welcomed gets."""

    index: int  # k
    law: NoiseLaw | None
    moment: float  # v_k
    instead_of: EdgeId | None = None  # the edge that held the index, and left without a release


def judge_hello(server: CloudServer, hello: Hello) -> Admitted | Refuse | None:
    """Return what a hello is answered with; None: with nothing, since it is late or comes twice."""
    account, terms = server.edges.get(hello.edge_id), server.terms

    def refuse(reason: str, detail: str) -> Refuse:
        return Refuse(hello.edge_id, reason, detail, hello.nonce, hello.number, server.incarnation)

    if hello.incarnation != server.incarnation:
        return refuse("incarnation", "this hello is for another incarnation of the run")
    if server.halted is not None:
        return refuse("halted", f"{server.halted.reason} after {server.halted.updates} updates")
    if account is not None and account.left in BANS:
        return refuse("banned", f"for the rest of this run, {account.left}: {BANS[account.left]}")
    if account is not None and account.has_heard(hello):
        return None
    vacant = None
    if account is None and len(server.edges) >= terms.edges:
        begun = server.schedule is not None
        vacant = next((edge for edge in server.edges.values() if edge.is_vacant(begun=begun)), None)
        if vacant is None:
            return refuse("fleet-full", f"all {terms.edges} shards are assigned")
    most = _most_releases(account, terms.iterations)
    if hello.last_sequence > most:
        detail = (
            f"last_sequence = {hello.last_sequence}: must be at most {most} in a run of T = {terms.iterations};"
            " a run under another name begins at 0"
        )
        return refuse("mechanism", detail)
    # of its own process no ledger is lost: what it has not debited, another client sent in its name
    restarted = account is not None and hello.nonce != account.nonce
    if account is not None and restarted and hello.last_sequence < account.last_sequence:
        detail = f"the ledger has {hello.last_sequence} releases, but {account.last_sequence} were applied"
        return replace(refuse("ledger-lost", detail), last_sequence=account.last_sequence)
    if vacant is not None:
        index = vacant.index
    elif account is None:
        index = server.indices.deal(hello.index)
    else:
        index = _redealt(server.indices, hello, account)
    try:
        law = terms.law(hello, index) if terms.private else None
        moment = 0.0 if law is None else terms.moment(law)
        _try_schedule(server, moment)
    except ConfigurationError as error:
        return refuse("epsilon-floor" if isinstance(error, BelowFloorError) else "mechanism", str(error))
    if account is not None and law != account.law and not _may_change(server, hello, account, moment):
        return refuse("mechanism", f"an edge must keep the noise law it started with: {account.law}")
    return Admitted(index, law, moment, None if vacant is None else vacant.edge_id)


def _most_releases(account: EdgeAccount | None, iterations: int) -> int:
    """Return how many releases an honest edge can have debited under the run's name, generously.

    The claim cannot be checked, and the run's statement of privacy counts it: one hello must not ruin that.
    """
    if account is None:
        return _EARLIER_RUNS * (iterations + 1)
    return account.earlier + 2 * (iterations + 1)  # in this run, with all that was refused or lost


def _redealt(indices: ShardIndices, hello: Hello, account: EdgeAccount) -> int:
    """Return the index of a known edge: another free one if it asks for it before its first release here.

    Only a welcome names the data, so an edge may learn late that its ledger is of another shard.
    """
    stays = account.last_sequence or hello.index is None
    return account.index if stays else indices.deal(hello.index, account.index)


def _may_change(server: CloudServer, hello: Hello, account: EdgeAccount, moment: float) -> bool:
    """Return whether a known edge may change its noise law: only before its first release, and only a few times.

    A larger v re-opens the stage; an edge that asked for it endlessly would keep every edge in that stage.
    """
    if account.last_sequence or hello.last_sequence:
        return False
    return server.schedule is None or moment <= server.moment or account.reopenings < _REOPENINGS


def _try_schedule(server: CloudServer, moment: float) -> None:
    """Raise ConfigurationError if v_k leaves no schedule: one edge's hello must not stop the cloud."""
    if server.schedule is None:
        server.begin(max(moment, server.moment))
    elif moment > server.moment:
        server.schedule.with_moment(moment, server.t)


@dataclass(slots=True)
class EdgeRestarts:
    """The starts of one edge id."""

    nonce: str  # of the process that was heard last
    begins: set[int]  # sequences that its processes found debited when they first said hello
    known: int = 0  # the highest sequence that a hello has named


@dataclass(slots=True)
class Restarts:
    """The starts of all welcomed edges; under shuffled sampling each begins a new epoch, which costs privacy."""

    edges: dict[EdgeId, EdgeRestarts] = field(default_factory=dict)

    def welcomed(self, hello: Hello) -> None:
        """Note a hello that was welcomed; a new nonce is a new process, with a new shuffle."""
        edge = self.edges.setdefault(hello.edge_id, EdgeRestarts(hello.nonce, {hello.last_sequence}))
        if hello.nonce != edge.nonce:
            edge.nonce = hello.nonce
            if len(edge.begins) <= _MOST_STARTS:
                edge.begins.add(hello.last_sequence)
        edge.known = max(edge.known, hello.last_sequence)

    def known(self, edge_id: EdgeId) -> int:
        """Return the highest sequence that the edge says it has debited."""
        return self.edges[edge_id].known if edge_id in self.edges else 0

    def earlier(self, edge_id: EdgeId) -> int:
        """Return how many releases there were before this cloud first heard of the edge."""
        return min(self.edges[edge_id].begins) if edge_id in self.edges else 0

    def charges(self, edge_id: EdgeId, kind: ReleaseKind, messages: int) -> int:
        """Return an upper bound of what the edge's ledger has charged for its messages.

        The starts before the first hello are unknown, so each release before it counts as a separate epoch.
        """
        edge = self.edges.get(edge_id)
        if not kind.mechanism.sampler.by_epoch or edge is None:
            return kind.charges(messages)
        steps = kind.mechanism.steps
        begins = sorted(begin for begin in edge.begins if begin < messages)
        if not begins or len(edge.begins) > _MOST_STARTS:
            return messages * steps
        ends = [*begins[1:], messages]
        return begins[0] * steps + sum(map(kind.charges_between, begins, ends))
