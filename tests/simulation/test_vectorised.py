"""The vectorised path: the same run as the event-driven one, many at once, and block streams."""

from __future__ import annotations

import io
import itertools
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from common.errors import ConfigurationError
from common.mechanism.sampler import Sampler
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.randomness import streams_for
from common.records.recorder import Journal
from common.records.tally import Tally
from edge.shards import shards_for
from mapa.simulation.simulator import Outcome, World, simulate
from mapa.simulation.vectorised import (
    BlockStreams,
    VectorisedRun,
    check_vectorised,
    noise_block,
    simulate_many,
    simulate_rounds,
)
from tests.core_support import recorded, small_dataset, small_scenario, small_world
from tests.mechanism_support import POISSON, WITH_REPLACEMENT

MODELS = ["lr", "svm", "softmax"]
SAMPLERS = ["with-replacement", "shuffled", "poisson"]
CLIPPINGS = ["per-sample", "batch-mean"]
LAWS: list[dict[str, Any]] = [
    {"noise": "exponential-norm", "epsilon": [2.0, 1.0, 4.0]},
    {"noise": "gamma-norm", "epsilon": [50.0, 80.0]},
    {"noise": "gaussian", "noise_multiplier": [0.3, 0.5]},
]
PRIVATE = list(itertools.product(["mapa", "audp"], MODELS, SAMPLERS, CLIPPINGS, range(len(LAWS))))
PLAIN = list(itertools.product(["asgd", "csgd"], MODELS, SAMPLERS))


def assert_same_run(world: World, *, rounds: int | None = None) -> None:
    """Both engines: x to 1e-5, and every record but the evaluations' digits the same."""
    (events, told), (vectorised, told_too) = recorded(simulate, world), recorded(simulate_rounds, world)
    scale = max(1.0, float(np.abs(events.x).max()))
    assert float(np.abs(events.x - vectorised.x).max()) <= 1e-5 * scale
    assert float(np.abs(events.x).max()) > 1e-3  # it went somewhere
    lines = [[one for one in sheet if one["event"] != "evaluated"] for sheet in (told, told_too)]
    assert lines[0] == lines[1]
    assert len(lines[0]) > world.scenario.iterations
    assert events.releases == vectorised.releases
    assert (events.reason, vectorised.reason) == ("finished", "finished")
    summaries = [outcome.tally.summary() for outcome in (events, vectorised)]
    for key in ("updates", "staleness", "stages", "edges"):
        assert summaries[0][key] == summaries[1][key]
    if rounds is not None:
        assert summaries[0]["stages"][-1]["stage"] >= rounds
    for one, two in zip(events.tally.evaluations, vectorised.tally.evaluations, strict=True):
        assert (one.updates, one.stage) == (two.updates, two.stage)
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("algorithm", "model", "sampler", "clipping", "law"), PRIVATE)
def test_it_agrees_with_the_event_driven_engine(
    algorithm: str, model: str, sampler: str, clipping: str, law: int
) -> None:
    assert_same_run(
        small_world(
            iterations=42,
            algorithm={"name": algorithm, "loss_gap": 0.05},
            model={"name": model},
            data={"sampler": sampler},
            privacy={**LAWS[law], "clipping": clipping},
        )
    )


@pytest.mark.parametrize(("algorithm", "model", "sampler"), PLAIN)
def test_it_agrees_where_nothing_is_clipped_or_noised(algorithm: str, model: str, sampler: str) -> None:
    assert_same_run(
        small_world(
            iterations=42, algorithm={"name": algorithm}, model={"name": model}, data={"sampler": sampler}
        )
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"edges": 1},
        {"edges": 7, "iterations": 5},  # ends within the first round
        {"edges": 7, "iterations": 7},
        {"edges": 7, "iterations": 8},
        {"edges": 200, "iterations": 500, "data": {"partition": "shared"}},
        {"batch_size": 1, "data": {"sampler": "poisson"}, "edges": 2},  # some batches are empty
        {
            "algorithm": {"name": "constant", "rate": 0.5, "rate_decay": "linear"},
            "edges": 2,
            "iterations": 81,
        },
        {"evaluation": {"every": 0}},
        {"evaluation": {"every": 1}},
        {"evaluation": {"every": 7}},
        {"model": {"name": "lr", "regularization": 0.3}},
        {"data": {"partition": "dirichlet", "sampler": "with-replacement"}},
        {"algorithm": {"first_clip": 50.0, "rule": "table", "tau_max": 40}},
    ],
    ids=str,
)
def test_it_agrees_at_the_corners(changes: dict[str, Any]) -> None:
    assert_same_run(small_world(**changes))


