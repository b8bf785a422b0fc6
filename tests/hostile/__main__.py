"""python -m tests.hostile: mutants by the million at all that reads from a network, and at runs on a real broker.

It ends with 1 where something was raised that is no refusal, where a refused message has changed a state, or where a
run on the broker does not reach T. What memory does is printed, not judged.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.hostile.live import ATTACKS
from tests.hostile.load import every_target, hostile_load, show


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="at decoders, cloud and edge in this process"
    )
    parser.add_argument("--live", type=int, default=100_000, help="at runs on a real Mosquitto")
    given = parser.parse_args()
    good = True
    if given.messages:
        print(f"seed {given.seed}: {given.messages:,} mutants in this process", flush=True)
        with TemporaryDirectory() as folder:
            load = hostile_load(given.seed, given.messages, every_target(Path(folder)))
        show(load)
        good = not load.faults
    for attack in ATTACKS if given.live else ():
        print(
            f"seed {given.seed}: {given.live // len(ATTACKS):,} mutants at a run on Mosquitto, {attack.__name__}",
            flush=True,
        )
        with TemporaryDirectory() as folder:
            outcome = attack(Path(folder), given.seed, given.live // len(ATTACKS))
        outcome.show()
        good = good and not outcome.faults
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
