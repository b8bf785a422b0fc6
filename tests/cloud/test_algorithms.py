"""Each algorithm by its formula: what one update does to x, and what it keeps for the next."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cloud.algorithm import DECAY, Algorithm, Update, WithAverage, averaged, descend
from common.algorithms import algorithm_names, describe
from common.errors import ConfigurationError
from common.problem import Problem
from common.quantities import Vector
from common.scenario.scenario import parse_scenario

CLIP, BATCH, T = 2.0, 4, 20
PROBLEM = Problem(batch_size=BATCH, smoothness=1.0, sigma=1.0, tau_max=3, iterations=T, first_clip=CLIP)
FIELD = ("fedasync", "fedbuff", "delay-adaptive", "momentum", "adam", "norm-cap", "trimmed-mean", "krum")


def begun(name: str, problem: Problem = PROBLEM, **options: Any) -> Any:
    described = describe(name)
    return described.make(described.resolve({"rate": 1.0, **options})).begin(problem, 2.0)


def update(value: float, t: int = 9, staleness: int = 0) -> Update:
    return Update(np.full(3, value, np.float32), t, t - staleness, staleness, 0, None, 0.0, 1, 1.0)


def step(algorithm: Algorithm, staleness: int) -> float:
    """Return how far a gradient of ones, so stale, moves x from 0."""
    x, _ = algorithm.apply(np.zeros(3, np.float32), update(1.0, t=100, staleness=staleness))
    return -float(x[0])


@pytest.mark.parametrize("name", FIELD)
def test_edges_clip_to_the_given_bound_and_no_constants_are_needed(name: str) -> None:
    described = describe(name)
    assert (described.private, described.needs_constants, described.requires) == (
        True,
        False,
        ("first_clip",),
    )
    assert begun(name).sensitivity == 2 * CLIP / BATCH
    with pytest.raises(ConfigurationError, match="first_clip"):
        begun(name, Problem(batch_size=4, smoothness=1.0, sigma=1.0, tau_max=3, iterations=T))
    with pytest.raises(ConfigurationError, match=r"algorithm\.rata = 1: unknown key"):
        begun(name, rata=1)
    assert set(FIELD) <= set(algorithm_names())


@pytest.mark.parametrize("name", FIELD)
def test_x_and_the_gradient_stay_as_they_are(name: str) -> None:
    algorithm, x = begun(name), np.ones(3, np.float32)
    for t in range(1, 13):
        one = update(0.5, t=t)
        moved, algorithm = algorithm.apply(x, one)
        np.testing.assert_array_equal(x, 1)
        np.testing.assert_array_equal(one.gradient, 0.5)
        assert moved.dtype == np.float32


# -- FedAsync -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"weight": "constant"}, {0: 1.0, 3: 1.0, 50: 1.0}),
        ({"weight": "polynomial", "power": 0.5}, {0: 1.0, 3: 0.5, 8: 1 / 3}),
        ({"weight": "hinge", "slope": 2.0, "grace": 4}, {0: 1.0, 4: 1.0, 5: 1 / 3, 6: 1 / 5}),
        ({"weight": "constant", "mixing": 0.6}, {0: 0.6, 9: 0.6}),
    ],
)
def test_fedasync_weighs_by_staleness(options: dict[str, Any], weights: dict[int, float]) -> None:
    algorithm = begun("fedasync", rate=3.0, **options)
    for staleness, weight in weights.items():
        assert step(algorithm, staleness) == pytest.approx(weight * 3.0 / CLIP)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"weight": "hinge", "power": 2.0},
            "power = 2.0: only with algorithm.weight = 'polynomial', not 'hinge'",
        ),
        ({"weight": "constant", "power": 2.0}, "power = 2.0: only with algorithm.weight = 'polynomial'"),
        ({"slope": 3.0}, "slope = 3.0: only with algorithm.weight = 'hinge', not 'polynomial'"),
        ({"grace": 2}, "grace = 2: only with algorithm.weight = 'hinge', not 'polynomial'"),
        ({"window": 8}, "window = 8: only with algorithm.mix = 'model', not 'step'"),
    ],
)
def test_an_option_that_means_nothing_beside_the_others_is_refused(
    options: dict[str, Any], said: str
) -> None:
    algorithm = {"name": "fedasync", "rate": 0.2, "first_clip": 1.0, **options}
    with pytest.raises(ConfigurationError, match=rf"algorithm\.{re.escape(said)}"):
        parse_scenario({"iterations": 10, "algorithm": algorithm})


@pytest.mark.parametrize(("key", "value"), [("tau_quantile", 0.5), ("tau_window", 10)])
def test_how_staleness_is_measured_means_nothing_where_it_is_not(key: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=rf"algorithm\.{key} = .*only with algorithm\.tau_max_from"):
        parse_scenario({"iterations": 10, "algorithm": {"name": "mapa", key: value}})
    measured = {"name": "mapa", key: value, "tau_max_from": "measured"}
    assert parse_scenario({"iterations": 10, "algorithm": measured}).algorithm.options[key] == value


def test_options_of_the_weight_and_mix_in_force_are_taken_and_recorded() -> None:
    for options in (
        {"weight": "hinge", "slope": 3.0, "grace": 2},
        {"power": 1.0},
        {"mix": "model", "window": 8},
    ):
        algorithm = {"name": "fedasync", "rate": 0.2, "first_clip": 1.0, **options}
        made = parse_scenario({"iterations": 10, "algorithm": algorithm})
        assert parse_scenario(made.canonical()) == made


def test_fedasync_that_mixes_models_is_the_published_update() -> None:
    """x_{t+1} = (1 − α_τ)x_t + α_τ(x_v − γg), computed here in float64 with every model kept."""
    algorithm = begun("fedasync", mix="model", mixing=0.6, power=1.0, window=6, rate=0.8)
    rng = np.random.default_rng(4)
    x: Vector = rng.standard_normal(5).astype(np.float32)
    models = [np.zeros(5), x.astype(np.float64)]  # x_v at place v
    for t in range(1, 30):
        staleness = int(rng.integers(0, min(t, 5)))
        g = rng.standard_normal(5).astype(np.float32)
        x, algorithm = algorithm.apply(x, Update(g, t, t - staleness, staleness, 0, None, 0.0, 1, 1.0))
        alpha = 0.6 / (1 + staleness)
        models.append((1 - alpha) * models[t] + alpha * (models[t - staleness] - 0.8 / CLIP * g))
        np.testing.assert_allclose(x, models[t + 1], rtol=1e-5, atol=1e-5)
        assert len(algorithm.models) == min(t, 6)


def test_both_forms_of_fedasync_agree_without_staleness() -> None:
    x, one = np.ones(3, np.float32), update(0.3)
    results = [begun("fedasync", mix=mix, mixing=0.4).apply(x, one)[0] for mix in ("step", "model")]
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_fedasync_leaves_out_a_gradient_whose_model_is_no_longer_kept() -> None:
    algorithm, x = begun("fedasync", mix="model", window=4), np.ones(3, np.float32)
    for t in range(1, 8):
        _, algorithm = algorithm.apply(x, update(1.0, t=t))
    moved, _ = algorithm.apply(x, update(1.0, t=8, staleness=4))
    np.testing.assert_array_equal(moved, x)
    with pytest.raises(
        ConfigurationError, match=r"algorithm\.window = 3: must be greater than .*tau_max = 3"
    ):
        begun("fedasync", mix="model", window=3)


# -- FedBuff ------------------------------------------------------------------------------------------------


def test_fedbuff_moves_by_the_mean_of_m_gradients() -> None:
    algorithm, x = begun("fedbuff", buffer=3), np.zeros(3, np.float32)
    seen = []
    for t, value in enumerate((1.0, 2.0, 6.0, 3.0, 3.0, 6.0), start=1):
        x, algorithm = algorithm.apply(x, update(value, t=t))
        seen.append(float(x[0]) * CLIP)
    np.testing.assert_allclose(seen, [0, 0, -3, -3, -3, -7], rtol=1e-6)


def test_a_buffer_that_T_never_fills_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"algorithm\.buffer = 10001: must be at most 20, the updates"
    ):
        begun("fedbuff", buffer=10_001)


def test_fedbuff_counts_staleness_in_moves_of_x() -> None:
    algorithm, x = begun("fedbuff", buffer=2, staleness_scaling=True), np.zeros(3, np.float32)
    #            t, v: moves before t are (t−1)//2, before v (v−1)//2
    for t, version, moves in ((1, 1, 0), (2, 1, 0), (3, 1, 1), (4, 3, 0), (5, 1, 2), (6, 4, 1)):
        one = update(1.0, t=t, staleness=t - version)
        assert algorithm.moves_since(one) == moves
        before, (x, algorithm) = x, algorithm.apply(x, one)
    # the last two: weights 1/√3 and 1/√2, their mean over m = 2
    assert float(before[0] - x[0]) * CLIP == pytest.approx((3**-0.5 + 2**-0.5) / 2, rel=1e-6)


# -- rules for edges that may send anything -------------------------------------------------------------------


def of_edges(algorithm: Algorithm, *sent: tuple[int, float]) -> list[float]:
    """Return where x, from 0, lies after the gradients of these edges, in units of −ρ/C."""
    x, seen = np.zeros(3, np.float32), []
    for t, (edge, value) in enumerate(sent, start=1):
        x, algorithm = algorithm.apply(x, update(value, t=t)._replace(edge=edge))
        seen.append(-float(x[0]) * CLIP)
    return seen


@pytest.mark.parametrize(
    ("options", "move"),
    [
        ({"name": "trimmed-mean", "trim": 1}, (1 + 2 + 4) / 3),
        ({"name": "trimmed-mean", "trim": 2}, 2),
        ({"name": "krum"}, 1),  # the two nearest to it are 1 away at most, as for no other
        ({"name": "krum", "chosen": 2}, (1 + 0) / 2),
    ],
)
def test_a_rule_over_a_buffer_of_edges_leaves_out_what_lies_apart(
    options: dict[str, Any], move: float
) -> None:
    algorithm = begun(**options, buffer=5)
    sent = [(0, 0.0), (1, 1.0), (2, 4.0), (3, 2.0), (4, 1000.0)]
    assert of_edges(algorithm, *sent) == pytest.approx([0, 0, 0, 0, move])


def test_an_edge_has_one_place_in_a_buffer_and_there_its_mean() -> None:
    algorithm = begun("trimmed-mean", buffer=3)
    flood = [(7, 1000.0)] * 20
    assert of_edges(algorithm, *flood, (1, 1.0), (1, 3.0), (2, 5.0)) == pytest.approx([0.0] * 22 + [5.0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "trimmed-mean", "buffer": 4, "trim": 2}, "buffer = 4: must be at least 5"),
        ({"name": "krum", "buffer": 6, "byzantine": 2}, "buffer = 6: must be at least 7"),
        ({"name": "krum", "chosen": 5}, "chosen = 5: must be at most 4, buffer less byzantine"),
        ({"name": "trimmed-mean", "buffer": 9}, "buffer = 9: must be at most 8, the edges of this run"),
    ],
)
def test_a_buffer_of_too_few_edges_or_more_than_there_are_is_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"algorithm\.{words}"):
        begun(**options, problem=replace(PROBLEM, edges=8))


def test_the_norm_cap_is_the_median_of_the_edges_whatever_one_of_them_sends() -> None:
    algorithm = begun("norm-cap")
    seen = of_edges(algorithm, (0, 1.0), (1, 1.0), (2, 1000.0), (2, 1e6), (3, 2.0), (4, 0.0), (0, 5.0))
    assert np.diff([0, *seen]) == pytest.approx([1, 1, 1, 1, 1, 0, 2], rel=1e-6)
    assert of_edges(begun("norm-cap", cap=3.0), (0, 1.0), (1, 1.0), (2, 10.0))[-1] == pytest.approx(5)


# -- delay-adaptive -----------------------------------------------------------------------------------------


def test_delay_adaptive_rates_fall_beyond_the_concurrency() -> None:
    algorithm = begun("delay-adaptive", concurrency=4)
    assert [step(algorithm, tau) * CLIP for tau in (0, 4, 8, 40)] == pytest.approx([1, 1, 0.5, 0.1])
    dropping = begun("delay-adaptive", concurrency=4, late="drop")
    assert [step(dropping, tau) * CLIP for tau in (0, 4, 5)] == pytest.approx([1, 1, 0])
    assert begun("delay-adaptive").threshold == PROBLEM.tau_max


# -- momentum and Adam --------------------------------------------------------------------------------------


def gradients(count: int) -> list[Vector]:
    rng = np.random.default_rng(8)
    return [rng.standard_normal(6).astype(np.float32) for _ in range(count)]


def run(algorithm: Any, given: list[Vector]) -> tuple[Vector, Any]:
    x: Vector = np.zeros(6, np.float32)
    for t, g in enumerate(given, start=1):
        x, algorithm = algorithm.apply(x, Update(g, t, t, 0, 0, None, 0.0, 1, 1.0))
    return x, algorithm


def test_momentum_is_a_decaying_sum_of_gradients() -> None:
    given = gradients(12)
    x, algorithm = run(begun("momentum", beta=0.8, rate=0.5), given)
    u, expected = np.zeros(6), np.zeros(6)
    for g in given:
        u = 0.8 * u + 0.2 * g
        expected -= 0.5 / CLIP * u
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(algorithm.u, u, rtol=1e-5, atol=1e-6)
    plain, _ = run(begun("momentum", beta=0.0), given)
    np.testing.assert_array_equal(plain, run(begun("constant"), given)[0])


def test_adam_is_adam_on_gradients_over_c() -> None:
    given = gradients(12)
    x, algorithm = run(begun("adam", beta1=0.7, beta2=0.9, rate=0.1, regulariser=1e-3), given)
    m, v, expected = np.zeros(6), np.zeros(6), np.zeros(6)
    for t, g in enumerate((one.astype(np.float64) / CLIP for one in given), start=1):
        m, v = 0.7 * m + 0.3 * g, 0.9 * v + 0.1 * g * g
        expected -= 0.1 * (m / (1 - 0.7**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-3)
    np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-6)
    assert algorithm.power2 == pytest.approx(0.9**12)


def test_adam_stays_finite_where_gradients_are_zero() -> None:
    x, _ = run(begun("adam"), [np.zeros(6, np.float32)] * 3)
    np.testing.assert_array_equal(x, 0)


# -- averages -----------------------------------------------------------------------------------------------


def walked(algorithm: Algorithm, count: int) -> tuple[list[Vector], Vector]:
    """Return every model of a run, and its result."""
    x: Vector = np.zeros(6, np.float32)
    seen = []
    for t, g in enumerate(gradients(count), start=1):
        x, algorithm = algorithm.apply(x, Update(g, t, t, 0, 0, None, 0.0, 1, 1.0))
        seen.append(x)
    return seen, algorithm.result(x)


def averaging(kind: str, decay: float | None = None, share: float | None = None) -> Algorithm:
    described = describe("momentum")
    made = described.make(described.resolve({"rate": 1.0}))
    return averaged(made, kind, decay, share).begin(PROBLEM, 2.0)


def test_an_average_leaves_the_models_that_edges_get_alone() -> None:
    plain, last = walked(averaging("none"), T)
    np.testing.assert_array_equal(plain[-1], last)
    for kind in ("ema", "tail"):
        models, result = walked(averaging(kind), T)
        np.testing.assert_array_equal(models, plain)
        assert not np.array_equal(result, last)
        assert result.dtype == np.float32


@pytest.mark.parametrize("share", [None, 0.0, 0.75, 0.99])
def test_the_tail_is_the_mean_of_the_last_models(share: float | None) -> None:
    models, result = walked(averaging("tail", share=share), T)
    first = int((0.5 if share is None else share) * T)
    np.testing.assert_allclose(result, np.mean(models[first:], axis=0, dtype=np.float64), rtol=1e-6)


def test_before_the_tail_begins_the_result_is_x() -> None:
    models, result = walked(averaging("tail"), T // 2)
    np.testing.assert_array_equal(result, models[-1])


@pytest.mark.parametrize("decay", [None, 0.0, 0.5])
def test_the_ema_follows_its_recursion(decay: float | None) -> None:
    models, result = walked(averaging("ema", decay=decay), T)
    mean, beta = models[0].astype(np.float64), DECAY if decay is None else decay
    for count, x in enumerate(models[1:], start=2):
        now = min(beta, (1 + count) / (10 + count))
        mean = now * mean + (1 - now) * x
    np.testing.assert_allclose(result, mean, rtol=1e-5)
    if decay == 0.0:
        np.testing.assert_array_equal(result, models[-1])


def test_all_else_is_as_the_algorithm_itself_has_it() -> None:
    described = describe("mapa")
    problem = Problem(
        batch_size=4, smoothness=1.0, sigma=1.0, tau_max=2, iterations=90, first_clip=2.0, loss_gap=1e-3
    )
    plain: Algorithm = described.make(described.resolve({})).begin(problem, 2.0)
    kept = averaged(described.make(described.resolve({})), "ema", None, None).begin(problem, 2.0)
    assert isinstance(kept, WithAverage)
    x, y = np.zeros(3, np.float32), np.zeros(3, np.float32)
    for t in range(1, 40):
        if t == 20:
            plain, kept = plain.with_moment(3.0, t), kept.with_moment(3.0, t)
        assert (kept.stage, kept.sensitivity, kept.opened()) == (
            plain.stage,
            plain.sensitivity,
            plain.opened(),
        )
        assert kept.sensitivity_for(t, 0, None) == plain.sensitivity_for(t, 0, None)
        before = kept.opened()
        x, plain = plain.apply(x, update(0.1, t=t))
        y, kept = kept.apply(y, update(0.1, t=t))
        assert (kept.opened() is before) == (kept.stage == before.index)  # type: ignore[union-attr]
    assert plain.stage > 1
    np.testing.assert_array_equal(x, y)


def test_a_step_of_one_size_is_what_momentum_adds_up_to() -> None:
    """A gradient moves x by ρ/C in the long run, as with `constant`: β spreads it, and keeps its weight."""
    algorithm = begun("momentum", beta=0.5)
    x, algorithm = algorithm.apply(np.zeros(3, np.float32), update(1.0, t=1))
    for t in range(2, 60):
        x, algorithm = algorithm.apply(x, update(0.0, t=t))
    np.testing.assert_allclose(
        x, descend(np.zeros(3, np.float32), np.ones(3, np.float32), 1 / CLIP), rtol=1e-6
    )
