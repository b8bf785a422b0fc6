"""mapa bundle and mapa verify: a run as one file, and what can be checked of it by anybody."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from common.errors import ConfigurationError
from common.own_code import only_code
from mapa import output
from mapa.commands import options
from mapa.commands.options import Allowed, RunName
from mapa.runs import find_run
from mapa.verification.bundle import make_bundle
from mapa.verification.check import Check, Status, is_verified
from mapa.verification.replay import ReplayQuestion, replay
from mapa.verification.verify import verify

Ledgers = Annotated[
    list[Path] | None, typer.Option("--ledger", help="state directory of an edge; repeatable")
]
_STYLES = {Status.PASSED: "green", Status.FAILED: "bold red", Status.NOT_CHECKED: "yellow"}


def bundle_command(
    run: RunName,
    out: Annotated[Path | None, typer.Option(help="file to write; default: RUN.mapa.zip")] = None,
    ledger: Ledgers = None,
    not_private: Annotated[
        bool, typer.Option("--not-private", help="bundle a run whose records are not private")
    ] = False,
    runs: options.RunsDir = Path("runs"),
    as_json: options.AsJson = False,
) -> None:
    """Put a run that has ended into one file, with hashes.

    Records, gradient log, ledger statements and model.
    """
    path = find_run(run, runs)
    target = out if out is not None else Path(f"{path.resolve().name}.mapa.zip")
    manifest = make_bundle(path, target, ledger or (), not_private=not_private)
    if as_json:
        output.print_json({"bundle": str(target), **manifest})
        return
    console = output.console(soft_wrap=True, highlight=False)
    console.print(f"wrote {target}: {len(manifest['parts'])} parts, {target.stat().st_size} bytes")
    for reason in manifest["not_private"]:
        console.print(f"not private: {reason}")


def verify_command(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE|RUN", help="a bundle; a run's directory, its id or a unique beginning, or latest"
        ),
    ],
    ledger: Ledgers = None,
    allow: Allowed = None,
    code: options.Code = None,
    allow_unlogged: Annotated[
        bool,
        typer.Option(
            "--allow-unlogged", help="pass a run without a gradient log: its final model is then only claimed"
        ),
    ] = False,
    runs: options.RunsDir = Path("runs"),
    as_json: options.AsJson = False,
) -> None:
    """Check that records, log, statements and model of a run agree.

    It needs no data set.
    """
    options.use_code(code)
    path = Path(subject) if Path(subject).is_file() else find_run(subject, runs)
    if path.is_file() and ledger:
        raise ConfigurationError("--ledger: a bundle has its own ledger statements; give it to `mapa bundle`")
    try:
        checks = verify(path, allow or (), ledger or (), unlogged=allow_unlogged)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    checked = [check for check in checks if check.status is not Status.CLAIMED]
    claims = [check for check in checks if check.status is Status.CLAIMED]
    if as_json:
        document = {
            "subject": str(path),
            "verified": is_verified(checks),
            "checks": [check.as_dict() for check in checked],
            "claimed": [{key: getattr(one, key) for key in ("name", "part", "detail")} for one in claims],
        }
        output.print_json(document)
    else:
        _print(checked, claims)
    raise typer.Exit(0 if is_verified(checks) else 1)


def _print(checked: list[Check], claims: list[Check]) -> None:
    table = Table()
    for column in ("check", "result", "part", "detail"):
        table.add_column(column, overflow="fold")
    for check in checked:
        result = Text(check.status.value, style=_STYLES[check.status])
        table.add_row(check.name, result, output.printable(check.part), output.printable(check.detail))
    console = output.console()
    console.width = max(console.width, 140)
    console.print(table)
    if claims:
        console.print("Claimed, not checked:")
    for check in claims:
        console.print(f"- {output.printable(check.part)}: {output.printable(check.detail)}", highlight=False)
    counts = {status: sum(check.status is status for check in checked) for status in _STYLES}
    told = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    headline = ("verified", "green") if is_verified(checked) else ("not verified", "bold red")
    console.print(Text.assemble(headline, f": {told}"))


def replay_command(
    run: RunName,
    algorithm: Annotated[
        str | None, typer.Option(help="another algorithm: what it would have made of the same arrivals")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE for the other algorithm; repeatable")
    ] = None,
    remake: Annotated[
        bool, typer.Option("--remake", help="make gradients again at the other model's x (seeded runs)")
    ] = False,
    gradients: Annotated[
        bool,
        typer.Option("--gradients/--no-gradients", help="make a seeded run's gradients again and compare"),
    ] = True,
    every: Annotated[int, typer.Option(min=1, help="make only every N-th gradient again")] = 1,
    allow: Allowed = None,
    code: options.Code = None,
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Compute a run's model from its gradient log; same bit for bit?"""
    options.use_code(code)
    question = ReplayQuestion(
        gradients=gradients, every=every, algorithm=algorithm, changes=changes or (), remake=remake
    )
    typed = () if algorithm is None else (algorithm,)  # on the command line: no file asks for it
    with only_code([*(allow or ()), *typed]):
        result = replay(find_run(run, runs), options.data_dir_or_default(data_dir), question)
    if as_json:
        output.print_json({**result.figures, "words": result.words})
    else:
        console = output.console(soft_wrap=True, highlight=False)
        for line in result.words:
            console.print(line)
    raise typer.Exit(int(result.wrong))
