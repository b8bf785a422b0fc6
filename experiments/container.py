"""The start of every container: what its environment says, as the arguments of `mapa`.

python -m experiments.container data|cloud|edge    as the environment says (.env.example lists it)
python -m experiments.container ANYTHING ELSE      mapa ANYTHING ELSE
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from experiments.scenario_files import read_scenario

SCENARIOS = Path("/scenarios")  # a folder of the host, where one is mounted
RUN_FILE = "MAPA_RUN_FILE"  # where the cloud leaves the run's name for the edges


def scenario_name(environ: Mapping[str, str]) -> str:
    """Return SCENARIO as `mapa` takes it: a file of the mounted folder, else a shipped name."""
    name = _text(environ, "SCENARIO") or "quickstart"
    mounted = SCENARIOS / f"{name.removesuffix('.toml')}.toml"
    return str(mounted) if "/" not in name and mounted.is_file() else name


def changes(environ: Mapping[str, str], law: str) -> list[str]:
    """Return the KEY=VALUE changes that the environment asks for, given the noise law of the scenario."""
    found = []
    if iterations := _text(environ, "ITERATIONS"):
        found.append(f"iterations={iterations}")
    if links := _text(environ, "LINKS"):
        tables = ", ".join(f'{{name = "{name.strip()}"}}' for name in links.split(","))
        found.append(f"links=[{tables}]")
    if epsilon := _text(environ, "EPSILON"):
        # ε of one release belongs to a law on the norm; the gaussian law has z, and ε of the whole run
        found += ["privacy.noise=gamma-norm"] if law == "gaussian" else []
        found.append(f"privacy.epsilon={epsilon}")
    multiplier = _text(environ, "NOISE_MULTIPLIER")
    if multiplier:
        found += ["privacy.noise=gaussian", f"privacy.noise_multiplier={multiplier}"]
    if total := _text(environ, "TOTAL_EPSILON"):
        found.append(f"privacy.total_epsilon={total}")
        if law == "gaussian" and not multiplier and not epsilon:
            found.append("privacy.noise_multiplier=")  # z follows from the budget
    if total_delta := _text(environ, "TOTAL_DELTA"):
        found.append(f"privacy.total_delta={total_delta}")
    return found + [change.strip() for change in _text(environ, "SET").split(";") if change.strip()]


def cloud_arguments(environ: Mapping[str, str]) -> list[str]:
    """Return the arguments of `mapa cloud`."""
    name = scenario_name(environ)
    arguments = ["cloud", name, "--broker", _text(environ, "BROKER") or "broker"]
    short = Path(name).name.removesuffix(".toml")  # the stem of …-0.1 would be …-0
    arguments += ["--run", _text(environ, "RUN") or f"{short}-{secrets.token_hex(4)}"]
    for change in changes(environ, _law(name)):
        arguments += ["--set", change]
    return [
        *arguments,
        *_option(environ, "EDGES", "--edges"),
        *_option(environ, "EDGES_AT_LEAST", "--edges-at-least"),
        *_option(environ, "GATHER", "--gather"),
        *_option(environ, "SEED", "--seed"),
        *_option(environ, "CONNECT_TIMEOUT", "--connect-timeout"),
        *_credentials(environ),
        "--runs-dir",
        _text(environ, "RUNS_DIR") or "/runs",
    ]


def edge_arguments(environ: Mapping[str, str]) -> list[str]:
    """Return the arguments of `mapa edge`."""
    run = _text(environ, "RUN")
    if not run and (file := _text(environ, RUN_FILE)):
        try:
            run = Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigurationError(
                f"RUN: not given, and no cloud has left its run's name: {error}"
            ) from error
    if not run:
        raise ConfigurationError("RUN: missing; the cloud says at its start which run it serves")
    arguments = ["edge", "--broker", _text(environ, "BROKER") or "broker", "--run", run]
    for name in ("EPSILON", "NOISE_MULTIPLIER", "NOISE", "TOTAL_EPSILON", "TOTAL_DELTA", "LINK", "ACCOUNTS"):
        arguments += _option(environ, name, "--" + name.lower().replace("_", "-"))
    for name in _text(environ, "ALLOW").split():
        arguments += ["--allow", name]
    if _text(environ, "ALLOW_SEED") == "1":
        arguments += ["--allow-seed"]
    return [
        *arguments,
        *_option(environ, "CONNECT_TIMEOUT", "--connect-timeout"),
        *_credentials(environ),
        "--state-dir",
        _text(environ, "STATE_DIR") or "/state",
    ]


def data_arguments(environ: Mapping[str, str]) -> list[str]:
    """Return the arguments that bring the scenario's data set into the volume."""
    name = scenario_name(environ)
    chosen = _text(environ, "DATA") or _table(_scenario(name), "data").get("set", "mnist-5k")
    for change in changes(environ, _law(name)):
        key, _, value = change.partition("=")
        chosen = value.strip('"') if key == "data.set" else chosen
    return ["data", "get", *str(chosen).split()]


ARGUMENTS = {"cloud": cloud_arguments, "edge": edge_arguments, "data": data_arguments}


def become_the_caller(runs: Path, witness: Path) -> None:
    """Give `runs` to whoever owns the witness, a file of the host, and go on as that user.

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


def leave_run_name(arguments: list[str], environ: Mapping[str, str]) -> None:
    """Write the run's name where edges of this host look for it."""
    if file := _text(environ, RUN_FILE):
        draft = Path(f"{file}.{secrets.token_hex(4)}")
        draft.write_text(arguments[arguments.index("--run") + 1] + "\n", encoding="utf-8")
        draft.replace(file)


def main() -> None:
    arguments = sys.argv[1:]
    if len(arguments) == 1 and arguments[0] in ARGUMENTS:
        try:
            arguments = ARGUMENTS[arguments[0]](os.environ)
            if arguments[0] == "cloud":
                leave_run_name(arguments, os.environ)
                become_the_caller(Path("/runs"), Path("/caller"))
        except ConfigurationError as error:
            print(f"configuration error: {error}", file=sys.stderr)
            sys.exit(2)
    sys.argv = ["mapa", *arguments]
    from experiments.cli import main as mapa  # after the arguments are right, and as the right user

    mapa()


def _text(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()


def _option(environ: Mapping[str, str], name: str, option: str) -> list[str]:
    value = _text(environ, name)
    return [option, value] if value else []


def _credentials(environ: Mapping[str, str]) -> list[str]:
    return [
        *_option(environ, "BROKER_USERNAME", "--username"),
        *_option(environ, "BROKER_PASSWORD_FILE", "--password-file"),
        *_option(environ, "TLS_CA", "--tls-ca"),
        *_option(environ, "TLS_CERT", "--cert"),
        *_option(environ, "TLS_KEY", "--key"),
    ]


def _scenario(name: str) -> dict[str, Any]:
    return read_scenario(name)[1]


def _table(values: dict[str, Any], key: str) -> dict[str, Any]:
    table = values.get(key, {})
    return table if isinstance(table, dict) else {}


def _law(name: str) -> str:
    return str(_table(_scenario(name), "privacy").get("noise", "gaussian"))


if __name__ == "__main__":
    main()
