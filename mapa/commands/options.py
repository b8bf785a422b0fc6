"""Options that several commands share; what only some of them need is imported where it is used."""

from __future__ import annotations

import os
import re
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import ConfigurationError

if TYPE_CHECKING:
    from common.quantities import RunId
    from common.transport.connection import BrokerAddress, Credentials

ScenarioName = Annotated[str, typer.Argument(help="name of a shipped scenario, or a TOML file")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE for any field; an empty VALUE removes it")
]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="folder for the records, runs/<id>/")]
DataDir = Annotated[Path | None, typer.Option(help="folder of the data sets, instead of MAPA_DATA_DIR")]
TestData = Annotated[
    Path | None,
    typer.Option(
        help='test data, a file or a folder, for a scenario with data.set = "local"; without it no metric is'
        " measured"
    ),
]
NoiseParameters = Annotated[
    list[str] | None,
    typer.Option("--noise-parameter", help="NAME=VALUE: a parameter of the noise law; repeatable"),
]
Code = Annotated[
    list[Path] | None,
    typer.Option(help="folder with files of classes that --allow names; repeatable"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="a run's directory, its id or a unique beginning of it, or latest"),
]


def split_parameter(text: str) -> tuple[str, str]:
    """Return name and value of a NAME=VALUE."""
    from common.noise.registry import PARAMETER_NAME

    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(PARAMETER_NAME, name.strip()) or not value.strip():
        raise ConfigurationError(f"--noise-parameter {text!r}: must be NAME=VALUE, e.g. epsilon=0.5")
    return name.strip(), value.strip()


def noise_parameters(given: list[str] | None) -> dict[str, list[float]]:
    """Return the numbers of every --noise-parameter by name, in order."""
    found: dict[str, list[float]] = {}
    for name, value in map(split_parameter, given or ()):
        try:
            found.setdefault(name, []).append(float(value))
        except ValueError:
            raise ConfigurationError(f"--noise-parameter {name}={value}: must be a number") from None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Options of a command that joins a run on a broker; a password is never an argument that `ps` shows."""

    broker: Annotated[str, typer.Option(help="address of the broker, HOST[:PORT]")]
    run: Annotated[str, typer.Option(help="name of the run on the broker")]
    broker_username: Annotated[str | None, typer.Option("--username", help="user name at the broker")] = None
    broker_password_file: Annotated[
        Path | None, typer.Option("--password-file", help="file whose first line is the password")
    ] = None
    tls: Annotated[bool, typer.Option("--tls", help="use TLS with the system's CA certificates")] = False
    tls_ca: Annotated[Path | None, typer.Option(help="use TLS with this CA certificate")] = None
    tls_cert: Annotated[Path | None, typer.Option("--cert", help="client certificate")] = None
    tls_key: Annotated[Path | None, typer.Option("--key", help="key of the client certificate")] = None
    plain_password: Annotated[
        bool,
        typer.Option(
            "--plain-password",
            help="send the password without TLS, to a broker on another host: all who see the traffic can read it",
        ),
    ] = False
    connect_timeout: Annotated[float, typer.Option(help="seconds to wait for the first connection")] = 60.0

    def __post_init__(self) -> None:
        if not self.connect_timeout >= 0:
            raise ConfigurationError(f"--connect-timeout {self.connect_timeout}: must be at least 0")

    @property
    def words(self) -> str:
        """The options that reach the broker, as this command was given them."""
        given = [
            ("--broker", self.broker),
            ("--username", self.broker_username),
            ("--password-file", self.broker_password_file),
            ("--tls-ca", self.tls_ca),
            ("--cert", self.tls_cert),
            ("--key", self.tls_key),
        ]
        words = [word for name, value in given if value is not None for word in (name, str(value))]
        flags = [("--tls", self.tls), ("--plain-password", self.plain_password)]
        return shlex.join([*words, *(name for name, given in flags if given)])

    @property
    def address(self) -> BrokerAddress:
        from common.transport.connection import parse_address

        return parse_address(self.broker)

    @property
    def run_id(self) -> RunId:
        from common.wire.topics import run_id

        return run_id(self.run)

    def credentials(self, *, accounts: bool = False) -> Credentials:
        """Return user, password and TLS files, read and checked; `accounts`: each edge has a password of its own."""
        from common.transport.connection import Credentials, TlsFiles

        password = None
        if self.broker_password_file is not None:
            if self.broker_username is None:
                raise ConfigurationError("--password-file: requires --username")
            password = _first_line(self.broker_password_file, "--password-file")
        wanted = self.tls or any(path is not None for path in (self.tls_ca, self.tls_cert, self.tls_key))
        files = TlsFiles(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key) if wanted else None
        exposed = files is None and not self.address.is_loopback
        if exposed and (accounts or password is not None) and not self.plain_password:
            raise ConfigurationError(
                f"{'--accounts' if accounts else '--password-file'}: broker {self.address} is on another host, and"
                " without TLS all who see the traffic can read the password; give --tls-ca CA (or --tls), or"
                " --plain-password to send it all the same"
            )
        return Credentials(username=self.broker_username, password=password, tls=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Options of a command that serves metrics; without a port it does not."""

    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="serve Prometheus metrics at this port; 0: any free one"),
    ] = None
    metrics_address: Annotated[
        str, typer.Option(help="address that --metrics-port listens on; whoever reaches it sees the metrics")
    ] = "127.0.0.1"

    def listener(self) -> socket.socket | None:
        """Take the port; None: no metrics are asked for."""
        if self.metrics_port is None:
            return None
        from common.telemetry.server import metrics_listener

        return metrics_listener(self.metrics_address, self.metrics_port)


def use_code(folders: list[Path] | None) -> None:
    """Let classes be imported from the folders of --code."""
    from common.own_code import add_code

    for folder in folders or ():
        if not folder.is_dir():
            raise ConfigurationError(f"--code {str(folder)!r}: no such folder")
        add_code(folder)


def data_dir_or_default(data_dir: Path | None) -> Path:
    """Return the folder of --data-dir, else that of the environment."""
    from common.datasets.catalogue import data_directory

    return data_directory(os.environ) if data_dir is None else data_dir


def account_passwords(folder: Path) -> dict[str, str]:
    """Return the passwords of a folder of accounts by user name, which is the edge's id too."""
    from common.wire.topics import edge_id

    try:
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise ConfigurationError(f"--accounts {str(folder)!r}: {error}") from error
    if not files:
        raise ConfigurationError(f"--accounts {str(folder)!r}: contains no password file")
    return {edge_id(path.name): _first_line(path, "--accounts") for path in files}


def _first_line(path: Path, option: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option} {str(path)!r}: {error}") from error
    return lines[0] if lines else ""