def test_it_agrees_through_many_stages_of_one_update() -> None:
    assert_same_run(small_world(algorithm={"loss_gap": 1e-4}), rounds=5)


def test_it_agrees_where_the_staleness_is_measured() -> None:
    measured = {"tau_max": 1, "tau_max_from": "measured", "loss_gap": 0.02, "first_clip": 50.0}
    world = small_world(edges=9, algorithm=measured, privacy={"noise": "exponential-norm", "epsilon": 50.0})
    assert_same_run(world, rounds=3)
    seen = {stage["tau_max"] for stage in simulate(world).tally.summary()["stages"]}
    assert {1, 8} <= seen


@given(st.data())
@settings(max_examples=25)
def test_both_engines_write_the_same_lines_in_the_same_order(data: st.DataObject) -> None:
    """Updates, evaluations and stages as they come to pass; only the digits of an evaluation may differ."""
    algorithm = data.draw(st.sampled_from(["mapa", "audp", "asgd", "csgd", "constant"]))
    table: dict[str, Any] = {"name": algorithm, "loss_gap": data.draw(st.sampled_from([1e-4, 0.01, 0.7]))}
    if algorithm == "constant":
        table["rate"] = 0.1
    if algorithm == "mapa":
        table["tau_max_from"] = data.draw(st.sampled_from(["configured", "measured"]))
    world = small_world(
        edges=data.draw(st.integers(1, 12)),
        iterations=data.draw(st.integers(1, 60)),
        algorithm=table,
        evaluation={"every": data.draw(st.integers(0, 9))},
        data={"sampler": data.draw(st.sampled_from(SAMPLERS))},
        model={"name": data.draw(st.sampled_from(MODELS))},
    )
    one, two = (recorded(engine, world)[1] for engine in (simulate, simulate_rounds))
    for event in (*one, *two):
        if event["event"] == "evaluated":
            del event["loss"], event["accuracy"]
    assert one == two


def siblings(changes: list[dict[str, Any]]) -> list[World]:
    """Return worlds on one data set that share its features, as a sweep makes them."""
    dataset = small_dataset()
    first = World.on(small_scenario(**changes[0]), dataset)
    worlds = []
    for change in changes:
        scenario = small_scenario(**change)
        worlds.append(
            replace(
                first,
                scenario=scenario,
                rows=shards_for(scenario, dataset.train),
                streams=streams_for(scenario.seed),
            )
        )
    return worlds


CHANGES: list[dict[str, Any]] = [
    {"seed": 1},
    {"seed": 2, "algorithm": {"name": "audp", "first_clip": 1.0}},
    {"seed": 3, "algorithm": {"name": "asgd"}, "data": {"sampler": "poisson"}},
    {"seed": 4, "privacy": {"noise": "gaussian", "noise_multiplier": 0.5, "clipping": "batch-mean"}},
    {"seed": 5, "data": {"sampler": "shuffled", "partition": "label"}},
]


def test_many_runs_at_once_are_the_runs_one_by_one() -> None:
    together = simulate_many(siblings(CHANGES))
    for change, outcome in zip(CHANGES, together, strict=True):
        alone = simulate_rounds(small_world(**change))
        np.testing.assert_allclose(outcome.x, alone.x, rtol=1e-5, atol=1e-6)
        assert outcome.tally.summary()["edges"] == alone.tally.summary()["edges"]
        assert outcome.releases == alone.releases


BLOCKS: list[dict[str, Any]] = [
    {"seed": seed, "privacy": {"noise": noise, parameter: 1.0}, "data": {"sampler": sampler}}
    for seed, (noise, parameter, sampler) in enumerate(
        [
            ("exponential-norm", "epsilon", "with-replacement"),
            ("gamma-norm", "epsilon", "poisson"),
            ("gaussian", "noise_multiplier", "with-replacement"),
        ]
    )
]


