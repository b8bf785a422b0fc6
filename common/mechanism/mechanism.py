"""The release mechanism as one value: sampler, clipping, local work and noise law, and what one release guarantees."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from common.errors import ConfigurationError
from common.mechanism.clipping import BLOCK_FORMS, CLIPPINGS, Clipping
from common.mechanism.clippings.per_sample import PerSample
from common.mechanism.grid import Grid
from common.mechanism.guarantee import MOST_STEPS, Adjacency, Guarantee, Scope, in_the_clear
from common.mechanism.local_work import LOCAL_WORK, LocalWork, named_work
from common.mechanism.part import RECORDED
from common.mechanism.sampler import NONE, SAMPLERS, Amplification, Sampler
from common.mechanism.samplers.poisson import Poisson
from common.mechanism.work.single_step import SingleStep
from common.noise.law import NoiseLaw
from common.noise.registry import noise_law
from common.options import Value
from common.own_code import asking

_Parts = tuple[Sampler, Clipping, LocalWork]
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
    grid: Grid | None = None  # a release is integers; None: floating-point numbers
    steps: int = field(init=False, compare=False, repr=False)  # E: releases that a message is charged for

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigurationError(f"batch_size = {self.batch_size}: must be at least 1")
        parts = (self.sampler, self.clipping, self.work)
        every = tuple(value for part in parts for value in part.option_values.values())
        object.__setattr__(self, "steps", _checked_releases(parts, self.batch_size, every))
        if self.law is None:
            return
        if self.grid is not None and not self.law.adds_up:
            raise ConfigurationError(
                f"privacy.noise = {self.law.name!r}: has no form in integers, whose sums are known; privacy.grid and"
                " secure sums need 'gaussian'"
            )
        for adjacency in Adjacency:
            self.guarantee(adjacency)
        if self.amplification.largest is not None and not self.clipping.bounds_each_sample:
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
        """State what one release guarantees, before amplification; nothing where a part is in the clear."""
        if self.law is None:
            return Guarantee(adjacency, reason=NO_NOISE)
        with asking(f"privacy.noise = {self.law.name!r}: states no guarantee"):
            stated = self.law.guarantee(self, adjacency)
        if not isinstance(stated, Guarantee) or stated.adjacency is not adjacency:
            raise ConfigurationError(
                f"privacy.noise = {self.law.name!r}: guarantee = {stated!r:.200}: must be a Guarantee for"
                f" {adjacency.value} adjacency"
            )
        if self.grid is not None and stated.noise_multiplier is not None:
            stated = replace(stated, noise_multiplier=stated.noise_multiplier * self.grid.noise_share)
        return in_the_clear(adjacency) if stated.is_private and self.scope is not Scope.ALL else stated

    def in_sums(self) -> Self:
        """Return it as the cloud sees it where it sees sums alone; the same where no release is summed."""
        return self if self.grid is None else replace(self, grid=replace(self.grid, in_sums=True))

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
            **({} if self.grid is None else {"grid": asdict(self.grid)}),
        }

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `fields` has written."""
        given = {key: fields[key] for key in fields.keys() - RECORDED}
        sampler: Sampler = SAMPLERS.make_from(fields["sampling"], given)
        clipping: Clipping = CLIPPINGS.make_from(fields["clipping"], given)
        work: LocalWork = LOCAL_WORK.make_from(fields.get("work") or named_work(given), given)
        known = [*sampler.option_values, *clipping.option_values, *work.option_values]
        if others := sorted(given.keys() - set(known)):
            raise ConfigurationError(f"{', '.join(others)}: no option of this mechanism's parts")
        law = None if fields["noise"] is None else noise_law(fields["noise"], fields["parameters"])
        grid = Grid(**fields["grid"]) if "grid" in fields else None
        return cls(law, fields["batch_size"], sampler, clipping, work, Scope(fields["scope"]), grid)

    @property
    def options(self) -> dict[str, Value]:
        """The options of its parts that its cost may depend on, where they differ from their default."""
        return self.sampler.charged_options | self.clipping.charged_options | self.work.charged_options


