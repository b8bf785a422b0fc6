"""How long the host of a virtual machine gave its processors to others: the kernel's `steal` time, over the run."""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from experiments.bench.beside import looking

_STAT = Path("/proc/stat")
_LOOK = 0.02  # seconds between two looks
_TICKS = os.sysconf("SC_CLK_TCK")


def stolen_ticks(text: str) -> dict[int, int]:
    """Return the stolen ticks of each processor, from the text of /proc/stat."""
    rows = (line.split() for line in text.splitlines() if line.startswith("cpu") and line[3:4].isdigit())
    return {int(row[0][3:]): int(row[8]) if len(row) > 8 else 0 for row in rows}


@dataclass(slots=True)
class Stolen:
    """What was stolen, looked at while something else is measured; nothing on a machine of one's own."""

    times: list[float] = field(default_factory=list)
    ticks: dict[int, list[int]] = field(default_factory=dict)  # by processor, at each of the times

    def look(self) -> None:
        if _STAT.exists():
            self.take(time.monotonic(), stolen_ticks(_STAT.read_text(encoding="ascii")))

    def take(self, when: float, ticks: Mapping[int, int]) -> None:
        self.times.append(when)
        self.ticks = self.ticks or {processor: [] for processor in ticks}
        for processor, counts in self.ticks.items():
            counts.append(ticks[processor])

    def looking(self) -> AbstractContextManager[None]:
        return looking(self.look, _LOOK)

    def within(self, begin: float, end: float, processors: Collection[int] | None = None) -> float:
        """Return for how many seconds one of the processors was given to others, the one that was so for longest.

        Counts come in whole ticks, and between two looks they are taken to grow evenly: one tick less is counted.
        """
        if not self.times or end <= begin:
            return 0.0
        looked = [self.ticks[one] for one in self.ticks if processors is None or one in processors]
        most = max((self._at(counts, end) - self._at(counts, begin) for counts in looked), default=0.0)
        return min(end - begin, max(0.0, most - 1) / _TICKS)

    def _at(self, counts: Sequence[int], when: float) -> float:
        place = bisect.bisect_right(self.times, when)
        if place in (0, len(self.times)):
            return counts[max(0, place - 1)]
        (t0, t1), (n0, n1) = self.times[place - 1 : place + 1], counts[place - 1 : place + 1]
        return n0 + (n1 - n0) * (when - t0) / (t1 - t0)

    @property
    def share(self) -> float:
        """Return the stolen share of all processors over the whole time."""
        if len(self.times) < 2:
            return 0.0
        taken = sum(counts[-1] - counts[0] for counts in self.ticks.values())
        return taken / _TICKS / len(self.ticks) / (self.times[-1] - self.times[0])
