"""mapa replay: the same model bit for bit, the same gradients from the seed, another algorithm on the same arrivals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from cloud.algorithm import Update
from cloud.assembly import begin
from common.messages import GradientApplied, GradientArrived
from common.quantities import Vector
from mapa.verification.replay import (
    AS_LOGGED,
    REMADE,
    LogReplay,
    other_scenario,
    scenario_of,
    start_of,
)
from mapa.verification.untrusted_files import MANIFEST, of_directory
from tests.program_support import Mapa
from tests.verification_support import (
    BLOBS,
    PRIVATE,
    entries_of,
    gradients_in,
    logged_run,
    nudged,
    with_entries,
)

FEDBUFF = "tests.algorithms.fedbuff:FedBuff"


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return logged_run(tmp_path_factory.mktemp("runs"), share=0.2, data={"set": BLOBS})


@pytest.fixture
def copy(seeded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(seeded, tmp_path / seeded.name))


def replayed(mapa: Mapa, *words: object) -> tuple[int, dict[str, Any]]:
    done = mapa("replay", *map(str, words), "--allow", BLOBS, "--json")
    return done.code, json.loads(done.out) if done.out else {"err": done.err}


def test_another_model_exits_with_1_and_a_run_without_a_log_with_2(mapa: Mapa, copy: Path) -> None:
    model = copy / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-3] ^= 1
    model.write_bytes(content)
    code, told = replayed(mapa, copy, "--no-gradients")
    assert code == 1
    assert not told["same_model"], told
    assert "numbers differ" in told["words"][0]
    shutil.rmtree(copy / "log")
    code, told = replayed(mapa, copy)
    assert code == 2
    assert "did not keep its gradients" in told["err"]


def test_the_gradients_of_a_seeded_run_are_made_again_bit_for_bit(mapa: Mapa, seeded: Path) -> None:
    code, told = replayed(mapa, seeded)
    assert code == 0, told
    assert told["gradients"]["made"] == told["gradients"]["same"] == 60
    code, told = replayed(mapa, seeded, "--every", "7")
    assert (code, told["gradients"]["made"], told["gradients"]["of"]) == (0, 9, 60)


def change_a_gradient(path: Path, *, least: bool) -> None:
    segment = path / "log" / "000001.seg"
    content = segment.read_bytes()
    entries = entries_of(content)
    place = gradients_in(entries)[-1]
    if least:
        body = bytearray(entries[place].body)
        body[-4] ^= 1  # the last bit of the last coordinate
        entries[place] = entries[place]._replace(body=bytes(body))
    else:
        entries[place] = nudged(entries[place])
    segment.write_bytes(with_entries(content, entries))


@pytest.mark.parametrize("sampler", ["poisson", "shuffled"])
def test_every_message_of_local_steps_is_made_again_bit_for_bit(
    mapa: Mapa, tmp_path: Path, sampler: str
) -> None:
    run = logged_run(
        tmp_path, share=0.2, data={"set": BLOBS, "sampler": sampler}, local={"steps": 3, "rate": 0.05}
    )
    code, told = replayed(mapa, run)
    assert code == 0, told
    assert told["gradients"]["same"] == told["gradients"]["made"] == told["updates"] > 0


def test_a_gradient_that_the_seed_does_not_give_is_found(mapa: Mapa, copy: Path) -> None:
    change_a_gradient(copy, least=False)
    code, told = replayed(mapa, copy)
    assert code == 1
    assert (told["gradients"]["same"], told["gradients"]["other"]) == (59, 1)
    assert "t = 60" in told["words"][-1]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("summary.json", "final_accuracy", 0.5), ("manifest.json", "shard_sizes", [800, 800, 800])],
)
def test_figures_that_the_data_set_does_not_give_are_found(
    mapa: Mapa, copy: Path, name: str, key: str, value: object
) -> None:
    assert replayed(mapa, copy)[1]["agrees_with_data"]
    changed = {**json.loads((copy / name).read_text()), key: value}
    (copy / name).write_text(json.dumps(changed))
    code, told = replayed(mapa, copy)
    assert code == 1
    assert f"{key} = {value}" in told["words"][1]


@pytest.mark.parametrize(("engine", "bits"), [("network", False), ("processes", True)])
def test_the_last_bit_counts_only_where_the_edges_ran_on_a_machine_of_this_type(
    mapa: Mapa, copy: Path, engine: str, bits: bool
) -> None:
    change_a_gradient(copy, least=True)
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**manifest, "engine": engine}))
    _, told = replayed(mapa, copy)
    found = told["gradients"]
    assert (found["same"], found["within_tolerance"], found["other"]) == (59, 1, 0)
    assert found["bits_meant"] is bits
    (copy / MANIFEST).write_text(json.dumps({**manifest, "engine": engine, "machine": "another"}))
    assert replayed(mapa, copy)[1]["gradients"]["bits_meant"] is False


def test_without_the_data_it_says_what_was_not_checked(mapa: Mapa, copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**manifest, "data": {BLOBS: "1" * 64}}))
    code, told = replayed(mapa, copy)
    assert code == 0
    assert "gradients" not in told
    assert "agrees_with_data" not in told
    assert all("another checksum" in line for line in told["words"][1:3])
    done = mapa("replay", str(copy), "--json")
    assert done.code == 0
    assert f"--allow {BLOBS}" in json.loads(done.out)["words"][2]


def logged_arrivals(path: Path) -> tuple[Any, list[tuple[GradientArrived, GradientApplied]]]:
    files = of_directory(path)
    scenario = scenario_of(files.manifest)
    steps = LogReplay(start_of(files, scenario).server).steps(files)
    applied = [
        (event, effect)
        for event, effects in steps
        for effect in effects
        if isinstance(event, GradientArrived) and isinstance(effect, GradientApplied)
    ]
    assert len(applied) >= 60
    return scenario, applied


def test_another_algorithm_on_the_logged_gradients_is_that_algorithm_and_nothing_else(
    mapa: Mapa, seeded: Path
) -> None:
    options = ("algorithm.rate=0.2", "algorithm.size=4")
    code, told = replayed(
        mapa, seeded, "--no-gradients", "--algorithm", FEDBUFF, *(f"--set={one}" for one in options)
    )
    assert code == 0, told
    assert AS_LOGGED in told["words"]
    assert [row["algorithm"] for row in told["metrics"]] == ["mapa", FEDBUFF]
    scenario, arrivals = logged_arrivals(seeded)
    x: Vector = np.zeros(load((seeded / "model.safetensors").read_bytes())["x"].size, np.float32)
    algorithm = begin(other_scenario(scenario, FEDBUFF, options), 2.0)
    for a, fact in arrivals:
        law = scenario.law(fact.edge)
        update = Update(
            a.gradient, fact.t, a.version, fact.staleness, fact.edge, law, 2.0, fact.stage, a.sensitivity
        )
        x, algorithm = algorithm.apply(x, update)
    own = load((seeded / "model.safetensors").read_bytes())["x"]
    assert told["distance"] == pytest.approx(float(np.linalg.norm(own.astype(np.float64) - x)), rel=1e-12)
    assert told["distance"] > 0


def test_an_algorithm_that_diverges_is_called_so_and_compared_with_nothing(mapa: Mapa, seeded: Path) -> None:
    words = ("--no-gradients", "--algorithm", "adam", "--set=algorithm.rate=1e308")
    code, told = replayed(mapa, seeded, *words)
    assert code == 0, told
    assert (told["diverged"], told["distance"]) == (True, None)
    assert "adam: diverged: its model is not finite" in told["words"][-1]
    assert "nan" not in " ".join(told["words"])


def test_an_average_is_a_question_that_the_log_can_answer(mapa: Mapa, seeded: Path) -> None:
    """The run's own algorithm with an average beside it: the same models, another result."""
    words = ("--no-gradients", "--algorithm", "mapa", "--set", "algorithm.average=tail")
    code, told = replayed(mapa, seeded, *words)
    assert code == 0, told
    assert told["distance"] > 0
    code, told = replayed(mapa, seeded, *words, "--set", "algorithm.average_decay=0.5")
    assert code == 2
    assert "algorithm.average_decay = 0.5: only with algorithm.average = 'ema'" in told["err"]