_COSTS = (
    *("data.sampler: places", "data.sampler: amplification", "data.sampler: by_epoch"),
    *("local.work: releases", "privacy.clipping: sensitivity_over_clip"),
)


@functools.lru_cache(maxsize=256)
def _checked_releases(parts: _Parts, batch_size: int, every_option: tuple[Value, ...]) -> int:
    """Return E; raise ConfigurationError where a part does not state its cost as a number that an accountant can use.

    A neutral option has no part in a ledger and in the equality of parts, so `every_option` is part of the key: the
    cost must be the same without it, and the same each time that it is asked for.
    """
    del every_option
    sampler, clipping, work = parts
    as_kept = sampler.without_neutral(), clipping.without_neutral(), work.without_neutral()
    asked = (_costs(*one, batch_size) for one in (parts, parts, as_kept))
    for key, *stated in zip(_COSTS, *asked, strict=True):
        if any(value != stated[0] for value in stated):
            raise ConfigurationError(
                f"{key}: {' and '.join(str(value) for value in dict.fromkeys(stated))} are stated for the same part; a"
                " cost is the same each time it is asked for, and no neutral option changes it"
            )
    return work.releases()


def _costs(sampler: Sampler, clipping: Clipping, work: LocalWork, batch_size: int) -> tuple[object, ...]:
    """Return what the parts state, in the order of _COSTS, each checked."""
    key = f"data.sampler = {sampler.name!r}"
    with asking(f"{key}: does not state its cost"):
        sampler.check(batch_size)
        places, amplification = sampler.places(batch_size), sampler.amplification()
        least = sampler.least_records(batch_size)
    for name, number in (("places", places), ("least_records", least)):
        if type(number) is not int or number < 1:
            raise ConfigurationError(f"{key}: {name} = {number!r}: must be a whole number, at least 1")
    if not isinstance(amplification, Amplification):
        raise ConfigurationError(
            f"{key}: amplification = {amplification!r}: must be one that the accountant knows: NONE, POISSON or"
            " Amplification(sampled=True, largest=B_max)"
        )
    if amplification != NONE and (places > 1 or sampler.by_epoch):
        raise ConfigurationError(
            f"{key}: amplification is known where a record fills one place of any batch alone; state NONE"
        )
    key = f"local.work = {work.name!r}"
    with asking(f"{key}: does not state its cost"):
        steps = work.releases()
    if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
        raise ConfigurationError(
            f"{key}: releases = {steps!r}: must be a whole number from 1 to {MOST_STEPS}"
        )
    key = f"privacy.clipping = {clipping.name!r}"
    with asking(f"{key}: does not state its cost"):
        moves = tuple(
            clipping.sensitivity_over_clip(adjacency, places, batch_size) for adjacency in Adjacency
        )
    for move, adjacency in zip(moves, Adjacency, strict=True):
        if not isinstance(move, float) or not 0 < move < math.inf:
            raise ConfigurationError(
                f"{key}: sensitivity_over_clip = {move!r} ({adjacency.value}): must be a finite number greater than 0"
            )
    if clipping.block_form not in BLOCK_FORMS or clipping.extra not in (0, 1):
        raise ConfigurationError(
            f"{key}: block_form = {clipping.block_form!r}, extra = {clipping.extra!r}: must be one of"
            f" {', '.join(map(repr, BLOCK_FORMS))}, and 0 or 1"
        )
    names = [*sampler.option_values, *clipping.option_values, *work.option_values]
    if len(names) != len(set(names)):
        raise ConfigurationError(
            f"data.sampler = {sampler.name!r}: its options, those of the clipping and of the work share a name: {names}"
        )
    return places, amplification, sampler.by_epoch, steps, moves
