"""The output of a command: its summary, as a table or as JSON."""

from __future__ import annotations

import json
from typing import Any

from mapa.run_view import print_summary


def report(summary: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        print_summary(summary)
