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
from common.mechanism.clipping import CLIPPINGS
from common.mechanism.guarantee import Scope
from common.mechanism.local_work import LOCAL_WORK, named_work
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import SAMPLERS
from common.noise.law import NoiseLaw
from common.noise.registry import describe_law
from common.own_code import only_code

MOST_KINDS = 8  # whose curves are computed; of further ones the statement at the end has the figures


def release_kind(scenario: Mapping[str, Any], size: object, joined: Mapping[str, Any]) -> ReleaseKind | None:
    """Return how an edge releases, by its record of joining and its shard's size; None: not known here."""
    noise = joined.get("noise")
    if not isinstance(noise, str) or noise == "none" or is_dotted(noise) or type(size) is not int:
        return None
    try:
        law = describe_law(noise)
        given = {key: joined[key] for key in law.names if joined.get(key) is not None}
        kind = ReleaseKind(_mechanism(scenario, law.make(given)), size)
        hash(kind)  # of plain values alone
        return kind
    except (MapaError, KeyError, TypeError, ValueError, ArithmeticError):
        return None


def _mechanism(scenario: Mapping[str, Any], law: NoiseLaw) -> Mechanism:
    """Return the mechanism of a recorded scenario; MapaError for code of one's own, which is not imported here."""
    privacy, data, local = scenario["privacy"], scenario["data"], scenario.get("local", {})
    named = (
        (SAMPLERS, data["sampler"], data),
        (CLIPPINGS, privacy["clipping"], privacy),
        (LOCAL_WORK, local.get("work") or named_work(local), local),
    )
    with only_code(()):
        sampler, clipping, work = (port.make_from(name, table) for port, name, table in named)
    return Mechanism(law, scenario["batch_size"], sampler, clipping, work, Scope(privacy["scope"]))


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
