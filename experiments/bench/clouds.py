"""Clouds in turns on one Mosquitto: ours, that of another tree, and two in C which only add and answer: the ceiling.

Lean edges, a program in C where there is a compiler, each keep one gradient on its way. The cloud has a core of its
own, broker and edges have the others. Processor time is that of whole processes between two moments that the edges
choose.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError, MapaError
from common.transport.connection import BrokerAddress
from common.wire.v1 import HEADER_BYTES, payload_limit
from experiments.bench.bed import (
    MEGA,
    ROOT,
    cores,
    forget_peak,
    on_cores,
    peak,
    program,
    python,
    repeating,
)
from experiments.bench.echo import echo_turn
from experiments.bench.edges import EdgeTask
from experiments.bench.rounds import Case, Figures, Ratio, Turn
from mapa.authority import Authority
from mapa.broker_files import write_broker
from mapa.brokers import (
    KEEP_PAGES,
    Broker,
    find_mosquitto,
    free_port,
    private_mosquitto,
)
from mapa.processes import ends_with_parent, start_child

_HERE = Path(__file__).parent
_SERVING = Path("experiments/bench/serving.py")  # of a tree
_PATIENCE = 60.0  # seconds until every edge has had a model
_SCRAPE_EVERY = 0.2  # seconds
_CEILINGS = {"raw C": ("-lz",), "libmosquitto": ("-DLIBMOSQUITTO", "-lz", "-lmosquitto")}
_LARGE = 20_000_000  # K·N from which messages take so long that more time is needed
_LONGER = 8  # times as much
LOGS = {"on": "process", "off": None, "process": "process", "power": "power"}


@dataclass(frozen=True, slots=True)
class Cell:
    """What the clouds of one comparison are asked to do."""

    edges: int  # K
    dimension: int  # N
    tls: bool = False  # between cloud and broker
    sealed: bool = False  # messages are proven, by edges in C

    def __str__(self) -> str:
        more = f"{', TLS' if self.tls else ''}{', sealed' if self.sealed else ''}"
        return f"K = {self.edges:,}, N = {self.dimension:,}{more}"


CELLS = (
    *(Cell(5, n) for n in (785, 7_850, 21_840)),
    *(Cell(20, n) for n in (785, 7_850, 155_520, 1_000_000)),
    Cell(2, 10_000_000),
    Cell(20, 7_850, tls=True),
)
QUICK_CELLS = (Cell(5, 785), Cell(20, 7_850))


@dataclass(frozen=True, slots=True)
class Plan:
    """How the clouds are measured."""

    cells: Sequence[Cell] = CELLS
    logs: Sequence[str | None] = ("process", None)
    warm: float = 0.15  # seconds
    seconds: float = 0.5  # after the warm ones
    against: Path | None = None
    only: Sequence[str] = ()  # names of clouds; none: all


# what a cloud is asked to serve: run, broker, ca, edges, dimension, directory
Task = dict[str, Any]
Meanwhile = contextlib.AbstractContextManager[None]


@dataclass(slots=True)
class TreeCloud:
    """Our cloud, or that of another tree, as a program that serves run after run."""

    name: str
    log: str | None  # how durable
    program: subprocess.Popen[str]
    metrics: bool = False  # they are asked for meanwhile, again and again

    def begin(self, task: Task) -> tuple[int, str, Meanwhile]:
        """Return the cloud's process id, a hello as hexadecimal digits, and what happens while it serves."""
        said = self._ask({**task, "log": self.log, "metrics": self.metrics})
        meanwhile: Meanwhile = contextlib.nullcontext()
        if self.metrics:
            address = f"http://127.0.0.1:{said['metrics']}/metrics"
            meanwhile = repeating(lambda: _scrape(address), _SCRAPE_EVERY)
        return self.program.pid, said["hello"], meanwhile

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


def _scrape(address: str) -> None:
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
        answer.read()


