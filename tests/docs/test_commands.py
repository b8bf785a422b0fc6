"""Every command that a page shows is run, or is in the one table below with the reason why not.

A command is run as it stands, in an empty folder that is also its home; where its output goes (`> file`) is left out.
RUN stands for one run that the tests made. Commands that take long by their size alone are run with the further options
of SHORTER, which come behind the page's own and win; data sets that must be downloaded become an embedded one.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import pytest

from common.datasets.catalogue import data_directory
from mapa.chaos.faults import make_schedule
from mapa.chaos.trial import plan_of
from tests.local_support import write_csv
from tests.pages_support import ROOT, blocks, blocks_of, commands, pages, require_test, run_command
from tests.program_support import require_mosquitto


class Shown(NamedTuple):
    """A command of a page, with the place of its block."""

    page: str
    where: str
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.words)


SHOWN = [
    Shown(block.page, block.where, tuple(words))
    for page in pages()
    for block in blocks_of(page)
    if block.language in ("", "bash") and not block.not_run and not block.run_by
    for words in commands(block)
]


class Why(NamedTuple):
    """Commands that are not run here, why, and the tests that run the same, smaller or elsewhere."""

    reason: str
    commands: tuple[
        str, ...
    ]  # one that ends with … stands for all that begin so; `page: command` for one page's
    by: tuple[str, ...] = ()


WHY = [
    Why(
        "asks make for .venv first; its one command is run with docs/dashboard.md",
        ("make run",),
        ("mapa/test_recipes.py::test_the_demonstration_has_a_stated_budget_and_five_edges_on_unlike_links",),
    ),
    Why("runs this test among all others", ("make test",)),
    Why("needs a package index; tests/docs/test_blocks.py looks for the extras", ("pip install …",)),
    Why("sets a variable of the reader's own shell", ("export …",)),
    Why(
        "installs packages, and starts or stops a Docker engine, as root",
        ("make engine", "make engine-stop", "make images-offline"),
    ),
    Why(
        "needs a Docker engine",
        ("docker compose up --scale edge=20",),
        ("stack/test_compose.py::test_twenty_edges_train_to_the_end",),
    ),
    Why(
        "needs a Docker engine",
        ("docker compose --profile dashboard up",),
        (
            "stack/test_compose_page.py::test_a_run_in_containers_is_watched_from_its_first_updates_to_its_end",
        ),
    ),
    Why(
        "needs a Docker engine, and images of Prometheus and Grafana from a registry",
        ("docker compose --profile monitoring up --scale edge=20",),
    ),
    Why(
        "needs a Docker engine",
        ("docker swarm init", "docker stack deploy …", "docker service scale …"),
        ("stack/test_swarm.py::test_a_stack_is_deployed_scaled_and_trained",),
    ),
    Why(
        "needs a Docker engine",
        ("mapa containers …",),
        (
            "stack/test_containers_command.py::test_a_scenario_on_containers_with_faults",
            "stack/test_containers_command.py::test_a_torch_module_of_ones_own_trains_in_four_containers",
            "stack/test_compose.py::test_a_model_a_data_set_and_an_algorithm_of_ones_own_run_in_containers",
        ),
    ),
    Why(
        "needs several hosts",
        (
            "mapa cloud --broker HOST:8883 …",
            "mapa edge --broker HOST:8883 …",
            "docker compose -f docker/cloud.yml up",
            "docker compose -f docker/edge.yml up",
        ),
        ("stack/test_hosts.py::test_edges_of_another_network_enrol_and_train_over_tls",),
    ),
    Why(
        "waits for workstations, or goes on with what `mapa certs init` made",
        ("mapa certs cloud", "mapa certs enrol …"),
        ("broker/test_guide.py::test_on_three_hosts_both_hospitals_train_within_their_budgets",),
    ),
    Why(
        "trains with another process only, at a broker of the reader's own",
        (
            "mapa cloud quickstart --broker …",
            "mapa edge --broker 127.0.0.1 …",
            "mapa cloud my.toml --broker HOST:PORT …",
            "mapa helper --broker HOST:PORT …",
            "mapa edge --broker HOST:PORT …",
        ),
        (
            "broker/test_secure_runs.py::test_a_run_with_secure_sums_trains_and_destroys_its_helpers_keys",
            "broker/test_testbed.py::test_twenty_edges_train_to_T_with_every_gradient_applied_exactly_once",
            "broker/test_metrics_endpoints.py::test_a_run_tells_both_sides_and_no_scraper_stops_it",
        ),
    ),
    Why(
        "needs a broker and a killed cloud",
        ("mapa cloud --resume …",),
        (
            "broker/test_chaos.py::test_a_cloud_killed_between_any_two_steps_goes_on_where_it_was",
            "broker/test_recovery.py::test_a_full_disk_stops_the_run_and_with_room_it_goes_on",
        ),
    ),
    Why(
        "takes minutes",
        ("mapa chaos quickstart …",),
        (
            "broker/test_chaos.py::test_two_seeded_runs_come_through",
            "broker/test_chaos.py::test_a_failing_schedule_is_shrunk_to_the_fault_that_it_takes",
            "broker/test_chaos.py::test_thirty_kills_at_random_instants_lose_nothing",
            "mapa/test_chaos_schedule.py::test_faults_are_chosen_by_number",
            "docs/test_commands.py::test_the_faults_on_the_page_are_those_of_its_seed",
        ),
    ),
    Why(
        "serves until it is stopped",
        ("mapa dashboard", "mapa dashboard --runs-dir runs --open"),
        (
            "mapa/test_dashboard.py::test_a_signal_ends_it_with_0_and_no_error_while_somebody_watches",
            "mapa/test_dashboard.py::test_a_port_that_is_taken_is_passed_over_unless_it_was_asked_for",
        ),
    ),
    Why(
        "takes minutes, or half of one where it is made small",
        ("mapa audit quickstart",),
        ("experiments/test_audit.py::test_the_command_reports_claims_beside_bounds",),
    ),
    Why(
        "needs the internet",
        ("mapa data get mnist …", "mapa data get fashion-mnist"),
        (
            "common/test_download_datasets.py::test_mnist_comes_from_a_server_of_ones_own",
            "common/test_download_datasets.py::test_usps_comes_as_h5_from_a_server_of_ones_own",
        ),
    ),
    Why(
        "takes minutes, and a data set that must be downloaded",
        ("python -m experiments.pacing",),
        ("experiments/test_pacing.py::test_the_command_simulates_every_case_with_every_seed",),
    ),
    Why(
        "takes a minute, and a data set that must be downloaded",
        ("mapa run paced-fashion --broker mosquitto",),
        ("broker/test_mechanisms_over_mqtt.py::test_fast_and_slow_edges_end_with_the_same_epsilon",),
    ),
    Why(
        "takes hours, and data sets that must be downloaded, or reports what such hours have left",
        (
            "mapa reproduce --full …",
            "mapa reproduce accuracy …",
            "mapa reproduce heldout --full",
            "mapa reproduce reference --full --tune",
        ),
        (
            "experiments/test_reproduce.py::test_the_tiny_size_represents_every_experiment",
            "experiments/test_reproduce_runs.py::test_the_command_reports_what_is_cached",
            "experiments/test_reference.py::test_a_table_is_made_and_goes_on_where_it_stopped",
        ),
    ),
    Why(
        "is run with the page's own files elsewhere",
        (
            "mapa simulate my.toml",
            "docs/your-own-mechanism.md: mapa run my.toml",
            "docs/your-own-model.md: mapa run my.toml",
            "mapa audit my.toml --no-one-run",
        ),
        (
            "docs/test_pages.py::test_the_algorithm_of_the_page_is_one_short_file_that_trains",
            "docs/test_own_model_page.py::test_the_pages_scenario_simulates",
            "docs/test_own_model_page.py::test_it_runs_between_processes",
            "mapa/test_own_mechanism.py::test_the_parts_of_the_page_train_are_charged_and_stated",
            "mapa/test_own_mechanism.py::test_the_audit_plays_the_parts_of_the_page_and_refutes_nothing",
        ),
    ),
]
NOT_RUN = {command: why for why in WHY for command in why.commands}

# In shuffled batches no release is amplified: the accountant has a closed form, and is quick.
FEW_IMAGES = (
    "--set data.set=mnist-5k --set data.sampler=shuffled --set batch_size=64 --set model.name=softmax"
    " --set model.options= --set algorithm.rate=0.1 --iterations 50 --set evaluation.every=0"
)
AUDIT = "--rounds 1000 --no-one-run"
# command -> options behind it that make it small
SHORTER = {
    "mapa simulate quickstart": "--iterations 100",
    "mapa run quickstart --edges 20 --broker mosquitto": "--edges 4 --iterations 100",
    "mapa audit quickstart --no-one-run --set privacy.noise=laplace --set privacy.epsilon=2.0": "--rounds 1000",
    "mapa audit paper-lr-mnist": f"{AUDIT} --set data.set=mnist-5k",
    "mapa attack lr-mnist --epsilon 0.01 0.1 1": "--iterations 1 --releases 1 --set data.set=mnist-5k",
    "mapa simulate quickstart --seed 1 --edges 10 …": "--set time_limit=20",
    "mapa run demo --dashboard": (
        "--edges 2 --links lan,wifi --iterations 39 --set privacy.releases=20 --set model.name=softmax"
        " --set model.options={} --set algorithm.rate=0.1 --set data.sampler=shuffled --broker embedded"
    ),
    "mapa simulate clinic.toml --data north.csv --data south.csv": "--iterations 40",
    "mapa run unequal-fashion --broker mosquitto": FEW_IMAGES,
    "mapa run my.toml": "--iterations 30 --set privacy.releases=20 --broker embedded",
}


def entry(table: Collection[str], shown: Shown) -> str:
    """Return the key of a table that a command belongs to, or nothing; one that is written out comes first."""
    whole = (key for key in (f"{shown.page}: {shown.text}", shown.text) if key in table)
    begun = (key for key in table if key.endswith(" …") and shown.text.startswith(key.removesuffix("…")))
    return next(itertools.chain(whole, begun), "")


def require_tools(shown: Shown) -> None:
    """Skip where the command needs a program, or a library that `make env` leaves out, and this machine lacks it."""
    if "mosquitto" in shown.words:
        require_mosquitto()
    for library in {"tensorboard", "mlflow"}.intersection(shown.words):
        pytest.importorskip(library, reason=f"needs the extra `{library}`")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run between processes, with the ledgers of its edges, whose privacy is quickly accounted for."""
    folder = tmp_path_factory.mktemp("a-run")
    words = "mapa run quickstart --edges 2 --iterations 40 --broker embedded --set data.sampler=shuffled"
    run_command(words.split(), folder)
    (path,) = (folder / "runs").iterdir()
    return path


