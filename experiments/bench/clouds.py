"""Clouds in turns on one Mosquitto: ours, that of another tree, and two in C which only add and answer: the ceiling.

python -m experiments.bench cloud --k 5,20 --n 785,7850 --log on,off --rounds 6 --against ../other-tree

Lean edges, a program in C where there is a compiler, each keep one gradient on its way. The cloud has a core of its
own, broker and edges have the others. Processor time is that of whole processes between two moments that the edges
choose.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common.errors import ConfigurationError, MapaError
from common.wire.v1 import payload_limit
from experiments.bench.bed import cores, on_cores, program
from mapa.brokers import KEEP_PAGES, Broker, MosquittoOptions, free_port, private_mosquitto
from mapa.processes import ends_with_parent, start_child

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_SERVING = Path("experiments/bench/serving.py")  # of a tree; ours, where it has none
_SECRETS = _ROOT / "docker" / "mosquitto" / "secrets.sh"
_PATIENCE = 60.0  # seconds until every edge has had a model
_MICRO, _MEGA = 1e6, 1e6


@dataclass(frozen=True, slots=True)
class Cell:
    """What the clouds of one comparison are asked to do."""

    edges: int  # K
    dimension: int  # N
    tls: bool = False  # between cloud and broker

    def __str__(self) -> str:
        return f"K = {self.edges:,}, N = {self.dimension:,}{', TLS' if self.tls else ''}"


@dataclass(frozen=True, slots=True)
class Turn:
    """What one cloud did in one turn; times are µs of processor an update."""

    rate: float = 0.0  # updates a second
    cloud: float = 0.0
    broker: float = 0.0
    edges: float = 0.0
    first: float = 0.0  # seconds from the first hello until every edge had a model
    resent: int = 0  # gradients or hellos without an answer for five seconds
    cloud_mb: float = 0.0  # resident at most
    broker_mb: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one turn happens."""

    run: str
    cell: Cell
    port: int  # of the broker, with TLS or without
    ca: str | None
    directory: Path


@dataclass(slots=True)
class TreeCloud:
    """Our cloud, or that of another tree, as a program that serves run after run."""

    name: str
    log: str | None  # how durable
    program: subprocess.Popen[str]
    metrics: bool = False

    def begin(self, place: Place) -> tuple[int, str]:
        """Return the cloud's process id and the bytes of a hello, as hexadecimal digits."""
        task: dict[str, Any] = {
            "run": place.run,
            "broker": f"127.0.0.1:{place.port}",
            "ca": place.ca,
            "log": self.log,
        }
        task |= {"edges": place.cell.edges, "dimension": place.cell.dimension}
        said = self._ask({**task, "directory": str(place.directory), "metrics": self.metrics})
        return self.program.pid, said["hello"]

    def end(self) -> dict[str, Any]:
        return self._ask({})

    def _ask(self, task: dict[str, Any]) -> dict[str, Any]:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.program.stdin.write(json.dumps(task) + "\n")
            self.program.stdin.flush()
        line = self.program.stdout.readline()
        if not line:
            raise MapaError(f"bench: the cloud {self.name!r} has ended; its traceback is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(slots=True)
class CCloud:
    """A cloud in C; a program for each run."""

    name: str
    log: str | None
    binary: Path
    child: subprocess.Popen[str] | None = None

    def begin(self, place: Place) -> tuple[int, str]:
        words = [str(place.port), place.run, str(place.cell.edges), str(place.cell.dimension)]
        words += [str(place.directory / f"{place.run}.seg")] if self.log else []
        command = [str(self.binary), *words]
        self.child = start_child(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **KEEP_PAGES})
        assert self.child.stdout is not None
        if not self.child.stdout.readline():
            raise MapaError(f"bench: {self.binary} did not begin")
        return self.child.pid, "00"

    def end(self) -> dict[str, Any]:
        assert self.child is not None
        assert self.child.stdout is not None
        self.child.kill()
        self.child.wait()
        self.child.stdout.close()
        return {}


Cloud = TreeCloud | CCloud


