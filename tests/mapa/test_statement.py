"""What is printed is true: words, table and JSON say the same, and the largest is exact."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace

import pytest
from rich.console import Console

from common.accounting import total as accounting
from common.accounting.releases import ReleaseKind, Spent
from common.accounting.total import total
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from mapa.releases import OWN
from mapa.statement import MOST_PLDS, EdgeReleases, Statement, state_privacy
from tests.mechanism_support import SHUFFLED, WITH_REPLACEMENT
from tests.mechanism_support import release_kind as kind

DELTA = 1e-5


def edge(k: int, releases: int = 100, this: ReleaseKind | None = None, **more: object) -> EdgeReleases:
    made = EdgeReleases(edge=k, edge_id=f"edge-{k:012x}", kind=this or kind(Gaussian(1.5)), releases=releases)
    return replace(made, **more)


def printed(statement: Statement) -> str:
    console = Console(file=io.StringIO(), width=240)
    console.print(statement.table())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.slow
def test_words_table_and_json_carry_the_same_figures() -> None:
    statement = state_privacy([edge(0, 80), edge(1, 120), edge(2, 100)], DELTA)
    expected = total([Spent(kind(Gaussian(1.5)), 120)], DELTA)
    assert statement.largest.of.edge == 1
    assert statement.whole == expected
    words = statement.words()
    assert words[0].startswith("Each record of an edge's shard is protected with (ε = ")
    assert "zero-out adjacency" in words[0]
    assert "edge 1's, by PLD; under replace-one adjacency" in words[-1]

    document = json.loads(json.dumps(statement.as_dict(), allow_nan=False))
    assert document["epsilon"] == expected.epsilon
    assert document["largest_edge"] == 1
    assert document["words"] == words
    first = document["edges"][0]
    assert (first["edge"], first["edge_id"], first["releases"]) == (0, "edge-000000000000", 80)
    assert (first["noise"], first["noise_multiplier"], first["epsilon_per_release"]) == (
        "gaussian",
        1.5,
        None,
    )
    assert (first["clipping"], first["scope"]) == ("per-sample", "all")
    assert first["sampler"] == "poisson, rate 0.01"
    assert first["epsilon_by_method"] == total([Spent(kind(Gaussian(1.5)), 80)], DELTA).by_method()

    table = printed(statement)
    assert all(text in table for text in ("ε rdp", "ε pld", "gaussian, z = 1.5", "edge-000000000001"))


def test_a_printed_epsilon_is_rounded_up() -> None:
    statement = state_privacy([edge(0)], DELTA)
    shown = float(statement.words()[0].split("ε = ")[1].split(",")[0])
    assert statement.whole.epsilon <= shown <= statement.whole.epsilon * 1.001


@pytest.mark.parametrize("shared", [False, True])
def test_a_statement_of_one_run_speaks_of_that_run_alone(shared: bool) -> None:
    alone, all_runs = (
        state_privacy([edge(0)], DELTA, shared=shared, of_ledgers=known).words()[0] for known in (False, True)
    )
    assert "released in this run" in alone
    assert "in this run" not in all_runs
    assert alone.replace(" in this run", "") == all_runs


def test_seeded_noise_is_said_first() -> None:
    statement = state_privacy([edge(0), edge(1, reproducible=True)], DELTA)
    assert statement.words()[0].startswith("Reproducible noise: not private.")
    assert "would, with secure randomness, be protected with (ε = " in statement.words()[1]
    assert not any(" is protected" in sentence for sentence in statement.words())
    assert statement.as_dict()["reproducible_noise"] is True


def test_a_bound_for_the_fewest_records_leads_with_its_condition() -> None:
    statement = state_privacy([edge(0, at_least=True, notes=(OWN.format(least=1200),))], DELTA)
    first, second, *_ = statement.words()
    assert first.startswith(
        "For an edge with at least 1200 records: each of them is protected with at most (ε = "
    )
    assert "Each edge's own ledger states its own ε" in second
    assert "≤ " in printed(statement)


@pytest.mark.parametrize(
    ("law", "reason"),
    [(None, "no noise"), (ExponentialNorm(0.1), "singular")],
    ids=["asgd", "exponential-norm"],
)
def test_what_is_not_private_is_said_with_its_reason(law: NoiseLaw | None, reason: str) -> None:
    statement = state_privacy([edge(0, this=kind(law))], DELTA)
    [sentence] = statement.words()
    assert sentence.startswith("Not differentially private (ε = ∞): ")
    assert reason in sentence
    document = json.loads(json.dumps(statement.as_dict(), allow_nan=False))
    assert document["epsilon"] is None
    assert reason in document["reason"]
    assert "∞" in printed(statement)


def test_one_bare_edge_does_not_hide_among_private_ones() -> None:
    statement = state_privacy([edge(0), edge(1, this=kind(None))], DELTA)
    words = statement.words()
    assert words[0].startswith("1 of 2 edges not differentially private")
    assert "the other edges' shards is protected" in words[1]
    assert statement.as_dict()["epsilon"] is None


def test_edges_that_share_records_pay_together() -> None:
    edges = [edge(k, 50) for k in range(4)]
    apart, together = state_privacy(edges, DELTA), state_privacy(edges, DELTA, shared=True)
    assert together.whole == total([Spent(kind(Gaussian(1.5)), 200)], DELTA)
    assert together.whole.epsilon > apart.whole.epsilon
    assert "all edges released" in together.words()[0]
    bare = state_privacy([*edges, edge(4, this=kind(None))], DELTA, shared=True)
    assert bare.words() == [f"Not differentially private (ε = ∞): {bare.edges[4].total.reason}."]


@pytest.mark.slow
def test_earlier_runs_and_epochs_cut_short_are_counted() -> None:
    before = (Spent(kind(Gaussian(2.0)), 60),)
    statement = state_privacy([edge(0, earlier=before)], DELTA, of_ledgers=True)
    everything = [*before, Spent(kind(Gaussian(1.5)), 100)]
    assert statement.whole == total(everything, DELTA)
    assert statement.whole.epsilon > total([Spent(kind(Gaussian(1.5)), 130)], DELTA).epsilon
    assert any("earlier runs" in sentence for sentence in statement.words())
    assert "RDP odometer" in statement.words()[-1]
    alike = state_privacy([edge(0, earlier=(Spent(kind(Gaussian(1.5)), 60),))], DELTA)
    assert alike.whole == total([Spent(kind(Gaussian(1.5)), 160)], DELTA)
    shuffled = kind(Gaussian(9.0), sampler=SHUFFLED)
    restarted = state_privacy([edge(0, 150, shuffled, charges=4)], DELTA)
    assert restarted.whole == total([Spent(shuffled, 4)], DELTA)
    assert restarted.whole.epsilon > state_privacy([edge(0, 150, shuffled)], DELTA).whole.epsilon


def test_a_large_epsilon_is_called_little_protection() -> None:
    statement = state_privacy([edge(0, 9, kind(GammaNorm(9.0), sampler=WITH_REPLACEMENT))], DELTA)
    assert "An ε of 10 or more gives little protection." in statement.words()


@pytest.mark.slow
def test_among_many_different_edges_the_largest_is_exact_and_the_rest_are_bounded() -> None:
    rng = random.Random(5)
    sizes = [400, 500, 650, 800]
    edges = [edge(k, rng.randrange(3, 30), kind(Gaussian(2.0), 24, rng.choice(sizes))) for k in range(300)]
    statement = state_privacy(edges, DELTA)
    assert len({(e.kind, e.releases) for e in edges}) > MOST_PLDS
    assert sum(not e.exact for e in statement.edges) > 200
    assert statement.largest.exact
    # only these can be the largest: the most releases for each shard size
    best = {n: max(e.releases for e in edges if e.kind.shard_size == n) for n in sizes}
    figures = [total([Spent(kind(Gaussian(2.0), 24, n), count)], DELTA).epsilon for n, count in best.items()]
    assert statement.whole.epsilon == max(figures)
    for e in rng.sample(statement.edges, 6):
        true = total([Spent(e.of.kind, e.of.releases)], DELTA).epsilon
        assert true <= e.total.epsilon <= statement.whole.epsilon
    assert "≤" in printed(statement)
    assert "ε bound" in printed(statement)
    assert all(set(e.total.by_method()) == {"bound"} for e in statement.edges if not e.exact)
    assert "the 20 largest of 300" in printed(statement)


@pytest.mark.slow
def test_ten_thousand_alike_edges_are_accounted_once() -> None:
    accounting._total.cache_clear()
    statement = state_privacy([edge(k, 40 + k % 2) for k in range(10_000)], DELTA)
    assert accounting._total.cache_info().misses == 2
    assert len(statement.edges) == 10_000
