"""One game's shard and model, behind the real edge: the canary, the other records, what x does to them.

The auditor writes the per-sample gradients; sampler, clipping, division by b and noise are an edge's own mechanism,
so whatever can be configured of a release can be played. A planted defect may stand anywhere in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from common.accounting.releases import ReleaseKind
from common.mechanism.clipping import Clipping
from common.mechanism.guarantee import Adjacency, Guarantee, Norm, Scope
from common.mechanism.mechanism import Mechanism
from common.mechanism.samplers.shuffled import Shuffled
from common.metrics import LOSS, Metric
from common.models.gradients import Matrix, RowGradients
from common.models.model import Features, Images, Labels, Model, Targets, layout
from common.models.registry import Counted
from common.noise.law import Noise, NoiseLaw
from common.quantities import EdgeId, PerSampleGradients, Vector
from common.randomness import CounterStreams
from edge.worker import EdgeWorker, Shard
from experiments.audit.claims import Floats, ReleaseClaim, claim_for, composed
from experiments.audit.game import Aim, Game

CLIP = 1.0  # C
LOUD = np.float32(1000.0)  # norm of a canary before clipping, in units of C
# how a game is judged by the likelihood ratio alone: above a threshold that the first half chooses, or above 1
CHOSEN: dict[str, Any] = {"learner": None}
LIKELY: dict[str, Any] = {"learner": None, "threshold": 0.0}

Form = Callable[[Matrix], PerSampleGradients]  # how rows become per-sample gradients; a defect may stand here


class GivenGradients:
    """F(x; ξ) = ½ Σ ξ_i x_i², whose gradient is ξ∘x: ξ at x = 1, and x may turn, scale or mask it."""

    name = "given-gradients"

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.layout = layout(weight=(dimension,))
        self.first_layer = slice(0, dimension // 2)
        self.metrics: tuple[Metric, ...] = (LOSS,)
        self.form: Form = RowGradients

    def initial(self, rng: np.random.Generator) -> Vector:  # noqa: ARG002
        return np.ones(self.dimension, np.float32)

    def features(self, images: Images) -> Features:
        return images

    def targets(self, labels: Labels) -> Targets:
        return labels

    def gradients(self, x: Vector, features: Features, targets: Targets) -> PerSampleGradients:  # noqa: ARG002
        return self.form(features * x)

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> dict[str, float]:  # noqa: ARG002
        return {"loss": float((features @ (x * x)).mean()) / 2}


class CodedGradients(GivenGradients):
    """Record i pulls along the last coordinate, to or fro by its own code: column n of its features where x₀ = n."""

    name = "coded-gradients"

    def gradients(self, x: Vector, features: Features, targets: Targets) -> PerSampleGradients:  # noqa: ARG002
        rows = np.zeros((len(features), self.dimension), np.float32)
        rows[:, -1] = LOUD * features[:, round(float(x[0]))]
        return self.form(rows)


def with_extra(clipping: Clipping, model: Model) -> Model:
    """Return the model as an edge has it: with a coordinate more where the clipping asks for one."""
    return Counted(model) if clipping.extra else model


def written(model: Model) -> GivenGradients:
    """Return one of these models as it is without a count."""
    inner = model._inner if isinstance(model, Counted) else model
    assert isinstance(inner, GivenGradients)
    return inner


@dataclass(frozen=True, slots=True)
class Altered(NoiseLaw):
    """A law that changes what another draws, and says of itself what the other does."""

    name: ClassVar[str] = "altered"
    law: NoiseLaw
    change: Callable[[Noise], Noise]

    @property
    def norm(self) -> Norm:  # type: ignore[override]
        return self.law.norm

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        return self.change(self.law.draw(sensitivity, dimension, rng))

    def relative_second_moment(self, dimension: int) -> float:
        return self.law.relative_second_moment(dimension)

    def relative_tail(self, dimension: int) -> float:
        return self.law.relative_tail(dimension)

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
        return self.law.guarantee(mechanism, adjacency)


def silent(law: NoiseLaw) -> NoiseLaw:
    return Altered(law, np.zeros_like)


Plant = Callable[[EdgeWorker], EdgeWorker]  # puts a defect into an edge


def honest(worker: EdgeWorker) -> EdgeWorker:
    return worker


def resized(mechanism: Mechanism, batch_size: int) -> Mechanism:
    sampler = mechanism.sampler.resized(mechanism.batch_size, batch_size)
    return replace(mechanism, batch_size=batch_size, sampler=sampler)


def streams_of(seed: int | None) -> CounterStreams:
    """Return streams as edges without a seed have them: secure, or laid out alike with a key that can be had again."""
    if seed is None:
        return CounterStreams.secure()
    first, second = (int(word) for word in np.random.SeedSequence(seed).generate_state(2, np.uint64))
    return CounterStreams((first, second), reproducible=False)


def unit(shape: Floats, norm: Norm) -> Floats:
    """Return a shape scaled to the length 1 in the norm that is clipped."""
    return np.asarray(shape / np.linalg.norm(shape, ord=1 if norm is Norm.L1 else 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Design:
    """A canary and its company behind an edge's mechanism; where its clipping says so the company pulls against it."""

    mechanism: Mechanism  # as it is claimed; the plant may make another of it
    shard_size: int  # n_k
    canary: Floats  # what it adds to the batch at x = 1, in units of C
    others: Floats | None = None  # every other record, in units of C; None: 0
    releases: int = 1  # of a round
    steer: Floats | None = None  # rows of x; None: 1
    adjacency: Adjacency = Adjacency.ZERO_OUT  # replace-one: the other world has the canary's opposite
    plant: Plant = field(default=honest)
    regularization: float = 0.0  # λ

    @property
    def sensitivity(self) -> float:
        return 2 * CLIP / self.mechanism.batch_size

    @property
    def kind(self) -> ReleaseKind:
        return ReleaseKind(self.mechanism, self.shard_size)

    @property
    def claim(self) -> ReleaseClaim:
        """What the accountant states of a round: of one message, or composed where nothing is amplified."""
        kind = self.kind
        one = claim_for(kind, self.adjacency)
        if self.releases == 1 or kind.batches_per_epoch >= self.releases:  # an epoch charges once
            return one
        if kind.sampling_rate < 1:
            raise ValueError("a round of several sampled releases has no trade-off in closed form")
        return composed(one, self.releases)

    def rows(self, there: bool) -> Matrix:
        """Return the shard's per-sample gradients at x = 1 with the canary in row 0, or zeroed.

        A clipped batch mean moves the most where the others pull it to −C and the canary to +C.
        """
        b = self.mechanism.batch_size
        rows = np.zeros((self.shard_size, self.canary.size), np.float32)
        canary = CLIP * self.canary
        if self.mechanism.clipping.opposed:
            rows[1:] = -b * canary
            canary = b * b * canary
        elif self.others is not None:
            rows[:] = CLIP * self.others
        rows[0] = canary if there else -canary if self.adjacency is Adjacency.REPLACE_ONE else 0
        return rows

    def worker(self, there: bool, seed: int | None) -> EdgeWorker:
        """Return the real edge on this shard, with the defect in it; without a seed its streams are secure."""
        rows = self.rows(there)
        shard = Shard(rows, np.zeros(len(rows), np.int64), np.arange(len(rows)))
        size, mechanism = self.canary.size, self.mechanism
        grid = (
            None if mechanism.grid is None else replace(mechanism.grid, clip=0.0)
        )  # a game has a C of its own
        noised = slice(None) if mechanism.scope is Scope.ALL else slice(0, max(1, size // 2))
        worker = EdgeWorker(
            edge_id=EdgeId("audited"),
            index=0,
            model=with_extra(mechanism.clipping, GivenGradients(size)),
            shard=shard,
            mechanism=replace(mechanism, work=mechanism.work.audited(), grid=grid),
            noised=noised,
            regularization=self.regularization,
            streams=streams_of(seed),
        )
        return self.plant(worker)

    @property
    def path(self) -> Matrix:
        """The x of each release, from the start again when they end; the count's coordinate stays 0."""
        steer = np.ones((1, self.canary.size)) if self.steer is None else self.steer
        return np.pad(steer, ((0, 0), (0, self.mechanism.clipping.extra))).astype(np.float32)

    @property
    def aim(self) -> Aim:
        """Return where a release lies before noise: the adversary knows the code, and runs it without."""
        mechanism = self.mechanism
        sampler, b = mechanism.sampler, mechanism.batch_size
        certain = replace(self, shard_size=sampler.least_records(b))
        if mechanism.clipping.opposed and sampler.places(b) > 1:  # each row once
            certain = replace(self, shard_size=b, mechanism=replace(mechanism, sampler=Shuffled()))
        zeroed, there = (certain._without_noise(world) for world in (False, True))
        law = mechanism.law if mechanism.scope is Scope.ALL else None  # what is in the clear decides alone
        epoch = self.kind.batches_per_epoch > 1
        return Aim(law, self.sensitivity, zeroed, there, self.kind.drawing_rate, one_of=epoch)

    def _without_noise(self, there: bool) -> Floats:
        worker = self.worker(there, 0)
        if worker.mechanism.law is not None:
            worker.mechanism = replace(worker.mechanism, law=silent(worker.mechanism.law), grid=None)
        made = [worker.gradient(x, self.sensitivity, n) for n, x in enumerate(self.path, 1)]
        return np.array(made, np.float64)

    def game(self, name: str, rounds: int, **how: Any) -> Game:
        """Return the game: the score is the likelihood ratio or what is learned, whichever does better at first."""
        aim = self.aim
        game = Game(
            name=name,
            claim=self.claim,
            worker=self.worker,
            sensitivity=self.sensitivity,
            score=aim.ratio,
            learner=aim.learned,
            rounds=rounds,
            releases_per_round=self.releases,
            steer=self.path,
        )
        return replace(game, **how)
