"""docs/cli.md and docs/scenario.md, written from the parser and the schema: `python -m mapa.reference docs`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from common.scenario.scenario import Scenario
from common.scenario.tables import LIMITS, inner_table
from mapa.cli import EXIT_CODES, build, example, exit_codes

_CLI_HEAD = """\
# The command line

Written from the parser by `python -m mapa.reference docs`; change the commands, not this page.
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

The script completes commands, options, names of scenarios, algorithms and data sets, and run ids.

```
mapa completion bash > ~/.local/share/bash-completion/completions/mapa     # bash, with bash-completion
mapa completion zsh > ~/.zfunc/_mapa      # zsh: a folder of $fpath, before compinit
mapa completion fish > ~/.config/fish/completions/mapa.fish
```

Without bash-completion, `source <(mapa completion bash)` in a shell does it for that shell.
"""
_VALUES = {Path: "PATH", int: "INTEGER", float: "NUMBER"}
_SCENARIO_HEAD = """\
# Scenario keys

Written from the schema by `python -m mapa.reference docs`; change the schema, not this page.
`mapa scenario schema` prints it as JSON Schema, and `mapa scenario show NAME` prints a scenario with every value.

One TOML file is one run. An unknown key, a value of another type or out of its range is exit code 2 before anything
starts, and the error names key, value and what is allowed. `--set table.key=value` changes a key on the command line.
A default of – means: absent, and the description says what follows then. *Cycled over edges* means that edge k takes
the k-th value, from the beginning again after the last. Symbols are those of [the paper](paper.md#symbols).
"""
_LISTS = ("links", "devices")  # written [[links]]; the columns of a table are an inline list
_WORDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": ""}
_OPEN = {
    "algorithm": "The options of the algorithm that is named stand beside these: [algorithms](algorithms.md).",
    "privacy": "A noise law of your own may have parameters beside these.",
}


def commands() -> dict[str, Any]:
    """Return every command by the words behind `mapa`: the program first, each group before its commands."""
    root: Any = typer.main.get_command(build([]))
    found = {"": root}
    for name, command in root.commands.items():
        found[name] = command
        found |= {f"{name} {inner}": one for inner, one in getattr(command, "commands", {}).items()}
    return found


def options_of(command: Any) -> list[Any]:
    """Return the options of a command that its help shows, but --help."""
    return [one for one in command.params if one.param_type_name == "option" and not one.hidden]


def cli_page() -> str:
    """Return docs/cli.md."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    sections = "".join(_section(words, command) for words, command in commands().items())
    return _CLI_HEAD + codes + _COMPLETION + sections


def _section(words: str, command: Any) -> str:
    level = "###" if " " in words else "##"
    name = f"mapa {words}".strip()
    arguments = [one for one in command.params if one.param_type_name != "option"]
    options = options_of(command)
    usage = " ".join([name, *_usage(command, options, arguments)])
    about = _cli_cell(" ".join((command.help or "").split()))
    rows = [_parameter(f"`{_argument(one).replace('|', ' or ')}`", one) for one in arguments]
    for one in options:
        names = ", ".join(f"`{option}`" for option in (*one.opts, *one.secondary_opts))
        rows.append(_parameter(f"{names}{_cli_cell(f' {_value(one)}'.rstrip())}", one))
    lines = [f"\n{level} {name}\n", f"{about}\n", f"```text\n{usage}\n```\n"]
    if rows:
        lines.append("\n".join(["| | |", "|---|---|", *rows]) + "\n")
    return "\n".join([*lines, f"Example: `{example(words)}`\n", f"Exit codes: {exit_codes(words)}.\n"])


def _usage(command: Any, options: Sequence[Any], arguments: Sequence[Any]) -> Iterator[str]:
    yield from (f"{one.opts[0]} {_value(one)}" for one in options if one.required)
    if any(not one.required for one in options):
        yield "[OPTIONS]"
    for one in arguments:
        name = _argument(one)
        name = f"{name}..." if one.nargs == -1 and not name.endswith("...") else name
        yield name if one.required else f"[{name}]"
    if getattr(command, "commands", None):
        yield "COMMAND ..."


def _argument(one: Any) -> str:
    return str(one.metavar or one.name.upper())


def _value(option: Any) -> str:
    """Return what an option takes; "": it is a flag."""
    kind = option.type_descriptor.annotation
    kind = next(iter(get_args(kind)), kind)  # of a list its items
    return "" if option.is_flag else option.metavar or _VALUES.get(kind, "TEXT")


def _parameter(names: str, one: Any) -> str:
    option = one.param_type_name == "option"
    text = " ".join((one.help or "").split())
    notes = [] if one.default in (None, False, ()) else [f"default `{one.default}`"]
    notes += ["required"] if one.required and option else []
    notes += ["repeatable"] if option and one.multiple and "repeatable" not in text else []
    notes += [f"environment `{one.envvar}`"] if isinstance(one.envvar, str) else []
    after = f" ({'; '.join(notes)})" if notes else ""
    return f"| {names} | {_cli_cell(text)}{after} |"


def _cli_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def scenario_page() -> str:
    """Return docs/scenario.md."""
    return _SCENARIO_HEAD + "".join(_sections("", Scenario, ""))


def _sections(path: str, table: type[BaseModel], about: str) -> Iterator[str]:
    heading = f"`[[{path}]]`" if path in _LISTS else f"`[{path}]`" if path else "Of the whole run"
    rows = list(_keys(table))
    head = ["| key | type | default | allowed | meaning |", "|---|---|---|---|---|"] if rows else []
    yield "\n".join(["", f"## {heading}", "", *_about(path, table, about), *head, *rows]) + "\n"
    for key, field in table.model_fields.items():
        if (found := inner_table(field)) is not None:
            name = field.alias or key
            yield from _sections(f"{path}.{name}" if path else name, found, field.description or "")


def _about(path: str, table: type[BaseModel], about: str) -> Iterator[str]:
    said = (table.__doc__ or "").strip().splitlines()[0] if table is not Scenario else ""
    said = said.partition("]: ")[2] or said.partition(": ")[2]
    words = [text[0].upper() + text[1:].removesuffix(".") + "." for text in (said, about) if text]
    if words:
        yield from (" ".join(words), "")
    if path in _OPEN:
        yield from (_OPEN[path], "")


def _keys(table: type[BaseModel]) -> Iterator[str]:
    """Yield a row for each key of a table that is not a table itself."""
    properties = table.model_json_schema()["properties"]
    for key, field in table.model_fields.items():
        if inner_table(field) is not None:
            continue
        name = field.alias or key
        schema = properties[name]
        parts = [schema, *schema.get("anyOf", ())]
        parts += [one["items"] for one in parts if "items" in one]
        allowed, about = ", ".join(_allowed(parts)), _cell(field.description or "")
        yield f"| `{name}` | {_kind(schema)} | {_default(field)} | {allowed} | {about} |"


def _kind(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(word for one in schema["anyOf"] if (word := _kind(one))))
    if "enum" in schema or "const" in schema:
        return "text"
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return "[" + ", ".join(_kind(one) for one in schema["prefixItems"]) + "]"
        case "array":
            return f"list of {_kind(schema['items'])}"
        case "object":
            return "table"
        case other:
            return _WORDS[str(other)]


def _allowed(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for part in parts:
        yield from (f"`{value}`" for value in part.get("enum", ()))
        limits = [f"{sign}{_number(part[word])}" for word, sign in LIMITS.items() if word in part]
        if limits:
            yield " and ".join(limits)
        if "maxLength" in part:
            yield f"at most {part['maxLength']} characters"
        if "maxItems" in part and "prefixItems" not in part:
            least, most = part.get("minItems", 0), part["maxItems"]
            yield f"{most} values" if least == most else f"{least} to {most:,} values"


def _number(value: float) -> str:
    """Return a limit in words; a power of two stays one."""
    if value >= 1 << 31 and float(value).hex().startswith("0x1.0000000000000p"):
        return f"2^{math.frexp(value)[1] - 1}"
    return f"{value:,.0f}" if float(value).is_integer() and value < 1e9 else f"{value:g}"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "**needed**"
    return "–" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


def _cell(text: str) -> str:
    return _cli_cell(text).replace("&gt;", ">").replace("*", "\\*").replace("[labels]", "\\[labels\\]")


def main(arguments: Sequence[str]) -> None:
    """Write both pages into a folder."""
    for name, page in (("cli.md", cli_page()), ("scenario.md", scenario_page())):
        path = Path(arguments[0]) / name
        path.write_text(page, encoding="utf-8")
        print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
