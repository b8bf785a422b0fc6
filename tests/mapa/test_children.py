"""Programs that we start: from a directory with modules of the same names they are ours, and a signal ends them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from common.quantities import RunId
from common.transport.connection import BrokerAddress
from mapa import cli
from mapa.brokers import embedded_broker
from mapa.process_run import edge_arguments
from mapa.processes import interruptible
from mapa.scenario_files import load_scenario
from tests.program_support import SIGINT_IGNORED, run_program

FILE = ["data.set=file", "data.train_path=train.npz", "data.schema={kind='array', shape=[4], classes=2}"]
FILE += ["algorithm.name=constant", "algorithm.rate=0.1", "algorithm.first_clip=1"]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caller's directory, with packages that end whoever imports them."""
    for room in ("common", "edge", "mapa", "experiments"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise SystemExit('not ours')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edge_command(elsewhere: Path, *changes: str) -> list[str]:
    """Return how an edge of the changed quickstart is started."""
    _, scenario = load_scenario("quickstart", changes)
    nobody = BrokerAddress("127.0.0.1", 1)
    return edge_arguments(scenario, RunId("r"), nobody, elsewhere / "state", elsewhere / "data", 1)


@pytest.mark.slow
def test_an_edge_process_is_ours(elsewhere: Path) -> None:
    command = edge_command(elsewhere)
    done = run_program(*command, "--help", cwd=elsewhere)
    assert (done.returncode, done.stderr) == (0, "")


def test_edges_of_a_local_run_may_import_what_its_scenario_names(elsewhere: Path) -> None:
    law = "tests.common.test_noise_port:Mixed"
    command = edge_command(elsewhere, f"privacy.noise={law}", "privacy.scale=1", "privacy.share=0.5")
    assert command[command.index("--allow") + 1] == law


@pytest.mark.parametrize(
    ("changes", "switches"),
    [
        (["seed=1"], set()),  # public records
        (FILE, {"--allow-unprotected"}),
        ([*FILE, "seed=1"], {"--allow-unprotected", "--allow-seed"}),
    ],
)
def test_edges_of_a_local_run_release_the_records_of_the_one_who_starts_them(
    elsewhere: Path, changes: list[str], switches: set[str]
) -> None:
    assert {word for word in edge_command(elsewhere, *changes) if word.startswith("--allow-")} == switches


@pytest.mark.slow
def test_the_embedded_broker_is_ours(elsewhere: Path) -> None:
    with embedded_broker(elsewhere / "broker") as broker:
        assert broker.kind == "embedded"


@pytest.mark.slow
def test_a_program_that_may_be_interrupted_hears_a_sigint_that_we_ignore() -> None:
    asks = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    told = [sys.executable, "-c", asks]
    for command, heard in ((told, "False"), (interruptible(told), "True")):
        done = run_program(*SIGINT_IGNORED, *command)
        assert done.stdout.strip() == heard, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_ends_by_either_signal_whatever_it_inherited(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mapa", "algorithms"])
    monkeypatch.setattr(cli, "_program", lambda: lambda *_args, **_options: signal.raise_signal(number))
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 130
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
