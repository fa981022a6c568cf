"""The board as a local web server: pages and JSON, for one who has the token."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any, cast, get_args

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from shoestring.board.curves import By
from shoestring.board.machine import MachineNow
from shoestring.board.runs import Board, WatchedRun, compare_fields
from shoestring.board.sweeps import RESULTS

EVERY = 1.0
"""Seconds between two looks at the run folders."""
QUIET, MOST_WAIT = 0.15, 1.5
"""Lines are read when for so many seconds nothing was asked: one core answers faster alone. A look at all runs waits so
long at most, since a page asks again for what was read."""
MOST_RUNS, MOST_BUCKETS = 500, 4000
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
_STATIC = {
    "index.html": "shoestring.board",
    "board.js": "shoestring.board",
    "sweeps.js": "shoestring.board",
    "board.css": "shoestring.board",
    "uPlot.iife.min.js": "shoestring.report",
    "uPlot.min.css": "shoestring.report",
}
"""The package of each file."""

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(folder: Path, token: str, every: float = EVERY) -> Starlette:
    """The board of a folder, for requests that have the token: once in the address, then in a cookie."""
    asked = LastAsked()
    board, machine, stop = Board(folder, asked.wait), MachineNow(), threading.Event()

    def watch() -> None:
        board.refresh()
        while not stop.is_set():
            asked.begin_look()
            board.refresh()
            for run in list(board.runs.values()):  # those that are finished have no lines read for their rows
                asked.wait()
                run.read_curves()
            stop.wait(every)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        thread = threading.Thread(target=watch, name="board", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()

    async def page(_: Request) -> Response:
        return _file("index.html")

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HTTPException(404)
        return _file(name)

    async def runs(_: Request) -> Response:
        if not board.version:
            await run_in_threadpool(board.refresh)
        return _json({"folder": str(board.folder), "version": board.version, "runs": board.rows()})

    async def events(_: Request) -> Response:
        async def told() -> AsyncIterator[str]:
            seen = board.version
            yield ": hello\n\n"
            while not stop.is_set():
                await asyncio.sleep(min(every, 0.5))
                if (version := board.version) > seen:
                    rows = {"runs": board.rows(seen), "gone": board.removed(seen)}
                    seen = version
                    yield f"event: runs\ndata: {json.dumps(rows)}\n\n"

        return StreamingResponse(told(), media_type="text/event-stream", headers=_HEADERS)

    async def curves(request: Request) -> Response:
        asked = request.query_params
        names, by = asked.getlist("run"), asked.get("by", "tokens")
        if by not in get_args(By) or len(names) > MOST_RUNS:
            raise HTTPException(400)
        for name in names:
            _known(board, name)
        ends = (_number(asked, "low"), _number(asked, "high")) if "low" in asked else None
        if ends is not None and not ends[0] < ends[1]:
            raise HTTPException(400)
        found = await run_in_threadpool(
            board.curves,
            names,
            cast(By, by),
            log=asked.get("log") == "1",
            smooth=min(1.0, max(0.0, _number(asked, "smooth", 0.0))),
            ends=ends,
            buckets=int(min(MOST_BUCKETS, max(10, _number(asked, "buckets", 500)))),
        )
        return _json(found)

    async def run(request: Request) -> Response:
        return _json(await run_in_threadpool(_known(board, request.query_params.get("run", "")).details))

    async def compare(request: Request) -> Response:
        names = request.query_params.getlist("run")
        if len(names) != 2:
            raise HTTPException(400)
        first, second = (_known(board, name) for name in names)
        return _json({"names": names, "fields": await run_in_threadpool(compare_fields, first, second)})

    async def sweeps(_: Request) -> Response:
        if not board.version:
            await run_in_threadpool(board.refresh)
        return _json({"sweeps": await run_in_threadpool(board.sweep_rows)})

    async def sweep(request: Request) -> Response:
        asked = request.query_params
        found, by = board.sweeps.get(asked.get("sweep", "")), asked.get("by", "loss")
        if found is None:
            raise HTTPException(404)
        if by not in RESULTS:
            raise HTTPException(400)
        return _json(await run_in_threadpool(found.details, board.rows_by_folder(), by))

    async def now(_: Request) -> Response:
        return _json(await run_in_threadpool(machine.read))

    addresses: dict[str, Endpoint] = {
        "/": page,
        "/static/{name}": static,
        "/api/runs": runs,
        "/api/events": events,
        "/api/curves": curves,
        "/api/run": run,
        "/api/compare": compare,
        "/api/sweeps": sweeps,
        "/api/sweep": sweep,
        "/api/machine": now,
    }
    routes = [Route(address, _guarded(endpoint, token, asked)) for address, endpoint in addresses.items()]
    return Starlette(
        routes=routes, lifespan=lifespan, middleware=[Middleware(GZipMiddleware, minimum_size=2000, compresslevel=1)]
    )


class LastAsked:
    """When a page last asked for something: reading lines gives way to it."""

    def __init__(self) -> None:
        self._when, self._left = -QUIET, MOST_WAIT

    def now(self) -> None:
        self._when = time.monotonic()

    def begin_look(self) -> None:
        self._left = MOST_WAIT

    def wait(self) -> None:
        while self._left > 0 and time.monotonic() < self._when + QUIET:
            time.sleep(QUIET / 10)
            self._left -= QUIET / 10


def _guarded(endpoint: Endpoint, token: str, asked: LastAsked) -> Endpoint:
    """The endpoint for those who have the token; one that comes in the address moves to a cookie."""

    async def guarded(request: Request) -> Response:
        cookie = f"shoestring_{request.url.port or 80}"
        given = request.query_params.get("token")
        if given is not None and hmac.compare_digest(given.encode(), token.encode()):
            moved = RedirectResponse(request.url.path, 303, headers=_HEADERS)
            moved.set_cookie(cookie, token, httponly=True, samesite="strict")
            return moved
        if not hmac.compare_digest(request.cookies.get(cookie, "").encode(), token.encode()):
            return PlainTextResponse("open the address that `shoestring board` printed, with its token\n", 403)
        asked.now()
        answer = await endpoint(request)
        asked.now()
        return answer

    return guarded


def _known(board: Board, name: str) -> WatchedRun:
    if name not in board.runs:
        raise HTTPException(404)
    return board.runs[name]


def _number(asked: Any, name: str, default: float | None = None) -> float:
    try:
        found = float(asked[name]) if name in asked else default
    except ValueError:
        found = None
    if found is None or not abs(found) < 1e300:
        raise HTTPException(400)
    return found


def _json(values: Any) -> Response:
    return JSONResponse(values, headers=_HEADERS)


def _file(name: str) -> Response:
    place = resources.files(_STATIC[name]).joinpath("static", name)
    return Response(place.read_bytes(), media_type=_TYPES[Path(name).suffix], headers=_HEADERS)


def listen(host: str, port: int | None) -> socket.socket:
    """A socket on this port, or without one on the first free port from 8642 on."""
    tried = range(8642, 8742) if port is None else [port]
    for number in tried:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, number))
        except OSError:
            made.close()
            if number == tried[-1]:
                raise
            continue
        return made
    raise AssertionError("one was bound, or an error was raised")


def serve(app: Starlette, listening: socket.socket) -> None:
    """Answer until interrupted."""
    import uvicorn

    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])
