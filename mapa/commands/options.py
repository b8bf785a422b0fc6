"""Options that several commands share, and those that are added to every command when it is loaded.

A dataclass as the parameter of a command stands for one option for each of its fields. What only some commands need
is imported where it is used.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

from common.errors import ConfigurationError
from common.own_code import add_code, only_code
from mapa import output, processes
from mapa.commands.completion import completer

if TYPE_CHECKING:
    from common.quantities import RunId
    from common.scenario.scenario import Scenario
    from common.transport.connection import BrokerAddress, Credentials

# -- shared by several commands -----------------------------------------------------------------------------

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
Allowed = Annotated[
    list[str] | None,
    typer.Option("--allow", help="package.module:Class that the file may name, imported; repeatable"),
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
class ScenarioOptions:
    """What to change in the scenario; numbers that may be lists are kept as text, and the scenario checks them."""

    changes: Changes = None
    seed: Annotated[int | None, typer.Option(help="seed, instead of the scenario's")] = None
    edges: Annotated[int | None, typer.Option(help="K, number of edges, instead of the scenario's")] = None
    iterations: Annotated[
        int | None, typer.Option(help="T, number of updates, instead of the scenario's")
    ] = None
    links: Annotated[
        str | None,
        typer.Option(help="delay to the broker: lan, wifi, 5g, 4g, wan, satellite; a list is cycled"),
    ] = None
    devices: Annotated[
        str | None,
        typer.Option(help="device of an edge, see `mapa devices list`: pi4, phone …; a list is cycled"),
    ] = None
    epsilon: Annotated[
        str | None, typer.Option(help="ε of one release; switches a gaussian scenario to gamma-norm")
    ] = None
    noise_multiplier: Annotated[str | None, typer.Option(help="z of gaussian noise")] = None
    noise_parameter: NoiseParameters = None
    total_epsilon: Annotated[
        str | None, typer.Option(help="privacy budget of each edge; z is computed from it unless given")
    ] = None
    total_delta: Annotated[str | None, typer.Option(help="δ of the budget")] = None

    def load(self, scenario: str) -> tuple[str, Scenario]:
        """Return (short name, checked scenario)."""
        from mapa.scenario_files import load_scenario

        return load_scenario(scenario, self.resolve(scenario), seed=self.seed, edges=self.edges)

    def resolve(self, scenario: str) -> list[str]:
        """Return all changes but those of seed and edges as KEY=VALUE; --set comes last and so wins."""
        found = [] if self.iterations is None else [f"iterations={self.iterations}"]
        for key, names in (("links", self.links), ("devices", self.devices)):
            if names is not None:
                tables = ", ".join(f'{{name = "{name.strip()}"}}' for name in names.split(","))
                found.append(f"{key}=[{tables}]")
        return [*found, *self._privacy(scenario), *(self.changes or ())]

    def _privacy(self, scenario: str) -> Iterator[str]:
        from common.noise.registry import describe_law, implied_law
        from mapa.scenario_files import read_scenario

        privacy = read_scenario(scenario)[1].get("privacy", {})
        noise = privacy.get("noise", "gaussian") if isinstance(privacy, dict) else "gaussian"
        law = describe_law(str(noise), "privacy.noise")
        for key in ("epsilon", "noise_multiplier"):
            if (text := getattr(self, key)) is not None:
                if key not in law.names:  # the law gives way to the one that has this parameter
                    yield f"privacy.noise={implied_law([key])}"
                yield f"privacy.{key}={text}"
        for name, value in map(split_parameter, self.noise_parameter or ()):
            yield f"privacy.{name}={value}"
        if self.total_epsilon is not None:
            yield f"privacy.total_epsilon={self.total_epsilon}"
            given = (self.epsilon, self.noise_multiplier, self.noise_parameter or None)
            if law.made.calibrated is not None and given == (None, None, None):
                yield f"privacy.{law.made.calibrated}="  # it follows from the budget
        if self.total_delta is not None:
            yield f"privacy.total_delta={self.total_delta}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Options of a command that joins a run on a broker; a password is never an argument that `ps` shows."""

    broker: Annotated[str, typer.Option(help="address of the broker, HOST[:PORT] or wss://HOST")]
    run: Annotated[str, typer.Option(help="name of the run on the broker")]
    broker_username: Annotated[str | None, typer.Option("--username", help="user name at the broker")] = None
    broker_password_file: Annotated[
        Path | None, typer.Option("--password-file", help="file whose first line is the password")
    ] = None
    tls: Annotated[bool, typer.Option("--tls", help="use TLS with the system's CA certificates")] = False
    tls_ca: Annotated[Path | None, typer.Option(help="use TLS with this CA certificate")] = None
    tls_cert: Annotated[Path | None, typer.Option("--cert", help="client certificate")] = None
    tls_key: Annotated[Path | None, typer.Option("--key", help="key of the client certificate")] = None
    identity: Annotated[
        Path | None,
        typer.Option(help="folder of key.pem, cert.pem and ca.pem, which `mapa certs` made; uses TLS"),
    ] = None
    authentic: Annotated[
        bool | None,
        typer.Option(
            "--authentic/--no-authentic",
            help="sign messages and take signed ones only, so that not even the broker can forge one; default: where"
            " there is an identity (--identity, --enrol, --accounts)",
            show_default=False,
        ),
    ] = None
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
        given = (
            ("--broker", self.broker),
            ("--username", self.broker_username),
            ("--password-file", self.broker_password_file),
            ("--tls-ca", self.tls_ca),
            ("--cert", self.tls_cert),
            ("--key", self.tls_key),
            ("--identity", self.identity),
        )
        words = [word for name, value in given if value is not None for word in (name, str(value))]
        flags = (
            ("--tls", self.tls),
            ("--plain-password", self.plain_password),
            ("--authentic", self.authentic is True),
            ("--no-authentic", self.authentic is False),
        )
        return shlex.join([*words, *(name for name, given in flags if given)])

    @property
    def address(self) -> BrokerAddress:
        from common.transport.connection import parse_address

        return parse_address(self.broker)

    @property
    def run_id(self) -> RunId:
        from common.wire.topics import run_id

        return run_id(self.run)

    def credentials(self, *, accounts: bool = False, identities: bool = False) -> Credentials:
        """Return user, password and TLS files, read and checked; or each edge has a password or identity of its own."""
        from common.transport.connection import Credentials, TlsFiles

        password = None
        if self.broker_password_file is not None:
            if self.broker_username is None:
                raise ConfigurationError("--password-file: requires --username")
            password = _first_line(self.broker_password_file, "--password-file")
        wanted = self.tls or any(path is not None for path in (self.tls_ca, self.tls_cert, self.tls_key))
        files = TlsFiles(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key) if wanted else None
        if self.identity is not None:
            if wanted:
                raise ConfigurationError(
                    "--identity: already says what --tls, --tls-ca, --cert and --key say"
                )
            files = TlsFiles.identity(self.identity)
        exposed = files is None and self.address.path is None and not self.address.is_loopback
        if exposed and (accounts or password is not None) and not self.plain_password:
            raise ConfigurationError(
                f"{'--accounts' if accounts else '--password-file'}: broker {self.address} is on another host, and"
                " without TLS all who see the traffic can read the password; give --tls-ca CA (or --tls), or"
                " --plain-password to send it all the same"
            )
        signs = self.identity if self.authentic is not False else None
        if self.authentic and signs is None and not identities:
            raise ConfigurationError(
                "--authentic: requires an identity that `mapa certs` made: --identity FOLDER, or of edges --enrol TOKEN"
                " or --accounts FOLDER"
            )
        return Credentials(username=self.broker_username, password=password, tls=files, identity=signs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Options of a command that serves metrics; without a port it does not."""

    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="serve Prometheus metrics at this port; 0: any free one"),
    ] = None
    metrics_address: Annotated[
        str, typer.Option(help="address of --metrics-port; anyone who reaches it sees the metrics")
    ] = "127.0.0.1"

    def listener(self) -> socket.socket | None:
        """Take the port; None: no metrics are asked for."""
        if self.metrics_port is None:
            return None
        from common.telemetry.server import metrics_listener

        return metrics_listener(self.metrics_address, self.metrics_port)


def use_code(folders: list[Path] | None) -> None:
    """Let classes be imported from the folders of --code."""
    for folder in folders or ():
        if not folder.is_dir():
            raise ConfigurationError(f"--code {str(folder)!r}: no such folder")
        add_code(folder)


def data_dir_or_default(data_dir: Path | None) -> Path:
    """Return the folder of --data-dir, else that of the environment."""
    from common.datasets.catalogue import data_directory

    return data_directory(os.environ) if data_dir is None else data_dir


def accounts_in(folder: Path, common: Credentials, *, authentic: bool = True) -> dict[str, Credentials]:
    """Return what each edge of a folder is known by, by its id, which is its user name too.

    A folder in it is an identity that `mapa certs` made, which signs where `authentic`; a file is a password, used with
    the TLS files of `common`.
    """
    from common.transport.connection import Credentials, TlsFiles
    from common.wire.topics import edge_id

    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise ConfigurationError(f"--accounts {str(folder)!r}: {error}") from error
    if not paths:
        raise ConfigurationError(f"--accounts {str(folder)!r}: contains no password file and no identity")
    found: dict[str, Credentials] = {}
    for path in paths:
        name = edge_id(path.name)
        if path.is_dir():
            signs = path if authentic else None
            found[name] = Credentials(tls=TlsFiles.identity(path), identity=signs)
        else:
            found[name] = replace(common, username=name, password=_first_line(path, "--accounts"))
    return found


def unproven(address: BrokerAddress, given: Sequence[Credentials]) -> str:
    """Say that messages are not signed, where others than their owner may run the broker; '': they are, or none may."""
    if any(one.identity is not None for one in given) or address.is_loopback:
        return ""
    if not any(one.tls is not None or one.username is not None for one in given):
        return ""  # without any credentials the broker lets in everybody, which is said there
    return (
        "messages are not signed: who runs the broker can forge models, gradients and halts; identities of `mapa"
        " certs` (--identity, --enrol) prove them"
    )


def _first_line(path: Path, option: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option} {str(path)!r}: {error}") from error
    return lines[0] if lines else ""


# -- added to commands --------------------------------------------------------------------------------------

# Commands that show how far they are, beside their result: they have --quiet and --verbose.
REPORTING = ("simulate", "run", "cloud", "edge", "containers", "kubernetes", "reproduce", "audit", "data get")
# Commands that run a scenario with the code that it names, which is what they are called for, or take a dotted path as
# an argument; an edge asks its policy. All others read files of unknown origin, and import only what --allow names.
RUNNING = (
    *("simulate", "run", "cloud", "edge", "containers", "kubernetes", "chaos", "pace", "attack", "audit"),
    *("reproduce", "algorithms"),
)
RECORDED = {"cloud": "resume", "audit": "run"}  # the option that takes a run on record: files, again
ALLOWING = ("compare", "ledger show", "scenario show", "data show")  # others have --allow themselves
ENVIRONMENT = {"cloud": processes.CLOUD, "edge": processes.EDGE}  # options with MAPA_<NAME> too
_FLAGS = {
    "debug": Annotated[
        bool, typer.Option("--debug", help="show the traceback of an error; also MAPA_DEBUG=1")
    ],
    "quiet": Annotated[
        bool, typer.Option("--quiet", "-q", help="no progress and no notes: the result, and errors")
    ],
    "verbose": Annotated[
        bool, typer.Option("--verbose", "-v", help="progress as lines, each second, and more of it")
    ],
}


def with_added_options(command: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a command as typer takes it: with the options that all have, and one for each field of its groups."""
    if hasattr(command, "__wrapped__"):  # one of a group that was loaded before
        return command
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {key: kind for key, kind in hints.items() if is_dataclass(kind)}
    allowing = {"allow": Allowed} if name in ALLOWING else {}
    added = {**allowing, **(_FLAGS if name in REPORTING else {"debug": _FLAGS["debug"]})}

    @functools.wraps(command)
    def listening(**given: Any) -> Any:
        asked = {key: given.pop(key) for key in added}
        output.ask(**{key: bool(asked.get(key)) for key in _FLAGS})
        trusted = name in RUNNING and given.get(RECORDED.get(name, "")) is None
        with (
            contextlib.nullcontext() if trusted else only_code(asked.get("allow") or given.get("allow") or ())
        ):
            for key, kind in groups.items():
                given[key] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            return command(**given)

    own = [*_parameters(command, hints)]
    more = [(key, kind, None if key == "allow" else False) for key, kind in added.items()]
    listening.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads it
        [
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_noted(kind, name, key)
            )
            for key, kind, default in (*own, *more)
        ]
    )
    return listening


def _parameters(command: Callable[..., Any], hints: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of a command's parameters, a group's fields in its place."""
    for own in inspect.signature(command).parameters.values():
        kind = hints[own.name]
        if not is_dataclass(kind):
            yield own.name, kind, own.default
            continue
        types = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            yield field.name, types[field.name], default


def _noted(kind: Any, command: str, name: str) -> Any:
    """Return an annotation whose option or argument knows its environment variable and what completes it."""
    if get_origin(kind) is not Annotated:
        return kind
    plain, *notes = get_args(kind)
    notes = [copy(note) for note in notes]
    for note in notes:
        if isinstance(note, ParameterInfo):
            note.autocompletion = completer(command, name)
            if name.upper() in ENVIRONMENT.get(command, ()):
                note.envvar = f"{processes.PREFIX}{name.upper()}"
    return Annotated[(plain, *notes)]
