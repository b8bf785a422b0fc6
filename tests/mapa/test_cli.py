"""mapa on the command line: what goes to stdout, exit codes, and that a mistake writes nothing."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cloud.stages import planned_stages
from common.problem import Problem, SensitivityRule
from common.scenario.scenario import parse_scenario
from mapa.cli import COMMANDS, example
from mapa.reference import commands
from mapa.scenario_files import load_scenario, shipped_names
from mapa.scenario_patterns import about_line, line_names
from tests.program_support import Mapa

EXAMPLE = (
    "schedule --batch-size 12 --sigma 30 --smoothness 10 --delta 1e-3 --theta 0.5 --epsilon 0.1 "
    "--tau-max 5 --loss-gap 2.302585 --iterations 25000"
)
NAMES = "stage sensitivity clip variance p_raw p learning_rate length_raw length start"
KEYS = NAMES.split()
SMALL = """
edges = 3
iterations = 30
batch_size = 4
seed = 1
[data]
set = "experiments.examples.own:TwoRings"
sampler = "with-replacement"
[model]
name = "experiments.examples.own:SquaredHinge"
[algorithm]
smoothness = 8.0
sigma = 4.2
loss_gap = 0.75
radius = 3.4
first_clip = 4.7
[privacy]
noise = "exponential-norm"
epsilon = 1.0
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    (tmp_path / "small.toml").write_text(SMALL)
    return str(tmp_path / "small.toml")


# -- schedule ---------------------------------------------------------------------------------------------


PAPER: dict[str, Any] = {
    "batch_size": 12,
    "sigma": 30.0,
    "smoothness": 10.0,
    "delta": 1e-3,
    "theta": 0.5,
    "tau_max": 5,
    "loss_gap": 2.302585,
    "iterations": 25000,
}
BARE = EXAMPLE.replace("--epsilon 0.1 ", "").split()
CLAMPED = "--epsilon 100 --first-clip 600 --tau-max 50 --sigma 0.5"


def planned(moment: float, **changes: Any) -> list[Any]:
    """Return what the command must print; tests/paper checks the stages themselves."""
    values = {**PAPER, **changes}
    return [
        pytest.approx(
            {"stage": stage.index, **{key: getattr(stage, key) for key in KEYS[1:-1]}, "start": start}
        )
        for start, stage in planned_stages(moment, Problem(**values))
    ]


def test_the_documented_schedule(mapa: Mapa) -> None:
    rows = mapa.rows(*EXAMPLE.split())
    assert rows == planned(2 / 0.1**2)
    assert [list(row) for row in rows] == [KEYS] * len(rows)
    assert all(isinstance(row[key], int) for row in rows for key in ("stage", "length", "start"))
    assert rows[0]["sensitivity"] == pytest.approx(223.57883816103106, rel=1e-12)
    assert len(rows) > 1


@pytest.mark.parametrize(
    ("options", "moment"),
    [
        ("--epsilon 0.5 --epsilon 0.1 --epsilon 0.3", 2 / 0.1**2),
        ("--noise gamma-norm --dimension 785 --epsilon 5 --epsilon 8", 785 * 786 / 5**2),
        ("--noise gaussian --dimension 785 --noise-multiplier 1 --noise-multiplier 2.5", 785 * 2.5**2 / 4),
        ("--noise laplace --dimension 785 --noise-parameter epsilon=5 --epsilon 8", 2 * 785 / 5**2),
    ],
)
def test_the_noisiest_edge_decides_in_every_law(mapa: Mapa, options: str, moment: float) -> None:
    assert mapa.rows(*BARE, *options.split()) == planned(moment)


def test_a_first_clipping_bound_a_clamped_p_and_the_tables_rule_by_name(mapa: Mapa) -> None:
    rows = mapa.rows(*BARE, *CLAMPED.split())
    clamped = {"tau_max": 50, "sigma": 0.5, "first_clip": 600.0}
    assert rows == planned(2 / 100**2, **clamped)
    assert rows[0]["p_raw"] < rows[0]["p"] == 1
    theta, table = (
        mapa.rows(*BARE, *CLAMPED.split(), "--loss-gap", "0.001", "--rule", r) for r in ("theta", "table")
    )
    assert table == planned(2 / 100**2, **clamped, loss_gap=0.001, rule=SensitivityRule.TABLE)
    assert table[1]["sensitivity"] < theta[1]["sensitivity"]


