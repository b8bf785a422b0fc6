"""What this machine has for mapa: software, folders, memory, ports, Docker, data sets, and how to fix what it lacks.

Packages are looked up, never imported; nothing is written.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import importlib.util
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from common.datasets import cifar, fashion_mnist, mnist
from common.datasets.catalogue import Description, describe, load_dataset
from common.datasets.files import sha256_of
from common.errors import MapaError
from mapa.brokers import find_mosquitto

BASIC = "basic"  # simulate and run the quickstart on this machine
PATIENCE = 8.0  # seconds for one answer of another program
IMAGES = ("mapa-cloud", "mapa-edge-cnn")
_OURS = "mapa-testbed"
_LEAST_DISK = 200 << 20  # bytes; below it a run of any length fills the disk
_LEAST_MEMORY = 512 << 20  # bytes available; quickstart's processes take about 400 MB
_LEFT_OUT = ("all", "dev")  # all: every other one; dev: to change mapa itself
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
_BASIC_PARTS = ("embedded", "privacy", "mnist-5k")  # quickstart needs its data, and a statement of privacy
_PORTS = {
    1883: ("a broker that other hosts reach (docker/cloud.yml, your own Mosquitto)", "deploy"),
    8080: ("mapa dashboard, or else the next free port; Compose's page (or set DASHBOARD_PORT)", "page"),
}
_IN_PACKAGES = {"mnist-5k": "embedded", "digits": "tables", "breast-cancer": "tables", "diabetes": "tables"}
_LARGE = {
    "mnist": (mnist.find_mnist, mnist.SHA256, mnist.content_sha256),
    "fashion-mnist": (fashion_mnist.find_fashion, fashion_mnist.SHA256, mnist.content_sha256),
    "cifar-10": (cifar.find_cifar, cifar.SHA256, sha256_of),
}


class CheckState(Enum):
    OK = "ok"
    NOTE = "note"  # worth knowing; nothing is wrong
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One check: what was found, what that is needed for, and how it is fixed."""

    name: str
    state: CheckState
    found: str
    needed_for: str
    purposes: Collection[str] = ()  # that need it
    fix: str = ""  # a command or what to do; "": nothing to do

    @property
    def wrong(self) -> bool:
        return self.state in (CheckState.MISSING, CheckState.BROKEN)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state.value,
            "found": self.found,
            "needed_for": self.needed_for,
            "purposes": sorted(self.purposes),
            "mend": (self.state is not CheckState.OK and self.fix) or None,
        }


def examine(runs: Path, data_dir: Path, *, checksums: bool) -> Iterator[MachineCheck]:
    """Yield every check of this machine."""
    yield from check_software()
    yield _check_folder("runs", runs, "--runs-dir", "records of runs", BASIC)
    yield _check_folder("data", data_dir, "MAPA_DATA_DIR", "data sets that are downloaded", "download")
    yield _check_memory()
    for port, (needed_for, purpose) in _PORTS.items():
        yield check_port(port, needed_for, purpose)
    yield _check_clock()
    readable = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    terminal = "a terminal" if sys.stderr.isatty() else "no terminal: no bars, no colours"
    yield MachineCheck(
        "terminal",
        CheckState.OK if readable else CheckState.NOTE,
        f"{terminal}, {sys.stdout.encoding}",
        "progress bars, and the symbols ε, δ, Δ",
        fix="export PYTHONUTF8=1",
    )
    yield from check_engine()
    yield from check_data_sets(data_dir, checksums=checksums)


def in_the_way(checks: Collection[MachineCheck], purposes: Collection[str]) -> list[MachineCheck]:
    """Return what is wrong with what these purposes need."""
    return [check for check in checks if check.wrong and not set(check.purposes).isdisjoint(purposes)]


def by_platform(*, debian: str, mac: str) -> str:
    """Return the command for this platform; both where it is neither."""
    if sys.platform == "darwin":
        return mac
    return debian if _is_debian() else f"Debian, Ubuntu: {debian}; macOS: {mac}"