def prepare(shown: Shown, folder: Path) -> None:
    """Write the files that a page has the reader write before this command."""
    if "clinic.toml" in shown.words:
        (scenario,) = (text for text in blocks("deploy.md", "toml") if '"local"' in text)
        (folder / "clinic.toml").write_text(scenario, encoding="utf-8")
        for seed, name in enumerate(("north.csv", "south.csv")):
            write_csv(folder / name, 120, seed)
    if "my.toml" in shown.words:
        (code,), (scenario,) = (blocks("your-own-algorithm.md", kind) for kind in ("python", "toml"))
        (folder / "my_algorithm.py").write_text(code, encoding="utf-8")
        (folder / "my.toml").write_text(scenario, encoding="utf-8")


def follow(shown: Shown, folder: Path, run: Path) -> None:
    """Run a command, with the run that was made in the place of RUN and of what is made of a run."""
    prepare(shown, folder)
    places = {"RUN": str(run), "PACED-RUN": str(run), "state/": str(run / "state")}
    if shown.words[:3] == ("mapa", "verify", "run.mapa.zip"):
        run_command(["mapa", "bundle", str(run), "--out", "run.mapa.zip"], folder)
    more = SHORTER.get(entry(SHORTER, shown), "")
    run_command([*(places.get(word, word) for word in shown.words), *more.split()], folder)


