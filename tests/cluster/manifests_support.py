"""What Kustomize and Helm make of the manifests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.program_support import ROOT, run_program

CACHE = Path(os.environ.get("MAPA_CLUSTER_CACHE") or Path.home() / ".cache" / "mapa-cluster")
KUBERNETES = ROOT / "kubernetes"
Objects = dict[tuple[str, str], dict[str, Any]]
# An overlay, and the values by which the chart says the same.
PLACES = {
    "single-node": ("--set", "placement=single-node"),
    "several-nodes": (),
    "own-broker": ("--set", "broker=broker.example.org"),
}


def tool(name: str) -> str:
    """Return the program that `kubernetes/cluster/tools.sh client` has got, else the machine's; skip without one."""
    own = CACHE / "bin" / name
    found = str(own) if own.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}; `kubernetes/cluster/tools.sh client` gets it")
    return found


def printed(*command: str | Path) -> Objects:
    done = run_program(*command)
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one is not None]
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects), "two objects of one name"
    return found


def kustomized(folder: Path) -> Objects:
    return printed(tool("kubectl"), "kustomize", folder)


def chart(*words: str) -> Objects:
    return printed(tool("helm"), "template", "mapa", KUBERNETES / "chart", *words)


def pods(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pod specification of every workload, by name."""
    for (kind, name), one in objects.items():
        if kind in ("Deployment", "StatefulSet", "Job", "DaemonSet"):
            yield name, one["spec"]["template"]["spec"]
