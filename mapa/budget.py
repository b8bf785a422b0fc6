"""A total budget turned into what a run needs: the noise multiplier, and how many gradients an edge may make."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from common.accounting.kept import kept_in
from common.accounting.releases import Budget, ReleaseKind
from common.datasets.source import LOCAL
from common.errors import ConfigurationError
from common.mechanism.clipping import CLIPPINGS
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import SAMPLERS
from common.models.features import user_cache
from common.scenario.pacing import planned_releases
from common.scenario.parts import own_schema
from common.scenario.scenario import Scenario

Say = Callable[[str], None]  # how far it is, in a line


def calibrated(scenario: Scenario, shard_sizes: Sequence[int], say: Say | None = None) -> Scenario:
    """Return the scenario with z filled in, where it gives (total_epsilon, total_delta) instead of z.

    z is found for the smallest shard, whose records are sampled most often; with truncated batches for every size.
    `releases` has done its work then and goes: beside z no scenario may say it, and the cap of an edge is what the
    budget permits at this z. `say` hears what is looked for and how long it took: half a minute for one z, where no
    run before has asked for the same.
    """
    user_cache()  # a wrong MAPA_CACHE_MB is refused before anything starts
    privacy = scenario.privacy
    law = privacy.described.made
    total_epsilon = privacy.total_epsilon
    if not scenario.private or total_epsilon is None or law.calibrated is None or privacy.given:
        return scenario
    if privacy.scope != "all":
        raise ConfigurationError(
            "privacy.total_epsilon: cannot be kept with scope = 'first-conv', which is not DP"
        )
    schema = own_schema(scenario)
    if schema is not None and not schema.records_at_least:
        raise ConfigurationError(
            "data.schema.records_at_least: needed to compute the noise from privacy.total_epsilon with"
            f" data.set = {LOCAL!r}: how often a record is used depends on the number of an edge's records"
        )
    caps, symbol = None, "z"
    if privacy.pace == "own":  # R_k and z_k of each edge: fixed here, before anybody has released anything
        caps, symbol = planned_releases(scenario), "z_k"
        keys = [(cap * scenario.work.releases(), size) for cap, size in zip(caps, shard_sizes, strict=True)]
    else:
        releases = privacy.releases or releases_of_an_edge(scenario)
        # how often a batch is truncated does not rise with the rate
        truncated = scenario.sampler.amplification().largest is not None
        sizes = set(shard_sizes) if truncated else {min(shard_sizes)}
        keys = [(releases, size) for size in sorted(sizes)]
    found = _multipliers(scenario, list(dict.fromkeys(keys)), symbol, say)
    filled: dict[str, object] = {law.calibrated: [max(found.values())], "releases": None}
    if caps is not None:
        filled = {law.calibrated: [found[key] for key in keys], "release_caps": caps}
    return scenario.model_copy(update={"privacy": privacy.model_copy(update=filled)})


def _multipliers(
    scenario: Scenario, wanted: Sequence[tuple[int, int]], symbol: str, say: Say | None
) -> dict[tuple[int, int], float]:
    """Return the least z for each (releases, n_k), kept for the next run that asks; `say` hears of each."""
    from common.accounting.budget import calibrate  # scipy and the accountant: only where they are needed

    privacy = scenario.privacy
    assert privacy.total_epsilon is not None
    budget = Budget(privacy.total_epsilon, privacy.total_delta)
    found: dict[tuple[int, int], float] = {}
    for place, (releases, size) in enumerate(wanted, start=1):
        if say is not None:
            which = f" ({place} of {len(wanted)})" if len(wanted) > 1 else ""
            say(
                f"finding {symbol}{which}: the least noise for ε = {budget.epsilon:g}, δ = {budget.delta:g} with"
                f" {releases:,} releases of {scenario.batch_size} of {size:,} records ({scenario.data.sampler})"
            )
        began = time.perf_counter()
        with kept_in(user_cache()):
            z = found[releases, size] = calibrate(
                budget,
                scenario.mechanism(None).in_sums(),
                releases=releases,
                shard_size=size,
                law=privacy.described.made,
            )
        if say is not None:
            say(f"{symbol} = {z:.6g}, found in {time.perf_counter() - began:.1f} s")
    return found


def mechanism_asked_for(batch_size: int, sampler: str, clipping: str, largest_batch: int | None) -> Mechanism:
    """Return a mechanism, but for its noise, by the names of its parts."""
    options = {} if largest_batch is None else {"largest_batch": largest_batch}
    return Mechanism(None, batch_size, SAMPLERS.make(sampler, options), CLIPPINGS.make(clipping, {}))


def releases_of_an_edge(scenario: Scenario) -> int:
    """Return an even share of T, and the message in flight when the run ends, of E releases each."""
    return scenario.work.releases() * (-(-scenario.iterations // scenario.workers) + 1)


def release_caps(scenario: Scenario, shard_sizes: Sequence[int]) -> list[int | None]:
    """Return how many messages each edge's budget permits; None: no budget."""
    privacy = scenario.privacy
    if not scenario.private or privacy.total_epsilon is None:
        return [None] * len(shard_sizes)
    from common.accounting.budget import keeps, max_messages

    budget = Budget(privacy.total_epsilon, privacy.total_delta)
    kinds = [ReleaseKind(scenario.mechanism(scenario.law(k)), size) for k, size in enumerate(shard_sizes)]
    if privacy.release_caps is None:
        with kept_in(user_cache()):
            caps = [max_messages(budget, kind.in_sums) for kind in kinds]
            most = None if scenario.secure is None else scenario.secure.own_epsilon
            if most is None:
                return [*caps]
            alone = Budget(most, privacy.total_delta)
            return [min(cap, max_messages(alone, kind)) for cap, kind in zip(caps, kinds, strict=True)]
    own = [privacy.cap(k) for k in range(len(kinds))]
    for k, (cap, kind) in enumerate(zip(own, kinds, strict=True)):
        if cap is not None and not keeps(budget, kind, cap):
            raise ConfigurationError(
                f"privacy.release_caps = {cap} of edge {k}: with its noise and {kind.shard_size} records it passes"
                f" privacy.total_epsilon = {privacy.total_epsilon}"
            )
    return own
