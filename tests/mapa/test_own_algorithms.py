"""An algorithm of one's own, by dotted path: simulated, over the wire, and refused before anything starts."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.algorithm import Algorithm, Update
from cloud.assembly import algorithm_for, server_for
from common.algorithms import algorithm_names
from common.errors import ConfigurationError
from common.quantities import Vector
from common.scenario.scenario import parse_scenario, parse_welcome
from mapa.container import service
from mapa.recording import record_simulation
from mapa.scenario_files import load_scenario
from mapa.simulation.simulator import simulate
from mapa.simulation.synchronous import simulate_synchronously
from tests.core_support import recorded, small_scenario, small_world
from tests.mapa.test_conversation import Talk
from tests.program_support import Mapa

FEDASYNC = {"name": "tests.algorithms.fedasync:FedAsync", "rate": 0.4, "power": 0.7}
FEDBUFF = {"name": "tests.algorithms.fedbuff:FedBuff", "rate": 0.2, "size": 3}
AVERAGED = {"name": "tests.algorithms.averaged:Averaged", "rate": 0.05}
OWN = pytest.mark.parametrize("algorithm", [FEDASYNC, FEDBUFF], ids=["fedasync", "fedbuff"])


def replayed(world: Any, events: list[dict[str, Any]]) -> Vector:
    """Return x from the log alone: batch and noise depend on (seed, k, n), and x on the algorithm's fields."""
    scenario, workers = world.scenario, world.workers()
    algorithm: Algorithm = algorithm_for(scenario).begin(scenario.problem, 2.0)
    x = np.zeros(world.model.dimension, np.float32)
    versions = {1: x}
    for fact in (event for event in events if event["event"] == "gradient_applied"):
        k, t, version = fact["edge"], fact["t"], fact["version"]
        g = workers[k].gradient(versions[version], fact["sensitivity"], fact["sequence"])
        made = Update(g, t, version, t - version, k, scenario.law(k), 2.0, fact["stage"], fact["sensitivity"])
        x, algorithm = algorithm.apply(x, made)
        versions[t + 1] = x
    return x


@OWN
def test_it_is_simulated_and_can_be_replayed_bit_for_bit(algorithm: dict[str, Any]) -> None:
    changes: dict[str, Any] = {"algorithm": algorithm, "delays": {"kind": "lognormal", "spread": 1.0}}
    outcome, events = recorded(simulate, small_world(**changes))
    assert (outcome.reason, outcome.tally.updates) == ("finished", 60)
    assert float(np.abs(outcome.x).max()) > 1e-3
    np.testing.assert_array_equal(replayed(small_world(**changes), events), outcome.x)


@OWN
def test_its_options_are_those_of_the_scenario(algorithm: dict[str, Any]) -> None:
    one = simulate(small_world(algorithm=algorithm)).x
    two = simulate(small_world(algorithm={**algorithm, "rate": 2 * algorithm["rate"]})).x
    assert not np.array_equal(one, two)


@OWN
def test_over_the_wire_it_gives_the_model_of_the_simulator(algorithm: dict[str, Any]) -> None:
    scenario = small_scenario(edges=1, iterations=20, algorithm=algorithm, evaluation={"every": 0})
    talk = Talk(scenario)
    talk.edge()
    talk.run()
    assert talk.service.halted is not None
    assert talk.service.halted.reason == "finished"
    simulated = simulate(small_world(edges=1, iterations=20, algorithm=algorithm, evaluation={"every": 0}))
    np.testing.assert_array_equal(talk.service.server.model, simulated.x)


def test_the_result_may_be_another_model_than_the_edges_get(tmp_path: Path) -> None:
    world = small_world(algorithm=AVERAGED)
    server = server_for(world.scenario, world.model, world.streams, edges_at_least=4)
    assert server.result is server.model
    outcome = simulate(world)
    algorithm, mean = algorithm_for(world.scenario).begin(world.scenario.problem, 0.0), outcome.x
    assert algorithm.result(mean) is mean
    last = simulate(small_world(algorithm={**AVERAGED, "name": "asgd", "rate": None})).x
    assert not np.array_equal(last, mean)
    summary = record_simulation(small_world(algorithm=AVERAGED), name="own", runs=tmp_path)
    assert summary["final_accuracy"] == pytest.approx(outcome.tally.evaluations[-1]["accuracy"])


@OWN
def test_rounds_take_any_algorithm(algorithm: dict[str, Any]) -> None:
    rounds = simulate_synchronously(small_world(algorithm=algorithm, delays={"kind": "uniform"}))
    assert rounds.reason == "finished"
    assert rounds.x.any()


# -- what is refused, and when --------------------------------------------------------------------------------


def test_own_options_are_recorded_and_read_again() -> None:
    scenario = small_scenario(algorithm=FEDBUFF)
    recorded = json.loads(json.dumps(scenario.canonical()))
    assert recorded["algorithm"]["size"] == 3
    assert parse_scenario(recorded) == scenario
    default = small_scenario(algorithm={**FEDBUFF, "size": 4})
    assert "size" not in default.canonical()["algorithm"]
    assert default.digest == small_scenario(algorithm={**FEDBUFF, "size": None}).digest
    assert default.resolved()["algorithm"]["size"] == 4


