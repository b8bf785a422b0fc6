"""Runs in which each edge has a pace of its own: all spend the budget, none passes it, fast or slow."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.algorithm import StepSchedule
from cloud.assembly import begun, public_numbers, server_for
from cloud.server import CloudServer
from common.accounting.releases import ReleaseKind, Spent
from common.accounting.total import total
from common.errors import ConfigurationError
from common.messages import GradientArrived, GradientRefused, Halt, Hello, Leave, SendModel
from common.quantities import EdgeId, NoisyGradient
from common.scenario.scenario import parse_scenario
from mapa.budget import calibrated
from mapa.recording import check_engine, record_simulation
from mapa.simulation.simulator import Outcome, World, check_world, simulate
from mapa.simulation.synchronous import simulate_synchronously
from mapa.verification.checks_records import CheckedRun, check_summary
from mapa.verification.untrusted_files import of_directory
from tests.core_support import small_dataset, small_scenario, small_world
from tests.program_support import Mapa

SPEEDS = [1.0, 2.0, 4.0, 8.0, 10.0]
DELAYS = {"kind": "constant", "compute": 0.01, "network": 0.0, "speeds": SPEEDS}
ROWS = 300


def paced_world(**changes: Any) -> World:
    """Return five edges of 60 records, all in each batch: the accountant has a closed form, and is quick."""
    values: dict[str, Any] = {
        "edges": 5,
        "iterations": 250,
        "batch_size": 60,
        "data": {"sampler": "poisson"},
        "algorithm": {"name": "constant", "rate": 0.3},
        "privacy": {"total_epsilon": 3.0, "pace": "own"},
        "delays": DELAYS,
    }
    return World.on(small_scenario(**{**values, **changes}), small_dataset(rows=ROWS))


def epsilons(world: World, outcome: Outcome) -> list[float]:
    """Return the total ε of each edge, accounted anew."""
    scenario = world.scenario
    kinds = [ReleaseKind(scenario.mechanism(scenario.law(k)), len(rows)) for k, rows in enumerate(world.rows)]
    pairs = zip(kinds, outcome.releases, strict=True)
    return [total([Spent(kind, releases)], 1e-5, replace_one=False).epsilon for kind, releases in pairs]


def test_all_edges_end_with_the_same_epsilon_whatever_their_speed() -> None:
    world = paced_world()
    outcome = simulate(world)
    assert (outcome.reason, outcome.tally.updates) == ("finished", 250)
    assert outcome.releases == [10, 20, 40, 80, 100] == world.scenario.privacy.release_caps
    assert all(0.98 * 3.0 <= epsilon <= 3.0 for epsilon in epsilons(world, outcome))
    multipliers = world.scenario.privacy.noise_multiplier
    assert multipliers == sorted(multipliers or [])
    last = [outcome.tally.edges[k].applied for k in range(5)]
    assert last == outcome.releases  # nothing was on its way in vain


def test_without_a_pace_fast_edges_lose_more_than_twice_and_a_half_as_much() -> None:
    world = paced_world(privacy={"noise_multiplier": 20.0})
    found = epsilons(world, simulate(world))
    assert max(found) / min(found) >= 2.5


@pytest.mark.parametrize("kind", ["exponential", "lognormal", "cyclic"])
def test_no_edge_passes_its_number_however_the_run_turns_out(kind: str) -> None:
    world = paced_world(delays={**DELAYS, "kind": kind})
    outcome = simulate(world)
    assert outcome.releases == world.scenario.privacy.release_caps
    assert outcome.reason == "finished"


def test_with_local_steps_a_message_is_charged_as_all_its_releases() -> None:
    world = paced_world(local={"steps": 3, "rate": 0.1})
    outcome = simulate(world)
    assert outcome.releases == [10, 20, 40, 80, 100] == world.scenario.privacy.release_caps  # messages
    kind = ReleaseKind(world.scenario.mechanism(world.scenario.law(1)), 60)
    spent = total([Spent(kind, kind.charges(20))], 1e-5, replace_one=False).epsilon
    assert kind.charges(20) == 60
    assert 0.98 * 3.0 <= spent <= 3.0


def test_a_recorded_run_is_the_same_run() -> None:
    world = paced_world()
    again = World.on(parse_scenario(world.scenario.canonical()), small_dataset(rows=ROWS))
    assert again.scenario == world.scenario
    np.testing.assert_array_equal(simulate(again).x, simulate(world).x)


def test_weights_change_the_model_and_can_be_left_out() -> None:
    plain = {"name": "constant", "rate": 0.3, "weights": "none"}
    assert not np.array_equal(simulate(paced_world()).x, simulate(paced_world(algorithm=plain)).x)


def test_a_run_ends_at_its_time_limit() -> None:
    world = paced_world(time_limit=0.05)
    outcome = simulate(world)
    assert outcome.reason == "time-limit"
    assert outcome.virtual_seconds is not None
    assert outcome.virtual_seconds <= 0.05
    assert all(done <= cap for done, cap in zip(outcome.releases, world.caps, strict=True) if cap)
    assert max(epsilons(world, outcome)) <= 3.0
    with pytest.raises(ConfigurationError, match=r"time_limit = 0\.05: means nothing with"):
        check_world(paced_world(time_limit=0.05, delays={"kind": "cyclic", "speeds": SPEEDS}))


def test_synchronous_rounds_end_at_the_time_limit_too() -> None:
    delays = {"kind": "constant", "compute": 1.0, "network": 0.0, "speeds": [1.0, 0.25]}  # a round: 4 s
    world = small_world(delays=delays, iterations=100, time_limit=10.0)
    rounds = simulate_synchronously(world)
    edges = world.scenario.edges
    assert (rounds.reason, rounds.virtual_seconds) == ("time-limit", 10.0)
    assert rounds.tally.updates == 2 * edges
    assert rounds.releases == [3] * edges  # the third round's were released, and came too late


# -- T of a run whose caps end it before ------------------------------------------------------------------


def capped_world(**algorithm: Any) -> World:
    """Return a world of 1000 iterations whose edges may make 250 updates."""
    privacy = paced_world().scenario.privacy.model_dump(exclude_none=True)
    return paced_world(
        iterations=1000, privacy=privacy, algorithm={"name": "constant", "rate": 0.3, **algorithm}
    )


def test_t_is_what_the_caps_permit_and_without_caps_what_the_scenario_says() -> None:
    world = capped_world()
    few = world.scenario.model_copy(update={"iterations": 100})
    for scenario, updates in ((world.scenario, 250), (few, 100), (small_scenario(iterations=60), 60)):
        assert (scenario.updates, scenario.problem.iterations) == (updates, updates)
    for scenario, updates in ((world.scenario, 250), (few, 100)):  # so does the rule of tuning-free
        assert public_numbers(scenario, world.model).iterations == updates


def test_a_tail_begins_at_its_share_of_the_updates_that_the_caps_permit() -> None:
    last, tail = simulate(capped_world()), simulate(capped_world(average="tail"))
    assert last.tally.updates == tail.tally.updates == 250
    assert not np.array_equal(last.x, tail.x)
    whole = paced_world(algorithm={"name": "constant", "rate": 0.3, "average": "tail"})  # T = 250
    np.testing.assert_array_equal(simulate(whole).x, tail.x)


def test_a_rate_falls_to_0_over_the_updates_that_the_caps_permit() -> None:
    world = capped_world(rate_decay="linear", weights="none")
    schedule = begun(world.scenario, world.model)
    assert isinstance(schedule, StepSchedule)
    assert schedule.learning_rate(250) == pytest.approx(schedule.learning_rate(1) / 250)


@pytest.mark.parametrize(
    ("engine", "made", "first", "last"), [("events", 50, 126, 250), ("synchronous", 4, 26, 50)]
)
def test_a_tail_that_never_began_is_warned_of_and_the_records_stand(
    tmp_path: Path, engine: str, made: int, first: int, last: int
) -> None:
    algorithm = {"name": "constant", "rate": 0.3, "average": "tail"}
    limit = 0.021 if engine == "events" else 0.041
    world = paced_world(algorithm=algorithm, privacy={"noise_multiplier": 20.0}, time_limit=limit)
    summary = record_simulation(world, name="short", runs=tmp_path, engine=engine)
    assert summary["reason"] == "time-limit"
    assert summary["warning"] == (
        f"algorithm.average = 'tail' averaged nothing: it begins with update {first} of {last}, and the run made"
        f" {made}; the result is the last model"
    )
    files = of_directory(Path(summary["path"]))
    told = list(check_summary(CheckedRun(files, world.scenario, world.model)))
    assert {check.status.value for check in told} == {"passed", "claimed"}


def test_a_plan_that_passes_the_budget_is_refused() -> None:
    filled = paced_world().scenario.privacy
    privacy = filled.model_dump(exclude_none=True) | {"release_caps": [11, 20, 40, 80, 100]}
    with pytest.raises(ConfigurationError, match=r"privacy\.release_caps = 11 of edge 0"):
        paced_world(privacy=privacy)


PACED = """
edges = 2
iterations = 6
batch_size = 60
data = { set = "mnist-5k", sampler = "poisson" }
algorithm = { name = "constant", rate = 0.3, first_clip = 1.0 }
privacy = { total_epsilon = 3.0, pace = "own", paces = [1.0, 2.0] }
"""


@pytest.mark.parametrize("engine", ["vectorised", "block", "synchronous"])
def test_an_engine_that_takes_no_pace_says_so_before_noise_is_computed(
    engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mapa: Mapa
) -> None:
    def never(*_: object, **__: object) -> float:
        raise AssertionError("z_k is computed for a run that cannot be")

    monkeypatch.setattr("common.accounting.budget.calibrate", never)
    kind = "constant" if engine == "synchronous" else "cyclic"
    scenario = parse_scenario({**tomllib.loads(PACED), "delays": {"kind": kind}})
    with pytest.raises(ConfigurationError, match=rf"engine = '{engine}': .*privacy\.pace = 'own'"):
        check_engine(scenario, engine)
    file = tmp_path / "paced.toml"
    file.write_text(PACED)
    done = mapa("simulate", str(file), "--engine", engine, "--set", f"delays.kind={kind}")
    assert (done.code, done.out) == (2, "")
    assert "privacy.pace = 'own'" in done.err


def test_whoever_waits_for_z_k_hears_how_far_it_is() -> None:
    scenario = small_scenario(
        edges=5,
        batch_size=60,
        data={"sampler": "poisson"},
        algorithm={"name": "constant", "rate": 0.3},
        privacy={"total_epsilon": 3.0, "pace": "own", "paces": [1.0, 1.0, 2.0, 4.0, 4.0]},
    )
    said: list[str] = []
    calibrated(scenario, [60] * 5, said.append)
    assert [line.split(":")[0] for line in said[::2]] == [f"finding z_k ({k} of 3)" for k in (1, 2, 3)]
    assert all(re.fullmatch(r"z_k = [\d.]+, found in \d+\.\d s", line) for line in said[1::2])


@pytest.mark.parametrize("quiet", [False, True])
def test_the_command_says_it_on_stderr_unless_it_is_to_be_quiet(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mapa: Mapa
) -> None:
    monkeypatch.setattr("common.accounting.budget.calibrate", lambda *_, **__: 50.0)
    file = tmp_path / "paced.toml"
    file.write_text(PACED)
    words = ("--set", "delays.kind=constant", "--seed", "1", "--json", *(["--quiet"] if quiet else []))
    done = mapa("simulate", str(file), *words)
    assert done.code == 0, done.err
    assert ("finding z_k (2 of 2)" in done.err) is not quiet
    assert "computing" not in done.out


# -- edges that lie ---------------------------------------------------------------------------------------


def served(world: World) -> tuple[CloudServer, list[SendModel]]:
    server = server_for(world.scenario, world.model, world.streams, edges_at_least=5)
    sent = [
        effect
        for k in range(5)
        for effect in server.receive(Hello(edge_id=EdgeId(f"edge-{k}"), index=k))
        if isinstance(effect, SendModel)
    ]
    return server, sent


def push(server: CloudServer, model: SendModel, sequence: int, length: float) -> list[Any]:
    gradient = np.zeros(server.model.size, np.float32)
    gradient[0] = length
    arrived = GradientArrived(
        model.edge_id, sequence, model.version, model.sensitivity, NoisyGradient(gradient)
    )
    return list(server.receive(arrived))


def test_an_edge_that_sends_more_than_its_number_is_not_applied() -> None:
    server, sent = served(paced_world())
    slow = sent[0]
    for sequence in range(1, 13):
        effects = push(server, slow, sequence, 0.01)
        refused = [effect.reason for effect in effects if isinstance(effect, GradientRefused)]
        assert refused == (["cap"] if sequence > 10 else [])
        slow = next(effect for effect in effects if isinstance(effect, SendModel))
    assert server.edges[EdgeId("edge-0")].applied == 10


def test_gradients_longer_than_the_noise_that_was_said_are_refused() -> None:
    """The slowest edge was planned with the least noise; with the noise of the fastest it is found out by a length."""
    world = paced_world(
        batch_size=1, privacy={"total_epsilon": 3.0, "pace": "own"}, data={"sampler": "shuffled"}
    )
    server, sent = served(world)
    reach = [account.reach for account in server.edges.values()]
    assert reach[0] < reach[4]
    effects = push(server, sent[0], 1, 0.5 * (reach[0] + reach[4]) * sent[0].sensitivity)
    assert [one.reason for one in effects if isinstance(one, GradientRefused)] == ["norm"]
    effects = push(server, sent[4], 1, 0.5 * (reach[0] + reach[4]) * sent[4].sensitivity)
    assert not [one for one in effects if isinstance(one, GradientRefused)]


def test_a_run_whose_edges_have_all_reached_their_numbers_is_finished_although_gradients_were_refused() -> (
    None
):
    server, sent = served(paced_world())
    halts = []
    for model in sent:
        halts += [e for e in server.receive(Leave(model.edge_id, "budget")) if isinstance(e, Halt)]
    assert [halt.reason for halt in halts] == ["finished"]
    other, models = served(paced_world())
    other.receive(Leave(models[0].edge_id, "failed"))
    for model in models[1:]:
        halts += [e for e in other.receive(Leave(model.edge_id, "budget")) if isinstance(e, Halt)]
    assert halts[-1].reason == "no-budget"
