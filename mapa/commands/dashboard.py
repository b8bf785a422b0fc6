"""mapa dashboard: a page of all runs, live and ended; as a child process, the page beside one run."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from common.errors import ConfigurationError
from mapa import output
from mapa.commands import options
from mapa.processes import start_child, stop_children

_LEAST_TOKEN = 16  # characters


def dashboard_command(
    runs: options.RunsDir = Path("runs"),
    host: Annotated[
        str, typer.Option(help="address to listen on; any but loopback asks every viewer for a token")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="port; default: 8080, or the next free one")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="file whose first line is the token; default: one is made where one is needed"),
    ] = None,
    published_on_loopback: Annotated[
        bool,
        typer.Option(
            "--published-on-loopback",
            help="for a container whose port is published on the host's loopback alone: no token there either",
        ),
    ] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="open the page in a browser")] = False,
) -> None:
    """Serve a live page of the runs in a folder; changes nothing."""
    try:
        import uvicorn

        from mapa.dashboard.listening import bind, is_loopback, limits, page_address
        from mapa.dashboard.server import make_app
        from mapa.dashboard.watch import Following
    except ImportError as error:
        raise ConfigurationError(
            "mapa dashboard needs starlette and uvicorn: pip install 'mapa-testbed[dashboard]'"
        ) from error
    if not runs.is_dir():
        raise ConfigurationError(f"--runs-dir {str(runs)!r}: no such folder; a first run makes it")
    token = None if token_file is None else _token(token_file)
    if token is None and not is_loopback(host) and not published_on_loopback:
        token = secrets.token_urlsafe(32)
    listener = bind(host, port)
    address = page_address(host, listener.getsockname()[1])
    query = "" if token is None else f"?token={token}"
    output.say(f"dashboard of {runs} at {address}{query if token_file is None else ''}")
    if token is not None:
        kept = "it is not shown again" if token_file is None else f"the first line of {token_file}"
        output.say(f"every viewer needs the token ({kept}); the connection is not encrypted")
    elif not is_loopback(host):
        output.say("no token: whoever reaches this port sees every run; publish it on 127.0.0.1 alone")
    following = Following()

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            following.end()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        make_app(runs, token, following),
        log_level="warning",
        access_log=False,  # addresses with a token in them belong in no log
        server_header=False,
        timeout_graceful_shutdown=3,
        **limits(),
    )
    logging.getLogger("uvicorn.error").addFilter(one_line)
    if open_browser:
        webbrowser.open(address + query)
    with listener, contextlib.suppress(KeyboardInterrupt):  # the way to end it
        Server(config).run(sockets=[listener])


def one_line(record: logging.LogRecord) -> bool:
    """Let an error of the server be one line, as every other error is, unless tracebacks were asked for."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, Exception) and not output.wants_tracebacks():
        record.msg, record.args, record.exc_info = output.unexpected(error), (), None
    return True


def _token(file: Path) -> str:
    try:
        first = file.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file {str(file)!r}: {error}") from error
    if len(first) < _LEAST_TOKEN or not first.isascii() or not first.isprintable() or " " in first:
        raise ConfigurationError(
            f"--token-file {str(file)!r}: its first line must be at least {_LEAST_TOKEN} ASCII characters, no spaces"
        )
    return first


class PageBeside(NamedTuple):
    """A page that a child process serves."""

    address: str
    child: subprocess.Popen[str]


@contextlib.contextmanager
def page_beside(runs: Path) -> Iterator[PageBeside]:
    """Serve the page of a folder, on port 8080 or the next free one; stop it at the end."""
    runs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "mapa.cli", "dashboard", "--runs-dir", str(runs)]
    with start_child(command, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr is not None
            line = child.stderr.readline()
            address = re.search(r"http://\S+", line)
            if address is None:
                raise ConfigurationError(f"--dashboard: {(line + child.stderr.read()).strip()}")
            yield PageBeside(address[0], child)
        finally:
            stop_children(child)
