"""What an accountant needs to know of the releases that touched one record, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from common.errors import ConfigurationError
from common.mechanism.guarantee import Adjacency, Clipping, Guarantee, Mechanism, Sampling, Scope
from common.noise.law import NoiseLaw
from common.noise.registry import noise_law

NO_NOISE = "no noise: gradients leave as they are (ASGD and CSGD never clip or noise)"


@dataclass(frozen=True, slots=True)
class ReleaseKind:
    """One way of releasing gradients of one shard; releases of one kind compose homogeneously.

    ΔS is no part of it: noise scales with ΔS, so a new stage changes neither z nor ε.
    """

    law: NoiseLaw | None  # None: no mechanism at all
    mechanism: Mechanism
    shard_size: int  # n_k, public

    def __post_init__(self) -> None:
        b, n = self.mechanism.batch_size, self.shard_size
        if b < 1:
            raise ConfigurationError(f"batch_size = {b}: must be at least 1")
        if n < 1:
            raise ConfigurationError(f"shard_size = {n}: must be at least 1")
        if b > n and self.mechanism.sampling is not Sampling.WITH_REPLACEMENT:
            raise ConfigurationError(
                f"batch_size = {b}: must be at most the shard's {n} records"
                f" with the {self.mechanism.sampling.value} sampler"
            )
        if self.mechanism.steps < 1:
            raise ConfigurationError(f"local.steps = {self.mechanism.steps}: must be at least 1")
        self._check_truncation()

    def _check_truncation(self) -> None:
        """Refuse a B_max without truncated batches, or such batches that no bound is known for."""
        mechanism, most = self.mechanism, self.mechanism.largest_batch
        if mechanism.sampling is not Sampling.TRUNCATED_POISSON:
            if most is not None:
                raise ConfigurationError(
                    f"data.largest_batch = {most}: requires data.sampler = 'truncated-poisson'"
                )
            return
        if most is None or most < mechanism.batch_size:
            raise ConfigurationError(
                f"data.largest_batch = {most}: must be at least batch_size = {mechanism.batch_size} with"
                " data.sampler = 'truncated-poisson'"
            )
        if mechanism.clipping is Clipping.BATCH_MEAN:
            raise ConfigurationError(
                "privacy.clipping = 'batch-mean': with data.sampler = 'truncated-poisson' allowed are per-sample,"
                " normalised and quantile"
            )

    def fields(self) -> dict[str, Any]:
        """Return it as plain values, for a row or a line of JSON."""
        law, mechanism = self.law, self.mechanism
        return {
            "noise": None if law is None else law.name,
            "parameters": {} if law is None else law.parameters,
            "clipping": mechanism.clipping.value,
            "scope": mechanism.scope.value,
            "sampling": mechanism.sampling.value,
            "batch_size": mechanism.batch_size,
            "shard_size": self.shard_size,
            **({"steps": mechanism.steps} if mechanism.steps != 1 else {}),
            **({"largest_batch": mechanism.largest_batch} if mechanism.largest_batch is not None else {}),
        }

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `fields` has written, in this version or an earlier one."""
        law = None
        if fields["noise"] is not None:
            law = noise_law(fields["noise"], fields["parameters"])
        mechanism = Mechanism(
            Clipping(fields["clipping"]),
            Scope(fields["scope"]),
            Sampling(fields["sampling"]),
            fields["batch_size"],
            fields.get("steps", 1),
            fields.get("largest_batch"),
        )
        return cls(law, mechanism, fields["shard_size"])

    @property
    def sampling_rate(self) -> float:
        """q = b/n_k where it may be counted, else 1; `truncation` says what may be counted of truncated batches."""
        return self.mechanism.batch_size / self.shard_size if self.mechanism.amplified else 1.0

    @property
    def truncation(self) -> tuple[int, int] | None:
        """(B_max, n_k) where a batch may be truncated; None: never."""
        most = self.mechanism.largest_batch
        return None if most is None or most >= self.shard_size else (most, self.shard_size)

    @property
    def drawing_rate(self) -> float:
        """q = b/n_k with which a record is drawn, before a batch is truncated; 1 where it may not be counted."""
        truncated = self.mechanism.sampling is Sampling.TRUNCATED_POISSON
        return self.mechanism.batch_size / self.shard_size if truncated else self.sampling_rate

    @property
    def batches_per_epoch(self) -> int:
        """⌊n_k/b⌋ disjoint batches with the shuffled sampler; the other samplers have no epochs: 1."""
        if self.mechanism.sampling is Sampling.SHUFFLED:
            return self.shard_size // self.mechanism.batch_size
        return 1

    def charges(self, messages: int) -> int:
        """Return how often one record can have been used in `messages` consecutive messages of E releases each.

        An epoch's batches are disjoint, so an epoch begun charges once, whatever was released of it.
        """
        return self.charges_between(0, messages)

    def charges_between(self, before: int, last: int) -> int:
        """Return what the messages before + 1 … last charge where none of their epochs is paid for."""
        if last <= before:
            return 0
        return self.epoch_of(last, ends=True) - self.epoch_of(before + 1) + 1

    def epoch_of(self, message: int, *, ends: bool = False) -> int:
        """Return the epoch that a message's first release lies in, or its last; without epochs each release is one."""
        steps = self.mechanism.steps
        release = message * steps if ends else (message - 1) * steps + 1
        return (release - 1) // self.batches_per_epoch

    def guarantee(self, adjacency: Adjacency) -> Guarantee:
        """State what one release guarantees, before amplification."""
        if self.law is None:
            return Guarantee(adjacency, reason=NO_NOISE)
        return self.law.guarantee(self.mechanism, adjacency)


