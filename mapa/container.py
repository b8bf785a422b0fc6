"""Entry point of every container: its environment (see .env.example), and which user owns its files.

python -m mapa.container data|cloud|edge    `mapa data get|cloud|edge` as the environment says
    A cloud goes on with the newest run that this container began, or of the name in RUN, if that has not ended;
    one that a restart policy starts again after its run's bad end ends as that did. All other starts begin a run.
python -m mapa.container ANYTHING ELSE      mapa ANYTHING ELSE
RESTARTS=always    the engine starts again whatever ends: cloud and edge stay after an end of their own and report its
    code, a run of one name is run once, and SIGTERM leaves a cloud's run to its next start
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from common.errors import ConfigurationError, require
from common.health import VARIABLE as HEALTH_FILE
from common.own_code import code_named_by
from common.records.layout import LONGEST, folder_name, name_before_stamp
from edge.own_data import REGISTRY_VARIABLE
from mapa.processes import CLOUD, EDGE, PREFIX, RESUMED, prefixed, text
from mapa.resume import ended_with, to_go_on_with

SCENARIOS = Path("/scenarios")  # a folder of the host, where one is mounted
RUN_FILE = "MAPA_RUN_FILE"  # where the cloud leaves the run's name for the edges
SERVICES = ("data", "cloud", "edge")
OWN_DATA, TEST_DATA = Path("/own-data"), Path("/test-data")  # folders of the host, where they are mounted
REGISTRY = "/state/registry.sqlite3"  # of local data: a container sees no other state directory
_PLACES = {"MAPA_BROKER": "broker", "MAPA_RUNS_DIR": "/runs", "MAPA_STATE_DIR": "/state"}
ENDED = "ended"  # beside the health file: the exit code of a program whose container stays
_AGAIN = (1, 4, 5)  # codes that another start may heal: an error, no free shard, an undelivered halt
_TOLD = {signal.SIGTERM, signal.SIGINT}
_BEAT = 5.0  # seconds between two heartbeats of a container whose program has ended


def service(name: str, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments of `mapa` for a service, and the variables that give its other options."""
    scenario = scenario_name(environ)
    changes = [word for change in _changes(environ) for word in ("--set", change)]
    if name == "data":
        sets = text(environ, "DATA").split()
        return ["data", "get", *(sets or ["--scenario", scenario, *changes])], {}
    options = {**_PLACES, **prefixed(environ, CLOUD if name == "cloud" else EDGE)}
    for variable, folder in (("MAPA_EDGE_DATA", OWN_DATA), ("MAPA_TEST_DATA", TEST_DATA)):
        if variable in options:
            options[variable] = str(folder / options[variable])  # an absolute path stays
    if name == "cloud":
        started_by = options.setdefault("MAPA_STARTED_BY", container_id())
        runs, run = Path(options["MAPA_RUNS_DIR"]), options.get("MAPA_RUN")
        if once := restarts_always(environ):
            options["MAPA_SUSPEND"] = "true"
        left = to_go_on_with(runs, run=run, started_by=started_by, now=time.time(), once=once)
        if left is not None:
            resumed = {key: value for key, value in options.items() if key.removeprefix(PREFIX) in RESUMED}
            resumed["MAPA_RUN"] = run or name_before_stamp(left.name)
            return ["cloud", *_allowed(scenario, _changes(environ)), "--resume", str(left)], resumed
        short = Path(scenario).name.removesuffix(".toml")  # the stem of …-0.1 would be …-0
        options.setdefault("MAPA_RUN", f"{folder_name(short, LONGEST - 9)}-{secrets.token_hex(4)}")
        return ["cloud", scenario, *changes], options
    if SCENARIOS.is_dir():
        options.setdefault("MAPA_CODE", str(SCENARIOS))  # what --allow names may lie beside the scenario
    if "MAPA_RUN" not in options:
        options["MAPA_RUN"] = _run_of_this_host(environ)
    if "MAPA_EDGE_DATA" in options:
        options[REGISTRY_VARIABLE] = text(environ, REGISTRY_VARIABLE) or REGISTRY
    return ["edge"], options


def scenario_name(environ: Mapping[str, str]) -> str:
    """Return SCENARIO as `mapa` takes it: a file of the mounted folder, else a shipped name."""
    name = text(environ, "SCENARIO") or "quickstart"
    mounted = SCENARIOS / f"{name.removesuffix('.toml')}.toml"
    return str(mounted) if "/" not in name and mounted.is_file() else name


def container_id() -> str:
    """Return what names this container for as long as it exists, started again or not; "" on any other host."""
    name = os.uname().nodename
    return name if re.fullmatch(r"[0-9a-f]{12}", name) else ""


