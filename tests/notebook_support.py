"""A notebook's cells, run in order in this process: what each shows, as text.

python -m tests.notebook_support FILE    print what they show
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cells(notebook: dict[str, Any]) -> list[str]:
    """Return what each code cell prints, followed by the value of its last expression."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(code_cells(notebook), start=1):
        tree = ast.parse("".join(cell["source"]), f"cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, f"cell {number}", "exec", dont_inherit=True), names)
            value = None
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        shown.append(printed.getvalue() + ("" if value is None else f"{value!r}\n"))
    return shown


def stored(notebook: dict[str, Any]) -> list[str]:
    """Return the same of the outputs that the file has; bars and pictures are no text of a cell."""
    shown = []
    for cell in code_cells(notebook):
        text = ""
        for output in cell["outputs"]:
            if output["output_type"] == "stream" and output["name"] == "stdout":
                text += "".join(output["text"])
            elif output["output_type"] == "execute_result":
                text += "".join(output["data"]["text/plain"]) + "\n"
        shown.append(text)
    return shown


def pictures(notebook: dict[str, Any]) -> list[bytes]:
    """Return the PNG images that the outputs hold."""
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    found = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    return [base64.b64decode("".join(one)) for one in found]


if __name__ == "__main__":
    for text in run_cells(read(Path(sys.argv[1]))):
        print(text)
