"""This machine: disk, memory, ports, clocks, terminal. Nothing is written, and nobody is asked."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from mapa.doctor.finding import BASIC, Finding, State

_LEAST_DISK = 200 << 20  # bytes; below it a run of any length fills the disk
_LEAST_MEMORY = 512 << 20  # bytes available; quickstart's processes take about 400 MB
_PORTS = {
    1883: ("a broker that other hosts reach (docker/cloud.yml, your own Mosquitto)", "deploy"),
    8080: (
        "mapa dashboard, which else takes the next free port; Compose's page (or set DASHBOARD_PORT)",
        "page",
    ),
}


def machine(runs: Path, data_dir: Path) -> Iterator[Finding]:
    """Yield what this machine offers."""
    yield _folder("runs", runs, "--runs-dir", writes=True)
    yield _folder("data", data_dir, "MAPA_DATA_DIR", writes=False)
    yield _memory()
    for port, (needed_for, purpose) in _PORTS.items():
        yield port_finding(port, needed_for, purpose)
    yield _clock()
    yield _terminal()


def _folder(name: str, path: Path, option: str, *, writes: bool) -> Finding:
    """Look at a folder, or at the first one above it that is there: that is where it would be made."""
    here = path.absolute()
    while not here.exists() and here != here.parent:
        here = here.parent
    needed_for = "records of runs" if writes else "data sets that are downloaded"
    serves = frozenset({BASIC} if writes else {"download"})
    where = str(path) if path.exists() else f"{path} (made by the first {'run' if writes else 'download'})"
    if path.exists() and not path.is_dir():
        return Finding(
            name=f"folder {name}",
            state=State.BROKEN,
            found=f"{path} is no folder",
            needed_for=needed_for,
            serves=serves,
            mend=f"move it away, or give {option}",
        )
    if not os.access(here, os.W_OK | os.X_OK):
        state = State.BROKEN if writes else State.NOTE
        mend = f"give {option} a folder that you may write to, or: sudo chown $(id -u) {here}"
        return Finding(
            name=f"folder {name}",
            state=state,
            found=f"{where}: not writable by user {os.geteuid()}",
            needed_for=needed_for,
            serves=serves,
            mend=mend if writes else "",
        )
    free = shutil.disk_usage(here).free
    enough = free >= _LEAST_DISK
    return Finding(
        name=f"folder {name}",
        state=State.OK if enough else State.BROKEN,
        found=f"{where}: writable, {_bytes(free)} free",
        needed_for=needed_for,
        serves=serves,
        mend="" if enough else "make room, or `mapa runs list --sort size` and `mapa runs rm`",
    )


def _memory() -> Finding:
    total, available = _memory_bytes()
    enough = available is None or available >= _LEAST_MEMORY
    said = "unknown" if total is None else f"{_bytes(total)}"
    said += "" if available is None else f", {_bytes(available)} available"
    return Finding(
        name="memory",
        state=State.OK if enough else State.BROKEN,
        found=said,
        needed_for="cloud and edge processes",
        serves=frozenset({BASIC}),
        mend="" if enough else "end other programs, or use fewer edges (--edges, --processes)",
    )


def _memory_bytes() -> tuple[int | None, int | None]:
    """Return total and available memory; a container's limit counts where it is less."""
    total = available = None
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        figures = {
            line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines if line.endswith("kB")
        }
        total, available = figures["MemTotal"], figures["MemAvailable"]
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        if limit.isdigit() and int(limit) < total:
            used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
            total, available = int(limit), min(available, max(0, int(limit) - used))
    except (OSError, ValueError, KeyError, AttributeError):
        pass  # what could be read stands
    return total, available


def port_finding(port: int, needed_for: str, purpose: str) -> Finding:
    """Tell whether a port of the loopback interface is free: bound for a moment, never listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            taken = None
        except OSError as error:
            taken = error
    if taken is None:
        state, found, mend = State.OK, "free", ""
    elif taken.errno == errno.EADDRINUSE:
        state, found = State.NOTE, "in use by another program"
        mend = f"ss -ltnp 'sport = :{port}'" if sys.platform == "linux" else f"lsof -iTCP:{port} -sTCP:LISTEN"
        mend += "  says by which"
    else:
        state, found, mend = State.BROKEN, f"cannot be bound: {taken.strerror}", "choose another port"
    return Finding(
        name=f"port {port}",
        state=state,
        found=found,
        needed_for=needed_for,
        serves=frozenset({purpose}),
        mend=mend,
    )


def _clock() -> Finding:
    """Look at both clocks by themselves; whether the wall clock agrees with a broker's cannot be known from here."""
    readings = [time.monotonic_ns() for _ in range(1000)]
    forwards = all(a <= b for a, b in itertools.pairwise(readings)) and readings[0] < readings[-1]
    installed = Path(__file__).stat().st_mtime
    sane = time.time() > installed - 86400
    resolution = time.get_clock_info("monotonic").resolution
    said = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC; the monotonic clock goes forwards (step {resolution:g} s)"
    if not forwards:
        said = "the monotonic clock does not go forwards"
    elif not sane:
        said = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC is before this program was installed"
    return Finding(
        name="clock",
        state=State.OK if forwards and sane else State.BROKEN,
        found=f"{said}; not compared with any other machine's",
        needed_for="times on record, names of runs, TLS certificates; runs themselves count monotonic time",
        serves=frozenset({BASIC}),
        mend="" if forwards and sane else "set the clock (Debian: timedatectl set-ntp true)",
    )


def _terminal() -> Finding:
    terminal = sys.stderr.isatty()
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    readable = encoding == "utf8"
    said = f"{'a terminal' if terminal else 'no terminal: no bars, no colours'}, {sys.stdout.encoding}"
    if os.environ.get("NO_COLOR"):
        said += ", NO_COLOR"
    return Finding(
        name="terminal",
        state=State.OK if readable else State.NOTE,
        found=said,
        needed_for="progress bars, and the symbols ε, δ, Δ",
        serves=frozenset(),
        mend="" if readable else "export PYTHONUTF8=1",
    )


def _bytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"