def test_a_stage_that_is_cut_off_is_a_warning_beside_the_json(mapa: Mapa) -> None:
    done = mapa(*EXAMPLE.split(), "--json")
    last = json.loads(done.out)[-1]
    assert last["start"] + last["length"] - 1 > 25000
    assert "warning" in done.err
    assert f"{last['length']:,}" in done.err
    table = mapa(*EXAMPLE.split())
    assert table.code == 0
    assert all(key in table.out for key in KEYS)  # a person sees the same columns
    exact = mapa(*EXAMPLE.split(), "--iterations", str(last["start"] + last["length"] - 1), "--json")
    assert exact.err == ""


# -- simulate ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["events", "vectorised", "block"])
def test_json_is_the_summary_and_nothing_else(mapa: Mapa, scenario: str, tmp_path: Path, engine: str) -> None:
    done = mapa("simulate", scenario, "--json", "--engine", engine)
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert done.out.lstrip().startswith("{")
    assert 0 <= summary["final_accuracy"] <= 1
    assert (summary["updates"], summary["engine"], summary["seed"]) == (30, engine, 1)
    (run,) = (tmp_path / "runs").iterdir()
    assert {**summary, "path": "."} == json.loads((run / "summary.json").read_text())
    manifest = json.loads((run / "manifest.json").read_text())
    assert ("block" in manifest["random_stream"]) is (engine == "block")


