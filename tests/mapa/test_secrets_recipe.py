"""docker/mosquitto/secrets.sh: what it refuses, and what it says of a certificate that stays."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "docker" / "mosquitto" / "secrets.sh"


def secrets(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", RECIPE, *words], capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    "group", ["lab", "lab=", "lab=abc", "lab=0", "lab=-1", "lab=1=2", "=3", "a/b=2", "a b=2"]
)
def test_a_group_that_is_none_is_refused_before_anything_is_made(group: str, tmp_path: Path) -> None:
    done = secrets(tmp_path / "secrets", "vm.example.org", "desk=1", group)
    assert done.returncode == 2
    assert group.partition("=")[2] in done.stderr
    assert "must be" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "secrets").exists()


@pytest.mark.parametrize("names", ["", ",", "vm example", "vm,,desk", "vm;rm"])
def test_a_name_that_is_none_is_refused(names: str, tmp_path: Path) -> None:
    done = secrets(tmp_path / "secrets", names, "lab=1")
    assert (done.returncode, (tmp_path / "secrets").exists()) == (2, False)
    assert "NAME" in done.stderr


def test_a_tool_that_is_missing_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "secrets"
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("sh", "sed"):
        (commands / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(commands))
    for tool, missing in (("openssl", "openssl"), ("docker", "mosquitto_passwd")):
        done = secrets(folder, "vm.example.org", "lab=1")
        assert done.returncode == 2
        assert missing in done.stderr
        assert not folder.exists()
        (commands / tool).write_text("#!/bin/sh\n")
        (commands / tool).chmod(0o755)


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl on PATH (Debian: apt install openssl)"
)
def test_names_that_the_old_certificate_lacks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "mosquitto_passwd"  # it makes the hashes, which are not looked at here
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    folder = tmp_path / "secrets"
    first = secrets(folder, "vm.example.org,192.0.2.7", "lab=2")
    assert (first.returncode, first.stderr) == (0, "")
    assert {path.name for path in (folder / "edges/lab/accounts").iterdir()} == {"lab-0", "lab-1"}
    certificate = (folder / "broker/server.pem").read_bytes()
    again = secrets(folder, "vm.example.org,192.0.2.7", "desk=1")
    assert (again.returncode, again.stderr) == (0, "")
    other = secrets(folder, "vm.example.org,new.example.org,192.0.2.8", "desk=1")
    assert other.returncode == 0
    assert [line.partition(": ")[0] for line in other.stderr.splitlines()] == ["new.example.org", "192.0.2.8"]
    assert (folder / "broker/server.pem").read_bytes() == certificate
