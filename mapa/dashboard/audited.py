"""What `mapa audit --run` found, as the page shows it: the least ε that attacks show, beside what is claimed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mapa.dashboard.gathered import number
from mapa.dashboard.sections import rows, table

_MOST = 64  # games that are shown
_LONGEST = 120  # characters of a game's name


def audited(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the scenario's own games and the audit of a whole run; None: there is no report."""
    games = [row for row in rows(report, "games") if row.get("kind") == "scenario"]
    whole = table(report, "one_run")
    if not games and not whole:
        return None
    return {
        "edge": number(report.get("edge")),
        "confidence": number(report.get("confidence")),
        "delta": number(report.get("delta")),
        "refuted": any(row.get("violated") is True for row in (*games, whole)),
        "games": [
            {
                "name": str(row.get("name"))[:_LONGEST],
                "claimed": number(row.get("claimed_epsilon")),
                "least": number(row.get("lower_epsilon")),
                "refuted": row.get("violated") is True,
            }
            for row in games[:_MOST]
        ],
        "whole": {
            "releases": number(whole.get("releases")),
            "canaries": number(whole.get("canaries")),
            "claimed": number(whole.get("claimed_epsilon")),
            "least": number(whole.get("lower_epsilon")),
            "refuted": whole.get("violated") is True,
        }
        if whole
        else None,
    }
