"""docs/your-own-model.md: its file and its scenario run as they are printed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mapa.commands.containers import image_for
from mapa.scenario_files import load_scenario
from tests.pages_support import OWN_MODEL, blocks, write_project
from tests.program_support import run_mapa, summary_of

SHORT = ["--set", "iterations=30", "--set", "privacy.releases=20", "--set", "evaluation.every=0", "--json"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path)


def mapa(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command, *rest = words
    return run_mapa(command, str(project / "my.toml"), *rest, *SHORT, "--runs-dir", str(project / "runs"))


def test_the_pages_file_is_short_and_its_network_twelve_lines() -> None:
    lines = blocks(OWN_MODEL, "python")[0].splitlines()
    assert len(lines) + len(blocks(OWN_MODEL, "toml")[0].splitlines()) < 40
    network = blocks(OWN_MODEL, "python")[0].partition("def cnn")[2].partition("\n\n")[0]
    assert len(network.splitlines()) <= 12


@pytest.mark.slow
def test_the_pages_scenario_simulates(project: Path) -> None:
    words = f"simulate {project / 'my.toml'} --seed 1 --json --runs-dir {project / 'runs'}"
    done = summary_of(run_mapa(*words.split()))
    assert (done["reason"], done["updates"]) == ("finished", 120)
    assert done["final_accuracy"] > 0.3  # one in ten by chance; 67 % was seen
    assert 0 < done["privacy"]["epsilon"] <= 8


@pytest.mark.slow
def test_the_same_file_takes_colour_images(project: Path) -> None:
    done = summary_of(mapa(project, "simulate", "--seed", "1", "--set", "data.set=my_data:Tints"))
    assert (done["reason"], done["updates"]) == ("finished", 30)
    assert 0 < done["privacy"]["epsilon"] <= 8


@pytest.mark.slow
def test_with_batch_norm_it_ends_with_2_and_the_layers_name(project: Path) -> None:
    source = blocks(OWN_MODEL, "python")[0]
    assert "nn.GroupNorm(4, width)" in source
    (project / "my_model.py").write_text(source.replace("nn.GroupNorm(4, width)", "nn.BatchNorm2d(width)"))
    done = mapa(project, "simulate")
    assert done.returncode == 2
    assert "model.name = 'my_model:Cnn': layer '2' (BatchNorm2d) mixes samples; use GroupNorm" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((project / "runs").glob("*"))


@pytest.mark.broker
def test_it_runs_between_processes(project: Path) -> None:
    done = summary_of(mapa(project, "run", "--set", "data.set=my_data:Tints", "--edges", "2"))
    assert (done["reason"], done["updates"]) == ("finished", 30)
    assert 0 < done["privacy"]["epsilon"] <= 8


def test_a_scenario_of_a_torch_model_asks_for_the_image_with_all_of_torch(project: Path) -> None:
    (project / "named_model.py").write_text(blocks(OWN_MODEL, "python")[0])
    _, own = load_scenario(str(project / "my.toml"), ["model.name=named_model:Cnn"])
    assert image_for(own) == "mapa-edge-torch"
    _, quick = load_scenario("quickstart")
    assert image_for(quick) == "mapa-edge-cnn"
