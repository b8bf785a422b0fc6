"""Many independent tasks: on this machine's cores, or on a Ray cluster. One BLAS thread each."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from common.errors import ConfigurationError

SWEEP_ENGINES = ("cores", "ray")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_LOST = "the process that ran it was killed"
_GRACE = 10.0  # seconds for workers that were killed to be gone

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Done(Generic[T, R]):
    """A task and what became of it: a value, or the error in words."""

    task: T
    value: R | None = None
    error: str | None = None


def sweep(
    work: Callable[[T], R],
    tasks: Sequence[T],
    *,
    engine: str = "cores",
    jobs: int | None = None,
    ray_address: str | None = None,
) -> Iterator[Done[T, R]]:
    """Yield every task as it ends, in whatever order; one that fails does not stop the others.

    `work` and the tasks must be picklable; on Ray the other hosts need this package, too.
    """
    if engine not in SWEEP_ENGINES:
        raise ConfigurationError(f"engine = {engine!r}: allowed are {', '.join(SWEEP_ENGINES)}")
    if not tasks:
        return
    if engine == "ray":
        yield from _on_ray(work, tasks, ray_address)
    else:
        yield from _on_cores(work, tasks, jobs or os.cpu_count() or 1)


def _on_cores(work: Callable[[T], R], tasks: Sequence[T], jobs: int) -> Iterator[Done[T, R]]:
    """A worker that is killed takes every waiting task of its pool along: they get another, then one each."""
    lost: list[T] = []
    for done in _in_pool(work, tasks, jobs):
        if done.error == _LOST:
            lost.append(done.task)
        else:
            yield done
    lost_again: list[T] = []
    for done in _in_pool(work, lost, jobs) if lost else ():
        if done.error == _LOST:
            lost_again.append(done.task)
        else:
            yield done
    for task in lost_again:
        yield from _in_pool(work, [task], 1)


def _in_pool(work: Callable[[T], R], tasks: Sequence[T], jobs: int) -> Iterator[Done[T, R]]:
    before = set(multiprocessing.active_children())
    with _environment(ONE_THREAD):  # read when a child imports numpy, so it must be there before
        pool = ProcessPoolExecutor(
            min(jobs, len(tasks)), multiprocessing.get_context("spawn"), initializer=_begin_worker
        )
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
                    yield Done(task, error=f"{type(error).__name__}: {error}")
        except BaseException:  # Ctrl-C, or nobody wants the rest: do not wait for what is running
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
    """Leave Ctrl-C to the parent, and end with it however it ends."""
    os.setsid()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def outlive_nobody() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=outlive_nobody, daemon=True).start()


def _on_ray(work: Callable[[T], R], tasks: Sequence[T], address: str | None) -> Iterator[Done[T, R]]:
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ConfigurationError("engine = 'ray': pip install 'mapa-testbed[ray]'") from error
    ours = not ray.is_initialized()
    if ours:
        _expect_listener(address)
        try:
            ray.init(
                address=address, log_to_driver=False, include_dashboard=False if address is None else None
            )
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
                except Exception as error:  # whatever the task raised, or the node died of
                    cause = getattr(error, "cause", None) or error
                    yield Done(task, error=f"{type(cause).__name__}: {cause}")
    finally:
        if ours:
            ray.shutdown()


def _expect_listener(address: str | None) -> None:
    """Refuse HOST:PORT where nobody listens: Ray itself would wait for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # None, `auto`, ray://…
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConfigurationError(f"ray_address = {address!r}: {error}") from error


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
