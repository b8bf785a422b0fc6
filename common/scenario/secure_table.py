"""[secure]: the cloud sees sums of several edges' releases alone; and what does not go together with that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from common.errors import require
from common.mechanism.grid import Grid
from common.mechanism.guarantee import LARGEST_BOUND, LEAST_BOUND
from common.scenario.tables import Positive, Table
from common.wire.codings.registry import PLAIN

if TYPE_CHECKING:
    from common.algorithms import AlgorithmDescription
    from common.scenario.scenario import Scenario

MOST_HELPERS, MOST_MEMBERS = 7, 1024  # as common/secure/terms.py has them, which needs cryptography


class SecureTable(Table):
    """[secure]: sums of at least m edges' masked releases are opened, by helpers; see docs/secure-aggregation.md."""

    later = ("waiting", "clip", "modulus_bits", "own_epsilon")

    at_least: int = Field(
        ..., ge=2, le=MOST_MEMBERS, description="m: distinct edges of a set; at most the number of edges"
    )
    helpers: int = Field(4, ge=1, le=MOST_HELPERS, description="c")
    away: int = Field(
        1,
        ge=0,
        le=(MOST_HELPERS - 1) // 2,
        description="t: helpers that may be away, and that may side with the cloud; c must be more than 2t, and more"
        " than 3t against helpers that lie",
    )
    waiting: int = Field(
        1,
        ge=1,
        le=8,
        description="releases of an edge that may wait for a set; with so many it is sent no model",
    )
    own_epsilon: Positive | None = Field(
        None,
        le=1e9,
        description="budget of each edge's own releases, against all others together; absent: none",
    )
    clip: float | None = Field(
        None,
        ge=LEAST_BOUND,
        le=LARGEST_BOUND,
        allow_inf_nan=False,
        description="C, the same in every release; filled in when a run is assembled",
    )
    modulus_bits: Literal[32, 64] | None = Field(None, description="filled in when a run is assembled")

    def check(self) -> None:
        allowed = f"from 0 to {(self.helpers - 1) // 2}: more than twice as many helpers ({self.helpers}) are needed"
        require(2 * self.away < self.helpers, "secure.away", self.away, allowed)


def grid_of(scenario: Scenario) -> Grid | None:
    """Return the grid that a scenario's releases lie on; None: they are floating-point numbers."""
    table, privacy = scenario.secure, scenario.privacy
    if table is None:
        return None if privacy.grid is None else Grid(privacy.grid)
    return Grid(
        bits=privacy.grid or 0,
        members=table.at_least,
        colluding=privacy.colluding,
        helpers=table.helpers,
        away=table.away,
        clip=table.clip or 0.0,
    )


def check_secure(scenario: Scenario, algorithm: AlgorithmDescription | None) -> None:
    """Refuse what does not go together with sums, each with its reason; edges are not told the algorithm."""
    table, colluding = scenario.secure, scenario.privacy.colluding
    if table is None:
        if colluding:
            raise ValueError(
                f"privacy.colluding = {colluding}: only with [secure], where the cloud sees sums"
            )
        return
    allowed = f"at most {scenario.edges}, the number of edges, or no set would ever be complete"
    require(table.at_least <= scenario.edges, "secure.at_least", table.at_least, allowed)
    allowed = f"from 0 to {table.at_least - 1}, one less than secure.at_least"
    require(colluding < table.at_least, "privacy.colluding", colluding, allowed)
    for refusal in _refusals(scenario, algorithm):
        raise ValueError(f"{refusal} ([secure])")


def _refusals(s: Scenario, algorithm: AlgorithmDescription | None) -> Iterator[str]:
    privacy, steps = s.privacy, s.work.releases()
    if not s.private:
        yield "algorithm.name: not with secure sums where edges do not noise: a sum of few edges still tells of each"
        return
    if steps > 1 or s.local.work is not None:
        yield (
            f"local.steps = {steps}: not with secure sums: a local step depends on the edge's own release before it,"
            " whose noise is a share alone, and no sum hides that"
        )
    if not privacy.described.made.adds_up:
        yield (
            f"privacy.noise = {privacy.noise!r}: not with secure sums: a sum of such noise has another law, and nothing"
            " accounts it; use 'gaussian'"
        )
    if privacy.scope != "all":
        yield f"privacy.scope = {privacy.scope!r}: not with secure sums: a part of the sum would have no noise"
    if s.data.partition == "shared":
        yield (
            "data.partition = 'shared': not with secure sums: a record of several edges moves one sum several times,"
            " and the noise is for once"
        )
    if privacy.pace == "own" or any(len(set(values)) > 1 for values in privacy.given.values()):
        yield (
            "privacy: a z_k of each edge's own, or privacy.pace = 'own', is not possible with secure sums: the noise of"
            " a sum is that of equal shares, whoever is in it"
        )
    if s.weighted or s.algorithm.options.get("staleness_scaling"):
        yield (
            "algorithm: weights by noise or staleness are not possible with secure sums: the cloud sees no single"
            " release that it could weigh"
        )
    if algorithm is not None and not algorithm.takes_sums:
        yield (
            f"algorithm.name = {algorithm.name!r}: not with secure sums: it weighs single releases, or changes C, and"
            " the noise of a sum is for one C; allowed are those that say takes_sums, as 'tuning-free' does"
        )
    coded = {s.codings(k).gradients for k in range(len(s.links) or 1)} | set(s.compression.offered)
    if coded - {PLAIN}:
        yield (
            f"compression: {', '.join(sorted(coded - {PLAIN}))} upwards is not possible with secure sums: masked"
            " integers are uniform bits, and a rounded one opens to nothing"
        )
