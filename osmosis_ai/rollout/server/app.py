"""`create_rollout_server`: rollouts over HTTP, admitted at once, reported by callbacks or fetched by polling.

POST /rollout                202   run a workflow (and its grader); the same again runs nothing twice
GET  /rollout/{id}/status          queued, running, grading, success, failure, cancelled
GET  /rollout/{id}/result?wait=30  the result as soon as there is one, else the status after `wait` seconds
POST /rollout/cancel               by ids, by prefix, or all
GET  /health                       what runs and what waits; the only route without a key
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.routing import Route

from osmosis_ai.rollout.backends.base import ExecutionBackend
from osmosis_ai.rollout.server.desk import Desk, DeskSettings
from osmosis_ai.rollout.server.routes import ROUTES, Asked, Routes

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]


def create_rollout_server(
    *,
    backend: ExecutionBackend,
    lifespan: Lifespan | None = None,
    api_key: str | None = None,
    drain_seconds: float = 10.0,
    max_queued: int | None = None,
    callback_origins: Sequence[str] | None = None,
    result_wait_timeout_sec: float = 30.0,
    result_retention_sec: float = 900.0,
    artifacts_dir: str | Path | None = None,
) -> FastAPI:
    """An ASGI app that runs rollouts on `backend`.

    `api_key`, when given, must come as a bearer token with each request but `/health`; a server that listens
    off loopback needs one. On shutdown running rollouts have `drain_seconds` to end; what is left is reported
    as failed. (`osmosis serve` listens until then; uvicorn itself stops listening first, so what ends during
    that time reaches callbacks, and no controller that fetches its results.)

    A workflow with a limit of concurrency lets `max_queued` rollouts wait (None: any number); the next is
    answered 429. Callbacks go to the origin of the request's `chat_completions_url`, or to one of
    `callback_origins`. A result is kept `result_retention_sec`; one request waits for it at most
    `result_wait_timeout_sec`. With `artifacts_dir` each rollout has a folder there (`ctx.artifacts_dir`).
    """
    root = None if artifacts_dir is None else Path(artifacts_dir).absolute()
    desk = Desk(backend, DeskSettings(max_queued, callback_origins, result_retention_sec, root))
    routes = Routes(desk, api_key=api_key, longest_wait_seconds=result_wait_timeout_sec)
    drain = partial(desk.drain, drain_seconds)
    live = _lifespan(drain, lifespan)
    app = FastAPI(title="Osmosis rollout server", lifespan=live, docs_url=None, redoc_url=None)
    app.state.drain = drain
    for path, method in ROUTES.items():
        app.router.routes.append(Route(path, _endpoint(routes, path), methods=[method]))
    return app


def _lifespan(drain: Callable[[], Awaitable[None]], own: Lifespan | None) -> Lifespan:
    """The author's lifespan around the desk's: rollouts are over before it takes anything away."""

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if own is not None:
                await stack.enter_async_context(own(app))
            yield
            await drain()

    return live


def _endpoint(routes: Routes, path: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        rollout_id = request.path_params.get("rollout_id", "")
        asked = Asked(request.headers, request.url.query, await request.body(), rollout_id)
        answer = await routes.answer(path, asked)
        return Response(answer.body, answer.status, dict(answer.headers), "application/json")

    return endpoint