def test_a_person_gets_a_table_and_where_the_records_are(mapa: Mapa, scenario: str, tmp_path: Path) -> None:
    done = mapa("simulate", scenario, "--runs-dir", str(tmp_path / "elsewhere"))
    assert done.code == 0
    assert "final accuracy" in done.out
    (run,) = (tmp_path / "elsewhere").iterdir()
    assert run.name in done.out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nowhere.toml", None, ["nowhere.toml", "no such file"]),
        ("quickly", None, ["quickly", "quickstart"]),
        ("broken.toml", b"edges = = 3", ["broken.toml", "not valid TOML"]),
        ("latin.toml", b"# \xff\n", ["latin.toml", "not valid TOML"]),
    ],
)
def test_a_scenario_that_cannot_be_read_exits_with_2(
    mapa: Mapa, tmp_path: Path, name: str, content: bytes | None, words: list[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = mapa("simulate", name)
    assert done.code == 2
    for word in words:
        assert word in done.err
    assert not (tmp_path / "runs").exists()


def test_recorded_delays_lie_beside_the_scenario_that_names_them(mapa: Mapa, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "delays.csv").write_text("edge,compute,up,down\n0,1,0,0\n1,0.25,0,0\n2,1,0,0\n")
    (folder / "own.toml").write_text(SMALL + '[delays]\nkind = "recorded"\nfile = "delays.csv"\n')
    done = mapa("simulate", "folder/own.toml", "--json")
    assert done.code == 0, done.err
    counts = [edge["applied"] for edge in json.loads(done.out)["edges"]]
    assert counts[1] == pytest.approx(4 * counts[0], abs=4)


# -- scenario ---------------------------------------------------------------------------------------------


def test_the_schema_is_json_and_knows_every_table(mapa: Mapa) -> None:
    done = mapa("scenario", "schema")
    assert done.code == 0
    schema = json.loads(done.out)
    assert {"edges", "iterations", "batch_size", "seed", "data", "privacy"} <= set(schema["properties"])


def test_the_list_names_every_shipped_scenario_and_says_what_it_is(mapa: Mapa) -> None:
    rows = mapa.rows("scenario", "list")
    assert [row["name"] for row in rows] == shipped_names()
    assert "quickstart" in shipped_names()
    assert all(row["about"] for row in rows)
    assert "quickstart" in mapa("scenario", "list").out


def test_the_lines_of_the_figures_are_listed_with_what_they_are_and_shown_as_toml(mapa: Mapa) -> None:
    rows = mapa.rows("scenario", "list", "--figures")
    assert [row["name"] for row in rows] == [f"figures/{line}" for line in line_names()]
    assert len({row["about"] for row in rows}) == len(rows) == 135
    assert about_line("heldout-cnn-usps-audp-0.5") == (
        "Ours: bounds chosen on held-out training records, CNN on USPS: AUDP at ε = 0.5"
    )
    shown = mapa("scenario", "show", "figures/sensitivity-cnn-mnist-mapa")
    assert parse_scenario(tomllib.loads(shown.out)) == load_scenario("figures/sensitivity-cnn-mnist-mapa")[1]


@pytest.mark.parametrize("name", shipped_names())
def test_show_prints_values_that_resolve_to_the_same_scenario(mapa: Mapa, name: str) -> None:
    _, wanted = load_scenario(name)
    shown = mapa("scenario", "show", name)
    assert shown.code == 0
    assert parse_scenario(tomllib.loads(shown.out)) == wanted
    as_json = mapa("scenario", "show", name, "--json")
    assert parse_scenario(json.loads(as_json.out)) == wanted


def test_show_takes_changes_and_drops_the_other_laws_parameter(mapa: Mapa) -> None:
    change = ["--set", "privacy.noise=gamma-norm", "--set", "privacy.epsilon=2.5", "--set", "seed=4"]
    done = mapa("scenario", "show", "quickstart", "--json", *change)
    assert done.code == 0, done.err
    values = json.loads(done.out)
    assert (values["seed"], values["privacy"]["noise"]) == (4, "gamma-norm")
    assert (values["privacy"]["epsilon"], values["privacy"]["noise_multiplier"]) == ([2.5], None)


def test_links_are_shown_in_a_form_that_can_be_read_back(mapa: Mapa, tmp_path: Path) -> None:
    text = SMALL + '[[links]]\nname = "wifi"\npartitions = [[1.0, 2.0]]\n[[links]]\ndelay_ms = 5.0\n'
    (tmp_path / "linked.toml").write_text(text)
    shown = mapa("scenario", "show", "linked.toml")
    assert shown.code == 0, shown.err
    assert parse_scenario(tomllib.loads(shown.out)) == parse_scenario(tomllib.loads(text))


def test_the_default_scenario_is_sound_and_the_replicas_are_named_so() -> None:
    for name in shipped_names():
        privacy = load_scenario(name)[1].privacy
        sound = (privacy.noise, privacy.scope) == ("gaussian", "all")
        sound = sound and privacy.clipping in ("per-sample", "normalised")
        assert sound or name.startswith("paper-"), name


# -- the program ------------------------------------------------------------------------------------------


def test_every_command_is_helped_by_an_example_and_its_exit_codes() -> None:
    found = commands()
    assert set(found) == {"", *COMMANDS}
    for name, command in found.items():
        assert command.epilog.startswith("Example: mapa "), name
        assert "Exit codes: 0 " in command.epilog
        assert "2 " in command.epilog


def test_every_example_is_taken_by_its_command() -> None:
    for name, command in commands().items():
        words = shlex.split(example(name))
        assert words[0] == "mapa"
        if hasattr(command, "commands"):  # of a group: the example of one of its commands
            assert words[1] in {*command.commands, name}
            continue
        own = name.split()
        assert words[1 : 1 + len(own)] == own
        command.make_context(name, words[1 + len(own) :])  # exits where an option is unknown or wrong


def test_options_and_set_are_fields_of_the_scenario(mapa: Mapa, scenario: str, tmp_path: Path) -> None:
    done = mapa(
        "simulate", scenario, "--json", "--iterations", "12", "--epsilon", "[0.5, 2]", "--edges", "2",
        "--seed", "3", "--links", "lan, wan", "--set", "iterations=15", "--set", "seed=9",
        "--set", "algorithm.name=audp",
    )  # fmt: skip
    assert done.code == 0, done.err
    (run,) = (tmp_path / "runs").iterdir()
    resolved = json.loads((run / "manifest.json").read_text())["scenario"]
    assert resolved["privacy"]["noise"] == "exponential-norm"  # only a gaussian law gives way to ε
    assert resolved["privacy"]["epsilon"] == [0.5, 2]
    assert [link["name"] for link in resolved["links"]] == ["lan", "wan"]
    assert (resolved["iterations"], resolved["edges"], resolved["seed"]) == (15, 2, 3)  # its own options win
    assert (resolved["algorithm"]["name"], resolved["algorithm"]["theta"]) == ("audp", 0.5)


def test_a_commands_former_name_still_works_and_is_said_once(mapa: Mapa) -> None:
    done = mapa("testbed", "--help")
    assert done.code == 0
    assert done.err == "`mapa testbed` is now `mapa containers`; the old name still works\n"
    assert "Usage: mapa containers" in done.out
    assert "testbed" not in mapa("--help").out
    assert mapa("containers", "--help").err == ""
