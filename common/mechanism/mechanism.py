"""The release mechanism as one value: sampler, clipping, local work and noise law, and what one release guarantees."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from common.errors import ConfigurationError
from common.mechanism.clipping import CLIPPINGS, Clipping
from common.mechanism.clippings.per_sample import PerSample
from common.mechanism.guarantee import MOST_STEPS, Adjacency, Guarantee, Scope
from common.mechanism.local_work import LOCAL_WORK, LocalWork, named_work
from common.mechanism.part import option_names
from common.mechanism.sampler import NONE, SAMPLERS, Amplification, Sampler
from common.mechanism.samplers.poisson import Poisson
from common.mechanism.work.single_step import SingleStep
from common.noise.law import NoiseLaw
from common.noise.registry import noise_law
from common.options import Value

NO_NOISE = "no noise: gradients leave as they are (ASGD and CSGD never clip or noise)"
_SAMPLER, _CLIPPING, _WORK = Poisson(), PerSample(), SingleStep()  # where nothing is said


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How an edge makes a release. Each part states what it costs, and is asked for that here."""

    law: NoiseLaw | None  # None: the edge neither clips nor noises
    batch_size: int  # b
    sampler: Sampler = _SAMPLER
    clipping: Clipping = _CLIPPING
    work: LocalWork = _WORK
    scope: Scope = Scope.ALL
    steps: int = field(
        init=False, compare=False, repr=False
    )  # E: releases of one message, each of them charged

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigurationError(f"batch_size = {self.batch_size}: must be at least 1")
        parts = (self.sampler, self.clipping, self.work)
        every = tuple(value for part in parts for value in part.every_option)
        object.__setattr__(self, "steps", _checked_releases(*parts, self.batch_size, every))
        if (
            self.law is not None
            and self.amplification.largest is not None
            and not self.clipping.bounds_each_sample
        ):
            allowed = [name for name in CLIPPINGS.names if CLIPPINGS.describe(name).made.bounds_each_sample]
            raise ConfigurationError(
                f"privacy.clipping = {self.clipping.name!r}: with data.sampler = {self.sampler.name!r} allowed are"
                f" {', '.join(allowed)}"
            )

    @property
    def amplification(self) -> Amplification:
        """Which amplification by sampling may be counted."""
        return self.sampler.amplification()

    def sensitivity_over_clip(self, adjacency: Adjacency) -> float:
        """Return the true sensitivity of the released mean, in the norm that is clipped and in units of C."""
        places = self.sampler.places(self.batch_size)
        return self.clipping.sensitivity_over_clip(adjacency, places, self.batch_size)

    def guarantee(self, adjacency: Adjacency) -> Guarantee:
        """State what one release guarantees, before amplification and composition."""
        if self.law is None:
            return Guarantee(adjacency, reason=NO_NOISE)
        stated = self.law.guarantee(self, adjacency)
        if not isinstance(stated, Guarantee) or stated.adjacency is not adjacency:
            raise ConfigurationError(
                f"privacy.noise = {self.law.name!r}: guarantee = {stated!r:.200}: must be a Guarantee for"
                f" {adjacency.value} adjacency"
            )
        return stated

    def fields(self) -> dict[str, Any]:
        """Return what its cost depends on as plain values, for a ledger or a line of JSON.

        A message of one release is not told: what was written before there were others still means the same.
        """
        options = self.options
        work = {} if self.work.name == named_work(options) else {"work": self.work.name}
        return {
            "noise": None if self.law is None else self.law.name,
            "parameters": {} if self.law is None else self.law.parameters,
            "clipping": self.clipping.name,
            "scope": self.scope.value,
            "sampling": self.sampler.name,
            "batch_size": self.batch_size,
            **work,
            **options,
        }

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `fields` has written."""
        given = {key: fields[key] for key in fields.keys() - _KEYS}
        sampler: Sampler = SAMPLERS.make_from(fields["sampling"], given)
        clipping: Clipping = CLIPPINGS.make_from(fields["clipping"], given)
        work: LocalWork = LOCAL_WORK.make_from(fields.get("work") or named_work(given), given)
        known = {name for part in (sampler, clipping, work) for name in option_names(part)}
        if others := sorted(given.keys() - known):
            raise ConfigurationError(f"{', '.join(others)}: no option of this mechanism's parts")
        law = None if fields["noise"] is None else noise_law(fields["noise"], fields["parameters"])
        return cls(law, fields["batch_size"], sampler, clipping, work, Scope(fields["scope"]))

    @property
    def options(self) -> dict[str, Value]:
        """The options of its parts that its cost may depend on, where they differ from their default."""
        return self.sampler.charged_options | self.clipping.charged_options | self.work.charged_options


_KEYS = {"noise", "parameters", "clipping", "scope", "sampling", "batch_size", "shard_size", "work"}


@functools.lru_cache(maxsize=256)
def _checked_releases(
    sampler: Sampler, clipping: Clipping, work: LocalWork, batch_size: int, every_option: tuple[Value, ...]
) -> int:
    """Return E; raise ConfigurationError where a part does not state its cost as a number that an accountant can use.

    A neutral option has no part in a ledger and in the equality of parts, so `every_option` is part of the key: the
    cost must be the same without it, and the same each time that it is asked for.
    """
    del every_option
    _check_parts(sampler, clipping, work, batch_size)
    costs = [
        _costs(*parts, batch_size)
        for parts in (
            (sampler, clipping, work),
            (sampler, clipping, work),
            _without_neutral(sampler, clipping, work),
        )
    ]
    for key, *stated in zip(_COSTS, *costs, strict=True):
        if any(value != stated[0] for value in stated):
            raise ConfigurationError(
                f"{key}: {' and '.join(str(value) for value in dict.fromkeys(stated))} are stated for the same part; a"
                " cost is the same each time it is asked for, and no neutral option changes it"
            )
    return work.releases()


_COSTS = (
    *("data.sampler: places", "data.sampler: amplification", "data.sampler: by_epoch"),
    *("local.work: releases", "privacy.clipping: sensitivity_over_clip"),
)


def _costs(sampler: Sampler, clipping: Clipping, work: LocalWork, batch_size: int) -> tuple[object, ...]:
    places = sampler.places(batch_size)
    moves = tuple(clipping.sensitivity_over_clip(adjacency, places, batch_size) for adjacency in Adjacency)
    return places, sampler.amplification(), sampler.by_epoch, work.releases(), moves


def _without_neutral(
    sampler: Sampler, clipping: Clipping, work: LocalWork
) -> tuple[Sampler, Clipping, LocalWork]:
    return sampler.without_neutral(), clipping.without_neutral(), work.without_neutral()


def _check_parts(sampler: Sampler, clipping: Clipping, work: LocalWork, batch_size: int) -> None:
    sampler.check(batch_size)
    key, places = f"data.sampler = {sampler.name!r}", sampler.places(batch_size)
    if type(places) is not int or places < 1:
        raise ConfigurationError(f"{key}: places = {places!r}: must be a whole number, at least 1")
    amplification = sampler.amplification()
    if not isinstance(amplification, Amplification):
        raise ConfigurationError(
            f"{key}: amplification = {amplification!r}: must be one that the accountant knows: NONE, POISSON or"
            " Amplification(sampled=True, largest=B_max)"
        )
    if amplification != NONE and (places > 1 or sampler.by_epoch):
        raise ConfigurationError(
            f"{key}: amplification is known where a record fills one place of any batch alone; state NONE"
        )
    steps = work.releases()
    if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
        raise ConfigurationError(
            f"local.work = {work.name!r}: releases = {steps!r}: must be a whole number from 1 to {MOST_STEPS}"
        )
    for adjacency in Adjacency:
        move = clipping.sensitivity_over_clip(adjacency, places, batch_size)
        if not isinstance(move, float) or not 0 < move < math.inf:
            raise ConfigurationError(
                f"privacy.clipping = {clipping.name!r}: sensitivity_over_clip = {move!r} ({adjacency.value}): must be a"
                " finite number greater than 0"
            )
    names = [name for part in (sampler, clipping, work) for name in option_names(part)]
    if len(names) != len(set(names)):
        raise ConfigurationError(
            f"{key}: its options, those of the clipping and of the work share a name: {names}"
        )