def leave_run_name(run: str, environ: Mapping[str, str]) -> None:
    """Write the run's name where edges of this host look for it."""
    if file := text(environ, RUN_FILE):
        draft = Path(f"{file}.{secrets.token_hex(4)}")
        draft.write_text(run + "\n", encoding="utf-8")
        draft.replace(file)


def become_the_caller(runs: Path, witness: Path) -> None:
    """Change the owner of `runs` to that of the witness, a file of the host, and continue as that user.

    Only a container that was started as root does it; then the records belong to the caller.
    """
    if os.geteuid() != 0 or not witness.exists():
        return
    owner = witness.stat()
    if runs.is_dir() and runs.stat().st_uid == 0:  # the engine makes a missing folder, as root
        os.chown(runs, owner.st_uid, owner.st_gid)
    os.setgroups([])
    os.setgid(owner.st_gid)
    os.setuid(owner.st_uid)


def restarts_always(environ: Mapping[str, str]) -> bool:
    """Tell whether the engine starts again whatever ends, as a StatefulSet does."""
    said = text(environ, "RESTARTS")
    require(said in ("", "always"), "RESTARTS", repr(said), "empty or 'always'")
    return bool(said)


def outlast(name: str, environ: Mapping[str, str]) -> None:
    """Return in a child, whose end this process outlasts: it reports the code, and stays until it is told to go.

    Where it was told before, or where another start may heal what the child ended with, it ends with the child.
    """
    child = os.fork()
    if child == 0:
        return
    told: list[int] = []

    def tell(number: int, _: object) -> None:
        told.append(number)
        os.kill(child, number)

    for number in _TOLD:
        signal.signal(number, tell)
    _, status = os.waitpid(child, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _TOLD)
    code = os.waitstatus_to_exitcode(status)
    if told or not _decided(name, code, environ):
        sys.exit(code if code >= 0 else 128 - code)
    health = Path(text(environ, HEALTH_FILE) or "health")
    health.with_name(ENDED).write_text(f"{code}\n", encoding="utf-8")
    print(f"{name}: ended with exit code {code}; the container stays, and does nothing", flush=True)
    health.touch()
    while signal.sigtimedwait(_TOLD, _BEAT) is None:
        health.touch()
    sys.exit(0)


def _decided(name: str, code: int, environ: Mapping[str, str]) -> bool:
    """Tell whether a code is the last word: no other start would change it."""
    if name == "cloud" and code == 1:
        arguments, _ = service(name, environ)
        return "--resume" in arguments and ended_with(Path(arguments[-1])) is not None
    return code >= 0 and code not in _AGAIN


def main() -> None:
    arguments = sys.argv[1:]
    if len(arguments) == 1 and arguments[0] in SERVICES:
        try:
            if arguments[0] != "data" and restarts_always(os.environ):
                outlast(arguments[0], os.environ)
            arguments, options = service(arguments[0], os.environ)
        except ConfigurationError as error:
            print(f"configuration error: {error}", file=sys.stderr)
            sys.exit(2)
        if arguments[0] == "cloud":
            leave_run_name(options["MAPA_RUN"], os.environ)
            become_the_caller(Path("/runs"), Path("/caller"))
            if "--resume" in arguments:
                print(f"going on with {arguments[-1]}", file=sys.stderr)
                for name in CLOUD:  # it goes on as it began
                    os.environ.pop(PREFIX + name, None)
        os.environ.update(options)
    sys.argv = ["mapa", *arguments]
    from mapa.cli import main as mapa  # as the right user

    mapa()


def _allowed(scenario: str, changes: list[str]) -> list[str]:
    """Return the options that let a cloud go on with code: what the operator's own scenario names, and no more."""
    from mapa.scenario_files import changed_by, read_scenario  # few containers go on with a run

    try:
        named = code_named_by(changed_by(read_scenario(scenario)[1], changes))
    except ConfigurationError:
        return []  # the run goes on with the scenario of its manifest
    words = [word for _, path in named for word in ("--allow", path)]
    return [*words, *(("--code", str(SCENARIOS)) if words and SCENARIOS.is_dir() else ())]


def _changes(environ: Mapping[str, str]) -> list[str]:
    return [change.strip() for change in text(environ, "SET").split(";") if change.strip()]


def _run_of_this_host(environ: Mapping[str, str]) -> str:
    file = text(environ, RUN_FILE)
    try:
        run = Path(file).read_text(encoding="utf-8").strip() if file else ""
    except OSError as error:
        raise ConfigurationError(
            f"RUN: not set, and the name that the cloud wrote cannot be read: {error}"
        ) from error
    if not run:
        why = f", and {file} is empty" if file else "; the cloud prints the run's name when it starts"
        raise ConfigurationError(f"RUN: not set{why}")
    return run


if __name__ == "__main__":
    main()
