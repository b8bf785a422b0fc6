"""How much the program says, and how: quiet or verbose, with tracebacks, with colour; set once, by the command line."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

from common.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

DEBUG = "MAPA_DEBUG"
_WIDEST = 1000  # columns of a table
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # records say theirs themselves: RecordsError
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # \n is none
_asked = {"debug": False, "quiet": False, "verbose": False}


def begin(environ: Mapping[str, str]) -> None:
    """Forget what an earlier command asked for; MAPA_DEBUG counts unless it is empty or 0."""
    sys.stdout, sys.stderr = _writable(sys.stdout, 1), _writable(sys.stderr, 2)
    _asked.update(debug=environ.get(DEBUG, "").strip() not in ("", "0"), quiet=False, verbose=False)


def ask(*, debug: bool = False, quiet: bool = False, verbose: bool = False) -> None:
    """Show tracebacks, or say less or more, from now on."""
    if quiet and verbose:
        raise ConfigurationError("--quiet and --verbose: give at most one of them")
    _asked.update(debug=_asked["debug"] or debug, quiet=quiet, verbose=verbose)


def wants_tracebacks() -> bool:
    return _asked["debug"]


def is_quiet() -> bool:
    """Tell whether only results and errors are printed."""
    return _asked["quiet"]


def is_verbose() -> bool:
    """Tell whether progress is printed as a line each second, instead of a bar."""
    return _asked["verbose"]


def progress_console(*, quiet: bool = False) -> Console:
    """Return the console of progress and notes: stderr, and silent where that was asked for."""
    return console(stderr=True, quiet=quiet or is_quiet())


def console(**options: Any) -> Console:
    """Return a console that prints texts as they are, since they may come from any file.

    No markup, no emoji for a `:name:`; control characters are shown as one sign each.
    """
    return _safe_console()(**{"markup": False, "emoji": False, **options})


@cache
def _safe_console() -> type[Console]:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for part in super().render(renderable, options):
                yield part if part.control else Segment(visible(part.text), part.style)

    return SafeConsole


def print_wide(table: Table) -> None:
    """Print a table as wide as it needs: lines that run over on a narrow screen can be read, a folded table cannot."""
    out = console()
    out.width = max(out.width, _needed_width(out, table))
    out.print(table)


def _needed_width(out: Console, table: Table) -> int:
    from rich.measure import Measurement

    return Measurement.get(out, out.options.update(max_width=_WIDEST), table).maximum


def print_fitting(
    columns: Mapping[str, str], rows: Sequence[Sequence[str]], droppable: Sequence[str]
) -> None:
    """Print a table, on a terminal without those of the droppable columns, the first first, that do not fit in it.

    `columns` says of each whether it stands left or right.
    """
    from rich.table import Table
    from rich.text import Text

    out, places, left_out = console(), list(columns), list(droppable)
    while True:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for name in places:
            table.add_column(
                printable(name), overflow="fold", justify="right" if columns[name] == "right" else "left"
            )
        at = [list(columns).index(name) for name in places]
        for row in rows:
            table.add_row(*(Text(printable(row[place])) for place in at))
        if not out.is_terminal or not left_out or _needed_width(out, table) <= out.width:
            return print_wide(table)
        places.remove(left_out.pop(0))


def print_json(value: object) -> None:
    """Print a value as JSON, without a character that a terminal would act on."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    print(_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def say(text: str) -> None:
    """Print a line on stderr at once, also where progress is not wanted."""
    print(text, file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Print a line of progress on stderr, unless quiet was asked for."""
    progress_console().print(text, soft_wrap=True, highlight=False)


@contextlib.contextmanager
def said_if_slow(say: Callable[[str], None] | None, text: str, after: float = 1.0) -> Iterator[None]:
    """Tell what is waited for once it takes longer than `after` seconds."""
    timer = threading.Timer(after, say or (lambda _: None), [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def visible(text: str) -> str:
    """Return a text whose control characters, but ends of lines, are replaced by one sign each."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def printable(text: str) -> str:
    """Return a text of unknown origin for a terminal or a table: each control character replaced by one sign."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def rounded_up(epsilon: float) -> str:
    """Return ε in four digits that are still an upper bound."""
    if epsilon == 0:
        return "0"
    scale = 10.0 ** (3 - math.floor(math.log10(epsilon)))
    return f"{math.ceil(epsilon * scale - 1e-9) / scale:.10g}"


def coloured(stream: IO[str]) -> bool:
    """Tell whether a stream is a terminal with colours, and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _writable(stream: TextIO | None, descriptor: int) -> TextIO:
    r"""Return a stream that takes any text: a closed one forgets it, and ε is \u03b5 where an encoding has none."""
    if stream is None:
        try:
            os.fstat(descriptor)
        except OSError:  # free, so that the next file to be opened would take what children print
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        return Path(os.devnull).open("w", encoding="utf-8")
    narrow = stream.errors == "strict" or not stream.encoding.lower().startswith("utf")
    if isinstance(stream, io.TextIOWrapper) and narrow:
        stream.reconfigure(errors="backslashreplace")
    return stream


def flushed(code: object) -> int:
    """Return the exit code once all output is written; 1 where it cannot be, without a word if its reader has left."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # what is left in the buffer would fail again, loudly, when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(unexpected(error), file=sys.stderr)
        return 1
    return code if isinstance(code, int) else 0 if code is None else 1


def unexpected(error: Exception) -> str:
    """Return an unexpected error in one line: what, and where; of a full disk behind the output, that."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
        return f"error: the output could not be written: {error.strerror}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    what = " ".join(str(error).split())[:300]
    return f"unexpected error: {type(error).__name__}{': ' if what else ''}{what}{where}; --debug shows the traceback"