@dataclass(slots=True)
class CCloud:
    """A cloud in C; a program for each run."""

    name: str
    log: str | None
    binary: Path
    child: subprocess.Popen[str] | None = None

    def begin(self, task: Task) -> tuple[int, str, Meanwhile]:
        words = [task["broker"].rpartition(":")[2], task["run"], task["edges"], task["dimension"]]
        words += [f"{task['directory']}/{task['run']}.seg"] if self.log else []
        command = [str(self.binary), *map(str, words)]
        self.child = start_child(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **KEEP_PAGES})
        assert self.child.stdout is not None
        if not self.child.stdout.readline():
            raise MapaError(f"bench: {self.binary} did not begin")
        return self.child.pid, "00", contextlib.nullcontext()

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
    sealing: Path | None  # the one that proves its messages; None: there is none
    directory: Path
    rest: Sequence[int]  # processors of broker and edges
    numbers: Iterator[int] = field(default_factory=itertools.count)  # no two turns share a run's name

    def turn(self, cloud: Cloud, cell: Cell, warm: float, seconds: float) -> Figures:
        """Let one cloud serve; times are µs of processor an update."""
        run, edges, dimension = f"b{next(self.numbers)}", cell.edges, cell.dimension
        broker = f"127.0.0.1:{self.broker.address.port if cell.tls else self.plain_port}"
        task: Task = {"run": run, "broker": broker, "ca": self.ca if cell.tls else None}
        task |= {"edges": edges, "dimension": dimension, "directory": str(self.directory)}
        task["sealed"], lean = cell.sealed, self.sealing if cell.sealed else self.lean
        if cell.sealed and lean is None:
            raise MapaError("bench: edges that seal need a C compiler and OpenSSL's headers")
        with on_cores(first_core()):
            pid, hello, meanwhile = cloud.begin(task)
        pids = (pid, self.broker.pid)
        for one in pids:
            forget_peak(one)
        words = [self.plain_port, run, edges, dimension, warm, seconds, _PATIENCE, hello, *pids]
        command: dict[str, Any] = {"args": ends_with_parent([str(lean), *map(str, words)]), "text": True}
        if lean is None:
            many = EdgeTask(
                broker=f"127.0.0.1:{self.plain_port}",
                run=run,
                dimension=dimension,
                patience=_PATIENCE,
                count=edges,
                warm=warm,
                window=seconds,
                pids=pids,
            )
            command = python("-m", "experiments.bench.edges", json.dumps(asdict(many)))
        with on_cores(self.rest), meanwhile:
            told = subprocess.run(**command, stdout=subprocess.PIPE, check=False)
        cloud_peak, broker_peak = map(peak, pids)
        counted = cloud.end()
        for left in self.directory.glob(f"{run}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        seen = json.loads(told.stdout or '{"error": "the edges ended without a word"}')
        met = {name: counted[name] for name in ("lost", "refused") if counted.get(name)}
        error = seen.get("error") or (
            f"the cloud met {met}" if met else "" if seen["updates"] else "no update"
        )
        if error:
            raise MapaError(error)
        of_edges, of_cloud, of_broker = (MEGA * spent / seen["updates"] for spent in seen["cpu"])
        return {
            "rate": seen["updates"] / seen["seconds"],
            "cloud": of_cloud,
            "broker": of_broker,
            "edges": of_edges,
            "first model s": seen["first"],
            "resent": seen["resent"],
            "cloud MB": cloud_peak / MEGA,
            "broker MB": broker_peak / MEGA,
        }


def first_core() -> list[int]:
    """Return the cloud's core. Left to themselves programs move about, and the rate of one cloud varies fivefold."""
    every = cores()
    return every[:1] if len(every) > 1 else every


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
    rest = cores()[1:] or cores()
    with tempfile.TemporaryDirectory() as folder:
        directory, plain, ca = Path(folder), free_port(), None
        lean = compiled("lean_edges.c", directory)
        sealing = compiled("lean_edges.c", directory, "-DSEALED", "-lcrypto", name="sealing_edges")
        limit, extra = payload_limit(largest), list[str]()
        if tls:
            own = directory / "secrets"
            write_broker(own, Authority.create(directory / "authority", ["127.0.0.1"]), by_password=True)
            ca = str(own / "services.pem")
            extra = [
                f"certfile {own / 'server.pem'}",
                f"keyfile {own / 'server.key'}",
                f"listener {plain} 127.0.0.1",
            ]
        with (
            on_cores(rest),
            private_mosquitto(directory / "broker", max_payload=limit, extra=extra) as broker,
        ):
            yield Arena(broker, plain if tls else broker.address.port, ca, lean, sealing, directory, rest)


@contextlib.contextmanager
def clouds(place: Arena, plan: Plan) -> Iterator[dict[str, Cloud]]:
    """Start what takes part: trees first, then the ceilings that can be compiled here."""
    trees = {"ours": ROOT} if plan.against is None else {"ours": ROOT, "against": plan.against.resolve()}
    taking: list[Cloud] = []
    with contextlib.ExitStack() as stack, on_cores(first_core()):
        for name, tree in trees.items():
            if plan.only and name not in plan.only:
                continue
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            child = stack.enter_context(program(str(tree / _SERVING), tree=tree, **pipes))
            taking += [TreeCloud(name, log, child) for log in plan.logs]
        for name, options in _CEILINGS.items():
            binary = None
            if not plan.only or name in plan.only:
                binary = compiled("ceiling_cloud.c", place.directory, *options, name=name)
            if binary is not None:
                kept = [log for log in plan.logs if log in (None, "process")] if name == "raw C" else [None]
                taking += [CCloud(name, log, binary) for log in kept]
        yield {labelled(cloud.name, cloud.log): cloud for cloud in taking}


def labelled(name: str, log: str | None) -> str:
    return name if log is None else f"{name}, log" if log == "process" else f"{name}, log: {log}"


# -- what is asked of them --------------------------------------------------------------------------------------------


def ratios_of(cell: Cell, logs: Sequence[str | None]) -> list[Ratio]:
    """Return the bars of a cell, and the ratios that only inform; those that nothing measured are not told."""
    small, large = cell.dimension < 7_850, cell.edges * cell.dimension >= _LARGE
    heard = cell.edges <= 20 and cell.dimension <= 7_850
    asked: list[Ratio] = []
    for log in logs:
        ours = labelled("ours", log)
        most = 1.8 if large else 3.5 if small else 1.6
        asked.append(Ratio("cloud", ours, labelled("raw C", log), at_most=most if log or large else None))
        at_most = 2.8 if log is None and not small else None
        asked.append(Ratio("cloud", ours, "libmosquitto", at_most=at_most))
        asked.append(
            Ratio("rate", ours, "libmosquitto", at_least=0.55 if log == "process" and heard else None)
        )
        asked += [Ratio(figure, ours, labelled("against", log)) for figure in ("rate", "cloud")]
        if log is not None:
            asked.append(Ratio("rate", ours, "ours"))
    if "process" in logs and "power" in logs:
        asked.append(Ratio("rate", labelled("ours", "power"), labelled("ours", "process")))
    return asked


def cloud_cases(plan: Plan) -> Iterator[Case]:
    largest, tls = max(cell.dimension for cell in plan.cells), any(cell.tls for cell in plan.cells)
    with arena(largest, tls=tls) as place, clouds(place, plan) as taking:
        for cell in plan.cells:
            longer = _LONGER if cell.edges * cell.dimension >= _LARGE else 1
            turns: dict[str, Turn] = {
                name: functools.partial(place.turn, cloud, cell, longer * plan.warm, longer * plan.seconds)
                for name, cloud in taking.items()
                if not (cell.tls and isinstance(cloud, CCloud))
            }
            yield Case(f"{cell}; µs of processor an update", turns, ratios_of(cell, plan.logs))


def scale_cases(plan: Plan) -> Iterator[Case]:
    """Yield our cloud beside itself: with many edges, with metrics that are asked for, and the authors' way."""
    beside = replace(plan, logs=["process"], only=["ours", "raw C"])
    with arena(7_850) as place, clouds(place, beside) as taking:
        ours = taking["ours, log"]
        assert isinstance(ours, TreeCloud)
        scraped = TreeCloud("ours, scraped", "process", ours.program, metrics=True)

        def turn(cloud: Cloud, edges: int) -> Turn:
            return functools.partial(place.turn, cloud, Cell(edges, 7_850), plan.warm, plan.seconds)

        many = {f"{name}, K = {k:,}": turn(cloud, k) for name, cloud in taking.items() for k in (20, 1_000)}
        least = {"ours, log": 0.8}
        bars = [
            Ratio("rate", f"{name}, K = 1,000", f"{name}, K = 20", at_least=least.get(name))
            for name in taking
        ]
        yield Case("N = 7,850: many edges", many, bars)
        asked = {"unasked": turn(ours, 20), "scraped": turn(scraped, 20)}
        bars = [Ratio("rate", "scraped", "unasked", at_least=0.9)]
        yield Case("K = 20, N = 7,850: metrics scraped five times a second", asked, bars)
        both = {"ours": turn(ours, 5), "the authors' way": lambda: authors_turn(place, plan.seconds)}
        bars = [Ratio("rate", "ours", "the authors' way", at_least=80)]
        yield Case("K = 5, N = 7,850: pickled tensors, QoS 2, sockets as they come", both, bars)


def proof_cases(plan: Plan) -> Iterator[Case]:
    """Yield what proven messages cost, and TLS beside a bare echo over TLS."""
    plan = replace(plan, only=["ours"])
    cell = Cell(5, 7_850)
    with arena(cell.dimension, tls=True) as place, clouds(place, plan) as taking:
        turn = functools.partial(place.turn, warm=plan.warm, seconds=plan.seconds)
        for name, cloud in taking.items():
            both = {
                name: functools.partial(turn, cloud, cell),
                f"{name}, sealed": functools.partial(turn, cloud, replace(cell, sealed=True)),
            }
            bar = 0.85 if "log" in name else None
            asked = [
                Ratio("rate", f"{name}, sealed", name, at_least=bar),
                Ratio("cloud", f"{name}, sealed", name),
            ]
            yield Case(f"{cell}: proven messages; µs of processor an update", both, asked)

            def over_tls(cloud: Cloud = cloud) -> Figures:
                plain, secured = (turn(cloud, replace(cell, tls=tls))["cloud"] for tls in (False, True))
                return {"plain": plain, "TLS": secured, "extra": secured - plain}

            def echoed() -> Figures:
                size = HEADER_BYTES + 4 * cell.dimension + len("mapa/v1/b0/edge/edge-0/gradient") + 6
                plain, secured = (
                    echo_turn(files, size, plan.seconds, first_core(), place.rest)
                    for files in (None, place.directory / "secrets")
                )
                return {"plain": plain, "TLS": secured, "extra": secured - plain}

            bars = [Ratio("extra", name, "bare echo", at_most=1.1)]
            yield Case(f"{cell}: TLS; µs of processor an update", {name: over_tls, "bare echo": echoed}, bars)


def authors_turn(place: Arena, seconds: float) -> Figures:
    """Let the authors' way serve on a Mosquitto as it comes: Nagle's algorithm holds small packets back."""
    directory = place.directory / f"b{next(place.numbers)}"
    directory.mkdir()
    address, configuration = BrokerAddress("127.0.0.1", free_port()), directory / "mosquitto.conf"
    lines = [f"listener {address.port} {address.host}", "allow_anonymous true"]
    lines += ["user root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    configuration.write_text("\n".join([*lines, ""]))
    command = [str(find_mosquitto()), "-c", str(configuration)]  # there, or the tuned one had been refused
    broker = Broker(address=address, kind="mosquitto", command=command, log=directory / "mosquitto.log")
    words, port = ("-m", "experiments.bench.authors"), str(address.port)
    with contextlib.ExitStack() as stack:
        with on_cores(place.rest):
            stack.enter_context(broker.running())
        with on_cores(first_core()):
            cloud = stack.enter_context(
                program(*words, "cloud", port, "7850", str(max(1.0, seconds)), stdout=subprocess.PIPE)
            )
        assert cloud.stdout is not None
        if not cloud.stdout.readline():
            raise MapaError("bench: the authors' cloud did not begin")
        with on_cores(place.rest):
            stack.enter_context(program(*words, "edges", port, "5", "7850"))
        figures: dict[str, float] = json.loads(cloud.stdout.readline())
    return figures


def plan_of(k: Sequence[int], n: Sequence[int], logs: Sequence[str], tls: Sequence[str], **more: Any) -> Plan:
    """Return the plan of options; no K and no N: the usual cells."""
    against = more.get("against")
    if against is not None and not (against / _SERVING).is_file():
        raise ConfigurationError(f"--against {against}: no checkout of this project with {_SERVING}")
    choices = (
        ("--log", logs, tuple(LOGS)),
        ("--tls", tls, ("on", "off")),
        ("--clouds", more.get("only", ()), ("ours", "against", *_CEILINGS)),
    )
    for option, words, allowed in choices:
        if unknown := [word for word in words if word not in allowed]:
            raise ConfigurationError(f"{option} {unknown[0]}: allowed are {', '.join(allowed)}")
    if k or n or list(tls) != ["off"]:
        product = itertools.product(k or (5, 20), n or (785, 7_850), tls)
        more["cells"] = [Cell(edges, dimension, word == "on") for edges, dimension, word in product]
    return Plan(logs=[LOGS[word] for word in logs], **more)
