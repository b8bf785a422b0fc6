"""What a container's environment says, as the options of `mapa`; and the heartbeat file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from common import health
from common.errors import ConfigurationError
from mapa import container, processes
from mapa.cli import build
from mapa.commands.options import ScenarioOptions
from mapa.container import service
from mapa.runs import NewRun
from mapa.scenario_files import data_set_of, load_scenario
from tests.memory_broker import MemoryBroker
from tests.program_support import ROOT, run_program

Started = Callable[[str, dict[str, str]], dict[str, Any]]


def command_of(name: str) -> Any:
    """Return a command of `mapa`, as typer has it."""
    return typer.main.get_command(build([name])).commands[name]  # type: ignore[attr-defined]


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Return what `mapa` reads from arguments and environment."""
    options: dict[str, Any] = command_of(arguments[0]).make_context(arguments[0], arguments[1:]).params
    return options


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Return what a service's command reads in a container that has this environment and no other."""

    def start(name: str, environ: dict[str, str]) -> dict[str, Any]:
        with monkeypatch.context() as patch:
            for known in (*processes.CLOUD, *processes.EDGE):
                patch.delenv(processes.PREFIX + known, raising=False)
            arguments, options = service(name, environ)
            for variable, value in options.items():
                patch.setenv(variable, value)
            return parsed(arguments)

    return start


def changes_of(options: dict[str, Any]) -> ScenarioOptions:
    return ScenarioOptions(**{name: options[name] for name in ScenarioOptions.__slots__})


def substituted(file: str, given: dict[str, str]) -> dict[str, str]:
    """Return the environment of the service `cloud` as Compose fills it in; only `${NAME:-default}` is known."""
    text = (ROOT / file).read_text().partition("\n  cloud:\n")[2].partition("\n    environment:\n")[2]
    lines = re.findall(r"^      (\w+): (.*?)(?: #.*)?$", text.partition("\n    volumes:\n")[0], re.MULTILINE)
    return {
        name: re.sub(r"\$\{(\w+):-([^${}]*)\}", lambda m: given.get(m[1]) or m[2], value.strip('"'))
        for name, value in lines
    }


@pytest.mark.parametrize("file", ["docker-compose.yml", "docker/cloud.yml", "docker/stack.yml"])
@pytest.mark.parametrize("given", [{}, {"EDGES": ""}, {"EDGES": "7"}])
def test_where_edges_is_empty_the_scenario_says_how_many_shards_there_are(
    started: Started, file: str, given: dict[str, str]
) -> None:
    environ = substituted(file, {"SCENARIO": "private-scattering-mnist-5k", **given})
    options = started("cloud", environ)
    assert options["scenario"] == "private-scattering-mnist-5k"
    assert options["edges"] == (7 if given.get("EDGES") else None)


@pytest.mark.parametrize(
    "file", ["docker-compose.yml", "docker/cloud.yml", "docker/edge.yml", "docker/stack.yml"]
)
def test_every_variable_that_a_service_is_given_is_one_that_it_reads(file: str) -> None:
    known = {
        "data": {"SCENARIO", "SET", "DATA", "MAPA_DATA_MIRROR"},
        "cloud": {"SCENARIO", "SET", "MAPA_RUN_FILE", *processes.CLOUD},
        "edge": {"MAPA_RUN_FILE", *processes.EDGE},
    }
    text = (ROOT / file).read_text()
    found = re.findall(
        r"^  (data|cloud|edge):(?: #.*)?\n(?:(?:    .*)?\n)*?    environment:\n((?:      .*\n)+)",
        text,
        re.MULTILINE,
    )
    assert found
    for name, lines in found:
        given = set(re.findall(r"^      (\w+):", lines, re.MULTILINE))
        assert given
        assert given <= known[name], (file, name)


