"""Enrolment by a one-time token: a workstation makes its own key, and the authority signs it over HTTPS."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hashlib
import http.client
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from common.errors import BrokerUnavailableError, ConfigurationError
from common.wire.topics import is_name
from mapa.authority import (
    ENROLMENT,
    Authority,
    Identity,
    Role,
    fingerprint,
    members,
    new_key,
    signing_request,
    write_private,
)

DEFAULT_PORT = 8885
_PREFIX = "mapa-"
_TIMEOUT = 10.0  # seconds for one request, both ways
_MOST = 8192  # bytes of a request or an answer
_MOST_AT_ONCE = 32  # connections; others wait in the kernel


@dataclass(frozen=True, slots=True)
class Token:
    """What an operator copies by hand to a workstation; it is worth nothing once it was used or has expired."""

    host: str
    port: int
    group: str
    count: int  # edges GROUP-0, GROUP-1, …; 0: one edge of the group's name
    authority: str  # fingerprint
    secret: str
    until: str  # ISO 8601

    def __str__(self) -> str:
        return _PREFIX + base64.urlsafe_b64encode(
            json.dumps(list(asdict(self).values())).encode()
        ).decode().rstrip("=")

    @property
    def expiry(self) -> datetime:
        return datetime.fromisoformat(self.until)

    @classmethod
    def parse(cls, text: str) -> Token:
        """Return a token; ConfigurationError, which does not repeat it, where the text is none."""
        try:
            if not text.startswith(_PREFIX) or len(text) > _MOST:
                raise ValueError
            padded = text.removeprefix(_PREFIX) + "=" * (-len(text.removeprefix(_PREFIX)) % 4)
            values = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
            token = cls(*values)
            kinds = [type(value) for value in values]
            numbers = 0 < token.port < 65536 and 0 <= token.count <= 10_000
            if kinds != [str, int, str, int, str, str, str] or not is_name(token.group) or not numbers:
                raise ValueError
            if token.expiry.tzinfo is None:
                raise ValueError
        except (ValueError, TypeError, binascii.Error, RecursionError):
            raise ConfigurationError(
                "--enrol: is no token; expected what `mapa certs enrol` printed, complete"
            ) from None
        return token


def enrol(token: Token, folder: Path) -> None:
    """Make a key for each edge of a token, have it signed, and keep identities in `folder`/NAME/.

    What a token has made is not made again, by whichever process comes next; an interrupted try goes on with its keys.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tag = hashlib.sha256(token.secret.encode()).hexdigest()
        names = [name for name in members(token.group, token.count) if not _has(folder / name / "token", tag)]
        if names and datetime.now(UTC) > token.expiry:
            raise ConfigurationError(
                f"--enrol: the token for {token.group} expired at {token.until}; ask for another"
            )
        authority = _authority_of(token) if names else b""
        for name in names:
            draft = folder / f".{name}-{tag[:16]}"
            if not draft.exists():
                write_private(draft, new_key())
            content = draft.read_bytes()
            Identity(content, _signed(token, authority, name, content), authority).write(folder / name)
            write_private(folder / name / "token", tag.encode())
            draft.unlink()