def _is_debian() -> bool:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return False
    names = f"{release.get('ID', '')} {release.get('ID_LIKE', '')}".split()
    return not {"debian", "ubuntu"}.isdisjoint(names)


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
    """Yield Python, the packages that ours requires, its extras, and a broker."""
    ours = (3, 11)
    yield MachineCheck(
        "Python",
        CheckState.OK if sys.version_info >= ours else CheckState.BROKEN,
        f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}",
        "everything (3.11 or newer)",
        {BASIC},
        by_platform(debian="apt install python3", mac="brew install python"),
    )
    extras: dict[str, list[Requirement]] = {}
    core = [Requirement(_OURS)]
    with contextlib.suppress(PackageNotFoundError):
        for requirement in map(Requirement, requires(_OURS) or []):
            extra = re.search(r"extra == \"([^\"]+)\"", str(requirement.marker or ""))
            if requirement.name != _OURS:
                (core if extra is None else extras.setdefault(extra[1], [])).append(requirement)
    for requirement in core:
        state, found = installed(requirement)
        upgrade = f"pip install --upgrade {_OURS}"
        yield MachineCheck(requirement.name, state, found, "everything", {BASIC}, upgrade)
    for extra in [name for name in extras if name not in _LEFT_OUT]:
        yield _check_extra(extra, extras[extra])
    yield from _check_brokers()


def installed(requirement: Requirement) -> tuple[CheckState, str]:
    """Return whether a package is there in the version that it must have, and which it is."""
    bounds = f", needs {requirement.specifier}" if requirement.specifier else ""
    try:
        have = version(requirement.name)
    except PackageNotFoundError:
        return CheckState.MISSING, f"not installed{bounds}"
    fits = requirement.specifier.contains(have, prereleases=True)
    return (CheckState.OK, have) if fits else (CheckState.BROKEN, f"{have}{bounds}")


def _check_extra(extra: str, packages: list[Requirement]) -> MachineCheck:
    results = {package.name: installed(package) for package in packages}
    states = [state for state, _ in results.values()]
    worst = max(states, key=list(CheckState).index)
    shown = [
        f"no {name}" if state is CheckState.MISSING else f"{name} {found}"
        for name, (state, found) in results.items()
        if worst is CheckState.OK or state is not CheckState.OK
    ]
    fix = f"pip install '{_OURS}[{extra}]'"
    if "torch" in results:
        fix = f"sh docker/install-torch.sh {sys.executable}  (the CPU build; or {fix})"
    needed_for = _ABOUT.get(extra, f"what the extra {extra} is for")
    purposes = {extra, *((BASIC,) if extra in _BASIC_PARTS else ())}
    return MachineCheck(f"extra {extra}", worst, ", ".join(shown), needed_for, purposes, fix)


def _check_brokers() -> Iterator[MachineCheck]:
    binary = find_mosquitto()
    embedded = importlib.util.find_spec("amqtt") is not None
    install = by_platform(debian="apt install mosquitto", mac="brew install mosquitto")
    state, found = CheckState.MISSING, "no binary on PATH"
    if binary is not None:
        _, out, err = ask([binary, "-h"])
        number = re.search(r"mosquitto version (\S+)", out + err)
        state = CheckState.OK if number else CheckState.BROKEN
        found = f"{number[1]}, {binary}" if number else f"{binary} does not say its version: {err[:200]}"
    needed_for = "a private broker of mapa run; mapa chaos"
    yield MachineCheck("Mosquitto", state, found, needed_for, {"mosquitto", "chaos"}, install)
    either = "Mosquitto" if binary else "embedded (slower)" if embedded else "neither Mosquitto nor amqtt"
    state = CheckState.OK if binary or embedded else CheckState.MISSING
    fix = f"{install}  (or pip install '{_OURS}[broker]')"
    yield MachineCheck("a broker of our own", state, either, "mapa run", {BASIC}, fix)


