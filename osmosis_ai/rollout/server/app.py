"""`create_rollout_server`: rollouts over HTTP, admitted at once, reported by callbacks or fetched by polling.

POST /rollout                202   run a workflow (and its grader); the same id again runs nothing twice
GET  /rollout/{id}/status          queued, running, grading, success, failure, cancelled
GET  /rollout/{id}/result?wait=30  the result as soon as there is one, else the status after `wait` seconds
POST /rollout/cancel               by ids, by prefix, or all
GET  /health                       what runs and what waits; the only route without a key
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.routing import Route

from osmosis_ai.rollout.backends.base import ExecutionBackend
from osmosis_ai.rollout.server.desk import Desk, DeskSettings, Refused
from osmosis_ai.rollout.server.protocol import (
    CancelRequest,
    CancelResponse,
    RolloutInitRequest,
    RolloutInitResponse,
    RolloutStatusResponse,
)

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]
KeyCheck = Callable[[Request], Awaitable[None]]  # raises HTTPException (401)


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
    as failed.

    A workflow with a limit of concurrency lets `max_queued` rollouts wait (None: any number); the next is
    answered 429. Callbacks go to the origin of the request's `chat_completions_url`, or to one of
    `callback_origins`. A result is kept `result_retention_sec`; one request waits for it at most
    `result_wait_timeout_sec`. With `artifacts_dir` each rollout has a folder there (`ctx.artifacts_dir`).
    """
    root = None if artifacts_dir is None else Path(artifacts_dir).absolute()
    desk = Desk(backend, DeskSettings(max_queued, callback_origins, result_retention_sec, root))
    live = _lifespan(desk, lifespan, drain_seconds)
    app = FastAPI(title="Osmosis rollout server", lifespan=live, docs_url=None, redoc_url=None)
    check = _key_check(api_key)
    _explain_refusals(app)
    app.add_api_route("/health", _health(desk))
    app.router.routes.append(Route("/rollout", _admission(desk, check), methods=["POST"]))
    app.include_router(_questions(desk, result_wait_timeout_sec), dependencies=[Depends(check)])
    return app


def _lifespan(desk: Desk, own: Lifespan | None, drain_seconds: float) -> Lifespan:
    """The author's lifespan around the desk's: rollouts are over before it takes anything away."""

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if own is not None:
                await stack.enter_async_context(own(app))
            yield
            await desk.drain(drain_seconds)

    return live


def _explain_refusals(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def unusable(request: Request, error: RequestValidationError) -> Response:
        return _unusable(error.errors())

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return JSONResponse({"detail": error.reason}, error.status, error.headers)


def _health(desk: Desk) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def health() -> dict[str, Any]:  # asynchronous, or FastAPI would ask a thread for it
        return desk.health()

    return health


def _admission(desk: Desk, check: KeyCheck) -> Callable[[Request], Awaitable[Response]]:
    """POST /rollout, by hand what FastAPI would do for a typed route: it is called for each rollout."""

    async def rollout(request: Request) -> Response:
        await check(request)
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise Refused(415, "POST /rollout takes application/json")
        try:
            asked = RolloutInitRequest.model_validate_json(await request.body())
        except ValidationError as error:
            return _unusable(error.errors(), "body")
        desk.admit(asked)
        return _json(RolloutInitResponse(rollout_id=asked.rollout_id).model_dump(), 202)

    return rollout


def _questions(desk: Desk, longest: float) -> APIRouter:
    """What a controller asks about rollouts that it has started. `longest`: seconds of one long poll."""
    routes = APIRouter()

    @routes.post("/rollout/cancel")
    async def cancel(request: CancelRequest) -> CancelResponse:
        return desk.cancel(request)

    @routes.get("/rollout/{rollout_id}/status")
    async def status(rollout_id: str) -> RolloutStatusResponse:
        return RolloutStatusResponse(rollout_id=rollout_id, status=desk.status(rollout_id))

    @routes.get("/rollout/{rollout_id}/result")
    async def result(rollout_id: str, wait: float = Query(longest, ge=0, allow_inf_nan=False)) -> Response:
        found = await desk.result(rollout_id, min(wait, longest))
        if isinstance(found, bytes):
            return Response(found, media_type="application/json")
        return _json(RolloutStatusResponse(rollout_id=rollout_id, status=found).model_dump())

    return routes


def _key_check(api_key: str | None) -> KeyCheck:
    # Asynchronous, or FastAPI would ask a thread for each request.
    async def check(request: Request) -> None:
        if api_key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), api_key.encode()):
            raise HTTPException(401, "this rollout server needs its key: Authorization: Bearer <key>")

    return check


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _unusable(errors: Sequence[Any], *place: str) -> Response:
    # Without the input that pydantic would repeat: it may hold a key, or an infinity that JSON cannot.
    findings = [{"loc": [*place, *issue["loc"]], "msg": issue["msg"]} for issue in errors]
    return JSONResponse({"detail": findings}, status_code=422)
