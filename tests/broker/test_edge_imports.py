"""What a real edge never imports: on a small board every library is memory and seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.datasets.catalogue import data_directory
from mapa.brokers import Broker
from mapa.process_run import one_thread_each
from tests.broker.testbed_support import ROOT, open_testbed, scenario

pytestmark = pytest.mark.broker

PROBE = """
import json, sys
from pathlib import Path
from mapa.cli import main
place = Path(sys.argv.pop(1))
try:
    main()
finally:
    place.write_text(json.dumps(sorted(sys.modules)))
"""
NEEDLESS = {
    "amqtt",
    "asyncio",
    "cloud",
    "docker",
    "dp_accounting",
    "h5py",
    "matplotlib",
    "mlxtend",
    "multiprocessing",
    "pandas",
    "prometheus_client",
    "ray",
    "rich",
    "safetensors",
    "scipy",
    "sklearn",
    "sympy",
    "torch",
}


@pytest.mark.parametrize(
    "privacy", [{"noise_multiplier": 2.0}, {"noise_multiplier": 2.0, "total_epsilon": 4.0}]
)
def test_an_edge_that_trains_lr_imports_nothing_it_does_not_need(
    mosquitto: Broker, tmp_path: Path, privacy: dict[str, float]
) -> None:
    """Its budget is the accountant's business, which has a process of its own."""
    found = tmp_path / "modules.json"
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=1, iterations=20, privacy=privacy)) as bed:
        command = [sys.executable, "-c", PROBE, str(found), "edge", "--broker", str(mosquitto.address)]
        command += ["--run", bed.run, "--state-dir", str(tmp_path / "state")]
        command += ["--data-dir", str(data_directory(os.environ))]
        bed.edges.append(subprocess.Popen(command, env=one_thread_each(), cwd=ROOT))
        summary = bed.finish()
        assert [child.returncode for child in bed.edges] == [0]
    assert summary["updates"] == 20
    imported = {name.partition(".")[0] for name in json.loads(found.read_text())}
    assert {"numpy", "paho", "edge", "sqlite3"} <= imported
    assert not imported & NEEDLESS
