"""The manners of the command line: fast help, one line for an error, quiet pipes, codes and pages that agree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from common.errors import ConfigurationError
from edge import fleet
from mapa import cli, output
from mapa.cli import COMMANDS, EXIT_CODES, SECTIONS, build, exit_codes, named_in
from mapa.cloud_run import EXIT_CODES as RUN_CODES
from mapa.commands.options import REPORTING
from mapa.reference import cli_page, commands, options_of
from mapa.scenario_files import load_scenario, shipped_names
from tests.mapa.test_cli import SMALL
from tests.program_support import MAPA, PATIENCE, ROOT, Mapa, environment, run_mapa, run_program, start_mapa

PROBE = """
import sys
from mapa.cli import main
sys.argv = ["mapa", *sys.argv[1:]]
try:
    main()
except SystemExit as done:
    code = done.code or 0
heavy = {"numpy", "torch", "pydantic", "scipy", "paho", "importlib.metadata"} & set(sys.modules)
print(code, *sorted(heavy), file=sys.stderr)
"""


def imported_by(*words: str, cwd: Path = ROOT) -> str:
    env = {**environment(), "PYTHONPATH": str(ROOT)}
    done = run_program(sys.executable, "-c", PROBE, *words, env=env, cwd=cwd)
    return done.stderr.splitlines()[-1]


# -- help -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_help_and_a_mistyped_command_load_nothing_heavy(tmp_path: Path) -> None:
    assert imported_by("--help") == "0", "a command without a line in cli.COMMANDS is loaded for its help"
    (tmp_path / "runs").mkdir()
    for words, code in ((["rnu"], "2"), (["runs", "list"], "0")):  # typer itself loads pydantic for options
        assert set(imported_by(*words, cwd=tmp_path).split()) <= {code, "pydantic", "importlib.metadata"}


def test_no_help_loads_what_takes_long() -> None:
    probe = (
        "import sys; from mapa.reference import commands; commands()\n"
        "slow = {'torch', 'scipy', 'dp_accounting', 'matplotlib', 'docker', 'sklearn'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    light = (
        "import sys; from mapa.cli import build; build(sys.argv[1:])\n"
        "assert not {'cloud.service', 'mapa.simulation', 'paho'} & set(sys.modules)"
    )
    for code, *words in ((probe,), (light, "run"), (light, "simulate")):
        subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, check=True, timeout=PATIENCE)


def test_the_help_shows_what_the_commands_say_of_themselves() -> None:
    loaded: Any = typer.main.get_command(build([]))
    sketched: Any = typer.main.get_command(build(["scenario"]))
    assert sketched.list_commands(None) == list(loaded.commands)
    for name, command in loaded.commands.items():
        first = " ".join(command.help.split("\n\n")[0].split())
        assert COMMANDS[name][0] == first, f"cli.COMMANDS[{name!r}]: {first}"
        assert sketched.commands[name].help == first


def helped(*words: str) -> str:
    """Return what a command's help prints on a terminal of 80 columns."""
    done = CliRunner().invoke(build(words), [*words], prog_name="mapa", env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_the_usual_help_of_a_command_fits_sixty_lines_of_eighty_columns(name: str) -> None:
    lines = helped(*name.split(), "-h").splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80


def test_what_the_usual_help_leaves_out_is_in_the_whole_one() -> None:
    usual, whole = helped("edge", "--help"), helped("edge", "--help-all")
    options = {name for one in commands()["edge"].params for name in one.opts}
    assert options - set(re.findall(r"--[a-z-]+|-[a-z]\b", whole)) == set()
    left = len(commands()["edge"].params) - sum(
        any(re.search(rf"{name}\b(?!-)", usual) for name in one.opts) for one in commands()["edge"].params
    )
    assert f"{left} more options: mapa edge --help-all" in usual
    assert "MAPA_BROKER" in whole, "the environment's variables too"


def test_the_sections_of_the_program_have_every_command_once() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(name for name in COMMANDS if " " not in name)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("quickstrat", "quickstart"),
        ("quickstart --set iteratons=3", "iterations"),
        ("quickstart --set priv.noise=1", "privacy"),
        ("quickstart --set algorithm.thta=1", "theta"),
        ("quickstart --set algorithm.name=audpp", "audp"),
        ("quickstart --set privacy.noise=gausian", "gaussian"),
        ("quickstart --set privacy.noise_multiplyer=3", "noise_multiplier"),
        ("quickstart --set data.sampler=poison", "poisson"),
        ("quickstart --set model.name=softmx", "softmax"),
        ("quickstart --links wfi", "wifi"),
        ("quickstart --set delays.kind=constant --devices pi44", "pi4"),
    ],
)
def test_an_unknown_name_is_answered_with_the_one_that_was_meant(mapa: Mapa, words: str, meant: str) -> None:
    done = mapa("simulate", *words.split())
    assert done.code == 2
    assert f"did you mean {meant!r}?" in done.err