UNSTATED = "algorithm.name=tests.cloud.test_algorithm_port:Unstated"
BARE = "algorithm.name=tests.cloud.test_algorithm_port:Boundless"  # private, and asks for no clipping bound
NOWHERE = ("--broker", "127.0.0.1:1", "--run", "r", "--connect-timeout", "0")  # nobody listens there


@pytest.mark.parametrize(
    "command", [("simulate", "quickstart"), ("run", "quickstart"), ("cloud", "quickstart", *NOWHERE)]
)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("algorithm.name=mapaa", ["algorithm.name = 'mapaa'", "'mapa'", "package.module:Class"]),
        ("algorithm.tau_quantil=0.9", ["algorithm.tau_quantil = 0.9: unknown key", "tau_quantile", "theta"]),
        ("algorithm.tau_quantile=1.5", ["algorithm.tau_quantile = 1.5", "≤ 1"]),
        ("algorithm.name=no.such:Thing", ["algorithm.name = 'no.such:Thing': cannot import"]),
        (UNSTATED, ["does not say whether its edges clip and noise"]),
        (BARE, ["is private, so ΔS = 0.0"]),
    ],
)
def test_a_mistake_about_the_algorithm_exits_with_2_before_anything_is_written_or_sent(
    command: tuple[str, ...], change: str, words: list[str], mapa: Mapa, tmp_path: Path
) -> None:
    said = mapa.refusal(*command, "--set", change)
    for word in words:
        assert word in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["mapaa", "no.such:Thing"])
def test_a_container_is_refused_the_same(name: str) -> None:
    arguments, _ = service("cloud", {"SET": f"algorithm.name={name}"})
    changes = [after for flag, after in pairwise(arguments) if flag == "--set"]
    with pytest.raises(ConfigurationError, match=f"algorithm.name = '{name}'"):
        load_scenario(arguments[1], changes)


def test_the_algorithms_and_their_options_are_listed(mapa: Mapa) -> None:
    built_in, [fedbuff] = mapa.rows("algorithms"), mapa.rows("algorithms", str(FEDBUFF["name"]))
    assert [one["name"] for one in built_in] == list(algorithm_names())
    assert [one["name"] for one in built_in if not one["private"]] == ["asgd", "csgd"]
    assert fedbuff["about"] == "x stays until m gradients have come, then moves by their mean."
    assert [(one["name"], one["default"]) for one in fedbuff["options"]] == [("rate", None), ("size", 4)]
    assert fedbuff["options"][1]["allowed"] == "an integer, ≥ 1 and ≤ 10000"


# -- what edges are told ----------------------------------------------------------------------------------


def test_a_file_in_the_current_folder_is_listed_as_the_help_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapa: Mapa
) -> None:
    source = (Path(__file__).parents[1] / "algorithms" / "fedasync.py").read_text(encoding="utf-8")
    (tmp_path / "listed_own_algos.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    [listed] = mapa.rows("algorithms", "listed_own_algos:FedAsync")
    assert listed["name"] == "listed_own_algos:FedAsync"


@pytest.mark.parametrize(("name", "private"), [("mapa", True), ("asgd", False), ("csgd", False)])
def test_edges_are_told_what_to_do_and_not_by_which_algorithm(name: str, private: bool) -> None:
    scenario = small_scenario(algorithm={"name": name})
    sent = scenario.for_edge(0)
    assert "algorithm" not in sent
    assert sent["work"] == {"private": private, "centralised": name == "csgd"}
    told = parse_welcome({**sent, "seed": 7})
    assert (told.private, told.workers) == (private, 1 if name == "csgd" else 4)
    assert told.law(0) == scenario.law(0)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (None, "work: missing"),
        ({}, "work.private: missing"),
        ({"private": True}, "work.centralised: missing"),
        ({"private": 0, "centralised": False}, "work.private = 0"),
        ({"private": None, "centralised": False}, "work.private = None"),
        ({"private": True, "centralised": False, "x": 1}, "work.x = 1: unknown key"),
        ([], "work: missing"),
    ],
)
def test_a_welcome_that_does_not_say_what_to_do_is_refused(work: Any, words: str) -> None:
    sent = {**small_scenario().for_edge(0), "work": work}
    if work is None:
        del sent["work"]
    with pytest.raises(ConfigurationError) as caught:
        parse_welcome(sent)
    assert words in str(caught.value)


def test_a_welcome_that_names_an_algorithm_is_refused_unread() -> None:
    with pytest.raises(ConfigurationError, match="algorithm: an edge is told by `work`"):
        parse_welcome({**small_scenario().for_edge(0), "algorithm": {"name": "os:system"}})


def test_no_scenario_file_can_say_that_edges_need_not_protect() -> None:
    with pytest.raises(ConfigurationError, match=r"work = .*unknown key"):
        small_scenario(work={"private": False, "centralised": False})
