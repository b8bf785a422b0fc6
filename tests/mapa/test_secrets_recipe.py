"""docker/mosquitto/secrets.sh: what it refuses, and what it says of a certificate that stays."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl on PATH (Debian: apt install openssl)"
)
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


def with_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the tool that makes the hashes, which are not looked at here."""
    tool = tmp_path / "bin" / "mosquitto_passwd"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)


@needs_openssl
def test_names_that_the_old_certificate_lacks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_tool(tmp_path, monkeypatch)
    folder = tmp_path / "secrets"
    folder.mkdir(mode=0o755)  # of the caller's own making
    first = secrets(folder, "vm.example.org,192.0.2.7", "lab=2")
    assert (first.returncode, first.stderr) == (0, "")
    assert {path.name for path in (folder / "edges/lab/accounts").iterdir()} == {"lab-0", "lab-1"}
    certificate = (folder / "broker/server.pem").read_bytes()
    again = secrets(folder, "vm.example.org,192.0.2.7", "desk=1")
    assert (again.returncode, again.stderr) == (0, "")
    assert "running broker" not in first.stdout  # there was none
    for words in ("restart broker", "kill -HUP"):
        assert words in again.stdout
    other = secrets(folder, "vm.example.org,new.example.org,192.0.2.8", "desk=1")
    assert other.returncode == 0
    assert [line.partition(": ")[0] for line in other.stderr.splitlines()] == ["new.example.org", "192.0.2.8"]
    assert (folder / "broker/server.pem").read_bytes() == certificate


@needs_openssl
def test_no_other_user_gets_through_to_a_password_here_or_where_it_is_copied_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_tool(tmp_path, monkeypatch)
    folder = tmp_path / "secrets"
    folder.mkdir(mode=0o755)
    assert secrets(folder, "vm.example.org", "lab=2").returncode == 0
    copy = tmp_path / "workstation"
    subprocess.run(["cp", "-r", folder / "edges" / "lab", copy], check=True)
    for top in (folder, folder / "edges" / "lab", copy, folder / "broker"):
        assert stat.S_IMODE(top.stat().st_mode) == 0o700, top
    # what is mounted into containers is read by their users: each by itself, from below the closed folder
    for mounted in (folder / "cloud", copy / "accounts"):
        assert stat.S_IMODE(mounted.stat().st_mode) == 0o755
        assert {stat.S_IMODE(path.stat().st_mode) for path in mounted.iterdir()} == {0o644}
    text = (RECIPE.parents[1] / "edge.yml").read_text()
    assert re.findall(r"SECRETS_DIR:-../secrets}(\S*?):/secrets(\S*):ro", text) == [
        ("/ca.pem",) * 2,
        ("/accounts",) * 2,
    ]
    for path in folder.rglob("*"):
        if path.name in ("ca.key", "server.key", "passwords"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.slow
@needs_openssl
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user and mount")
def test_the_user_of_an_edges_container_reads_what_is_mounted_and_no_other_user_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bind mount in a mount namespace, read by the image's user: what an engine does with edge.yml."""
    with_tool(tmp_path, monkeypatch)
    host = Path(tempfile.mkdtemp())  # pytest's own folders are closed
    try:
        host.chmod(0o755)
        assert secrets(host / "secrets", "vm.example.org", "lab=1").returncode == 0
        lab = host / "secrets" / "edges" / "lab"
        inside = host / "container"
        inside.mkdir()
        as_the_image = "setpriv --reuid 10001 --regid 10001 --clear-groups"
        script = f"mount --bind {lab}/accounts {inside} && {as_the_image} cat {inside}/lab-0"
        script += f" && ! {as_the_image} cat {lab}/accounts/lab-0"
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == (lab / "accounts" / "lab-0").read_text()
        assert "Permission denied" in done.stderr
    finally:
        shutil.rmtree(host)
