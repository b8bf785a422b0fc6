"""mapa edge: one edge, or many in one process, on any broker."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from common.accounting.releases import Budget
from common.errors import ConfigurationError
from common.mechanism.guarantee import MOST_STEPS
from common.noise.registry import describe_law
from common.transport.link import link_profile
from edge.fleet import EdgeFleet, FleetSettings
from edge.own_data import DEFAULT_NAME, OwnData
from edge.policy import OperatorPolicy
from mapa import output
from mapa.commands import options
from mapa.commands.options import Connection, Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseAndBudget:
    """Options: the noise that this edge asks for, and what its records may cost in all."""

    epsilon: Annotated[
        float | None,
        typer.Option(
            help="ε_k of gamma-norm noise: every release is at most ε_k-DP under zero-out adjacency (a sample's"
            " contribution set to zero), before amplification by sampling; a run that gives less is refused"
        ),
    ] = None
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            help="z_k of gaussian noise: every release has at least this standard deviation over its zero-out"
            " sensitivity, before amplification by sampling; a run that gives less is refused"
        ),
    ] = None
    noise: Annotated[
        str | None,
        typer.Option(help="noise law, instead of the run's; exponential-norm gives no guarantee"),
    ] = None
    noise_parameter: options.NoiseParameters = None
    total_epsilon: Annotated[
        float | None,
        typer.Option(
            help="largest total ε of any record, over all releases by the edges of --state-dir, under zero-out"
            " adjacency"
        ),
    ] = None
    total_delta: Annotated[float, typer.Option(help="δ of --total-epsilon")] = 1e-5
    least_in_sums: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="z of a secure sum at least, with the edges on the cloud's side that the run reckons with; the floors"
            " above are for a release on its own",
        ),
    ] = None
    replace_budget: Annotated[
        bool, typer.Option("--replace-budget", help="replaces earlier budgets for this data")
    ] = False

    def parameters(self) -> dict[str, float]:
        """Return the law's parameters by name; raise ConfigurationError if one is given twice."""
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ConfigurationError("--epsilon and --noise-multiplier: an edge has one of them")
        named = options.noise_parameters(self.noise_parameter)
        for name, value in (("epsilon", self.epsilon), ("noise_multiplier", self.noise_multiplier)):
            if value is not None:
                named.setdefault(name, []).append(value)
        for name, values in named.items():
            if len(values) > 1:
                raise ConfigurationError(f"{name} = {values}: an edge has one value of it")
        return {name: values[0] for name, values in named.items()}

    def budget(self) -> Budget | None:
        if self.total_epsilon is not None:
            return Budget(self.total_epsilon, self.total_delta)
        if self.replace_budget:
            raise ConfigurationError(
                "--replace-budget: requires --total-epsilon, the budget that replaces earlier ones"
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRecords:
    """Options: records of the operator's own, and the account that they belong to."""

    edge_data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help='records of your own, a file or a folder, for a run with data.set = "local"; they are read here'
            " and never described to others",
        ),
    ] = None
    data_name: Annotated[
        str | None,
        typer.Option(
            help="account of --data in the ledger: all data of one name in a --state-dir count as the same records,"
            " however they change; one file has one name, and a record in data of two names pays both totals"
        ),
    ] = None
    take_data: Annotated[
        bool,
        typer.Option(
            "--take-data",
            help="account --data in this --state-dir from now on, although another one did before: what was spent"
            " there does not count here, unless its ledgers were moved along",
        ),
    ] = False
    forget_account: Annotated[
        list[str] | None,
        typer.Option(
            help="former --data-name of --data in this --state-dir, once: what was spent under it no longer counts"
            " for these records, and a record in both pays both totals; repeatable"
        ),
    ] = None
    new_schema: Annotated[
        bool,
        typer.Option(
            "--new-schema",
            help="read --data by this run's schema and number of records, although earlier runs had another",
        ),
    ] = False

    def opened(self, state_dir: Path, count: int) -> OwnData | None:
        """Return the records; None: the operator brings none."""
        if self.edge_data is None:
            for field in ("data_name", "take_data", "forget_account", "new_schema"):
                if getattr(self, field) not in (None, False):
                    option = f"--{field.replace('_', '-')}"
                    raise ConfigurationError(f"{option}: requires --data, the records that it is about")
            return None
        return OwnData(
            self.edge_data,
            state_dir,
            self.data_name or DEFAULT_NAME,
            take=self.take_data,
            forget=tuple(self.forget_account or ()),
            new_schema=self.new_schema,
            edges=count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Options: how many edges, where their files are, and how they reach the broker."""

    data_dir: options.DataDir = None
    state_dir: Annotated[
        Path, typer.Option(help="folder of the ledgers, which record the privacy spent; never delete it")
    ] = Path("state")
    count: Annotated[int, typer.Option(min=1, max=10_000, help="number of edges in this process")] = 1
    link: Annotated[
        str | None, typer.Option(help="delay to the broker: lan, wifi, 5g, 4g, wan, satellite")
    ] = None
    coding: Annotated[
        str | None,
        typer.Option(
            help="code models and gradients as float16 or int8, where the run offers it, for a slow link"
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Options: what a run may ask of this edge."""

    allow: Annotated[
        list[str] | None, typer.Option(help="package.module:Class that a run's scenario may name; repeatable")
    ] = None
    code: options.Code = None
    allow_seed: Annotated[bool, typer.Option("--allow-seed", help="allow seeded (non-private) runs")] = False
    allow_unprotected: Annotated[
        bool,
        typer.Option(
            "--allow-unprotected",
            help="release your own records (--data, files in --data-dir) also where a run's noise is none, or does not"
            " protect them",
        ),
    ] = False
    most_local_steps: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_STEPS,
            help="local steps of one message that a run may ask for; each is a gradient, and charged as a release",
        ),
    ] = MOST_STEPS


