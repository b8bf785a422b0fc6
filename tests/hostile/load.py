"""Mutants at everything in this process, and what becomes of them."""

from __future__ import annotations

import gc
import itertools
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.hostile.decoding import Target, decoders
from tests.hostile.mutation import Mutator
from tests.hostile.services import ChannelBed, CloudBed, EdgeBed, EnrolmentBed, GuardBed, HelperBed

_BLOCKS = 20  # memory is looked at after each
_SHOWN = 10  # faults in full


GROUPS: Mapping[str, Callable[[Path], Iterable[Target]]] = {
    "decoders": lambda _: decoders(),
    "cloud": lambda _: CloudBed().targets(),
    "cloud, int8": lambda _: CloudBed("int8").targets(),
    "edge": lambda _: EdgeBed().targets(),
    "helpers": lambda folder: HelperBed(folder).targets(),
    "proofs": lambda folder: GuardBed(folder).targets(),
    "connection": lambda _: ChannelBed().targets(),
    "enrolment": lambda folder: EnrolmentBed(folder).targets(),
}


def every_target(folder: Path) -> list[Target]:
    return [target for group in GROUPS.values() for target in group(folder)]


def resident() -> int:
    """Return the memory of this process in KiB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4


def growth(memory: Sequence[int], messages: int) -> str:
    """Say what memory was after each of equal blocks, and what a message leaves behind by the second half of them."""
    half = memory[len(memory) // 2 :]
    slope = float(np.polyfit(np.arange(len(half)), half, 1)[0]) * 1024 * len(memory) / messages
    blocks = ", ".join(f"{one / 1024:.0f}" for one in memory)
    return f"memory after each block: {blocks} MiB; {slope:+.1f} bytes a message in the second half"


@dataclass
class Load:
    """What became of the messages."""

    sent: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)  # seconds
    faults: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # KiB, after each block

    def strike(self, target: Target, mutator: Mutator) -> None:
        """Give a target one mutant."""
        name, message, began = target.name, b"", time.perf_counter()
        self.sent[name] += 1
        try:
            corpus = target.corpus()
            message = mutator.mutant(mutator.luck.choice(corpus), target.form, corpus)
            began = time.perf_counter()
            self.taken[name] += target.take(message)
        except Exception:
            where = f"{name}, message {self.sent[name]}: {message[:300]!r}"
            self.faults.append(f"{where}\n{traceback.format_exc(limit=-4)}")
        self.slowest[name] = max(self.slowest.get(name, 0.0), time.perf_counter() - began)


def hostile_load(seed: int, messages: int, targets: Sequence[Target], blocks: int = _BLOCKS) -> Load:
    """Give the targets their turns until all messages are sent; the same messages for the same seed."""
    load = Load()
    turns: Iterator[tuple[Target, Mutator]] = itertools.cycle(
        [(target, Mutator(f"{seed} {target.name}")) for target in targets]
    )
    for block in range(blocks):
        for target, mutator in itertools.islice(turns, messages // blocks + (block < messages % blocks)):
            load.strike(target, mutator)
        load.memory.append(resident())
    return load


def show(load: Load, say: Callable[[str], None] = print) -> None:
    """Print what became of the messages."""
    say(f"{'':26}{'messages':>10}{'taken':>10}{'slowest':>10}")
    for name, sent in load.sent.items():
        say(f"{name:26}{sent:>10,}{load.taken[name]:>10,}{load.slowest[name] * 1e3:>7.1f} ms")
    say(f"{'all':26}{sum(load.sent.values()):>10,}{sum(load.taken.values()):>10,}")
    say(growth(load.memory, load.sent.total()))
    say(f"crashes, and states changed by what was refused: {len(load.faults)}")
    for fault in load.faults[:_SHOWN]:
        say(fault)
