"""mapa certs: identities for cloud, edges and helpers; enrolment and revocation."""

from __future__ import annotations

import secrets
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from common.errors import ConfigurationError, require
from common.transport.connection import parse_address
from common.wire.topics import edge_id, is_name, run_id
from mapa import output
from mapa.authority import CLOUD, Authority, Role, members, write_private
from mapa.broker_files import (
    EDGES_PORT,
    issue_server,
    write_bridge,
    write_broker,
    write_passwords,
    write_revocations,
)
from mapa.commands.options import AsJson
from mapa.enrolment import DEFAULT_PORT, EnrolmentServer, Token

app = typer.Typer(no_args_is_help=True, help="Identities by certificate: make, enrol, revoke.")

Folder = Annotated[
    Path, typer.Option("--folder", help="folder of authority/, broker/, cloud/, edges/ and helpers/")
]
Groups = Annotated[
    list[str],
    typer.Argument(metavar="NAME[=COUNT]...", help="an edge, or with COUNT the edges NAME-0, NAME-1, …"),
]
Names = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="edge ids, which are user names at the broker too")
]
SECRETS = Path("secrets")


@app.command("init")
def init(
    hosts: Annotated[
        list[str],
        typer.Argument(metavar="HOST...", help="names and addresses by which clients reach the broker"),
    ],
    folder: Folder = SECRETS,
    passwords: Annotated[
        bool,
        typer.Option(
            "--passwords", help="edges and cloud have passwords, the simpler way, and no certificates"
        ),
    ] = False,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="the only run that edges may write to; absent: any, and then an edge can have the broker keep messages"
            " without bound, unless docker/cloud.yml starts it",
        ),
    ] = None,
) -> None:
    """Make the authorities, and the folder that the broker reads."""
    only = None if run is None else run_id(run)
    authority = Authority.create(folder / "authority", hosts)
    write_broker(folder / "broker", authority, by_password=passwords, run=only)
    print(f"{folder / 'broker'}: for the broker, which is started there: mosquitto -c mosquitto.conf")
    print(f"{folder / 'authority'}: signs; keep it, and keep it from other hosts")
    if passwords:
        _give_passwords(folder, authority, CLOUD, [CLOUD])


@app.command("cloud")
def cloud(folder: Folder = SECRETS) -> None:
    """Make the cloud's identity."""
    _issue(folder, folder / CLOUD, CLOUD, Role.CLOUD)
    write_revocations(folder / "broker", Authority(folder / "authority"))  # the cloud reads the lists, too


@app.command("edge")
def edge(names: Names, folder: Folder = SECRETS) -> None:
    """Make the identities of edges here, to be copied; `enrol` lets each workstation make its own key."""
    for name in names:
        _issue(folder, folder / "edges" / name, name, Role.EDGE)


@app.command("helper")
def helper(names: Names, folder: Folder = SECRETS) -> None:
    """Make the identities of helpers."""
    for name in names:
        _issue(folder, folder / "helpers" / name, name, Role.HELPER)


@app.command("bridge")
def bridge(
    site: Annotated[str, typer.Argument(metavar="SITE", help="name of a site with a broker of its own")],
    groups: Groups,
    host: Annotated[str, typer.Option(help="name or address by which the site's edges reach its broker")],
    to: Annotated[str, typer.Option(help="where the site reaches the cloud's broker, HOST[:PORT]")],
    folder: Folder = SECRETS,
) -> None:
    """Write the folder of a site's broker, which passes on what its edges and the cloud say, and nothing else."""
    edges = [edge for group, count in counts(groups).items() for edge in members(group, count)]
    address = parse_address(to if ":" in to else f"{to}:{EDGES_PORT}")
    authority = Authority(folder / "authority")
    place = write_bridge(folder / "broker", authority, edge_id(site), edges, host, address)
    print(f"{place}: for the site's broker, which is started there: mosquitto -c mosquitto.conf")
    print(f"{folder / 'broker' / 'acl'}: has changed; the cloud's broker reads it when it starts again")


