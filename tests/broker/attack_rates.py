"""What each attack of a valid account leaves of a run's rate: windows with and without it, in turn, in one run.

`python -m tests.broker.attack_rates [MODEL]`: a broker as `mapa certs` writes it, a cloud, five edges
with links of 5 ms each way, and the attacker, on whatever cores there are.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.broker.attacker import order
from tests.broker.test_attacker import account_of, accounts_folder, credentials_of_cloud, site_of
from tests.broker.testbed_support import Testbed, open_testbed, scenario
from tests.program_support import ROOT

SECONDS, ROUNDS = 2.0, 2
EDGES = [f"e{number}" for number in range(5)]
REVIEWED = {
    "hellos": 1700.0,
    "repeats": 2400.0,
    "signatures": 1700.0,
    "small": 2400.0,
    "connects": 20.0,
}  # a second
BEYOND = ("repeats", "subscriptions")  # as fast as one core can


def memory(pid: int) -> float:
    """Return the resident MB of a process and its children."""
    found = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid), "--ppid", str(pid)], capture_output=True, text=True
    )
    return sum(map(int, found.stdout.split())) / 1024


def window(bed: Testbed, seconds: float) -> float:
    """Return the updates per second of so many seconds from now."""
    before, began = bed.updates, time.monotonic()
    time.sleep(seconds)
    return (bed.updates - before) / (time.monotonic() - began)


def under(bed: Testbed, command: list[str]) -> float:
    """Return the rate while the attack lasts; its program takes a while to start."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as attacker:
        time.sleep(1.5)
        rate = window(bed, SECONDS)
        attacker.wait()
    return rate


def measure(folder: Path, model: str) -> None:
    site = site_of(folder / "site", certificates=True)
    values = scenario(edges=6, iterations=10**7, model={"name": model}, links=[{"delay_ms": 5.0}])
    with site.running() as broker:
        credentials = credentials_of_cloud(site)
        with open_testbed(
            site.clouds, folder / "run", values, credentials=credentials, edges_at_least=5
        ) as bed:
            accounts = accounts_folder(site, folder / "accounts", EDGES)
            bed.edge(*accounts, "--count", str(len(EDGES)), broker=site.edges)
            bed.wait(lambda: bed.updates > 100)
            account = account_of(site, bed)
            window(bed, SECONDS)
            for name, rate in [*REVIEWED.items(), *((name, 1e9) for name in BEYOND)]:
                account.rate = rate
                command, ratios = order(folder / "attack.json", account, [(name, SECONDS + 1.5)]), []
                for _ in range(ROUNDS):
                    calm = window(bed, SECONDS)
                    ratios.append(under(bed, command) / max(calm, 1e-9))
                    peak = memory(broker.pid)
                    time.sleep(2.0)  # what waited in queues is over, and edges have asked again
                pace, ratio = f"{rate:.0f}/s" if rate < 1e9 else "all it can", statistics.median(ratios)
                print(
                    f"{name:13} {pace:10} {ratio:.2f} of {calm:.0f} updates/s, broker {peak:.0f} MB",
                    flush=True,
                )
            bed.cloud.loop.post(lambda: bed.cloud.service.halt("interrupted"))
            bed.finish()
            print(
                dict(bed.cloud.service.dropped),
                "lost connections",
                bed.cloud.service.traffic.lost_connections,
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        measure(Path(made), *(sys.argv[1:] or ["lr"]))
