"""mapa doctor: what it finds, what it says of it, and that it changes nothing and always ends."""

from __future__ import annotations

import json
import socket
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import mapa.brokers
from mapa.commands import doctor
from mapa.commands.doctor import (
    BASIC,
    BROKEN,
    MISSING,
    NOTE,
    OK,
    MachineCheck,
    check_data_sets,
    check_engine,
    check_port,
    check_software,
    installed,
)
from tests.program_support import ROOT, Mapa, environment, run_program

QUICK = ("doctor", "--no-checksums")


def examined(mapa: Mapa, *words: str) -> tuple[int, dict[str, Any]]:
    done = mapa(*QUICK, "--json", *words)
    assert done.code in (0, 1), done.err
    return done.code, json.loads(done.out)


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in document["findings"]}


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PATH with no docker on it, to which a test may add one that behaves as it likes."""
    folder = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return folder


def docker_that(folder: Path, script: str) -> None:
    (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "docker").chmod(0o755)


# -- the whole --------------------------------------------------------------------------------------------


def test_the_basic_use_works_where_these_tests_run_and_nothing_is_written(mapa: Mapa, tmp_path: Path) -> None:
    code, document = examined(mapa)
    assert (code, document["works"], document["wrong"]) == (0, True, [])
    found = by_name(document)
    for name in ("Python", "mapa-testbed", "numpy", "pydantic", "paho-mqtt", "folder runs", "folder data"):
        assert found[name]["state"] == "ok", found[name]
    others = {"data mnist-5k", "data cifar-10", "extra dashboard", "extra ray", "port 1883", "port 8080"}
    assert others <= set(found)
    for one in document["findings"]:
        assert one["needed_for"]
        assert one["mend"] if one["state"] in ("missing", "broken") else True, one
    assert list(tmp_path.iterdir()) == []
    said = mapa(*QUICK)
    assert said.code == 0
    assert "all that is needed for basic works" in said.out


@pytest.mark.slow
def test_torch_and_its_like_are_looked_up_and_never_imported(tmp_path: Path) -> None:
    probe = (
        "import sys\nfrom mapa.cli import main\nsys.argv = ['mapa', 'doctor', '--json']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'sklearn', 'mlxtend', 'matplotlib', 'ray', 'docker', 'uvicorn'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    env = {**environment(), "PYTHONPATH": str(ROOT)}
    done = run_program(sys.executable, "-c", probe, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert by_name(json.loads(done.stdout))["data mnist-5k"]["state"] == "ok"


def test_what_was_asked_for_and_is_missing_makes_it_exit_with_1(mapa: Mapa, tmp_path: Path) -> None:
    code, document = examined(mapa, "--for", "mnist", "--data-dir", str(tmp_path / "nothing"))
    assert (code, document["wrong"]) == (1, ["data mnist"])
    assert by_name(document)["data mnist"]["mend"] == "mapa data get mnist"
    code, document = examined(mapa, "--for", "containers")
    assert (code, document["wrong"]) == (1, ["Docker engine"])
    said = mapa(*QUICK, "--for", "containers")
    assert said.code == 1
    assert "Docker engine: " in said.out


def test_a_purpose_that_is_none_exits_with_2_and_names_the_nearest(mapa: Mapa) -> None:
    done = mapa(*QUICK, "--for", "container")
    assert done.code == 2
    assert "did you mean 'containers'" in done.err
    assert "require --broker" in mapa.refusal(*QUICK, "--username", "me")


def test_every_extra_says_what_it_is_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = {one.name: one.needed_for for one in check_software() if one.name.startswith("extra ")}
    assert said.keys() == {f"extra {name}" for name in project["optional-dependencies"]} - {
        "extra all",
        "extra dev",
    }
    assert not [name for name, text in said.items() if text.startswith("what the extra")]


def test_only_what_a_purpose_needs_is_in_its_way() -> None:
    absent = MachineCheck("x", MISSING, "", "", {"x"})
    taken = MachineCheck("y", NOTE, "", "", {BASIC})
    assert not absent.is_in_the_way({BASIC})
    assert not taken.is_in_the_way({BASIC})
    assert absent.is_in_the_way({BASIC, "x"})


# -- software ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("have", "bounds", "state"),
    [
        ("2.10.1", ">=2.9", OK),
        ("2.10rc1", ">=2.9", OK),
        ("1.9", ">=2.0", BROKEN),
        ("2.13.0+cpu", "==2.13.0", OK),
        ("2.14.0", "==2.13.0", BROKEN),
    ],
)
def test_a_package_must_have_a_version_that_fits(
    monkeypatch: pytest.MonkeyPatch, have: str, bounds: str, state: str
) -> None:
    monkeypatch.setattr(doctor, "version", lambda _: have)
    assert installed(Requirement(f"any{bounds}")) == (
        state,
        have + ("" if state == OK else f", needs {bounds}"),
    )


@pytest.mark.parametrize("embedded", [True, False])
def test_without_mosquitto_the_embedded_broker_serves(
    monkeypatch: pytest.MonkeyPatch, embedded: bool
) -> None:
    monkeypatch.setattr(mapa.brokers, "_OTHER_PLACES", ())
    monkeypatch.setattr("importlib.util.find_spec", lambda _: embedded or None)
    [mosquitto] = [check for check in check_software() if check.name == "Mosquitto"]
    assert mosquitto.state == MISSING
    assert "apt install mosquitto" in mosquitto.fix
    assert (BASIC in mosquitto.purposes) is not embedded


# -- machine ----------------------------------------------------------------------------------------------


def test_a_port_in_use_is_said_and_is_no_fault() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        taken = check_port(port, "a page", "page")
    assert taken.state == NOTE
    assert "in use" in taken.found
    assert str(port) in taken.fix


def test_a_runs_folder_that_is_none_is_broken(mapa: Mapa, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for runs in ("file", "file/runs"):
        code, document = examined(mapa, "--runs-dir", runs)
        assert (code, document["wrong"]) == (1, ["folder runs"])
        assert "--runs-dir" in by_name(document)["folder runs"]["mend"]


# -- engine -----------------------------------------------------------------------------------------------


def test_an_engine_that_never_answers_does_not_hold_it_up(
    no_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker_that(no_engine, "/bin/sleep 1000 & wait")
    monkeypatch.setattr(doctor, "PATIENCE", 0.2)
    first, compose = check_engine()
    assert first.state == BROKEN
    assert "no answer within 0.2 s" in first.found
    assert compose.state == MISSING


def test_an_engine_that_refuses_us_says_who_we_are_and_what_to_do(no_engine: Path) -> None:
    docker_that(no_engine, 'echo "permission denied while trying to connect" >&2; exit 1')
    first, *_ = check_engine()
    assert first.state == BROKEN
    assert "does not answer user " in first.found
    assert "usermod -aG docker" in first.fix


def test_an_engine_that_answers_is_asked_for_the_images(no_engine: Path) -> None:
    docker_that(
        no_engine,
        """case "$1 $2" in