@pytest.mark.parametrize("remake", [[], ["--remake"]])
def test_the_run_s_own_algorithm_as_the_other_gives_the_same_model(
    mapa: Mapa, seeded: Path, remake: list[str]
) -> None:
    code, told = replayed(mapa, seeded, "--no-gradients", "--algorithm", "mapa", *remake)
    assert code == 0
    assert told["distance"] == 0
    assert (REMADE if remake else AS_LOGGED) in told["words"]
    assert told["metrics"][0] == told["metrics"][1]


def test_remade_gradients_are_made_on_the_other_model(mapa: Mapa, seeded: Path) -> None:
    words = ("--no-gradients", "--algorithm", "audp")
    _, logged = replayed(mapa, seeded, *words)
    _, remade = replayed(mapa, seeded, *words, "--remake")
    assert 0 < logged["distance"] != remade["distance"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--remake"], "only with --algorithm"),
        (["--set", "algorithm.theta=0.7"], "only with --algorithm"),
        (["--algorithm", "csgd"], "centralised"),
        (["--algorithm", "nonsense"], "allowed are"),
        (["--algorithm", "audp", "--set", "iterations=10"], "only keys of [algorithm]"),
    ],
)
def test_a_question_that_means_nothing_exits_with_2(
    mapa: Mapa, seeded: Path, words: list[str], said: str
) -> None:
    code, told = replayed(mapa, seeded, *words)
    assert code == 2
    assert said in told["err"]


def test_what_needs_a_seed_or_noise_is_refused_without(mapa: Mapa, tmp_path: Path) -> None:
    secure = logged_run(tmp_path / "secure", **PRIVATE)
    code, told = replayed(mapa, secure, "--algorithm", "audp", "--remake")
    assert code == 2
    assert "seeded" in told["err"]
    bare = logged_run(tmp_path / "bare", algorithm={"name": "asgd"})
    code, told = replayed(mapa, bare, "--algorithm", "mapa")
    assert code == 2
    assert "clip and noise" in told["err"]
