"""What every request must pass, and what every answer carries: reading alone, one origin, a token off loopback."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "mapa_dashboard"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[(?P<six>[^][]*)\]|(?P<name>[^][:]*))(?::[0-9]*)?")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class Guard:
    """The door in front of the page."""

    app: ASGIApp
    token: str | None = None  # None: no token is asked for, and only loopback's names are answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self.app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return what to answer instead; None: the request may pass."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("read-only: GET and HEAD alone", 405, {"Allow": "GET, HEAD"})
        if self.token is None:
            # a page of somebody else that made its name point here (DNS rebinding) says that name
            if host_name(headers.get("host", "")) not in _LOOPBACK:
                return PlainTextResponse("unknown host: open the address that mapa dashboard printed", 421)
            return None
        given = _query_token(scope["query_string"])
        if given is not None and scope["path"] == "/" and self._is_token(given):
            answer = RedirectResponse("/", 303)  # out of the address bar, and of the history
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", path="/")
            return answer
        if self._is_token(_sent_token(headers)):
            return None
        return PlainTextResponse(
            "token needed: open the address that mapa dashboard printed, or send Authorization: Bearer TOKEN",
            401,
            {"WWW-Authenticate": "Bearer"},
        )

    def _is_token(self, given: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(given.encode(), self.token.encode())


def host_name(host: str) -> str:
    """Return the name of a Host header without its port; "" where it is none, whatever stands before or behind it."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found["six"] or found["name"]).lower()


def _query_token(query: bytes) -> str | None:
    found = parse_qs(query.decode("latin-1")).get("token")
    return found[0] if found else None


def _sent_token(headers: Mapping[str, str]) -> str:
    kind, _, given = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return given.strip()
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value