def edge_command(
    connection: Connection,
    metrics: Metrics,
    privacy: NoiseAndBudget,
    records: OwnRecords,
    edges: Edges,
    permissions: Permissions,
    accounts: Annotated[
        Path | None,
        typer.Option(
            help="folder of password files, or folders of identities, each named after its edge id, which is its"
            " broker user too"
        ),
    ] = None,
    enrol: Annotated[
        str | None,
        typer.Option(
            "--enrol",
            metavar="TOKEN",
            help="one-time token of `mapa certs enrol`: make keys, have them signed and keep them in --state-dir; given"
            " again it uses them. - reads the token from stdin",
        ),
    ] = None,
) -> None:
    """Take part in a run until it ends or the budget is spent."""
    options.use_code(permissions.code)
    own = records.opened(edges.state_dir, edges.count)
    policy = OperatorPolicy(
        noise=privacy.noise,
        parameters=privacy.parameters(),
        budget=privacy.budget(),
        replace_budget=privacy.replace_budget,
        least_in_sums=privacy.least_in_sums,
        link=None if edges.link is None else link_profile({"name": edges.link}),
        coding=edges.coding,
        allowed=frozenset(permissions.allow or ()),
        allow_seed=permissions.allow_seed,
        allow_unprotected=permissions.allow_unprotected,
        most_steps=permissions.most_local_steps,
        data_name=None if own is None else own.name,
    )
    if (
        policy.law is not None
    ):  # refuse at once what no cloud would take; without its parameter it takes the run's
        law = describe_law(policy.law, "--noise")
        if policy.parameters:
            law.make(policy.parameters)
    if accounts is not None and connection.broker_username is not None:
        raise ConfigurationError(
            "--accounts and --username: give only one of them; --accounts has a user for each edge"
        )
    if enrol is not None:
        accounts = _enrolled(enrol, connection, accounts, edges)
    files = [] if accounts is None else [path.is_file() for path in accounts.glob("[!.]*")]
    credentials = connection.credentials(accounts=any(files), identities=bool(files) and not any(files))
    known = None
    if accounts is not None:
        known = options.accounts_in(accounts, credentials, authentic=connection.authentic is not False)
    elif credentials.identity is not None:
        from common.transport.identity import name_of  # cryptography: megabytes, that other edges do not need

        known = {name_of(credentials.identity): credentials}
    if warning := options.unproven(connection.address, [credentials, *(known or {}).values()]):
        _say(warning)
    settings = FleetSettings(
        run=connection.run_id,
        broker=connection.address,
        data_dir=options.data_dir_or_default(edges.data_dir),
        state_dir=edges.state_dir,
        count=edges.count,
        policy=policy,
        credentials=credentials,
        connect_timeout=connection.connect_timeout,
        accounts=known,
        own=own,
        metrics=metrics.listener(),
        report_every=1.0 if output.is_verbose() else None,
    )
    fleet = EdgeFleet(settings, _say, note=(lambda _text: None) if output.is_quiet() else _say)
    raise typer.Exit(fleet.serve())


def _enrolled(token: str, connection: Connection, accounts: Path | None, edges: Edges) -> Path:
    """Return the folder of the identities that a token brings."""
    from mapa import enrolment  # cryptography: megabytes, that other edges do not need

    if accounts is not None or connection.identity is not None or connection.broker_username is not None:
        raise ConfigurationError(
            "--enrol: brings an identity; leave out --accounts, --identity and --username"
        )
    identities = edges.state_dir / ".identities"
    enrolment.enrol(
        enrolment.Token.parse(sys.stdin.readline().strip() if token == "-" else token), identities
    )
    return identities


def _say(text: str) -> None:
    print(output.visible(text), file=sys.stderr, flush=True)
