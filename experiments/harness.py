"""Experiment harness: cached, resumable runs in parallel on this machine's cores or a Ray cluster.

`sweep` runs independent tasks with one BLAS thread each; `Harness` runs those whose results the cache lacks.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import Field, asdict, dataclass, fields
from fnmatch import fnmatch
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pydantic import TypeAdapter

from common.errors import ConfigurationError, MapaError
from mapa.simulation.simulator import Outcome

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SWEEP_ENGINES = ("cores", "ray")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_LOST = "the process that ran it was killed"
_GRACE = 10.0  # seconds for workers that were killed to be gone

_MOST_ROWS = 1_000_000  # of a table of others

T = TypeVar("T")
R = TypeVar("R")
D = TypeVar("D", bound="DataclassInstance")
OnProgress = Callable[[float, float, str], None]  # cost done, cost in all, what ended last


class UnfinishedError(MapaError):
    """A run ended before T and did not diverge: it has no place in a table or figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    size: str
    out: Path
    data_dir: Path
    seeds: int | None = None  # the most for any point, whatever the size says
    only: Sequence[str] = ()  # globs of names; none: all
    resume: bool = True  # take what the cache holds
    engine: str = "cores"
    jobs: int | None = None
    ray_address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[R]):
    """Runs that share a process; `sweep` must be able to pickle their work."""

    name: str
    labels: Mapping[str, str]  # the key of each result, in order, and the words for it in a list of failures
    work: Callable[[], Sequence[R]]
    cost: float = 1.0  # seconds, roughly: it only moves the progress bar
    alone: bool = False  # needs the whole machine: it then runs in this process, after the others

    def run(self) -> Sequence[R]:
        return self.work()


class ResultCache(Generic[R]):
    """Results by key, as JSON files that appear whole or not at all; damaged ones are as if they were not there."""

    def __init__(self, directory: Path, kind: type[R]) -> None:
        self.directory = directory
        self._values: TypeAdapter[R] = TypeAdapter(kind)

    def get(self, key: str) -> R | None:
        try:
            text = (self.directory / f"{key}.json").read_text(encoding="utf-8")
            return self._values.validate_python(json.loads(text))
        except (OSError, ValueError):
            return None

    def put(self, key: str, result: R) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = self.directory / f".{key}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(self._values.dump_python(result)), encoding="utf-8")
        temporary.replace(self.directory / f"{key}.json")


class Harness(Generic[R]):
    """Runs jobs as an order says; keeps results by key, and failures by label."""

    def __init__(
        self, order: Order, cache: ResultCache[R] | None = None, on_progress: OnProgress | None = None
    ) -> None:
        self.order, self.cache = order, cache
        self._on_progress = on_progress or (lambda *_: None)
        self.results: dict[str, R] = {}
        self.failures: dict[str, str] = {}
        self.runs = self.cached = 0

    def recall(self, keys: Iterable[str]) -> None:
        """Take what the cache holds of these results."""
        for key in set(keys) - self.results.keys():
            result = self.cache.get(key) if self.cache is not None else None
            if result is not None:
                self.results[key] = result
                self.cached += 1

    def run(self, jobs: Sequence[Job[R]]) -> None:
        """Run the jobs; a job that fails does not stop the others."""
        total, spent = sum(job.cost for job in jobs), 0.0
        if jobs:
            self._on_progress(spent, total, "")
        together = [job for job in jobs if not job.alone]
        swept = sweep(
            Job.run,
            together,
            engine=self.order.engine,
            jobs=self.order.jobs,
            ray_address=self.order.ray_address,
        )
        for done in itertools.chain(swept, (_here(job) for job in jobs if job.alone)):
            for key, result in zip(done.task.labels, done.value or (), strict=False):
                self.results[key] = result
                self.runs += 1
                if self.cache is not None:
                    self.cache.put(key, result)
            if done.error is not None:
                self.failures.update(dict.fromkeys(done.task.labels.values(), done.error))
            spent += done.task.cost
            self._on_progress(spent, total, done.task.name)


