"""Python, packages, extras and a broker: looked up, never imported."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from mapa.brokers import find_mosquitto
from mapa.doctor.asking import ask
from mapa.doctor.finding import BASIC, Finding, State, by_platform

_OURS = "mapa-testbed"
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?P<bounds>[^;]*)(?:;(?P<marker>.*))?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([a-z0-9-]+)['\"]")
_LEFT_OUT = ("all", "dev")  # all: every other one; dev: for whoever changes mapa
_ABOUT = {
    "cnn": "the built-in CNN",
    "torch": "a torch module of your own",
    "embedded": "the data set mnist-5k, which quickstart uses",
    "usps": "USPS as an HDF5 file",
    "images": "folders of images",
    "parquet": "records in Parquet files",
    "huggingface": "what `datasets` wrote",
    "tables": "digits, breast-cancer and diabetes",
    "broker": "--broker embedded, where no Mosquitto is installed",
    "privacy": "tight totals of ε, and budgets",
    "figures": "mapa compare, pictures",
    "pandas": "run.to_pandas()",
    "ray": "sweeps on a cluster",
    "containers": "mapa containers",
    "dashboard": "mapa dashboard",
    "metrics": "--metrics-port: an endpoint for Prometheus",
    "tensorboard": "mapa export --to tensorboard",
    "mlflow": "mapa export --to mlflow",
    "browser": "tests and pictures of the page in Chromium",
    "docs": "make docs",
}
_BASIC_EXTRAS = ("embedded", "privacy")  # quickstart needs its data, and a statement of privacy


def software() -> Iterator[Finding]:
    """Yield what is installed."""
    yield _python()
    yield _package(_OURS, "", "everything", frozenset({BASIC}))
    core, extras = _declared()
    for name, bounds in core.items():
        yield _package(name, bounds, "everything", frozenset({BASIC}))
    for extra, packages in extras.items():
        yield _extra(extra, packages)
    yield from _brokers()


def _python() -> Finding:
    found = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    return Finding(
        name="Python",
        state=State.OK if sys.version_info >= (3, 11) else State.BROKEN,
        found=found,
        needed_for="everything (3.11 or newer)",
        serves=frozenset({BASIC}),
        mend=""
        if sys.version_info >= (3, 11)
        else by_platform(debian="apt install python3", mac="brew install python"),
    )


def _declared() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the packages that ours requires, and those of each extra, with the versions that they must have."""
    core: dict[str, str] = {}
    extras: dict[str, dict[str, str]] = {}
    try:
        lines = requires(_OURS) or []
    except PackageNotFoundError:
        lines = []
    for line in lines:
        found = _REQUIREMENT.fullmatch(line)
        if found is None or found["name"] == _OURS:
            continue
        extra = _EXTRA.search(found["marker"] or "")
        if extra is None:
            core[found["name"]] = found["bounds"].strip()
        elif extra[1] not in _LEFT_OUT:
            extras.setdefault(extra[1], {})[found["name"]] = found["bounds"].strip()
    return core, extras


def _package(name: str, bounds: str, needed_for: str, serves: frozenset[str]) -> Finding:
    have, fits = _installed(name, bounds)
    return Finding(
        name=name,
        state=State.MISSING if have is None else State.OK if fits else State.BROKEN,
        found=f"{have or 'not installed'}{'' if have and fits else f', needs {bounds}' if bounds else ''}",
        needed_for=needed_for,
        serves=serves,
        mend="" if have is not None and fits else f"pip install --upgrade {_OURS}",
    )


def _extra(extra: str, packages: dict[str, str]) -> Finding:
    have = {name: _installed(name, bounds) for name, bounds in packages.items()}
    absent = [name for name, (found, _) in have.items() if found is None]
    old = [
        f"{name} {found}, needs {packages[name]}"
        for name, (found, fits) in have.items()
        if found and not fits
    ]
    state = State.BROKEN if old else State.MISSING if absent else State.OK
    said = [*(f"no {name}" for name in absent), *old] or [
        f"{name} {found}" for name, (found, _) in have.items()
    ]
    mend = f"pip install '{_OURS}[{extra}]'"
    if "torch" in packages:
        mend = f"sh docker/install-torch.sh {sys.executable}  (the CPU build; or {mend})"
    return Finding(
        name=f"extra {extra}",
        state=state,
        found=", ".join(said),
        needed_for=_ABOUT.get(extra, f"what the extra {extra} is for"),
        serves=frozenset({extra, *((BASIC,) if extra in _BASIC_EXTRAS else ())}),
        mend="" if state is State.OK else mend,
    )


def _installed(name: str, bounds: str) -> tuple[str | None, bool]:
    """Return a package's version, and whether it lies within the bounds, which here are `>=` and `==` alone."""
    try:
        have = version(name)
    except PackageNotFoundError:
        return None, False
    for bound in filter(None, (part.strip() for part in bounds.split(","))):
        wanted = _numbers(bound.lstrip("><=!~"))
        mine = _numbers(have)
        if bound.startswith(">=") and mine < wanted:
            return have, False
        if bound.startswith("==") and mine[: len(wanted)] != wanted:
            return have, False
    return have, True


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:4])


def _brokers() -> Iterator[Finding]:
    binary = find_mosquitto()
    embedded = importlib.util.find_spec("amqtt") is not None
    install = by_platform(debian="apt install mosquitto", mac="brew install mosquitto")
    if binary is None:
        yield Finding(
            name="Mosquitto",
            state=State.MISSING,
            found="no binary on PATH",
            needed_for="a private broker of mapa run; mapa chaos",
            serves=frozenset({"mosquitto", "chaos"}),
            mend=install,
        )
    else:
        said = re.search(r"mosquitto version (\S+)", (answer := ask([binary, "-h"])).out + answer.err)
        yield Finding(
            name="Mosquitto",
            state=State.OK if said else State.BROKEN,
            found=f"{said[1]}, {binary}"
            if said
            else f"{binary} does not say its version: {answer.err[:200]}",
            needed_for="a private broker of mapa run; mapa chaos",
            serves=frozenset({"mosquitto", "chaos"}),
            mend="" if said else install,
        )
    one = binary is not None or embedded
    yield Finding(
        name="a broker of our own",
        state=State.OK if one else State.MISSING,
        found="Mosquitto"
        if binary is not None
        else "embedded (slower)"
        if embedded
        else "neither Mosquitto nor amqtt",
        needed_for="mapa run",
        serves=frozenset({BASIC}),
        mend="" if one else f"{install}  (or pip install '{_OURS}[broker]')",
    )
