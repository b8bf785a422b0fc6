"""A total budget turned into what a run needs: the noise multiplier, and how many gradients an edge may make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.accounting.releases import Budget, ReleaseKind
from common.datasets.source import LOCAL
from common.errors import ConfigurationError
from common.noise.mechanism import Clipping, Sampling
from common.scenario.pacing import planned_releases
from common.scenario.parts import own_schema
from common.scenario.scenario import Scenario

Say = Callable[[str], None]  # how far it is, in a line


def calibrated(scenario: Scenario, shard_sizes: Sequence[int], say: Say | None = None) -> Scenario:
    """Return the scenario with z filled in, where it gives (total_epsilon, total_delta) instead of z.

    z is found for the smallest shard, whose records are sampled most often; with truncated batches for every size.
    `releases` has done its work then and goes: beside z no scenario may say it, and the cap of an edge is what the
    budget permits at this z. `say` hears how far it is: with a pace it may take half a minute for each edge.
    """
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
    from common.accounting.budget import calibrate  # scipy and the accountant: only where they are needed

    if privacy.pace == "own":
        return _paced(scenario, shard_sizes, say)

    def for_shard(size: int) -> float:
        return calibrate(
            Budget(total_epsilon, privacy.total_delta),
            releases=privacy.releases or releases_of_an_edge(scenario),
            batch_size=scenario.batch_size,
            shard_size=size,
            sampling=Sampling(scenario.data.sampler),
            clipping=Clipping(privacy.clipping),
            largest_batch=scenario.data.largest_batch,
            law=law,
        )

    # how often a batch is truncated does not rise with the rate
    sizes = {min(shard_sizes)} if scenario.data.largest_batch is None else set(shard_sizes)
    z = max(for_shard(size) for size in sorted(sizes))
    filled = privacy.model_copy(update={law.calibrated: [z], "releases": None})
    return scenario.model_copy(update={"privacy": filled})


def _paced(scenario: Scenario, shard_sizes: Sequence[int], say: Say | None) -> Scenario:
    """Return the scenario with R_k and z_k of each edge: fixed here, before anybody has released anything."""
    from common.accounting.budget import calibrate

    privacy = scenario.privacy
    law = privacy.described.made
    assert law.calibrated is not None  # PrivacyTable has checked both
    assert privacy.total_epsilon is not None
    budget = Budget(privacy.total_epsilon, privacy.total_delta)
    caps, found = planned_releases(scenario), dict[tuple[int, int], float]()
    different = dict.fromkeys(zip(caps, shard_sizes, strict=True))
    for place, key in enumerate(different, start=1):
        if say is not None:
            say(f"computing z_k ({place} of {len(different)})")
        found[key] = calibrate(
            budget,
            releases=key[0] * scenario.local.steps,
            batch_size=scenario.batch_size,
            shard_size=key[1],
            sampling=Sampling(scenario.data.sampler),
            clipping=Clipping(privacy.clipping),
            largest_batch=scenario.data.largest_batch,
            law=law,
        )
    multipliers = [found[key] for key in zip(caps, shard_sizes, strict=True)]
    filled = privacy.model_copy(update={law.calibrated: multipliers, "release_caps": caps})
    return scenario.model_copy(update={"privacy": filled})


def releases_of_an_edge(scenario: Scenario) -> int:
    """Return an even share of T, and the message in flight when the run ends, of E releases each."""
    return scenario.local.steps * (-(-scenario.iterations // scenario.workers) + 1)


def release_caps(scenario: Scenario, shard_sizes: Sequence[int]) -> list[int | None]:
    """Return how many messages each edge's budget permits; None: no budget."""
    privacy = scenario.privacy
    if not scenario.private or privacy.total_epsilon is None:
        return [None] * len(shard_sizes)
    from common.accounting.budget import keeps, max_messages

    budget = Budget(privacy.total_epsilon, privacy.total_delta)
    mechanism = scenario.mechanism
    if privacy.release_caps is not None:
        own = [privacy.cap(k) for k in range(len(shard_sizes))]
        for k, (cap, size) in enumerate(zip(own, shard_sizes, strict=True)):
            if cap is not None and not keeps(budget, ReleaseKind(scenario.law(k), mechanism, size), cap):
                raise ConfigurationError(
                    f"privacy.release_caps = {cap} of edge {k}: with its noise and {size} records it passes"
                    f" privacy.total_epsilon = {privacy.total_epsilon}"
                )
        return own
    return [
        max_messages(budget, ReleaseKind(scenario.law(k), mechanism, size))
        for k, size in enumerate(shard_sizes)
    ]
