"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from common.connection import Credentials, TlsFiles
from common.datasets.catalogue import data_directory
from common.errors import ConfigurationError
from common.wire.topics import edge_id

ScenarioName = Annotated[str, typer.Argument(help="a shipped scenario's name, or a TOML file")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE for any field; an empty VALUE removes it")
]
Seed = Annotated[int | None, typer.Option(help="instead of the scenario's")]
Edges = Annotated[int | None, typer.Option(help="K, instead of the scenario's")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="where runs/<id>/ goes")]
DataDir = Annotated[Path | None, typer.Option(help="instead of MAPA_DATA_DIR")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]
RunName = Annotated[str, typer.Option("--run", help="the run's name on the broker")]
Username = Annotated[str | None, typer.Option(help="of the broker")]
PasswordFile = Annotated[Path | None, typer.Option(help="a file whose first line is the password")]
Tls = Annotated[bool, typer.Option("--tls", help="TLS with the system's authorities")]
TlsCa = Annotated[Path | None, typer.Option(help="TLS with this authority")]
Cert = Annotated[Path | None, typer.Option(help="our certificate")]
Key = Annotated[Path | None, typer.Option(help="its key")]


def data_dir_or_default(data_dir: Path | None) -> Path:
    return data_directory(os.environ) if data_dir is None else data_dir


def credentials(
    username: str | None,
    password_file: Path | None,
    tls: bool,
    tls_ca: Path | None,
    cert: Path | None,
    key: Path | None,
) -> Credentials:
    """Return how to introduce oneself to the broker; a password is never an argument that `ps` shows."""
    password = None
    if password_file is not None:
        if username is None:
            raise ConfigurationError("--password-file: goes with --username")
        password = _first_line(password_file, "--password-file")
    wanted = tls or tls_ca is not None or cert is not None or key is not None
    files = TlsFiles(ca=tls_ca, cert=cert, key=key) if wanted else None
    return Credentials(username=username, password=password, tls=files)


def account_passwords(folder: Path) -> dict[str, str]:
    """Return the passwords of a folder of accounts by user name, which is the edge's id too."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise ConfigurationError(f"--accounts {str(folder)!r}: {error}") from error
    if not files:
        raise ConfigurationError(f"--accounts {str(folder)!r}: holds no password file")
    return {edge_id(path.name): _first_line(path, "--accounts") for path in files}


def _first_line(path: Path, option: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option} {str(path)!r}: {error}") from error
    return lines[0] if lines else ""
