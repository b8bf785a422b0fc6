"""docs/cli.md, written from the parser: `python -m mapa.cli_reference docs/cli.md`; a test fails where it is old."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mapa.command_help import EXIT_CODES
from mapa.command_tree import Command, Parameter, command_tree

_HEAD = """\
# The command line

Written from the parser by `python -m mapa.cli_reference docs/cli.md`; change the commands, not this page.
`mapa COMMAND --help` shows the same.

Results go to stdout, progress and errors to stderr. `--json`, where a command has it, makes the result one JSON
document. Colours and bars appear only in a terminal, and no colours with `NO_COLOR=1`. An error is one line;
`--debug`, before or behind the command's name, or `MAPA_DEBUG=1`, shows its traceback. `--quiet` leaves out progress
and notes, `--verbose` prints progress as lines. Where a command takes a RUN, it is a run's directory, its id, a
beginning that only one id has, or `latest`.

## Exit codes

| code | meaning |
|---|---|
"""
_COMPLETION = """
## Completion

The script completes commands, options, names of scenarios, algorithms and data sets, and run ids, and starts no
Python to do so. Write it again after an upgrade.

```
mapa completion bash > ~/.local/share/bash-completion/completions/mapa     # bash, with bash-completion
mapa completion zsh > ~/.zfunc/_mapa      # zsh: a folder of $fpath, before compinit
mapa completion fish > ~/.config/fish/completions/mapa.fish
```

Without bash-completion, `source <(mapa completion bash)` in a shell does it for that shell.
"""


def reference() -> str:
    """Return the page."""
    commands = command_tree()
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    return _HEAD + codes + _COMPLETION + "".join(_section(one) for one in commands)


def _section(command: Command) -> str:
    words = " ".join(("mapa", *command.words))
    level = "##" if len(command.words) < 2 else "###"
    lines = [f"\n{level} {words}\n", f"{_cell(command.about)}\n", f"```\n{usage(command)}\n```\n"]
    rows = [*(_argument(one) for one in command.arguments), *(_option(one) for one in command.options)]
    if rows:
        lines.append("\n".join(["| | |", "|---|---|", *rows]) + "\n")
    lines.append(f"Example: `{command.example}`\n")
    lines.append(f"Exit codes: {command.codes}.\n")
    return "\n".join(lines)


def usage(command: Command) -> str:
    """Return a command's first line of help."""
    return " ".join(_usage(command))


def _usage(command: Command) -> Iterator[str]:
    yield from ("mapa", *command.words)
    for one in command.options:
        if one.required:
            yield f"{one.options[0]} {one.value}"
    if any(not one.required for one in command.options):
        yield "[OPTIONS]"
    for one in command.arguments:
        name = one.value if one.value.endswith("...") or not one.repeatable else f"{one.value}..."
        yield name if one.required else f"[{name}]"
    if command.is_group or not command.words:
        yield "COMMAND ..."


def _argument(one: Parameter) -> str:
    return f"| `{one.value.replace('|', ' or ')}` | {_cell(one.help)}{_default(one)} |"


def _option(one: Parameter) -> str:
    value = f" {one.value}" if one.value else ""
    names = ", ".join(f"`{name}`" for name in one.options)
    return f"| {names}{_cell(value)} | {_cell(one.help)}{_default(one)} |"


def _default(one: Parameter) -> str:
    notes = [f"default `{one.default}`"] if one.default else []
    notes += ["required"] if one.required and one.options else []
    notes += ["repeatable"] if one.repeatable and one.options and "repeatable" not in one.help else []
    notes += [f"environment `{one.variable}`"] if one.variable else []
    return f" ({'; '.join(notes)})" if notes else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def main(arguments: Sequence[str]) -> None:
    page = Path(arguments[0])
    page.write_text(reference(), encoding="utf-8")
    print(f"wrote {page}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
