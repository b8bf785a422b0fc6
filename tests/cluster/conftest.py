"""A real cluster for the tests of the marker `cluster`: the one that `make cluster` starts."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mapa.kubernetes_run import Namespace, removed_afterwards
from tests.cluster.manifests_support import CACHE
from tests.program_support import ROOT, run_program

CLUSTER = ROOT / "kubernetes" / "cluster" / "cluster.sh"
IMAGES = ("mapa-cloud", "mapa-edge", "eclipse-mosquitto:2")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Path]:
    """Yield the kubectl that reaches a cluster of one node, with our images; the tests end what they began."""
    if not (CACHE / "bin" / "kube-proxy").is_file():
        pytest.skip("no programs of a cluster: `kubernetes/cluster/tools.sh` makes them, in minutes")
    present = run_program("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
    if missing := {one if ":" in one else f"{one}:latest" for one in IMAGES} - set(present):
        pytest.fail(f"images {sorted(missing)} are missing: run `make images` (or `make images-offline`)")
    began = not (CACHE / "run" / "pid").is_file()
    for words in (["start"], ["load", *IMAGES]):
        done = subprocess.run([CLUSTER, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    before, programs = os.environ["PATH"], CACHE / "run" / "bin"
    os.environ["PATH"] = f"{programs}:{before}"
    yield programs / "kubectl"
    os.environ["PATH"] = before
    if began:
        subprocess.run([CLUSTER, "stop"], check=True)


@pytest.fixture
def namespace(cluster: Path) -> Iterator[Namespace]:
    assert shutil.which("kubectl") == str(cluster)
    with removed_afterwards(Namespace(f"mapa-test-{secrets.token_hex(4)}"), keep=False) as lent:
        yield lent