def test_twenty_edges_is_what_compose_trains_with_when_nothing_is_said(started: Started) -> None:
    environ = substituted("docker-compose.yml", {})
    options = started("cloud", environ)
    _, scenario = changes_of(options).load(options["scenario"])
    assert (scenario.edges, options["edges"], options["gather"]) == (20, None, 5.0)
    assert options["edges_at_least"] is None  # with --gather: all of them
    _, quickstart = load_scenario("quickstart", edges=20)
    assert scenario == quickstart


def test_a_run_on_containers_is_summarised_with_its_place_on_this_host(tmp_path: Path) -> None:
    from mapa.container_run import ContainerRun, Stack

    run = ContainerRun(Stack(None, "project"), {}, tmp_path / "runs")
    assert run.summary() is None
    records = tmp_path / "runs" / "one"
    records.mkdir()
    (records / "summary.json").write_text('{"path": ".", "reason": "finished"}')
    assert run.summary() == {"path": str(records), "reason": "finished"}


@pytest.mark.parametrize("environ", [{}, dict.fromkeys((*processes.CLOUD, "SET", "SCENARIO", "DATA"), " ")])
def test_an_empty_environment_is_the_quickstart(started: Started, environ: dict[str, str]) -> None:
    options = started("cloud", environ)
    assert (options["scenario"], options["broker"]) == ("quickstart", "broker")
    assert options["run"].startswith("quickstart-")
    assert (options["runs_dir"], options["connect_timeout"]) == (Path("/runs"), 60.0)
    assert changes_of(options).resolve("quickstart") == []
    assert (options["seed"], options["edges"], options["tls"]) == (None, None, False)
    assert service("data", environ)[0] == ["data", "get", "--scenario", "quickstart"]


def test_every_cloud_makes_up_a_run_of_its_own() -> None:
    assert service("cloud", {}) != service("cloud", {})
    assert service("cloud", {"RUN": "r"}) == service("cloud", {"RUN": "r"})


GIVEN = {
    "BROKER": ("vm.example.org:8883", "broker", "vm.example.org:8883"),
    "RUN": ("first", "run", "first"),
    "BROKER_USERNAME": ("lab", "broker_username", "lab"),
    "BROKER_PASSWORD_FILE": ("/secrets/password", "broker_password_file", Path("/secrets/password")),
    "TLS": ("1", "tls", True),
    "TLS_CA": ("/secrets/ca.pem", "tls_ca", Path("/secrets/ca.pem")),
    "TLS_CERT": ("c.pem", "tls_cert", Path("c.pem")),
    "TLS_KEY": ("k.pem", "tls_key", Path("k.pem")),
    "IDENTITY": ("/secrets", "identity", Path("/secrets")),
    "AUTHENTIC": ("1", "authentic", True),
    "CONNECT_TIMEOUT": ("600", "connect_timeout", 600.0),
    "METRICS_PORT": ("9464", "metrics_port", 9464),
    "METRICS_ADDRESS": ("0.0.0.0", "metrics_address", "0.0.0.0"),
    "TOTAL_DELTA": ("1e-6", "total_delta", 1e-6),
    "EDGES": ("7", "edges", 7),
    "EDGES_AT_LEAST": ("3", "edges_at_least", 3),
    "GATHER": ("2.5", "gather", 2.5),
    "SUSPEND": ("1", "suspend", True),
    "STARTED_BY": ("service-1", "started_by", "service-1"),
    "ITERATIONS": ("60", "iterations", 60),
    "SEED": ("4", "seed", 4),
    "LINKS": ("lan,4g", "links", "lan,4g"),
    "RUNS_DIR": ("/elsewhere", "runs_dir", Path("/elsewhere")),
    "EPSILON": ("0.5", "epsilon", 0.5),
    "NOISE_MULTIPLIER": ("2", "noise_multiplier", 2.0),
    "TOTAL_EPSILON": ("3", "total_epsilon", 3.0),
    "NOISE": ("gaussian", "noise", "gaussian"),
    "LINK": ("wan", "link", "wan"),
    "CODING": ("int8", "coding", "int8"),
    "ALLOW": ("a.b:C d.e:F", "allow", ["a.b:C", "d.e:F"]),
    "CODE": ("/code", "code", [Path("/code")]),
    "ALLOW_SEED": ("1", "allow_seed", True),
    "ALLOW_UNPROTECTED": ("1", "allow_unprotected", True),
    "PLAIN_PASSWORD": ("1", "plain_password", True),
    "MOST_LOCAL_STEPS": ("4", "most_local_steps", 4),
    "ACCOUNTS": ("/secrets/accounts", "accounts", Path("/secrets/accounts")),
    "ENROL": ("mapa-token", "enrol", "mapa-token"),
    "STATE_DIR": ("/ledgers", "state_dir", Path("/ledgers")),
    "EDGE_DATA": ("mine.csv", "edge_data", Path("/own-data/mine.csv")),
    "DATA_NAME": ("2026", "data_name", "2026"),
    "TEST_DATA": ("public.csv", "test_data", Path("/test-data/public.csv")),
}
NAMES = {"cloud": processes.CLOUD, "edge": processes.EDGE}
EACH = [(command, name) for command, names in NAMES.items() for name in names]