@app.command("enrol")
def enrol(
    groups: Groups,
    host: Annotated[str, typer.Option(help="name or address by which the workstations reach this host")],
    folder: Folder = SECRETS,
    port: Annotated[int, typer.Option(min=1, max=65535, help="port to listen on")] = DEFAULT_PORT,
    address: Annotated[str, typer.Option(help="address to listen on")] = "0.0.0.0",
    hours: Annotated[float, typer.Option(help="how long the tokens are valid, 0.01 to 720")] = 24.0,
) -> None:
    """Print a one-time token for each edge or group, and sign the keys of those who come with one, until all have."""
    require(0.01 <= hours <= 720, "--hours", hours, "from 0.01 to 720")
    authority = Authority(folder / "authority")
    wanted = counts(groups)
    missing, over = (
        {name for group, count in wanted.items() for name in members(group, count)},
        threading.Event(),
    )

    def enrolled(name: str) -> None:
        write_revocations(folder / "broker", authority)  # of a certificate that the name had before
        print(f"{name}: enrolled", flush=True)
        missing.discard(name)
        if not missing:
            over.set()

    until = datetime.now(UTC)
    with EnrolmentServer(
        authority, host, (address, port), enrolled, lambda text: print(text, flush=True)
    ).running():
        for group, count in wanted.items():
            secret, until = authority.invite(group, count, timedelta(hours=hours))
            token = Token(
                host, port, group, count, authority.fingerprint, secret, until.isoformat(timespec="seconds")
            )
            print(f"{group}: mapa edge --enrol {token}", flush=True)
        if not over.wait((until - datetime.now(UTC)).total_seconds()):
            print(f"expired, without {', '.join(sorted(missing))}", flush=True)
            raise typer.Exit(1)


@app.command("revoke")
def revoke(names: Names, folder: Folder = SECRETS) -> None:
    """Revoke certificates and unused tokens; the broker learns it from broker/*.crl."""
    authority = Authority(folder / "authority")
    try:
        authority.revoke(*names)
    finally:  # a try that was interrupted may have left the broker's lists behind the register
        write_revocations(folder / "broker", authority)
    print(
        f"revoked: {', '.join(names)}. A broker in a container ends their sessions within seconds; another one"
    )
    print(f"has to be started again. One on another host needs the new {folder / 'broker'}/*.crl")


@app.command("rotate")
def rotate(names: Names, folder: Folder = SECRETS) -> None:
    """Replace the keys and certificates that are kept here, and revoke the old ones; an enrolled edge enrols again."""
    authority = Authority(folder / "authority")
    try:
        for name in names:
            _rotate(folder, authority, name)
    finally:
        write_revocations(folder / "broker", authority)


def _rotate(folder: Path, authority: Authority, name: str) -> None:
    held = authority.register().valid(name, datetime.now(UTC))
    if held is None:
        raise ConfigurationError(f"name = {name!r}: has no valid certificate")
    if held.role is Role.BROKER:
        issue_server(folder / "broker", authority)
        return
    place = folder / {Role.CLOUD: ".", Role.EDGE: "edges", Role.HELPER: "helpers"}[held.role] / name
    if not place.is_dir():
        way = f"enrol {name}` lets it make another"
        if held.role is not Role.EDGE:
            makes = name if held.role is Role.CLOUD else f"helper {name}"
            way = f"revoke {name}` and `mapa certs {makes}` make another"
        raise ConfigurationError(f"name = {name!r}: its key is not kept here; `mapa certs {way}")
    authority.issue(name, held.role, again=True).write(place)
    print(f"{place}: new key and certificate")


