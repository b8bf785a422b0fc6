"""python -m tests.hostile.guided: mutants that new ground in the code guides, by atheris (`pip install atheris`).

The first byte of an input chooses the target; half of the mutants know how a message is built. It ends at the first
fault, and otherwise with 0 after all of its runs. atheris needs a CPython that it has a wheel for: 3.11 to 3.13.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import atheris

with atheris.instrument_imports(include=["common", "cloud", "edge", "mapa"], enable_loader_override=False):
    from tests.hostile.load import every_target
from tests.hostile.mutation import Mutator


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.guided", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1_000_000)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        # no coverage leads to a signature
        targets = [one for one in every_target(Path(folder)) if not one.name.startswith("proof")]
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, target in enumerate(targets):
            for place, message in enumerate(target.corpus()):
                (corpus / f"{number}-{place}").write_bytes(bytes([number]) + message)

        def strike(content: bytes) -> None:
            if content:
                target = targets[content[0] % len(targets)]
                target.corpus()  # what is valid now, and what must be there for it
                target.take(content[1:])

        def mutate(content: bytes, most: int, seed: int) -> bytes:
            if seed % 2 or not content:
                return bytes(atheris.Mutate(content, most))
            target = targets[content[0] % len(targets)]
            made = Mutator(seed).mutant(content[1:], target.form, target.corpus())
            return (content[:1] + made)[:most]

        words: list[Any] = [sys.argv[0], f"-runs={given.runs}", f"-seed={given.seed}", "-max_len=20000"]
        words += ["-rss_limit_mb=0", "-print_final_stats=1", f"-artifact_prefix={folder}/", str(corpus)]
        atheris.Setup(words, strike, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