def check_together(run: str, kind: ReleaseKind, earlier: Iterable[Spent]) -> None:
    """Refuse a run whose releases have no bound together with earlier ones of the same records.

    Truncated batches are accounted by PLD alone, which holds for terms that were fixed beforehand. The odometer that
    composes runs of different kinds needs Rényi divergences, and none are proven for them.
    """
    for spent in earlier:
        kinds = (spent.kind, kind)
        if spent.charges and spent.kind != kind and any(one.truncation for one in kinds):
            raise ConfigurationError(
                f"run {run}: would release these records by {_named(kind)}, and they were released by"
                f" {_named(spent.kind)} before; truncated batches have no bound together with any other kind of"
                " release. Take part in runs of the same kind, or with other records"
            )


def _named(kind: ReleaseKind) -> str:
    mechanism, law = kind.mechanism, kind.law
    most = "" if mechanism.largest_batch is None else f", largest_batch = {mechanism.largest_batch}"
    steps = "" if mechanism.steps == 1 else f", local.steps = {mechanism.steps}"
    noise = "no noise" if law is None else f"{law.name} noise, {law.strength}"
    return (
        f"sampler = {mechanism.sampling.value!r} (batch_size = {mechanism.batch_size}{most}{steps}, n_k ="
        f" {kind.shard_size}, {noise})"
    )


@dataclass(frozen=True, slots=True)
class Spent:
    """So many charges of one kind against one record."""

    kind: ReleaseKind
    charges: int

    def __post_init__(self) -> None:
        if self.charges < 0:
            raise ConfigurationError(f"charges = {self.charges}: must be at least 0")


@dataclass(frozen=True, slots=True)
class Budget:
    """The (ε, δ) that one record's releases may cost together, under zero-out adjacency."""

    epsilon: float  # total ε
    delta: float  # total δ; Theorem 3's δ is another

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigurationError(f"total_epsilon = {self.epsilon}: must be finite and greater than 0")
        check_delta(self.delta)


def check_delta(delta: float) -> None:
    """Refuse a δ that is no probability; 0 asks for pure DP."""
    if not 0 <= delta < 1:
        raise ConfigurationError(f"total_delta = {delta}: must be at least 0 and less than 1")