@app.command("show")
def show(folder: Folder = SECRETS, as_json: AsJson = False) -> None:
    """List what was issued: name, role, until when it is valid, whether it was revoked."""
    authority, now = Authority(folder / "authority"), datetime.now(UTC)
    register = authority.register()
    rows = [
        {
            "name": one.name,
            "role": str(one.role),
            "state": one.state(now),
            "until": one.until,
            "revoked": one.revoked,
        }
        for one in register.entries
    ]
    rows += [
        {"name": name, "role": "edge", "state": "invited", "until": one.until, "revoked": None}
        for one in register.invitations
        if now < datetime.fromisoformat(one.until)
        for name in one.missing
    ]
    if as_json:
        output.print_json({"authority": authority.fingerprint, "hosts": register.hosts, "issued": rows})
        return
    table = Table("name", "role", "state", "until")
    for row in rows:
        table.add_row(row["name"], row["role"], row["state"], str(row["until"])[:10])
    output.console().print(table)


@app.command("passwords")
def passwords(
    groups: Groups,
    folder: Folder = SECRETS,
) -> None:
    """Make passwords for edges of a broker that `init --passwords` made; those that are there stay."""
    authority = Authority(folder / "authority")
    if not (folder / "broker" / "passwords").is_file():
        raise ConfigurationError(
            f"folder = {str(folder)!r}: its broker has certificates; `mapa certs edge` makes identities"
        )
    for group, count in counts(groups).items():
        _give_passwords(folder, authority, f"edges/{group}", members(group, count))


def counts(groups: list[str]) -> dict[str, int]:
    """Return the number of edges of each NAME=COUNT; 0: a single one of that name."""
    wanted: dict[str, int] = {}
    of: dict[str, str] = {}  # the group of each edge
    for group in groups:
        name, equals, text = group.partition("=")
        count = int(text) if text.isdecimal() and len(text) < 6 else 0
        fits = is_name(name) and count <= 10_000 and (count > 0 or not equals)
        require(
            fits, "NAME[=COUNT]", repr(group), "an edge's name, and a number from 1 to 10000, like lab=10"
        )
        require(name not in wanted, "NAME[=COUNT]", repr(group), f"one group of the name {name}")
        wanted[name] = count
        for edge in members(name, count):
            require(edge not in of, "NAME[=COUNT]", repr(group), f"without {edge}, which {of.get(edge)} has")
            of[edge] = group
    return wanted


def _give_passwords(folder: Path, authority: Authority, place: str, names: list[str]) -> None:
    """Write passwords that are missing, a copy of the authority, and the broker's hashes of all passwords."""
    if place != CLOUD:
        _check_others(folder, place, names)
    accounts = folder / place / ("accounts" if place != CLOUD else ".")
    accounts.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in names:
        path = accounts / (name if place != CLOUD else "password")
        if not path.exists():
            write_private(path, f"{secrets.token_urlsafe(24)}\n".encode())
    write_private(folder / place / "ca.pem", authority.services_certificate)
    # The group's folder is its owner's alone; below it the users of containers must be able to read what is mounted.
    (folder / place).chmod(0o700)
    for path in (accounts, *accounts.iterdir(), folder / place / "ca.pem"):
        if path != folder / place:
            path.chmod(0o755 if path.is_dir() else 0o644)
    files = (path for path in sorted(folder.glob("edges/*/accounts/*")) if not path.name.startswith("."))
    every = {path.name: path.read_text().strip() for path in files}
    every[CLOUD] = (folder / CLOUD / "password").read_text().strip()
    write_passwords(folder / "broker", every)
    print(
        f"{folder / place}: {len(names)} password{'s' * (len(names) > 1)}; a running broker reads them at SIGHUP"
    )


def _check_others(folder: Path, place: str, names: list[str]) -> None:
    """Refuse a name that has a password in another group: the broker knows one for each."""
    held = {path.name: path for path in folder.glob("edges/*/accounts/*")}
    for name in names:
        require(name != CLOUD, "name", repr(name), "an edge's")
        if name in held and held[name].parents[1] != folder / place:
            raise ConfigurationError(
                f"name = {name!r}: has a password already, in {held[name]}; choose another"
            )


def _issue(folder: Path, place: Path, name: str, role: Role) -> None:
    Authority(folder / "authority").issue(name, role).write(place)
    print(f"{place}: key.pem, cert.pem, ca.pem{'' if role is Role.EDGE else ', edges.pem'}")