def _here(job: Job[R]) -> Done[Job[R], Sequence[R]]:
    try:
        return Done(job, job.run())
    except MapaError as error:
        return Done(job, error=_in_words(error))


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def result_key(*parts: object) -> str:
    """Return the name of a result in the cache: a digest of everything it depends on."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def require_end(name: str, outcome: Outcome) -> None:
    """Raise UnfinishedError unless the run finished or diverged, which is a result, too."""
    if outcome.reason not in ("finished", "diverged"):
        raise UnfinishedError(f"{name}: {outcome.reason} after {outcome.tally.updates} updates")


def matching(items: Sequence[T], globs: Sequence[str], name: Callable[[T], str]) -> list[T]:
    """Return the items whose name matches one of the globs; all without globs. Refuse to return none."""
    chosen = [item for item in items if not globs or any(fnmatch(name(item), glob) for glob in globs)]
    if not chosen:
        names = ", ".join(sorted(set(map(name, items))))
        raise ConfigurationError(f"only = {list(globs)}: matches none of {names}")
    return chosen


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation over seeds; 0 for a single one."""
    return stdev(values) if len(values) > 1 else 0.0


def percent(values: Sequence[float], digits: int = 2, sign: str = " ± ") -> str:
    """Return the mean in percent, and the standard deviation where there are several values."""
    if not values:
        return "–"
    mean = f"{100 * fmean(values):.{digits}f}"
    return mean + (f"{sign}{100 * deviation(values):.{digits}f}" if len(values) > 1 else "")


# -- tables ------------------------------------------------------------------------------------------


