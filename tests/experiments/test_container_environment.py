"""What a container's environment says, as the arguments of `mapa`; and the heartbeat file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from common import health
from common.channel import MemoryBroker
from common.errors import ConfigurationError
from experiments.container import cloud_arguments, data_arguments, edge_arguments
from experiments.faults import Fault, FaultKind, Scale, parse_happening
from experiments.records_tail import Tail
from experiments.scenario_files import load_scenario

ROOT = Path(__file__).parents[2]


def changed(environ: dict[str, str]) -> list[str]:
    arguments = cloud_arguments(environ)
    return [arguments[i + 1] for i, word in enumerate(arguments) if word == "--set"]


def substituted(file: str, given: dict[str, str]) -> dict[str, str]:
    """Return the environment of the service `cloud` as Compose fills it in; only `${NAME:-default}` is known."""
    text = (ROOT / file).read_text().partition("\n  cloud:\n")[2].partition("\n    environment:\n")[2]
    lines = re.findall(r"^      (\w+): (.*?)(?: #.*)?$", text.partition("\n    volumes:\n")[0], re.MULTILINE)
    return {
        name: re.sub(r"\$\{(\w+):-([^${}]*)\}", lambda m: given.get(m[1]) or m[2], value)
        for name, value in lines
    }


@pytest.mark.parametrize("file", ["docker-compose.yml", "docker/cloud.yml", "docker/stack.yml"])
@pytest.mark.parametrize("given", [{}, {"EDGES": ""}, {"EDGES": "7"}])
def test_where_edges_is_empty_the_scenario_says_how_many_shards_there_are(
    file: str, given: dict[str, str]
) -> None:
    environ = substituted(file, {"SCENARIO": "private-scattering-mnist-5k", **given})
    assert environ["SCENARIO"] == "private-scattering-mnist-5k"
    arguments = cloud_arguments(environ)
    if given.get("EDGES"):
        assert arguments[arguments.index("--edges") + 1] == "7"
    else:
        assert "--edges" not in arguments


def test_twenty_edges_is_what_compose_trains_with_when_nothing_is_said() -> None:
    environ = substituted("docker-compose.yml", {})
    arguments = cloud_arguments(environ)
    _, scenario = load_scenario(arguments[1])
    assert (scenario.edges, "--edges" in arguments) == (20, False)
    assert int(environ["EDGES_AT_LEAST"]) >= scenario.edges  # more than there are: all of them
    _, quickstart = load_scenario("quickstart", edges=20)
    assert scenario == quickstart


def test_a_run_on_containers_is_summarised_with_its_place_on_this_host(tmp_path: Path) -> None:
    from experiments.testbed import Stack, Testbed

    bed = Testbed(Stack(None, "project"), {}, tmp_path / "runs")
    assert bed.summary() is None
    records = tmp_path / "runs" / "one"
    records.mkdir()
    (records / "summary.json").write_text('{"path": "/runs/one", "reason": "finished"}')
    assert bed.summary() == {"path": str(records), "reason": "finished"}
    assert json.loads((records / "summary.json").read_text())["path"] == str(records)


def test_an_empty_environment_is_the_quickstart() -> None:
    arguments = cloud_arguments({})
    assert arguments[:4] == ["cloud", "quickstart", "--broker", "broker"]
    assert arguments[arguments.index("--run") + 1].startswith("quickstart-")
    assert changed({}) == []
    assert changed({"LINKS": " ", "EPSILON": ""}) == []


def test_every_cloud_makes_up_a_run_of_its_own() -> None:
    assert cloud_arguments({}) != cloud_arguments({})
    assert cloud_arguments({"RUN": "r"}) == cloud_arguments({"RUN": "r"})


@pytest.mark.parametrize("scenario", ["quickstart", "cnn-mnist", "paper-lr-mnist"])
@pytest.mark.parametrize(
    "environ",
    [
        {"EPSILON": "0.5", "LINKS": "wan"},
        {"NOISE_MULTIPLIER": "2"},
        {"TOTAL_EPSILON": "3"},
        {"TOTAL_EPSILON": "3", "NOISE_MULTIPLIER": "2"},
        {"LINKS": "lan, 4g,satellite", "ITERATIONS": "7", "SET": "batch_size=8; data.partition=dirichlet"},
    ],
)
def test_whatever_is_asked_for_is_a_scenario(scenario: str, environ: dict[str, str]) -> None:
    if environ.get("TOTAL_EPSILON") and scenario.startswith("paper"):
        environ = {**environ, "NOISE_MULTIPLIER": "2"}
    _, resolved = load_scenario(scenario, changed({"SCENARIO": scenario, **environ}))
    if "EPSILON" in environ:
        assert resolved.privacy.epsilon == [0.5]
    if "NOISE_MULTIPLIER" in environ:
        assert resolved.privacy.noise_multiplier == [2.0]
    if "TOTAL_EPSILON" in environ and "NOISE_MULTIPLIER" not in environ:
        assert resolved.privacy.noise_multiplier is None, "z must follow from the budget"
    if "LINKS" in environ:
        assert [link.name for link in resolved.links] == [n.strip() for n in environ["LINKS"].split(",")]


def test_an_edge_takes_the_runs_name_from_the_cloud_of_its_host(tmp_path: Path) -> None:
    file = tmp_path / "run"
    with pytest.raises(ConfigurationError, match="RUN"):
        edge_arguments({"MAPA_RUN_FILE": str(file)})
    with pytest.raises(ConfigurationError, match="RUN"):
        edge_arguments({})
    file.write_text("that-one\n")
    environ = {"MAPA_RUN_FILE": str(file), "TOTAL_EPSILON": "2", "ALLOW": "a.b:C d.e:F"}
    arguments = edge_arguments(environ)
    assert "--allow-seed" not in arguments
    assert "--allow-seed" in edge_arguments({**environ, "ALLOW_SEED": "1"})
    assert arguments[arguments.index("--run") + 1] == "that-one"
    assert arguments[arguments.index("--total-epsilon") + 1] == "2"
    assert arguments.count("--allow") == 2
    assert edge_arguments({"RUN": "mine", "MAPA_RUN_FILE": str(file)})[4] == "mine"


def test_the_data_set_is_the_scenarios_own() -> None:
    assert data_arguments({}) == ["data", "get", "mnist-5k"]
    assert data_arguments({"SCENARIO": "cnn-mnist"}) == ["data", "get", "mnist"]
    assert data_arguments({"SCENARIO": "cnn-mnist", "SET": "data.set=usps"}) == ["data", "get", "usps"]
    assert data_arguments({"DATA": "mnist usps"}) == ["data", "get", "mnist", "usps"]


@pytest.mark.parametrize(
    ("text", "happening"),
    [
        ("kill edge-3 at t=500 for 2s", Fault(FaultKind.KILL, "edge-3", 500, 2.0)),
        ("pause  broker at 80 for 0.5", Fault(FaultKind.PAUSE, "broker", 80, 0.5)),
        ("partition cloud at t=1", Fault(FaultKind.PARTITION, "cloud", 1)),
        ("scale 20 at t=300", Scale(20, 300)),
    ],
)
def test_faults_have_names(text: str, happening: object) -> None:
    assert parse_happening(text) == happening


@pytest.mark.parametrize("text", ["", "kill", "kill data at 5", "kill cloud at 5 for 2s", "scale -1 at t=3"])
def test_a_fault_that_nobody_knows_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="fault"):
        parse_happening(text)


def test_the_tail_waits_for_whole_lines_of_the_new_run(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    tail = Tail(tmp_path)
    assert tail.updates == 0
    (tmp_path / "new").mkdir()
    events = tmp_path / "new" / "events.jsonl"
    events.write_text('{"event": "gradient_applied", "t": 1, "edge": 4}\n{"event": "gradient_app')
    assert (tail.updates, tail.edges) == (1, {4})
    with events.open("a") as stream:
        stream.write('lied", "t": 2, "edge": 5}\n')
    assert (tail.updates, tail.edges) == (2, {4, 5})
    assert tail.summary() is None


def test_the_heart_beats_only_while_all_is_well(tmp_path: Path) -> None:
    file, loop, well = tmp_path / "health", MemoryBroker(), [False]
    health.beat(loop, lambda: well[0], {health.VARIABLE: str(file)})
    loop.advance(10)
    assert not file.exists()
    well[0] = True
    loop.advance(10)
    assert file.exists()


def test_the_health_check_needs_the_standard_library_alone(tmp_path: Path) -> None:
    def check(path: Path, most: str) -> int:
        command = [sys.executable, "-I", "-S", str(Path(health.__file__)), str(path), most]
        return subprocess.run(command, capture_output=True, timeout=600).returncode

    file = tmp_path / "health"
    assert check(file, "30") == 1
    file.touch()
    assert check(file, "30") == 0
    assert check(file, "-1") == 1