RUN_HERE = list({shown.text: shown for shown in SHOWN if not entry(NOT_RUN, shown)}.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(shown, marks=pytest.mark.broker if "mosquitto" in shown.words else (), id=shown.text)
        for shown in RUN_HERE
    ],
)
def test_a_command_of_a_page_works(shown: Shown, tmp_path: Path, run: Path) -> None:
    require_tools(shown)
    follow(shown, tmp_path, run)


def test_the_tables_have_no_command_that_no_page_shows() -> None:
    assert set(NOT_RUN) == {entry(NOT_RUN, shown) for shown in SHOWN} - {""}
    assert set(SHORTER) <= {entry(SHORTER, shown) for shown in RUN_HERE}, "nobody runs these"


def test_the_table_gives_reasons_and_names_tests_that_there_are() -> None:
    for why in WHY:
        assert len(why.reason) > 10
        for named in why.by:
            require_test(f"tests/{named}")


@pytest.mark.slow
@pytest.mark.parametrize("words", ["docker compose up", "make check", "mapa runs show nothing", "mapa fly"])
def test_a_command_that_nobody_knows_is_run_and_fails(words: str, tmp_path: Path) -> None:
    shown = Shown("README.md", "README.md:1", tuple(words.split()))
    assert not entry(NOT_RUN, shown), "closed by default"
    with pytest.raises(AssertionError):
        follow(shown, tmp_path, tmp_path)


def test_many_commands_are_run() -> None:
    assert len(RUN_HERE) > 35
    assert {shown.words[0] for shown in RUN_HERE} == {"mapa", "python"}


@pytest.mark.broker
def test_the_faults_on_the_page_are_those_of_its_seed() -> None:
    """The page's run takes a minute; what it does to whom is known before."""
    require_mosquitto()
    (block,) = (one for one in blocks_of(ROOT / "docs" / "chaos.md") if "$ mapa chaos" in one.text)
    (words,) = commands(block)
    given = dict(zip(words[3::2], words[4::2], strict=True))
    changes = [value for option, value in zip(words[3::2], words[4::2], strict=True) if option == "--set"]
    plan = plan_of(
        "quickstart", changes, int(given["--edges"]), int(given["--iterations"]), data_directory(os.environ)
    )
    faults = make_schedule(int(given["--seed"]), plan.bounds, int(given["--count"]))
    said = [f"  {number}. {fault}" for number, fault in enumerate(faults, start=1)]
    assert said == [line for line in block.text.splitlines() if line[:3].strip().isdecimal() and ". " in line]
