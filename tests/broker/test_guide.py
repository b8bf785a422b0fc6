"""docs/deploy.md, "Edges with data of their own", followed word for word: on one machine and on three hosts.

A host is a network namespace, so that the page's ports and names mean what they say whatever else this machine does.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.broker.host_support import Host, cable
from tests.local_support import write_csv
from tests.pages_support import Block, blocks_of
from tests.program_support import PATIENCE, ROOT, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]
PAGE = ROOT / "docs" / "deploy.md"
BUDGET = 2.0
MOST_COMMANDS = 6  # a host, from nothing to a certified run


def block_of(test: str) -> Block:
    """Return the block that the page says this test runs."""
    (block,) = (one for one in blocks_of(PAGE) if one.run_by.endswith(f"::{test}"))
    return block


def commands_by_host(block: Block) -> dict[str, list[str]]:
    """Return the block's lines as they stand, by the host that the remark behind them names."""
    found: dict[str, list[str]] = {}
    for line in block.text.replace("\\\n", " ").splitlines():
        command, _, remark = line.partition(" # ")
        found.setdefault(remark.strip(), []).append(" ".join(command.split()))
    return found


def write_files(cloud: Path, north: Path, south: Path) -> None:
    (scenario,) = (one.text for one in blocks_of(PAGE) if one.language == "toml" and '"local"' in one.text)
    (cloud / "clinic.toml").write_text(scenario, encoding="utf-8")
    for seed, path in enumerate((cloud / "public.csv", north / "north.csv", south / "south.csv")):
        write_csv(path, 150, seed)


def assert_both_trained(vm: Host, cloud: int, edges: list[tuple[Host, int, Path]]) -> None:
    """The run has finished, and each hospital has trained, within its own budget and by its own ledger."""
    (path,) = (vm.folder / "runs").glob("*/summary.json")
    summary = json.loads(path.read_text())
    said = [host.log(number) for host, number, _ in edges]
    assert (summary["reason"], summary["updates"]) == ("finished", 200), (vm.log(cloud), said)
    assert len(summary["edges"]) == 2
    assert min(row["applied"] for row in summary["edges"]) > 0
    for (host, number, state), log in zip(edges, said, strict=True):
        first, *later = log.splitlines()
        assert first.startswith("waiting for run 'first' at ")
        joined = next(line for line in later if "joined" in line)  # a busy machine is waited for with words
        assert re.search(
            r"joined run 'first': 150 records, 0 releases made, budget ε = 2 at δ = 1e-05: 0 of", joined
        )
        assert "NOT PROTECTED" not in log
        done = subprocess.run(
            ["mapa", "ledger", str(state), "--json"],
            capture_output=True,
            env=host.environment,
            timeout=PATIENCE,
        )
        assert 0 < json.loads(done.stdout)["epsilon"] <= BUDGET, (number, done.stderr)


def private_keys(folder: Path) -> set[bytes]:
    contents = (path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return {content for content in contents if b"PRIVATE KEY" in content}


def test_on_one_machine_both_hospitals_train_within_their_budgets(network: Any) -> None:
    block = block_of("test_on_one_machine_both_hospitals_train_within_their_budgets")
    here = network("here")
    write_files(here.folder, here.folder, here.folder)
    broker, cloud, *edges = [line.partition(" # ")[0] for line in block.text.splitlines()]
    north, server, served = (here.start(one) for one in (edges[0], broker, cloud))  # in any order
    eventually(lambda: "joined" in here.log(0), "the north has joined")
    south = here.start(edges[1])
    assert [child.wait(PATIENCE) for child in (served, north, south)] == [0, 0, 0], here.log(2)
    assert server.poll() is None
    assert_both_trained(here, 2, [(here, 0, here.folder / "north"), (here, 3, here.folder / "south")])


def test_on_three_hosts_both_hospitals_train_within_their_budgets(network: Any) -> None:
    block = block_of("test_on_three_hosts_both_hospitals_train_within_their_budgets")
    by_host = commands_by_host(block)
    assert by_host.keys() == {"the VM, once", "the VM", "north", "south"}
    assert len(by_host["the VM, once"] + by_host["the VM"]) <= MOST_COMMANDS - 1  # one installs the package
    vm = network("vm", **{"vm.example.org": "127.0.0.1"})
    north = network("north", **{"vm.example.org": "10.77.1.1"})
    south = network("south", **{"vm.example.org": "10.77.2.1"})
    cable(vm, north, "10.77.1")
    cable(vm, south, "10.77.2")
    write_files(vm.folder, north.folder, south.folder)
    for once in by_host["the VM, once"]:
        assert vm.start(once).wait(PATIENCE) == 0, vm.log(len(vm.children) - 1)
    serve, invite, lead = by_host["the VM"]
    vm.start(serve)
    vm.start(invite)
    tokens: dict[str, str] = {}

    def invited() -> bool:
        tokens.update(re.findall(r"^(\w+): mapa edge --enrol (\S+)$", vm.log(3), re.M))
        return len(tokens) == 2

    eventually(invited, "the tokens are printed")
    assert [one.name for host in (north, south) for one in host.folder.iterdir()] == [
        "north.csv",
        "south.csv",
    ]
    cloud = vm.start(lead)
    edges = []
    for host in (north, south):
        (joins,) = by_host[host.folder.name]
        edges.append(host.start(joins.replace("TOKEN", tokens[host.folder.name])))
    assert cloud.wait(PATIENCE) == 0, (vm.log(2), vm.log(4), north.log(0))
    assert [edge.wait(PATIENCE) for edge in edges] == [0, 0], (north.log(0), south.log(0))
    assert_both_trained(vm, 4, [(host, 0, host.folder / "state") for host in (north, south)])
    keys = [private_keys(host.folder) for host in (vm, north, south)]
    assert all(keys)
    assert len(set().union(*keys)) == sum(map(len, keys)), "a private key is on two hosts"
