"""ε of the releases that a run's events prove, as its statement computes it; no code that records name is loaded."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from common.accounting.releases import ReleaseKind, Spent
from common.accounting.total import total
from common.dotted import is_dotted
from common.errors import MapaError
from common.mechanism.guarantee import Clipping, Mechanism, Sampling, Scope
from common.noise.registry import describe_law

MOST_KINDS = 8  # whose curves are computed; of further ones the statement at the end has the figures


def release_kind(scenario: Mapping[str, Any], size: object, joined: Mapping[str, Any]) -> ReleaseKind | None:
    """Return how an edge releases, by its record of joining and its shard's size; None: not known here."""
    noise = joined.get("noise")
    if not isinstance(noise, str) or noise == "none" or is_dotted(noise) or type(size) is not int:
        return None
    try:
        privacy = scenario["privacy"]
        mechanism = Mechanism(
            Clipping(privacy["clipping"]),
            Scope(privacy["scope"]),
            Sampling(scenario["data"]["sampler"]),
            scenario["batch_size"],
            _steps(scenario),
            scenario["data"].get("largest_batch"),
        )
        law = describe_law(noise)
        given = {key: joined[key] for key in law.names if joined.get(key) is not None}
        kind = ReleaseKind(law.make(given), mechanism, size)
        hash(kind)  # of plain values alone
        return kind
    except (MapaError, KeyError, TypeError, ValueError, ArithmeticError):
        return None


def _steps(scenario: Mapping[str, Any]) -> int:
    """Return E; a scenario without local steps does not name them."""
    steps: int = scenario.get("local", {"steps": 1})["steps"]
    return steps


def shard_size(manifest: Mapping[str, Any], edge: int) -> object:
    """Return n_k of the manifest; where edges bring records of their own, the least that takes part."""
    scenario = manifest.get("scenario")
    table = scenario.get("data") if isinstance(scenario, Mapping) else None
    schema = table.get("schema") if isinstance(table, Mapping) else None
    if isinstance(table, Mapping) and table.get("set") == "local":
        return schema.get("records_at_least") if isinstance(schema, Mapping) else None
    sizes = manifest.get("shard_sizes")
    return sizes[edge] if isinstance(sizes, list) and 0 <= edge < len(sizes) else None


@functools.lru_cache(maxsize=4096)
def epsilon(kind: ReleaseKind, releases: int, delta: float) -> float | None:
    """Return ε at δ of so many messages, zero-out adjacency, as the statement computes it; None: no finite one.

    Takes parts of a second: call it where nobody waits.
    """
    try:
        found = total([Spent(kind, kind.charges(releases))], delta, replace_one=False).epsilon
    except (MapaError, ArithmeticError, ValueError):
        return None
    return found if math.isfinite(found) else None
