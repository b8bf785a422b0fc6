"""What the doctor found of one thing, what that is needed for, and how it is mended."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

BASIC = "basic"  # simulate and run the quickstart on this machine


class State(Enum):
    OK = "ok"
    NOTE = "note"  # worth knowing; nothing is wrong
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check."""

    name: str
    state: State
    found: str
    needed_for: str
    serves: frozenset[str] = frozenset()  # purposes that need it
    mend: str = ""  # a command or what to do; "": nothing to do

    @property
    def wrong(self) -> bool:
        return self.state in (State.MISSING, State.BROKEN)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state.value,
            "found": self.found,
            "needed_for": self.needed_for,
            "purposes": sorted(self.serves),
            "mend": self.mend or None,
        }


def in_the_way(findings: Iterable[Finding], purposes: Collection[str]) -> list[Finding]:
    """Return what is wrong with what these purposes need."""
    return [one for one in findings if one.wrong and not one.serves.isdisjoint(purposes)]


def by_platform(*, debian: str, mac: str, other: str = "") -> str:
    """Return the command for this platform; where it is neither, what is known for both."""
    if sys.platform == "darwin":
        return mac
    if _is_debian():
        return debian
    return other or f"Debian, Ubuntu: {debian}; macOS: {mac}"


def _is_debian() -> bool:
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").lower().splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    words = " ".join(
        line.partition("=")[2].strip('"') for line in lines if line.startswith(("id=", "id_like="))
    )
    return not {"debian", "ubuntu"}.isdisjoint(words.split())