def test_a_mistyped_command_or_option_is_answered_with_the_nearest(mapa: Mapa) -> None:
    assert "'runs'" in mapa("rnus").err
    assert "--iterations" in mapa("simulate", "quickstart", "--itrations", "3").err
    assert "list" in mapa("runs", "lst").err


def test_options_of_the_program_stand_before_the_command() -> None:
    assert named_in(["--debug", "run", "quickstart"]) == "run"
    assert named_in(["--debug"]) is None
    assert named_in(["fly", "run"]) is None


def test_every_command_has_debug_and_those_that_report_have_quiet_and_verbose() -> None:
    for words, command in commands().items():
        names = {name for option in options_of(command) for name in option.opts}
        if not hasattr(command, "commands"):
            assert "--debug" in names, words
        assert (words in REPORTING) is ({"--quiet", "--verbose"} <= names), words


# -- errors -----------------------------------------------------------------------------------------------


def test_an_error_is_one_line_and_a_traceback_where_one_is_asked_for(
    mapa: Mapa, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ["runs", "show", "nothing"]
    plain = mapa(*wrong)
    assert plain.code == 2
    assert plain.err.count("\n") == 1
    for words in (["--debug", *wrong], [*wrong, "--debug"]):
        debugged = mapa(*words)
        assert debugged.code == 2
        assert "Traceback" in debugged.err
        assert plain.err in debugged.err
    monkeypatch.setenv("MAPA_DEBUG", "1")
    assert "Traceback" in mapa(*wrong).err
    monkeypatch.setenv("MAPA_DEBUG", "0")
    assert "Traceback" not in mapa(*wrong).err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyError("first\nsecond"), 1, r"unexpected error: KeyError.*test_cli_manners\.py.*--debug.*\n"),
        (ConfigurationError("key = 1: must be 2"), 2, r"configuration error: key = 1: must be 2\n"),
    ],
)
def test_any_error_is_one_line(
    mapa: Mapa, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, said: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "interrupted_by_signals", fail)
    done = mapa("run")
    assert done.code == code
    assert re.fullmatch(said, done.err), done.err
    monkeypatch.setenv("MAPA_DEBUG", "1")
    assert "Traceback" in mapa("run").err


def test_quiet_and_verbose_exclude_each_other(mapa: Mapa) -> None:
    assert "at most one" in mapa.refusal("simulate", "quickstart", "-q", "-v")


def test_quiet_prints_the_result_alone_and_verbose_prints_lines(mapa: Mapa, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL.replace("iterations = 30", "iterations = 400"))
    quiet = mapa("simulate", "small.toml", "--quiet")
    assert (quiet.code, quiet.err) == (0, "")
    assert "final accuracy" in quiet.out
    verbose = mapa("simulate", "small.toml", "--verbose")
    assert verbose.code == 0
    assert re.search(r"mapa .*: t [\d,]+/400", verbose.err)
    assert mapa("simulate", "small.toml").err == ""  # what one command was told, the next one forgets


# -- pipes ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("words", ["scenario schema", "scenarios", "--help"])
def test_a_reader_who_leaves_is_not_complained_of(words: str) -> None:
    with start_mapa(*words.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(PATIENCE) in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "scenarios", "scenario schema"])
