"""What is wrong with a scenario, in words that name the key, the value and what is allowed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_MOST_LINES = 10  # a scenario may come from a peer, with thousands of wrong values
_MOST_CHARACTERS = 120  # of a key, of a value


def explain(error: ValidationError, root: type[BaseModel]) -> str:
    """Return a line for each of the first wrong keys: the key, its value, and what is allowed; then how many more."""
    found = error.errors(include_url=False)
    lines = [_line(item, root) for item in found[:_MOST_LINES]]
    if len(found) > _MOST_LINES:
        lines.append(f"and {len(found) - _MOST_LINES} more")
    return "\n".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"


def _line(item: Any, root: type[BaseModel]) -> str:
    location = item["loc"]
    key = _short(".".join(str(part) for part in location))
    message = str(item["msg"]).removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    match item["type"]:
        case "extra_forbidden":
            allowed = ", ".join(f.alias or key for key, f in _table(root, location[:-1]).model_fields.items())
            return f"{key} = {_short(repr(item['input']))}: unknown key; allowed are {allowed}"
        case "missing":
            return f"{key}: missing"
        case "value_error":
            return (
                message
                if not key or message.startswith(key) or "." in message.split(":")[0]
                else f"{key}: {message}"
            )
        case _:
            return f"{key} = {_short(repr(item['input']))}: {message}{_range(root, location)}"


def _table(root: type[BaseModel], location: tuple[object, ...]) -> type[BaseModel]:
    """Return the table that a location lies in."""
    table = root
    for part in location:
        named = {field.alias or key: field for key, field in table.model_fields.items()}
        annotation = named[str(part)].annotation if str(part) in named else None
        for inner in (
            annotation,
            *get_args(annotation),
        ):  # a table, a list of them, or one that may be absent
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                table = inner
    return table


@lru_cache(maxsize=64)
def _properties(table: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a table's keys; a millisecond's work, and an error may ask for it ten times."""
    properties: dict[str, Any] = table.model_json_schema()["properties"]
    return properties


def _range(root: type[BaseModel], location: tuple[object, ...]) -> str:
    """Return the allowed range of a number in words, from the JSON schema."""
    names = [str(part) for part in location if isinstance(part, str)]
    if not names:
        return ""
    schema = _properties(_table(root, tuple(names[:-1]))).get(names[-1], {})
    flat = [schema, *schema.get("anyOf", [])]
    flat += [part["items"] for part in flat if "items" in part]
    words = {"exclusiveMinimum": "> ", "minimum": "≥ ", "exclusiveMaximum": "< ", "maximum": "≤ "}
    limits = [f"{sign}{part[word]}" for part in flat for word, sign in words.items() if word in part]
    return f" (allowed: {' and '.join(limits)})" if limits else ""