@pytest.mark.parametrize(("command", "name"), EACH)
def test_a_variable_reaches_its_option(started: Started, command: str, name: str) -> None:
    value, option, wanted = GIVEN[name]
    base = {"RUN": "r"}
    read = started(command, {**base, name: f" {value} "})[option]
    assert (read if isinstance(read, (list, bool, Path)) else type(wanted)(read)) == wanted
    if name != "RUN":  # without one the cloud makes it up, and an edge ends
        assert started(command, {**base, name: ""})[option] == started(command, base)[option]
    other = "0" if wanted is True else value
    twice = started(command, {**base, name: other, f"MAPA_{name}": value})[option]
    assert twice == read, "the longer name wins"


def test_only_the_listed_options_have_a_variable_and_all_of_those_have_one() -> None:
    for command, names in NAMES.items():
        found = [option.envvar for option in command_of(command).params if option.envvar]
        assert sorted(found) == sorted(processes.PREFIX + name for name in names)
    for command in ("run", "simulate", "containers", "observe"):
        assert not [option for option in command_of(command).params if option.envvar]


@pytest.mark.parametrize("command", ["cloud", "edge", "simulate", "run"])
def test_outside_a_container_a_short_name_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    arguments = {
        "cloud": ["cloud", "quickstart", "--broker", "b", "--run", "r"],
        "edge": ["edge", "--broker", "b", "--run", "r"],
    }.get(command, [command, "quickstart"])
    for name in GIVEN:
        monkeypatch.delenv(processes.PREFIX + name, raising=False)
    plain = parsed(arguments)
    for name, (value, _, _) in GIVEN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SET", "batch_size=1")
    monkeypatch.setenv("SCENARIO", "cnn-mnist")
    assert parsed(arguments) == plain


def test_an_edge_that_mapa_run_starts_does_not_read_the_operators_variables() -> None:
    environ = {"MAPA_EPSILON": "9", "MAPA_LINK": "wan", "MAPA_DATA_DIR": "/data", "PATH": "/bin"}
    assert processes.without_options(environ) == {"MAPA_DATA_DIR": "/data", "PATH": "/bin"}


