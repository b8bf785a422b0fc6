"""ε of releases for a page, computed one at a time in a process of low priority: no request waits for it.

`python -m mapa.dashboard.accountant` answers questions in JSON, a line each, until its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from common.accounting.budget import max_messages
from common.accounting.kept import kept_in
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.errors import MapaError
from common.models.features import user_cache

_MOST = 10_000  # answers that are remembered
_PAUSE = 3.0  # times as long as an answer took: the accountant has a quarter of a processor
_LONGEST_PAUSE = 1.0  # seconds
_NICE = 15


class Question(NamedTuple):
    """ε at δ of a number of messages; with a budget, how many messages it pays for."""

    kind: ReleaseKind
    delta: float
    releases: int = 0
    budget: float | None = None


Answers = dict[Question, float | None]


@functools.lru_cache(maxsize=4096)
def epsilon(kind: ReleaseKind, releases: int, delta: float) -> float | None:
    """Return ε at δ of a number of messages, zero-out adjacency, as the statement computes it; None: no finite one."""
    try:
        found = total([Spent(kind, kind.charges(releases))], delta, replace_one=False).epsilon
    except (MapaError, ArithmeticError, ValueError):
        return None
    return found if math.isfinite(found) else None


def answer(question: Question) -> float | None:
    """Answer here and now; parts of a second."""
    kind, delta, releases, budget = question
    if budget is None:
        return epsilon(kind, releases, delta)
    try:
        return max_messages(Budget(budget, delta), kind)
    except (MapaError, ArithmeticError, ValueError):
        return 0


@dataclass(slots=True)
class Accountant:
    """The process, and what it has answered; it is there while it is asked."""

    known: Answers = field(default_factory=dict)
    _child: subprocess.Popen[str] | None = None
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, question: Question) -> None:
        """Let a question be answered."""
        async with self._asking:
            if question in self.known:
                return
            try:
                found = await self._answer(question)
            except (
                BaseException
            ):  # nobody waits for it any more: its answer must not be taken for the next one
                self.close()
                raise
            if len(self.known) >= _MOST:
                self.known.clear()
            self.known[question] = found

    async def _answer(self, question: Question) -> float | None:
        if self._child is None:
            command = [sys.executable, "-P", "-m", "mapa.dashboard.accountant"]
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        asked, answers = self._child.stdin, self._child.stdout
        assert asked is not None
        assert answers is not None
        line = ""
        with contextlib.suppress(OSError):
            asked.write(json.dumps({**question._asdict(), "kind": question.kind.fields()}) + "\n")
            asked.flush()
            line = await asyncio.to_thread(answers.readline)
        if not line:  # it failed: what it was asked last has no answer
            self.close()
            return None if question.budget is None else 0
        found: float | None = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with contextlib.suppress(OSError), child:
                pass


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the page, which ends this process
    os.nice(_NICE)
    with kept_in(user_cache()):
        for line in sys.stdin:
            began, fields = time.process_time(), json.loads(line)
            fields["kind"] = ReleaseKind.of_fields(fields["kind"])
            print(json.dumps(answer(Question(**fields))), flush=True)
            time.sleep(min(_LONGEST_PAUSE, _PAUSE * (time.process_time() - began)))


if __name__ == "__main__":
    main()
