"""mapa replay: a run's model computed again from its gradient log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.own_code import only_code
from mapa import output
from mapa.commands import options
from mapa.commands.common_options import Allowed
from mapa.commands.options import RunName
from mapa.run_reader import find_run
from mapa.verification.replay import Question, replay


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
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Compute a run's final model from its gradient log and tell whether it is the same bit for bit."""
    question = Question(
        gradients=gradients,
        every=every,
        algorithm=algorithm,
        changes=changes or (),
        remake=remake,
        allowed=frozenset(allow or ()),
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
    raise typer.Exit(result.exit_code)
