"""docs/scenario.md, written from the schema: `python -m mapa.scenario_reference docs/scenario.md`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from common.scenario.scenario import Scenario

_HEAD = """\
# Scenario keys

Written from the schema by `python -m mapa.scenario_reference docs/scenario.md`; change the schema, not this page.
`mapa scenario schema` prints it as JSON Schema, and `mapa scenario show NAME` prints a scenario with every value.

One TOML file is one run. An unknown key, a value of another type or out of its range is exit code 2 before anything
starts, and the error names key, value and what is allowed. `--set table.key=value` changes a key on the command line.
A default of – means: absent, and the description says what follows then. *Cycled over edges* means that edge k takes
the k-th value, from the beginning again after the last. Symbols are those of [the paper](paper.md#symbols).
"""
_LISTS = ("links", "devices")  # written [[links]]; the columns of a table are an inline list
_WORDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": ""}
_LIMITS = {"exclusiveMinimum": "> ", "minimum": "≥ ", "exclusiveMaximum": "< ", "maximum": "≤ "}
_OPEN = {
    "algorithm": "The options of the algorithm that is named stand beside these: [algorithms](algorithms.md).",
    "privacy": "A noise law of one's own may have parameters beside these.",
}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a scenario file."""

    name: str
    kind: str
    default: str
    allowed: str
    about: str


def reference() -> str:
    """Return the page."""
    return _HEAD + "".join(_sections("", Scenario, ""))


def _sections(path: str, table: type[BaseModel], about: str) -> Iterator[str]:
    heading = f"`[[{path}]]`" if path in _LISTS else f"`[{path}]`" if path else "Of the whole run"
    rows = [_row(key) for key in keys_of(table)]
    yield "\n".join(["", f"## {heading}", "", *_about(path, table, about), *_rows(rows)]) + "\n"
    for key, field in table.model_fields.items():
        if (found := _table(field)) is not None:
            name = _name(key, field)
            yield from _sections(f"{path}.{name}" if path else name, found, field.description or "")


def _about(path: str, table: type[BaseModel], about: str) -> Iterator[str]:
    said = (table.__doc__ or "").strip().splitlines()[0] if table is not Scenario else ""
    said = said.partition("]: ")[2] or said.partition(": ")[2]
    words = " ".join(_sentence(one) for one in (said, about) if one)
    if words:
        yield from (words, "")
    if path in _OPEN:
        yield from (_OPEN[path], "")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _rows(rows: Sequence[str]) -> list[str]:
    return ["| key | type | default | allowed | meaning |", "|---|---|---|---|---|", *rows] if rows else []


def keys_of(table: type[BaseModel]) -> list[Key]:
    """Return the keys of a table that are not tables themselves."""
    properties = table.model_json_schema()["properties"]
    return [
        _key(_name(name, field), field, properties[_name(name, field)])
        for name, field in table.model_fields.items()
        if _table(field) is None
    ]


def _key(name: str, field: FieldInfo, schema: Mapping[str, Any]) -> Key:
    parts = [schema, *schema.get("anyOf", ())]
    parts += [one["items"] for one in parts if "items" in one]
    return Key(
        name=name,
        kind=_kind(schema),
        default=_default(field),
        allowed=", ".join(_allowed(parts)),
        about=field.description or "",
    )


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
        limits = [f"{sign}{_number(part[word])}" for word, sign in _LIMITS.items() if word in part]
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


def _name(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _table(field: FieldInfo) -> type[BaseModel] | None:
    """Return the table that a key opens: itself, one that may be absent, or a list of them."""
    for one in (field.annotation, *get_args(field.annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _row(key: Key) -> str:
    return f"| `{key.name}` | {key.kind} | {key.default} | {key.allowed} | {_cell(key.about)} |"


def _cell(text: str) -> str:
    return (
        text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("[labels]", "\\[labels\\]")
    )


def main(arguments: Sequence[str]) -> None:
    page = Path(arguments[0])
    page.write_text(reference(), encoding="utf-8")
    print(f"wrote {page}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