@dataclass(frozen=True, slots=True)
class Arena:
    """A broker with and without TLS, the edges' program, and a folder."""

    broker: Broker
    plain_port: int
    ca: str | None
    lean: Path | None  # the edges' program in C; None: in Python
    directory: Path
    rest: Sequence[int]  # processors of broker and edges
    numbers: Iterator[int] = field(default_factory=itertools.count)  # no two turns share a run's name

    def turn(self, cloud: Cloud, cell: Cell, warm: float, seconds: float) -> Turn:
        """Let one cloud serve; a cloud or edges that fail are told of, not raised."""
        port = self.broker.address.port if cell.tls else self.plain_port
        place = Place(f"b{next(self.numbers)}", cell, port, self.ca if cell.tls else None, self.directory)
        with self.own_core():
            pid, hello = cloud.begin(place)
        for one in (pid, self.broker.pid):
            _forget_peak(one)
        words = [
            str(self.plain_port),
            place.run,
            str(cell.edges),
            str(cell.dimension),
            str(warm),
            str(seconds),
        ]
        words += [str(_PATIENCE), hello, str(pid), str(self.broker.pid)]
        edges = [sys.executable, "-m", "experiments.bench.edges"] if self.lean is None else [str(self.lean)]
        with on_cores(self.rest):
            told = subprocess.run(
                ends_with_parent([*edges, *words]), stdout=subprocess.PIPE, text=True, check=False
            )
        cloud_mb, broker_mb = (_peak(one) / _MEGA for one in (pid, self.broker.pid))
        counted = cloud.end()
        for left in self.directory.glob(f"{place.run}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        found = json.loads(told.stdout or '{"error": "the edges ended without a word"}')
        if error := found.get("error") or _fault(counted) or ("" if found["updates"] else "no update"):
            return Turn(failure=error)
        own, of_cloud, of_broker = (_MICRO * spent / found["updates"] for spent in found["cpu"])
        rate = found["updates"] / found["seconds"]
        return Turn(rate, of_cloud, of_broker, own, found["first"], found["resent"], cloud_mb, broker_mb)

    @contextlib.contextmanager
    def own_core(self) -> Iterator[None]:
        """Give the cloud a core. Left to themselves programs move about, and the rate of one cloud varies fivefold."""
        every = cores()
        with on_cores(every[:1] if len(every) > 1 else every):
            yield


def _fault(counted: dict[str, Any]) -> str:
    """Say what one of our clouds must not have met."""
    faults = {name: counted[name] for name in ("lost", "refused") if counted.get(name)}
    return f"the cloud met {faults}" if faults else ""


def _forget_peak(pid: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def _peak(pid: int) -> float:
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
        return 0.0 if found is None else 1024.0 * int(found[1])
    return 0.0


# -- what takes part --------------------------------------------------------------------------------------------------


def compiled(source: str, folder: Path, *options: str, name: str = "") -> Path | None:
    """Return the program of a source file beside this one; None: no compiler, or a library is missing."""
    compiler, binary = shutil.which("cc"), folder / (name or Path(source).stem)
    if compiler is None:
        return None
    command = [compiler, "-O3", "-march=native", "-o", str(binary), str(_HERE / source), *options]
    return binary if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None


@contextlib.contextmanager
def arena(largest: int, *, tls: bool = False) -> Iterator[Arena]:
    """Start a broker whose limits fit models of `largest` parameters."""
    every = cores()
    rest = every[1:] or every
    with tempfile.TemporaryDirectory() as folder:
        directory, plain, ca = Path(folder), free_port(), None
        lean = compiled("lean_edges.c", directory)
        options = MosquittoOptions(max_payload=payload_limit(largest))
        if tls:
            secrets = directory / "secrets"
            subprocess.run(["sh", str(_SECRETS), str(secrets), "127.0.0.1"], check=True, capture_output=True)
            own, ca = secrets / "broker", str(secrets / "ca.pem")
            listener = (f"listener {plain} 127.0.0.1",)
            options = replace(options, certificate=own / "server.pem", key=own / "server.key", extra=listener)
        with on_cores(rest), private_mosquitto(directory / "broker", options) as broker:
            yield Arena(broker, plain if tls else broker.address.port, ca, lean, directory, rest)


@contextlib.contextmanager
def clouds(arena: Arena, logs: Sequence[str | None], against: Path | None) -> Iterator[list[Cloud]]:
    """Start what takes part: trees first, then the ceilings that can be compiled here."""
    flags = {"raw C": ("-lz",), "libmosquitto": ("-DLIBMOSQUITTO", "-lz", "-lmosquitto")}
    built = {name: compiled("ceiling_cloud.c", arena.directory, *flags[name], name=name) for name in flags}
    with contextlib.ExitStack() as stack, arena.own_core():
        trees = {"ours": _ROOT, **({} if against is None else {"against": against.resolve()})}
        found: list[Cloud] = []
        for name, tree in trees.items():
            theirs = tree / _SERVING if (tree / _SERVING).exists() else _ROOT / _SERVING
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            child = stack.enter_context(program(str(theirs), tree=tree, **pipes))
            found += [TreeCloud(name, log, child) for log in logs]
        for name, binary in built.items():
            if binary is not None:
                kept = [log for log in logs if log in (None, "process")] if name == "raw C" else [None]
                found += [CCloud(name, log, binary) for log in kept]
        yield found


# -- turns, and what they say -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score:
    """All turns of one cloud in one cell."""

    cell: Cell
    cloud: str
    log: str | None
    turns: Sequence[Turn]

    def each(self, name: str) -> list[float]:
        return [getattr(turn, name) for turn in self.turns if not turn.failure]

    def median(self, name: str) -> float:
        values = self.each(name)
        return statistics.median(values) if values else math.nan

    def over(self, other: Score | None, name: str) -> list[float]:
        """Return the ratio of each turn to the other's turn of the same round."""
        pairs = [] if other is None else zip(self.turns, other.turns, strict=True)
        return [getattr(a, name) / getattr(b, name) for a, b in pairs if not (a.failure or b.failure)]

    @property
    def failures(self) -> list[str]:
        return sorted({turn.failure for turn in self.turns if turn.failure})


@dataclass(frozen=True, slots=True)
class Scores:
    """All that was measured."""

    all: Sequence[Score]

    def find(self, cell: Cell, cloud: str, log: str | None) -> Score | None:
        return next((one for one in self.all if (one.cell, one.cloud, one.log) == (cell, cloud, log)), None)

    def ratios(self, score: Score) -> dict[str, list[float]]:
        """Return a cloud's ratios to the others of its cell."""
        cell = score.cell
        raw, library = self.find(cell, "raw C", score.log), self.find(cell, "libmosquitto", None)
        against = self.find(cell, "against", score.log) if score.cloud == "ours" else None
        found = {
            "cpu / raw C": score.over(raw, "cloud"),
            "cpu / libmosquitto": score.over(library, "cloud"),
            "rate / libmosquitto": score.over(library, "rate"),
            "cpu / against": score.over(against, "cloud"),
            "rate / against": score.over(against, "rate"),
        }
        return {name: values for name, values in found.items() if values}

    def plain(self) -> list[dict[str, Any]]:
        """Return everything as JSON can hold it."""
        return [
            {
                **asdict(one.cell),
                "cloud": one.cloud,
                "log": one.log,
                "turns": [asdict(turn) for turn in one.turns],
                "ratios": {name: _spread(values) for name, values in self.ratios(one).items()},
            }
            for one in self.all
        ]

    def table(self) -> Table:
        heads = ("updates/s", "cloud µs", "broker", "edges", "cloud MB", "broker", *_SHOWN)
        table = Table(
            "", "cloud", "log", *heads, title="medians of rounds (quartiles); µs of processor an update"
        )
        for one in self.all:
            if one.failures:
                table.add_row(str(one.cell), one.cloud, one.log or "off", "; ".join(one.failures))
                continue
            ratios = self.ratios(one)
            figures = [f"{one.median(name):,.1f}" for name in ("cloud", "broker", "edges")]
            figures += [f"{one.median(name):,.0f}" for name in ("cloud_mb", "broker_mb")]
            figures += [_shown(ratios.get(name, [])) for name in _SHOWN]
            figures = [f"{one.median('rate'):,.{0 if one.median('rate') > 100 else 1}f}", *figures]
            table.add_row(str(one.cell), one.cloud, one.log or "off", *figures)
        return table


_SHOWN = ("cpu / raw C", "rate / libmosquitto", "cpu / against", "rate / against")


def _spread(values: Sequence[float]) -> list[float]:
    """Return lower quartile, median and upper quartile."""
    return list(statistics.quantiles(values, n=4, method="inclusive")) if len(values) > 1 else [values[0]] * 3


def _shown(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, middle, high = _spread(values)
    return f"{middle:.2f} ({low:.2f}–{high:.2f})" if len(values) > 1 else f"{middle:.2f}"


def race(
    cells: Sequence[Cell],
    logs: Sequence[str | None],
    *,
    rounds: int,
    seconds: float,
    warm: float,
    against: Path | None = None,
    only: Sequence[str] = (),
    done: Callable[[Scores], None] = lambda _scores: None,
) -> Scores:
    """Let the clouds serve each cell in turns, forwards and backwards, so that what disturbs one disturbs all."""
    scores = []
    largest, tls = max(cell.dimension for cell in cells), any(cell.tls for cell in cells)
    with arena(largest, tls=tls) as place, clouds(place, logs, against) as found:
        taking = [cloud for cloud in found if not only or cloud.name in only]
        for cell in cells:
            here = [cloud for cloud in taking if not (cell.tls and isinstance(cloud, CCloud))]
            turns: list[list[Turn]] = [[] for _ in here]
            for number in range(rounds):
                order = range(len(here)) if number % 2 == 0 else reversed(range(len(here)))
                for k in order:
                    turns[k].append(place.turn(here[k], cell, warm, seconds))
            pairs = zip(here, turns, strict=True)
            scores.append(Scores([Score(cell, cloud.name, cloud.log, took) for cloud, took in pairs]))
            done(scores[-1])
    return Scores([score for cell in scores for score in cell.all])


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


_LOGS = {"on": "process", "off": None, "process": "process", "power": "power"}


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench cloud", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--k", type=_numbers, default=[5, 20], help="edges: 5,20")
    parser.add_argument("--n", type=_numbers, default=[785, 7850], help="parameters: 785,7850")
    parser.add_argument(
        "--log", default="on,off", help="gradient log: on (durable for the process), off, power"
    )
    parser.add_argument("--tls", default="off", help="between cloud and broker: on, off or off,on")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.5, help="measured in each turn")
    parser.add_argument("--warm", type=float, default=0.15, help="seconds before them")
    parser.add_argument(
        "--against", type=Path, metavar="TREE", help="another checkout, whose cloud takes part"
    )
    parser.add_argument("--clouds", default="", help="these alone: ours,against,raw C,libmosquitto")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    console = Console(stderr=given.json, width=200)
    try:
        if given.against is not None and not (given.against / "mapa" / "cloud_run.py").is_file():
            raise ConfigurationError(f"--against {given.against}: no checkout of this project")
        if unknown := [one for one in given.log.split(",") if one not in _LOGS]:
            raise ConfigurationError(f"--log {unknown[0]}: allowed are {', '.join(_LOGS)}")
        cells = [
            Cell(edges, dimension, tls == "on")
            for edges, dimension, tls in itertools.product(given.k, given.n, given.tls.split(","))
        ]
        scores = race(
            cells,
            [_LOGS[one] for one in given.log.split(",")],
            rounds=given.rounds,
            seconds=given.seconds,
            warm=given.warm,
            against=given.against,
            only=[one for one in given.clouds.split(",") if one],
            done=lambda scores: console.print(scores.table()),
        )
    except MapaError as error:
        console.print(f"[red]{error}[/]")
        return 2
    if given.json:
        print(json.dumps(scores.plain(), indent=1))
    return 0