def _has(path: Path, tag: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == tag


def _authority_of(token: Token) -> bytes:
    """Return the services' authority, which is the token's, whoever answered."""
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE  # nothing is told; the fingerprint decides
    authority = _ask(token, blind, "GET", "/authority")
    if fingerprint(authority) != token.authority:
        raise ConfigurationError(
            f"--enrol: {token.host}:{token.port} has another authority than the token names; somebody may answer in"
            " its place"
        )
    return authority


def _signed(token: Token, authority: bytes, name: str, key: bytes) -> bytes:
    checked = ssl.create_default_context(cadata=authority.decode("ascii"))
    request = {
        "name": name,
        "secret": token.secret,
        "request": signing_request(key, name).decode("ascii"),
    }
    return _ask(token, checked, "POST", "/enrol", json.dumps(request).encode())


def _ask(token: Token, context: ssl.SSLContext, method: str, path: str, body: bytes | None = None) -> bytes:
    place = f"{token.host}:{token.port}"
    try:
        with contextlib.closing(
            http.client.HTTPSConnection(token.host, token.port, timeout=_TIMEOUT, context=context)
        ) as connection:
            connection.request(method, path, body)
            answer = connection.getresponse()
            content = answer.read(_MOST)
    except ssl.SSLCertVerificationError as error:
        raise ConfigurationError(
            f"--enrol: {place}: its certificate is not trusted ({error.verify_message})"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise BrokerUnavailableError(
            f"--enrol: {place}: no answer ({error}); does `mapa certs enrol` still run there?"
        ) from error
    if answer.status != 200:
        raise ConfigurationError(f"--enrol: {place}: {content.decode('utf-8', 'replace')[:200]}")
    return content


class EnrolmentServer:
    """Serves the authority's certificate, and signs keys for those who have a token."""

    def __init__(
        self,
        authority: Authority,
        host: str,
        listen: tuple[str, int],
        enrolled: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        service = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT

            def do_GET(self) -> None:
                if self.path == "/authority":
                    self._answer(200, authority.services_certificate)
                else:
                    self._answer(404, b"nothing here")

            def do_POST(self) -> None:
                try:
                    values = self._body()
                    with service.signing:
                        self._answer(200, service.sign(values))
                except ConfigurationError as error:
                    say(f"{self.client_address[0]}: refused: {error}")
                    self._answer(403, str(error).encode())

            def _body(self) -> Any:
                length = self.headers.get("Content-Length", "")
                if self.path != "/enrol" or not length.isdecimal() or len(length) > 9 or int(length) > _MOST:
                    raise ConfigurationError("request: malformed")
                try:
                    values = json.loads(self.rfile.read(int(length)))
                except (ValueError, RecursionError):
                    raise ConfigurationError("request: malformed") from None
                expected = {"name", "secret", "request"}
                if (
                    not isinstance(values, dict)
                    or set(values) != expected
                    or not all(isinstance(value, str) and value.isascii() for value in values.values())
                ):
                    raise ConfigurationError("request: malformed")
                return values

            def _answer(self, status: int, content: bytes) -> None:
                self.send_response_only(status)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Say nothing: what strangers send is no operator's concern."""

        self._authority, self._enrolled = authority, enrolled
        self.signing = threading.Lock()  # from a signature until its answer is sent
        self._server = _Server(listen, Handler, self._context(host))
        self.port = int(self._server.server_address[1])

    def _context(self, host: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        identity = self._authority.issue(ENROLMENT, Role.BROKER, again=True, host=host)
        with tempfile.TemporaryDirectory() as folder:  # ssl reads files alone
            identity.write(Path(folder))
            context.load_cert_chain(Path(folder) / "cert.pem", Path(folder) / "key.pem")
        return context

    def sign(self, values: dict[str, str]) -> bytes:
        certificate = self._authority.enrol(values["name"], values["secret"], values["request"].encode())
        self._enrolled(values["name"])
        return certificate

    @contextlib.contextmanager
    def running(self) -> Iterator[EnrolmentServer]:
        thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()
            with self.signing:  # the last edge's answer, which ended this server, is on its way
                pass


class _Server(ThreadingHTTPServer):
    """One thread for each connection, handshake included, and not too many of them."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext
    ) -> None:
        super().__init__(address, handler)
        self._context = context
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._places.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        deadline = threading.Timer(
            2 * _TIMEOUT, self.shutdown_request, (request,)
        )  # for who sends a byte now and then
        try:
            request.settimeout(_TIMEOUT)
            deadline.start()
            with (
                contextlib.suppress(OSError),
                self._context.wrap_socket(request, server_side=True) as secured,
            ):
                self.finish_request(secured, client_address)
        finally:
            deadline.cancel()
            self.shutdown_request(request)
            self._places.release()