def test_a_full_disk_behind_the_output_is_one_line_and_exit_1(words: str) -> None:
    with Path("/dev/full").open("w") as full:
        child = start_mapa(*words.split(), stdout=full, stderr=subprocess.PIPE, text=True)
        said = child.communicate(timeout=PATIENCE)[1]
    assert child.returncode == 1
    assert said == "error: the output could not be written: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "code", "said"), [(">&-", 2, "no such folder"), ("2>&-", 2, ""), (">&- 2>&-", 2, "")]
)
def test_closed_streams_change_no_exit_code(tmp_path: Path, closed: str, code: int, said: str) -> None:
    program = ("sh", "-c", f'exec "$@" {closed}', "sh", *MAPA)
    for folder, expected in ((tmp_path, 0), (tmp_path / "none", code)):
        words = ("runs", "list", "--runs-dir", str(folder))
        child = start_mapa(*words, program=program, stdout=-1, stderr=subprocess.PIPE, text=True)
        told = child.communicate(timeout=PATIENCE)[1]
        assert child.returncode == expected, told
        assert "Traceback" not in told
    assert said in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "narrow",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_an_encoding_without_epsilon_fails_no_command(tmp_path: Path, narrow: dict[str, str]) -> None:
    env = {key: value for key, value in environment().items() if key != "PYTHONIOENCODING"} | narrow
    runs = ("--runs-dir", str(tmp_path))
    for words in (
        ("simulate", "quickstart", "--seed", "1", "--edges", "2", "--iterations", "20", *runs),
        ("runs", "show", *runs),
        ("ledger", "latest", *runs),
        ("scenarios",),
        ("--help",),
    ):
        done = run_mapa(*words, env=env)
        assert done.returncode == 0, done.stderr
    shown = run_mapa("ledger", "latest", *runs, env=env).stdout
    assert "(\\u03b5 = " in shown


@pytest.mark.parametrize(
    ("said", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_are_for_terminals_whose_owner_wants_them(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", **said}.items():
        monkeypatch.setenv(name, value)
    screen: Any = SimpleNamespace(isatty=lambda: True)
    assert output.coloured(screen) is coloured


def test_what_is_piped_has_no_escape_sequences(mapa: Mapa) -> None:
    assert "simulate" in mapa().out  # without a command it says what there is
    for words in (["--help"], ["scenarios"], ["fly"], ["runs", "show", "nothing"]):
        done = mapa(*words)
        assert "\x1b" not in done.out + done.err


# -- exit codes and pages ---------------------------------------------------------------------------------


def test_every_exit_code_is_listed_once() -> None:
    said = {int(code) for one in COMMANDS for code in re.findall(r"(?:^|, )(\d+) ", exit_codes(one))}
    assert said == set(EXIT_CODES)
    assert set(RUN_CODES.values()) <= set(EXIT_CODES)
    assert RUN_CODES["no-budget"] == 3
    source = Path(fleet.__file__).read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"_CODE\w* = (\d+)", source)} <= set(EXIT_CODES)


def test_the_reference_is_what_the_parser_says() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == cli_page(), "run: python -m mapa.reference docs"
    for words, value in (("--seed` INTEGER", "run"), ("--runs-dir` PATH", "run"), ("`MAPA_BROKER`", "cloud")):
        section = page[page.index(f"\n## mapa {value}\n") :]
        assert words in section[: section.index("\n## ", 1)]


# -- scenarios --------------------------------------------------------------------------------------------


def test_scenarios_are_shown_side_by_side(mapa: Mapa) -> None:
    rows = mapa.rows("scenarios")
    assert [row["scenario"] for row in rows] == shipped_names()
    for row in rows:
        scenario = load_scenario(row["scenario"])[1]
        assert (row["model"], row["data"]) == (scenario.model.name, scenario.data.set)
        assert (row["K"], row["T"]) == (scenario.edges, scenario.iterations)
        assert row["budget"]
        assert row["for"]
    (first, *_) = [row for row in rows if row["scenario"] == "quickstart"]
    assert first["budget"] == "z = 4 a release"
    for row in rows:  # a figure that is no guarantee is not shown as one
        if row["scenario"].startswith("paper-"):
            assert row["budget"] == "none: not DP"
        elif row["scenario"].startswith("private-"):
            assert row["budget"].startswith("ε ≤ ")
    only = mapa.rows("scenarios", "--model", "lr", "--data", "usps")
    assert {row["model"] for row in only} == {"lr"}
    assert {row["data"] for row in only} == {"usps"}
    assert "quickstart" in mapa("scenarios").out
    assert mapa.rows("scenarios", "--model", "nobody") == []