# -- machine ------------------------------------------------------------------------------------------------


def _check_folder(name: str, path: Path, option: str, needed_for: str, purpose: str) -> MachineCheck:
    """Look at a folder, or at the first one above it that is there: that is where it would be made."""
    here = path.absolute()
    while not here.exists() and here != here.parent:
        here = here.parent
    where = str(path) if path.exists() else f"{path} (made when it is first used)"
    state, fix = CheckState.BROKEN, f"move it away, or give {option}"
    if path.exists() and not path.is_dir():
        found = f"{path} is no folder"
    elif not os.access(here, os.W_OK | os.X_OK):
        found = f"{where}: not writable by user {os.geteuid()}"
        fix = f"give {option} a folder that you may write to, or: sudo chown $(id -u) {here}"
        if purpose != BASIC:
            state = CheckState.NOTE  # its data sets can be read all the same
    else:
        free = shutil.disk_usage(here).free
        found = f"{where}: writable, {_bytes(free)} free"
        state = CheckState.OK if free >= _LEAST_DISK else CheckState.BROKEN
        fix = "make room, or `mapa runs list --sort size` and `mapa runs rm`"
    return MachineCheck(f"folder {name}", state, found, needed_for, {purpose}, fix)


def _check_memory() -> MachineCheck:
    """Look at the memory that is available; a container's limit counts where it is less."""
    state, found = CheckState.OK, "unknown"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        found = _bytes(total)
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        available = int(meminfo.partition("MemAvailable:")[2].split()[0]) << 10
        with contextlib.suppress(OSError, ValueError):
            group = Path("/sys/fs/cgroup")
            limit = int((group / "memory.max").read_text(encoding="ascii"))
            left = limit - int((group / "memory.current").read_text(encoding="ascii"))
            total, available = min(total, limit), min(available, max(0, left))
        state = CheckState.OK if available >= _LEAST_MEMORY else CheckState.BROKEN
        found = f"{_bytes(total)}, {_bytes(available)} available"
    fix = "end other programs, or use fewer edges (--edges, --processes)"
    return MachineCheck("memory", state, found, "cloud and edge processes", {BASIC}, fix)


def check_port(port: int, needed_for: str, purpose: str) -> MachineCheck:
    """Return whether a port of the loopback interface is free: bound for a moment, never listened on."""
    state, found, fix = CheckState.OK, "free", ""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            state, found, fix = CheckState.BROKEN, f"cannot be bound: {error.strerror}", "choose another port"
            if error.errno == errno.EADDRINUSE:
                linux = sys.platform == "linux"
                program = f"ss -ltnp 'sport = :{port}'" if linux else f"lsof -iTCP:{port} -sTCP:LISTEN"
                state, found, fix = CheckState.NOTE, "in use by another program", f"{program}  says by which"
    return MachineCheck(f"port {port}", state, found, needed_for, {purpose}, fix)


def _check_clock() -> MachineCheck:
    sane = time.time() > Path(__file__).stat().st_mtime - 86400
    found = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC{'' if sane else ' is before mapa was installed'}"
    return MachineCheck(
        "clock",
        CheckState.OK if sane else CheckState.BROKEN,
        f"{found}; not compared with any other machine's",
        "times on record, names of runs, TLS certificates; runs themselves count monotonic time",
        {BASIC},
        "set the clock (Debian: timedatectl set-ntp true)",
    )


def _bytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"


# -- containers ---------------------------------------------------------------------------------------------