"version --format") echo 27.1 ;;
"compose version") echo 2.30 ;;
*) case "$*" in *mapa-cloud) echo sha256:abc of 2026-01-01T00:00:00Z ;; *) exit 1 ;; esac ;;
esac""",
    )
    found = {one.name: one for one in check_engine()}
    assert "27.1, answers user " in found["Docker engine"].found
    assert found["Docker Compose"].found == "2.30"
    assert found["image mapa-cloud"].state == OK
    assert found["image mapa-edge-cnn"].state == MISSING
    assert "make images" in found["image mapa-edge-cnn"].fix


# -- data -------------------------------------------------------------------------------------------------


def test_a_data_set_of_another_content_is_broken(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10"
    folder.mkdir()
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(b"not CIFAR")
    found = {one.name: one for one in check_data_sets(tmp_path)}
    assert found["data cifar-10"].state == BROKEN
    assert "data_batch_1.bin" in found["data cifar-10"].found
    assert "mapa data get cifar-10" in found["data cifar-10"].fix
    assert found["data mnist-5k"].state == OK
    assert "checksum right" in found["data mnist-5k"].found
    assert found["data mnist"].state == MISSING
    unread = {one.name: one for one in check_data_sets(tmp_path, checksums=False)}
    assert "not looked at" in unread["data cifar-10"].found
