"""What a budget permits, z or a number of releases, kept from one run to the next where a program gives a store.

The key is a hash of every input, of the accountant's own code and of the libraries below it. What a store returns is
never taken into less noise or more releases unchecked: `budget` accounts it again, once, before it counts. Edges give
no store, nor does `mapa verify`: budgets are guarded, and statements made and checked, by figures of there and then.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, TypeVar

from common.accounting.releases import ReleaseKind
from common.errors import ConfigurationError

_LIBRARIES = ("numpy", "scipy")
_OURS = "common."
_WORTH = 0.05  # seconds: what is found sooner is not kept

T = TypeVar("T")


class Store(Protocol):
    """Texts by key; what cannot be read as it was written is None."""

    def read_text(self, key: bytes) -> str | None: ...
    def write_text(self, key: bytes, text: str) -> None: ...


_store: ContextVar[Store | None] = ContextVar("store", default=None)


@contextlib.contextmanager
def kept_in(store: Store | None) -> Iterator[None]:
    """Keep figures there, and take them from there, until the end of the block; None: nowhere."""
    token = _store.set(store)
    try:
        yield
    finally:
        _store.reset(token)


def remembered(
    compute: Callable[[], T],
    *about: object,
    kinds: Iterable[ReleaseKind],
    read: Callable[[Any], T | None],
) -> T:
    """Return the figure kept for `about`, else compute it and keep it.

    `about` must say all that the figure depends on in its repr; of a law or part of another origin than ours nothing is
    kept, since no key could hold its code. `read` returns None for what cannot be such a figure.
    """
    store = _store.get()
    if store is None or not all(map(_is_ours, kinds)):
        return compute()
    key = hashlib.sha256(f"{_accountant()}\0{about!r}".encode()).digest()
    text = store.read_text(key)
    if text is not None:
        try:
            found = read(json.loads(text))
        except (ValueError, TypeError, KeyError, RecursionError, ArithmeticError, ConfigurationError):
            found = None
        if found is not None:
            return found
    began = time.perf_counter()
    value = compute()
    if time.perf_counter() - began >= _WORTH:
        store.write_text(key, json.dumps(value))
    return value


def _is_ours(kind: ReleaseKind) -> bool:
    m = kind.mechanism
    return all(type(part).__module__.startswith(_OURS) for part in (m.law, m.sampler, m.clipping, m.work))


@functools.cache
def _accountant() -> str:
    """Return what names this accountant: its code, that of the mechanisms, and the versions of what it uses."""
    code = hashlib.sha256()
    here = Path(__file__).parent
    for folder in (here, here.parent / "noise", here.parent / "mechanism"):
        for path in sorted(folder.rglob("*.py")):
            code.update(path.read_bytes())
    return "\0".join((sys.version, code.hexdigest(), *map(_version, _LIBRARIES)))


def _version(library: str) -> str:
    from importlib import metadata  # only where there is a store: an edge starts without it

    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""