def check_engine() -> Iterator[MachineCheck]:
    """Yield Docker engine, Compose and images, asked by the `docker` program; images only of an engine that answers."""
    purposes, needed_for = {"containers"}, "mapa containers, docker compose"
    binary = shutil.which("docker")
    if binary is None:
        fix = by_platform(
            debian="make engine  (installs and starts one; needs root)",
            mac="brew install colima docker docker-compose && colima start",
        )
        state, found = CheckState.MISSING, "no `docker` on PATH"
        yield MachineCheck("Docker engine", state, found, needed_for, purposes, fix)
        return
    answers, out, err = ask([binary, "version", "--format", "{{json .}}"])
    where = f"user {_user()} at {os.environ.get('DOCKER_HOST') or 'the usual socket'}"
    if answers:
        server = re.search(r'"Server":.*?"Version":\s*"([^"]+)"', out, re.DOTALL)
        rootless = "rootless" in ask([binary, "info", "--format", "{{json .SecurityOptions}}"])[1]
        number, kind = server[1] if server else "version unknown", "rootless" if rootless else "rootful"
        found = f"{number}, {kind}, answers {where}"
    else:
        found = f"does not answer {where}: {err.splitlines()[-1][:200] if err else 'no answer'}"
    fix = by_platform(
        debian="sudo systemctl start docker  (without systemd: make engine)",
        mac="colima start  (or: open -a Docker)",
    )
    if "permission denied" in err.lower():
        fix = "sudo usermod -aG docker $USER, then log in again (its members are as good as root)"
    state = CheckState.OK if answers else CheckState.BROKEN
    yield MachineCheck("Docker engine", state, found, needed_for, purposes, fix)
    works, out, _ = ask([binary, "compose", "version", "--short"])
    state, found = (CheckState.OK, out[:80]) if works else (CheckState.MISSING, "no `docker compose`")
    debian, mac = "make engine  (or: apt install docker-compose-v2)", "brew install docker-compose"
    fix = by_platform(debian=debian, mac=mac)
    yield MachineCheck("Docker Compose", state, found, "docker compose up, make up", purposes, fix)
    for image in IMAGES if answers else ():
        built, out, _ = ask([binary, "image", "inspect", "--format", "{{.Id}} {{.Created}}", image])
        state = CheckState.OK if built else CheckState.MISSING
        found = " of ".join(word[:19] for word in out.split()[:2]) if built else "not built"
        fix = "make images  (without a registry: make images-offline)"
        yield MachineCheck(f"image {image}", state, found, needed_for, purposes, fix)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        return str(os.geteuid())


# -- data sets ----------------------------------------------------------------------------------------------


def check_data_sets(data_dir: Path, *, checksums: bool = True) -> Iterator[MachineCheck]:
    """Yield every data set that has a name: where it is, and whether its content is the published one."""
    for known in describe(data_dir):
        extra = _IN_PACKAGES.get(known.name)
        fix = f"pip install '{_OURS}[{extra}]'" if extra else f"mapa data get {known.name}"
        state, found = _data_set_state(known, data_dir, checksums)
        if state is CheckState.BROKEN:
            fix = f"remove these files, then: {fix}"
        purposes = {known.name, *((BASIC,) if known.name in _BASIC_PARTS else ())}
        needed_for = f"scenarios with data.set = {known.name!r}"
        yield MachineCheck(f"data {known.name}", state, found, needed_for, purposes, fix)


def _data_set_state(known: Description, data_dir: Path, checksums: bool) -> tuple[CheckState, str]:
    if not known.present:
        return CheckState.MISSING, "not found"
    where = f"{'embedded in a package, ' if known.name in _IN_PACKAGES else ''}{known.files[0].parent}"
    if not checksums:
        return CheckState.OK, f"{where}, checksum not looked at"
    try:
        if known.name in _LARGE:
            find, digests, digest = _LARGE[known.name]
            differ = [str(path) for file, path in find(data_dir).items() if digest(path) != digests[file]]
            if differ:
                return CheckState.BROKEN, f"the sha256 of {', '.join(differ)} differs"
        else:
            load_dataset(known.name, data_dir)  # small: loading compares its checksum
    except (MapaError, OSError, EOFError, ValueError) as error:
        return CheckState.BROKEN, " ".join(str(error).split())[:300]
    return CheckState.OK, f"{where}, checksum right"