def test_a_seeded_block_run_does_not_depend_on_who_runs_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on how many edges are advanced at a time, either."""
    together = simulate_many(siblings(BLOCKS), blocks=True)
    monkeypatch.setattr("mapa.simulation.vectorised._BATCH_BYTES", 1)  # an edge at a time
    for change, outcome in zip(BLOCKS, together, strict=True):
        alone = simulate_rounds(small_world(**change), blocks=True)
        np.testing.assert_allclose(outcome.x, alone.x, rtol=1e-5, atol=1e-6)


def test_block_runs_differ_from_seed_to_seed_and_from_counter_streams() -> None:
    runs = [
        simulate_rounds(small_world(seed=1), blocks=True),
        simulate_rounds(small_world(seed=2), blocks=True),
        simulate_rounds(small_world(seed=None), blocks=True),
        simulate_rounds(small_world(seed=1)),
    ]
    assert len({run.x.tobytes() for run in runs}) == 4
    again = simulate_rounds(small_world(seed=1), blocks=True)
    assert again.x.tobytes() == runs[0].x.tobytes()


@pytest.mark.parametrize(
    "law", [ExponentialNorm(0.3), GammaNorm(0.3), Gaussian(1.7)], ids=lambda law: law.name
)
def test_a_block_of_noise_has_the_laws_own_norms_and_directions(law: NoiseLaw) -> None:
    count, dimension, sensitivity = 6000, 5, 0.7
    noise = np.zeros((count, dimension), np.float32)
    noise_block(noise, [law] * count, np.full(count, sensitivity), BlockStreams(3))
    rng = np.random.default_rng(4)
    reference = np.array([law.draw(sensitivity, dimension, rng) for _ in range(count)])
    norms, wanted = np.linalg.norm(noise, axis=1), np.linalg.norm(reference, axis=1)
    assert stats.ks_2samp(norms, wanted).pvalue > 1e-3
    for axis in range(dimension):
        assert stats.ks_2samp(noise[:, axis] / norms, reference[:, axis] / wanted).pvalue > 1e-3


def test_every_row_of_a_block_has_its_own_sensitivity_and_law() -> None:
    laws = [ExponentialNorm(1.0), ExponentialNorm(10.0)]
    both, first = np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32)
    noise_block(both, laws, np.array([1.0, 3.0]), BlockStreams(5))
    noise_block(first, [laws[0]] * 2, np.array([1.0, 1.0]), BlockStreams(5))
    np.testing.assert_allclose(both[0], first[0], rtol=1e-6)
    np.testing.assert_allclose(both[1], first[1] * 3 / 10, rtol=1e-5)


@pytest.mark.parametrize("sampling", [POISSON, WITH_REPLACEMENT])
def test_block_batches_take_every_sample_alike(sampling: Sampler) -> None:
    rng = BlockStreams(6).batches
    drawn = list(sampling.draw_block(rng, np.full(3000, 30), 5))
    counts = np.bincount(np.concatenate(drawn), minlength=30)
    assert stats.chisquare(counts).pvalue > 1e-3
    sizes = np.array([len(batch) for batch in drawn])
    if sampling == POISSON:
        assert sizes.var() == pytest.approx(30 * (1 / 6) * (5 / 6), rel=0.15)
        assert all(len(set(batch.tolist())) == len(batch) for batch in drawn)
    else:
        assert set(sizes.tolist()) == {5}


def test_batches_drawn_at_once_are_those_drawn_one_by_one() -> None:
    sizes = np.array([30, 30, 7, 1, 60_000, 30])
    one_by_one, at_once = BlockStreams(6).batches, BlockStreams(6).batches
    for _ in range(3):  # nothing is left over in the generator, either
        drawn = [one_by_one.integers(0, size, 5) for size in sizes]
        np.testing.assert_array_equal(WITH_REPLACEMENT.draw_block(at_once, sizes, 5), drawn)


@pytest.mark.parametrize("partition", ["iid", "shared", "dirichlet"])
def test_a_run_is_the_same_whether_it_is_recorded_or_not(partition: str) -> None:
    data = {"partition": partition, "sampler": "with-replacement"}
    world = small_world(data=data, algorithm={"loss_gap": 0.01}, iterations=61)
    recorded = simulate_rounds(world, Journal(io.StringIO()), blocks=True)
    plain = simulate_rounds(world, blocks=True)
    assert plain.x.tobytes() == recorded.x.tobytes()
    assert plain.tally == recorded.tally
    assert plain.releases == recorded.releases


def test_block_streams_are_statistically_equal_to_counter_streams() -> None:
    changes = [{"seed": seed, "privacy": {"noise": "exponential-norm", "epsilon": 0.5}} for seed in range(40)]

    def losses(outcomes: list[Outcome]) -> list[float]:
        return [outcome.tally.evaluations[-1]["loss"] for outcome in outcomes]

    ours = losses(simulate_many(siblings(changes), blocks=True))
    theirs = losses(simulate_many(siblings(changes)))
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-3
    assert stats.ttest_ind(ours, theirs).pvalue > 1e-3


def test_block_streams_refuse_epochs_that_they_do_not_have() -> None:
    """A subset drawn afresh for every batch is no shuffled epoch, and the ledger would be wrong."""
    with pytest.raises(ConfigurationError, match=r"data\.sampler = 'shuffled'"):
        simulate_rounds(small_world(data={"sampler": "shuffled"}), blocks=True)


@pytest.mark.parametrize(("engine", "blocks"), [("vectorised", False), ("block", True)])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {
                "algorithm": {"name": "quantile", "rate": 0.2},
                "privacy": {"noise_multiplier": 1.0, "clipping": "quantile"},
            },
            r"privacy\.clipping = 'quantile' has no vectorised form.*--engine events",
        ),
        ({"delays": {"kind": "constant"}}, r"needs delays\.kind = 'cyclic'"),
        ({"records": {"diagnostics": True}}, r"needs .* and no diagnostics"),
        ({"algorithm": {"name": "adam", "rate": 0.2}}, "algorithm 'adam' has no vectorised form"),
        ({"algorithm": {"name": "constant", "rate": 0.2, "average": "ema"}}, "keeps no average"),
        (
            {
                "local": {"steps": 2, "rate": 0.1},
                "privacy": {"noise_multiplier": 1.0},
                "data": {"sampler": "poisson"},
            },
            "makes no local steps",
        ),
    ],
)
def test_a_refusal_names_the_engine_that_was_asked_for_and_the_cause(
    engine: str, blocks: bool, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"engine = '{engine}': {said}"):
        check_vectorised([small_world(**changes)], blocks=blocks)


def test_a_sweep_must_share_its_shape() -> None:
    with pytest.raises(ConfigurationError, match="must share data"):
        simulate_many(siblings([{"seed": 1}, {"seed": 2, "batch_size": 3}]))
    with pytest.raises(ConfigurationError, match="must share data"):
        simulate_many([small_world(seed=1), small_world(seed=2)])


def test_the_plan_is_what_the_server_does() -> None:
    world = small_world(algorithm={"loss_gap": 0.01}, iterations=60)
    plan = VectorisedRun(world, None, blocks=False)
    opened = simulate(world).tally.summary()["stages"]
    assert [plan.openings[stage["t"]].stage for stage in opened] == [stage["stage"] for stage in opened]
    assert len(plan.openings) == len(opened) > 2
    for stage in opened:
        assert plan.rates[stage["t"]] == np.float32(stage["learning_rate"])
        assert plan.sensitivities[stage["t"]] == stage["sensitivity"]


def test_an_interrupt_waits_for_the_end_of_a_stretch() -> None:
    def interrupt(tally: Tally) -> None:
        if tally.updates >= 30:
            signal.raise_signal(signal.SIGINT)

    outcome, events = recorded(simulate_rounds, small_world(iterations=3000), interrupt)
    done = sum(event["event"] == "gradient_applied" for event in events)
    assert outcome.reason == "interrupted"
    assert 30 <= done == outcome.tally.updates < 3000
    assert events[-1] == {"event": "halted", "t": done, "reason": "interrupted"}
    whole = simulate(small_world(iterations=done))
    np.testing.assert_allclose(outcome.x, whole.x, rtol=1e-4, atol=1e-5)
