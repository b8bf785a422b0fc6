"""The page's server: static files, runs as JSON, and a stream for each run. It reads, and writes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from mapa.dashboard.folder import RunsFolder
from mapa.dashboard.guard import Guard
from mapa.dashboard.stream import MOST_VIEWERS, Followed, Following, messages

STATIC = Path(__file__).parent / "static"
FILES = {
    "index.html": "text/html; charset=utf-8",
    **dict.fromkeys(
        ("page.js", "charts.js", "heat.js", "views.js", "dom.js"), "text/javascript; charset=utf-8"
    ),
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "uplot/uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uplot/uPlot.min.css": "text/css; charset=utf-8",
    "uplot/LICENSE": "text/plain; charset=utf-8",
}
MOST_COMPARED = 8
_BEFORE = 2**53


def make_app(runs: Path, token: str | None = None, following: Following | None = None) -> ASGIApp:
    """Return the application over a folder of runs; without a token it answers to loopback's names alone."""
    pages = _Pages(RunsFolder(runs), following or Following())

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await pages.following.close()

    routes = [
        Route("/", pages.index),
        Route("/static/{name:path}", pages.static),
        Route("/api/runs", pages.runs),
        Route("/api/runs/{run}", pages.run),
        Route("/api/runs/{run}/stream", pages.stream),
        Route("/api/runs/{run}/events", pages.events),
        Route("/api/compare", pages.compare),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), token)


class _Pages:
    def __init__(self, folder: RunsFolder, following: Following) -> None:
        self._folder, self.following = folder, following

    async def index(self, _: Request) -> Response:
        return _file("index.html")

    async def static(self, request: Request) -> Response:
        return _file(request.path_params["name"])

    async def runs(self, _: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._folder.lines))

    async def run(self, request: Request) -> Response:
        async with self._whole(request.path_params["run"]) as run:
            return Response(run.watch.changed_since(-1), media_type="application/json")

    async def events(self, request: Request) -> Response:
        query = request.query_params
        before = query.get("before", "0")
        if not (before.isascii() and before.isdigit()) or int(before[:17]) > _BEFORE:
            raise HTTPException(400, "before: must be the number of an event")
        wanted = {key: query.get(key, "")[:200] for key in ("event", "edge", "text")}
        async with self._whole(request.path_params["run"]) as run, run.lock:
            found = await run_in_threadpool(lambda: run.watch.listed(**wanted, before=int(before)))
        return JSONResponse(found)

    async def stream(self, request: Request) -> Response:
        path = await self._path(request.path_params["run"])
        if self.following.viewers >= MOST_VIEWERS:
            raise HTTPException(503, f"{MOST_VIEWERS} pages watch already")

        async def told() -> AsyncIterator[str]:
            async with self.following.watching(path) as run:
                async for message in messages(run):
                    yield message

        return StreamingResponse(told(), media_type="text/event-stream")

    async def compare(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 1 <= len(names) <= MOST_COMPARED:
            raise HTTPException(400, f"run: give 1 to {MOST_COMPARED} of them")
        parts = []
        for name in names:
            async with self._whole(name) as run:
                shown = (run.watch.encoded[part][1] for part in ("head", "training", "privacy"))
                parts.append('{{"head":{},"training":{},"privacy":{}}}'.format(*shown))
        return Response(f'{{"runs":[{",".join(parts)}]}}', media_type="application/json")

    @contextlib.asynccontextmanager
    async def _whole(self, name: str) -> AsyncIterator[Followed]:
        """Watch a run until all that is on disk has been read."""
        async with self.following.watching(await self._path(name)) as run:
            await run.look()
            while run.watch.behind:
                await run.look()
            yield run

    async def _path(self, name: str) -> Path:
        path = await run_in_threadpool(self._folder.find, name)
        if path is None:
            raise HTTPException(404, "no such run")
        return path


def _file(name: str) -> Response:
    if name not in FILES:
        raise HTTPException(404)
    return FileResponse(STATIC / name, headers={"Content-Type": FILES[name], "Cache-Control": "no-cache"})