def csv_table(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows as CSV; cells that a row lacks are empty, and real numbers have six digits."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"{v:.6g}" if isinstance(v, float) else v for key, v in row.items()})
    return stream.getvalue()


def write_values(path: Path, kind: type[D], rows: Iterable[D]) -> None:
    columns = [column.name for column in fields(kind)]
    path.write_text(csv_table(columns, map(asdict, rows)), encoding="utf-8")


def read_values(path: Path, kind: type[D], most: Mapping[str, float]) -> list[D]:
    """Read dataclasses whose fields are numbers from 0 and printable text, of any origin.

    ConfigurationError names the line and what is wrong with it. `most` has the largest value of some columns, and
    under "" that of the others.
    """
    columns = [column.name for column in fields(kind)]
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            if list(reader.fieldnames or ()) != columns:
                raise ConfigurationError(f"{path}: the columns must be {','.join(columns)}")
            rows: list[D] = []
            for number, texts in enumerate(reader, 2):
                place = f"{path}, line {number}"
                if number > _MOST_ROWS:
                    raise ConfigurationError(f"{place}: more than {_MOST_ROWS:,} lines")
                if None in texts.values() or None in texts:
                    raise ConfigurationError(f"{place}: must have {len(columns)} values")
                rows.append(kind(**{c.name: _value(c, texts[c.name], most, place) for c in fields(kind)}))
            return rows
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _value(column: Field[Any], text: str, most: Mapping[str, float], place: str) -> int | float | str:
    if not text.isprintable():
        raise ConfigurationError(f"{place}: {column.name}: not printable")
    if column.type == "str":
        return text
    try:
        value = int(text) if column.type == "int" else float(text)
    except ValueError:
        raise ConfigurationError(f"{place}: {column.name} = {text!r}: not {column.type}") from None
    largest = most.get(column.name, most[""])
    if not 0 <= value <= largest:
        allowed = f"from 0 to {largest:g}" if column.name in most else "at least 0"
        raise ConfigurationError(f"{place}: {column.name} = {value}: must be {allowed}")
    return value


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, without a newline at its end."""
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in cells] for cells in (heads, *rows)]
    first, *others = ("| " + " | ".join(cells) + " |" for cells in lines)
    return "\n".join([first, "|" + "---|" * len(heads), *others])


@dataclass(frozen=True, slots=True)
class Done(Generic[T, R]):
    """A task and what became of it: a value, or the error in words."""

    task: T
    value: R | None = None
    error: str | None = None

    def result(self) -> R:
        if self.error is not None:
            raise UnfinishedError(f"{self.task}: {self.error}")
        return cast(R, self.value)


def sweep(
    work: Callable[[T], R],
    tasks: Sequence[T],
    *,
    engine: str = "cores",
    jobs: int | None = None,
    ray_address: str | None = None,
) -> Iterator[Done[T, R]]:
    """Yield every task as it ends, in whatever order; one that fails does not stop the others.

    `jobs` at once: by default one for each core that this process may use. `work` and the tasks must be picklable; on
    Ray the other hosts need this package, too.
    """
    if engine not in SWEEP_ENGINES:
        raise ConfigurationError(f"engine = {engine!r}: allowed are {', '.join(SWEEP_ENGINES)}")
    if not tasks:
        return
    if engine == "ray":
        yield from _on_ray(work, tasks, ray_address)
    else:
        yield from _on_cores(work, tasks, jobs or _cores())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _on_cores(work: Callable[[T], R], tasks: Sequence[T], jobs: int) -> Iterator[Done[T, R]]:
    """A killed worker takes every waiting task of its pool along: retry them together, then each alone."""
    for _ in range(2):
        lost = []
        for done in _in_pool(work, tasks, jobs) if tasks else ():
            if done.error == _LOST:
                lost.append(done.task)
            else:
                yield done
        tasks = lost
    for task in tasks:
        yield from _in_pool(work, [task], 1)


def _in_pool(work: Callable[[T], R], tasks: Sequence[T], jobs: int) -> Iterator[Done[T, R]]:
    before = set(multiprocessing.active_children())
    with _one_thread_each():  # read when a child imports numpy, so it must be there before
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(jobs, len(tasks)), spawn, initializer=_begin_worker)
        try:
            waiting: dict[Future[R], T] = {pool.submit(work, task): task for task in tasks}
            for future in as_completed(waiting):
                task = waiting.pop(future)
                error = future.exception()
                if error is None:
                    yield Done(task, future.result())
                elif isinstance(error, BrokenExecutor):
                    yield Done(task, error=_LOST)
                else:
                    yield Done(task, error=_in_words(error))
        except BaseException:  # Ctrl-C, or the caller stops iterating: do not wait for what is running
            pool.shutdown(wait=False, cancel_futures=True)
            children = set(multiprocessing.active_children()) - before
            for child in children:
                child.kill()  # at SIGTERM a simulation stops, and its worker would begin the next task
            _await_end(children)
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _await_end(children: Set[BaseProcess]) -> None:
    """Return when they are gone; not by `join`, which misses a child that the pool's own thread waits for, too."""
    until = time.monotonic() + _GRACE
    while children & set(multiprocessing.active_children()) and time.monotonic() < until:
        time.sleep(0.01)


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, and end whenever the parent ends."""
    os.setsid()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _on_ray(work: Callable[[T], R], tasks: Sequence[T], address: str | None) -> Iterator[Done[T, R]]:
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ConfigurationError("engine = 'ray': pip install 'mapa-testbed[ray]'") from error
    ours = not ray.is_initialized()
    if ours:
        _expect_listener(address)
        try:
            dashboard = False if address is None else None
            ray.init(address=address, log_to_driver=False, include_dashboard=dashboard)
        except (ConnectionError, ValueError) as error:
            raise ConfigurationError(f"ray_address = {address!r}: {error}") from error
    try:
        remote: Any = ray.remote(work).options(num_cpus=1, runtime_env={"env_vars": ONE_THREAD})
        waiting = {remote.remote(task): task for task in tasks}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                task = waiting.pop(reference)
                try:
                    yield Done(task, ray.get(reference))
                except Exception as error:  # raised by the task, or the node died
                    yield Done(task, error=_in_words(getattr(error, "cause", None) or error))
    finally:
        if ours:
            ray.shutdown()


def _expect_listener(address: str | None) -> None:
    """Refuse HOST:PORT where nothing listens: Ray itself would wait for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # None, `auto`, ray://…
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConfigurationError(f"ray_address = {address!r}: {error}") from error


@contextmanager
def _one_thread_each() -> Iterator[None]:
    before = {name: os.environ[name] for name in ONE_THREAD if name in os.environ}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name in ONE_THREAD:
            del os.environ[name]
        os.environ.update(before)