@pytest.mark.parametrize(
    ("name", "environ", "words"),
    [
        ("cloud", {"EDGES": "five"}, ["--edges", "MAPA_EDGES", "integer"]),
        ("cloud", {"GATHER": "0"}, ["--gather", "MAPA_GATHER", "0.1"]),
        ("cloud", {"SCENARIO": "quickly"}, ["'quickly'", "quickstart"]),
        ("cloud", {"EPSILON": "much"}, ["privacy.epsilon", "much"]),
        ("cloud", {"LINKS": "moon"}, ["moon", "satellite"]),
        ("cloud", {"SET": "edge=5"}, ["edge = 5", "unknown key"]),
        ("cloud", {"SET": "edges"}, ["--set 'edges'", "KEY=VALUE"]),
        ("cloud", {"BROKER": "a b"}, ["'a b'", "HOST:PORT"]),
        ("edge", {}, ["RUN: not set"]),
        ("edge", {"RUN": "r", "ALLOW_SEED": "perhaps"}, ["--allow-seed", "MAPA_ALLOW_SEED", "boolean"]),
        ("edge", {"RUN": "r", "CONNECT_TIMEOUT": "-1"}, ["--connect-timeout -1", "at least 0"]),
        ("edge", {"RUN": "r", "BROKER_PASSWORD_FILE": "p"}, ["--password-file", "--username"]),
        ("edge", {"RUN": "r", "TLS_CA": "no.pem"}, ["tls: ca", "no.pem"]),
        ("data", {"DATA": "imagenet"}, ["imagenet", "mnist-5k"]),
        ("data", {"SCENARIO": "quickly"}, ["'quickly'", "quickstart"]),
    ],
)
def test_a_container_with_a_wrong_variable_exits_with_2_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    environ: dict[str, str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    clean = {"COLUMNS": "200", "RUNS_DIR": "runs", "MAPA_DATA_DIR": str(tmp_path / "data"), **environ}
    monkeypatch.setattr("os.environ", clean)
    monkeypatch.setattr("sys.argv", ["container", name])
    with pytest.raises(SystemExit) as exit_:
        container.main()
    said = capsys.readouterr().err
    assert exit_.value.code == 2, said
    for word in words:
        assert word in said
    assert not (tmp_path / "runs").exists()


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
def test_whatever_is_asked_for_is_a_scenario(
    started: Started, scenario: str, environ: dict[str, str]
) -> None:
    if environ.get("TOTAL_EPSILON") and scenario.startswith("paper"):
        environ = {**environ, "NOISE_MULTIPLIER": "2"}
    options = started("cloud", {"SCENARIO": scenario, **environ})
    assert options["scenario"] == scenario
    _, resolved = changes_of(options).load(scenario)
    if "EPSILON" in environ:
        assert resolved.privacy.epsilon == [0.5]
    if "NOISE_MULTIPLIER" in environ:
        assert resolved.privacy.noise_multiplier == [2.0]
    if "TOTAL_EPSILON" in environ and "NOISE_MULTIPLIER" not in environ:
        assert resolved.privacy.noise_multiplier is None, "z must follow from the budget"
    if "SET" in environ:
        assert (resolved.iterations, resolved.batch_size, resolved.data.partition) == (7, 8, "dirichlet")
    if "LINKS" in environ:
        assert [link.name for link in resolved.links] == [n.strip() for n in environ["LINKS"].split(",")]


def test_an_edge_takes_the_runs_name_from_the_cloud_of_its_host(started: Started, tmp_path: Path) -> None:
    file = tmp_path / "run"
    environ = {"MAPA_RUN_FILE": str(file)}
    with pytest.raises(ConfigurationError, match="RUN"):
        service("edge", environ)
    with pytest.raises(ConfigurationError, match="RUN"):
        service("edge", {})
    container.leave_run_name("that-one", environ)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert started("edge", environ)["run"] == "that-one"
    assert started("edge", {**environ, "RUN": "mine"})["run"] == "mine"
    file.write_text("\n")
    with pytest.raises(ConfigurationError, match="RUN"):
        service("edge", environ)


def test_an_edge_takes_no_option_of_the_cloud(started: Started) -> None:
    mine = started("edge", {"RUN": "r"})
    assert started("edge", {"RUN": "r", "EDGES": "7", "SEED": "1", "SET": "seed=3", "LINKS": "wan"}) == mine


def test_a_file_of_the_mounted_folder_goes_before_a_shipped_scenario(
    monkeypatch: pytest.MonkeyPatch, started: Started, tmp_path: Path
) -> None:
    monkeypatch.setattr(container, "SCENARIOS", tmp_path)
    (tmp_path / "quickstart.toml").write_text("edges = 2\n")
    for name in ("", "quickstart", "quickstart.toml"):
        assert started("cloud", {"SCENARIO": name})["scenario"] == str(tmp_path / "quickstart.toml")
    assert started("cloud", {"SCENARIO": "cnn-mnist"})["scenario"] == "cnn-mnist"


def test_the_data_set_is_the_scenarios_own() -> None:
    assert data_set_of("quickstart") == "mnist-5k"
    assert data_set_of("cnn-mnist") == "mnist"
    assert data_set_of("cnn-mnist", ["privacy.noise=gaussian", 'data.set="usps"']) == "usps"
    wanted, _ = service("data", {"SCENARIO": "cnn-mnist", "SET": "data.set=usps; edges=3"})
    assert wanted == ["data", "get", "--scenario", "cnn-mnist", "--set", "data.set=usps", "--set", "edges=3"]
    assert service("data", {"DATA": "mnist usps", "SET": "edges=3"})[0] == ["data", "get", "mnist", "usps"]


def test_updates_are_those_of_whole_lines_of_the_new_run(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    tail = NewRun(tmp_path)
    assert tail.updates == 0
    (tmp_path / "new").mkdir()
    events = tmp_path / "new" / "events.jsonl"
    events.write_text('{"event": "gradient_applied", "t": 1, "edge": 4}\n{"event": "gradient_app')
    assert tail.updates == 1
    with events.open("a") as stream:
        stream.write('lied", "t": 2, "edge": 5}\n')
    assert tail.updates == 2
    assert tail.summary() is None


def test_the_heart_beats_only_while_all_is_well(tmp_path: Path) -> None:
    file, loop, healthy = tmp_path / "health", MemoryBroker(), [False]
    health.beat(loop, lambda: healthy[0], {health.VARIABLE: str(file)})
    loop.advance(10)
    assert not file.exists()
    healthy[0] = True
    loop.advance(10)
    assert file.exists()


def test_the_health_check_needs_the_standard_library_alone(tmp_path: Path) -> None:
    def check(path: Path, most: str) -> int:
        command = [sys.executable, "-I", "-S", str(Path(health.__file__)), str(path), most]
        return run_program(*command).returncode

    file = tmp_path / "health"
    assert check(file, "30") == 1
    file.touch()
    assert check(file, "30") == 0
    assert check(file, "-1") == 1


def test_records_of_ones_own_are_a_name_in_the_mounted_folder_and_their_registry_is_in_the_state_volume() -> (
    None
):
    _, options = service("edge", {"RUN": "r", "EDGE_DATA": "mine.csv"})
    assert options["MAPA_EDGE_DATA"] == "/own-data/mine.csv"
    assert options["MAPA_DATA_REGISTRY"].startswith("/state/")
    assert (
        service("edge", {"RUN": "r", "EDGE_DATA": "/elsewhere/x.npz"})[1]["MAPA_EDGE_DATA"]
        == "/elsewhere/x.npz"
    )
    assert "MAPA_DATA_REGISTRY" not in service("edge", {"RUN": "r"})[1]


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("docker-compose.yml", "/own-data"),
        ("docker/edge.yml", "/own-data"),
        ("docker-compose.yml", "/test-data"),
        ("docker/cloud.yml", "/test-data"),
    ],
)
def test_records_of_ones_own_are_mounted_read_only(file: str, folder: str) -> None:
    [mount] = [line for line in (ROOT / file).read_text().splitlines() if f":{folder}" in line]
    assert f":{folder}:ro" in mount
