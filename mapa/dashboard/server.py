"""The page's server: static files, runs as JSON, a stream for each run. It reads, and writes nothing.

Every request passes the guard: reading alone, one origin, a token off loopback.
"""

from __future__ import annotations

import contextlib
import hmac
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mapa.dashboard.folder import RunsFolder
from mapa.dashboard.watch import MOST_VIEWERS, Followed, Following

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
STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",
}
FILES = {
    name: _TYPES[Path(name).suffix]
    for name in (
        *("index.html", "page.js", "charts.js", "heat.js", "views.js", "dom.js", "style.css", "icon.svg"),
        *("uplot/uPlot.iife.min.js", "uplot/uPlot.min.css", "uplot/LICENSE"),
    )
}
MOST_COMPARED = 8
_BEFORE = 2**53


@dataclass(frozen=True, slots=True)
class Guard:
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
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self.app)(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """Return what to answer instead; None: the request may pass."""
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("read-only: GET and HEAD alone", 405, {"Allow": "GET, HEAD"})
        if self.token is None:
            # a foreign page that made its name point here (DNS rebinding) says that name
            host = _HOST.fullmatch(request.headers.get("host", ""))
            if host is None or (host["six"] or host["name"]).lower() not in _LOOPBACK:
                return PlainTextResponse("unknown host: open the address that mapa dashboard printed", 421)
            return None
        if request.scope["path"] == "/" and self._is_token(request.query_params.get("token", "")):
            answer = RedirectResponse("/", 303)  # out of the address bar, and of the history
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", path="/")
            return answer
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        sent = bearer.strip() if kind.lower() == "bearer" else request.cookies.get(COOKIE, "")
        if self._is_token(sent):
            return None
        return PlainTextResponse(
            "token needed: open the address that mapa dashboard printed, or send Authorization: Bearer TOKEN",
            401,
            {"WWW-Authenticate": "Bearer"},
        )

    def _is_token(self, given: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(given.encode(), self.token.encode())


def make_app(runs: Path, token: str | None = None, following: Following | None = None) -> ASGIApp:
    """Return the application over a folder of runs; without a token it answers to loopback's names alone."""
    pages = _Pages(RunsFolder(runs), following or Following())

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await pages.following.close()

    routes = [
        Route("/", pages.static),
        Route("/static/{name:path}", pages.static),
        Route("/api/runs", pages.runs),
        Route("/api/runs/{run}", pages.run),
        Route("/api/runs/{run}/stream", pages.stream),
        Route("/api/runs/{run}/events", pages.events),
        Route("/api/compare", pages.compare),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), token)


@dataclass(frozen=True, slots=True)
class _Pages:
    folder: RunsFolder
    following: Following

    async def static(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in FILES:
            raise HTTPException(404)
        return FileResponse(STATIC / name, headers={"Content-Type": FILES[name], "Cache-Control": "no-cache"})

    async def runs(self, _: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self.folder.lines))

    async def run(self, request: Request) -> Response:
        async with self._whole(request.path_params["run"]) as run:
            return Response(run.watch.changed_since(-1), media_type="application/json")

    async def events(self, request: Request) -> Response:
        query = request.query_params
        before = query.get("before", "0")
        if not (before.isascii() and before.isdigit()) or int(before[:17]) > _BEFORE:
            raise HTTPException(400, "before: must be the number of an event")
        wanted = {key: query.get(key, "")[:200] for key in ("event", "edge", "text")}
        async with self._whole(request.path_params["run"]) as run:
            return JSONResponse(run.watch.listed(**wanted, before=int(before)))

    async def stream(self, request: Request) -> Response:
        path = await self._path(request.path_params["run"])
        if self.following.viewers >= MOST_VIEWERS:
            raise HTTPException(503, f"{MOST_VIEWERS} pages watch already")

        async def told() -> AsyncIterator[bytes]:
            async with self.following.watching(path) as run:
                async for message in run.messages():
                    yield message

        return StreamingResponse(told(), media_type="text/event-stream")

    async def compare(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 1 <= len(names) <= MOST_COMPARED:
            raise HTTPException(400, f"run: give 1 to {MOST_COMPARED} of them")
        parts = []
        for name in names:
            async with self._whole(name) as run:
                shown = tuple(run.watch.encoded[part][1] for part in ("head", "training", "privacy"))
                parts.append(b'{"head":%s,"training":%s,"privacy":%s}' % shown)
        return Response(b'{"runs":[%s]}' % b",".join(parts), media_type="application/json")

    @contextlib.asynccontextmanager
    async def _whole(self, name: str) -> AsyncIterator[Followed]:
        """Watch a run until all that is on disk has been read."""
        async with self.following.watching(await self._path(name)) as run:
            await run.look()
            yield run

    async def _path(self, name: str) -> Path:
        path = await run_in_threadpool(self.folder.find, name)
        if path is None:
            raise HTTPException(404, "no such run")
        return path
