"""`create_app`: the server of a RolloutAgentLoop, which a training cluster asks for rollouts.

    POST /v1/rollout/init      202 with the tools; the rollout runs from then on (again: the same 202)
    GET  /v1/rollout/ID/status queued, running; then success, failure or cancelled, until it is forgotten
    POST /v1/rollout/cancel    by ids, by prefix, or all; a cancelled rollout tells no result
    GET  /health               what runs and what is done
    GET  /platform/health      the same behind the key

The rollout's LLM calls go to `{server_url}/v1/chat/completions`, its one result to
`{server_url}/v1/rollout/completed`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from osmosis_ai.rollout.agent_loop import RolloutAgentLoop
from osmosis_ai.rollout.config.settings import RolloutSettings, get_settings
from osmosis_ai.rollout.core.schemas import RolloutRequest
from osmosis_ai.rollout.debug_log import DebugLog
from osmosis_ai.rollout.server.agent_loop_desk import LoopDesk
from osmosis_ai.rollout.server.protocol import CancelRequest, CancelResponse, RolloutStatusResponse

Hook = Callable[[], Awaitable[None]]


def create_app(
    agent_loop: RolloutAgentLoop,
    max_concurrent: int | None = None,
    record_ttl_seconds: float | None = None,
    settings: RolloutSettings | None = None,
    *,
    api_key: str | None = None,
    debug_dir: str | Path | None = None,
    on_startup: Hook | None = None,
    on_shutdown: Hook | None = None,
) -> FastAPI:
    """An ASGI app that runs rollouts of `agent_loop`, each in a thread with an event loop of its own.

    `max_concurrent`: rollouts that run at once, others wait; None is unlimited (or what `settings` say).
    `record_ttl_seconds`: how long an ended rollout is known, so that a repeated init starts nothing;
    None takes the settings' (an hour). `api_key`: what init must bring, as a bearer token; a server off
    loopback needs one. `debug_dir`: where `ctx.log_event` writes, below a folder named by the time of start.

    `on_startup` and `on_shutdown` run in the server's own event loop, not in that of a rollout: a client
    that belongs to a loop is made inside `run`.
    """
    _check_is_loop(agent_loop)
    chosen = settings or get_settings()
    limits = chosen.server
    desk = LoopDesk(
        agent_loop,
        chosen,
        max_concurrent=_positive("max_concurrent", max_concurrent, limits.max_concurrent_rollouts),
        ttl=_positive("record_ttl_seconds", record_ttl_seconds, limits.record_ttl_seconds) or 0.0,
        log=None if debug_dir is None else DebugLog(debug_dir),
    )
    live = _lifespan(desk, limits.cleanup_interval_seconds, on_startup, on_shutdown)
    app = FastAPI(title=f"Osmosis agent loop {agent_loop.name}", lifespan=live, docs_url=None, redoc_url=None)
    app.include_router(_health_routes(desk, api_key))

    async def check(request: Request) -> None:
        _check_key(request, api_key)

    routes = _rollout_routes(desk, chosen.max_metadata_size_bytes)
    app.include_router(routes, dependencies=[Depends(check)])
    return app


def _health_routes(desk: LoopDesk, api_key: str | None) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> dict[str, Any]:
        return desk.health()

    @routes.get("/platform/health")
    async def platform_health(request: Request) -> dict[str, Any]:
        if api_key is None:
            raise HTTPException(404, "this server has no API key")
        _check_key(request, api_key)
        return desk.health()

    return routes


def _rollout_routes(desk: LoopDesk, max_metadata_size_bytes: int) -> APIRouter:
    routes = APIRouter(prefix="/v1/rollout")

    @routes.post("/init", status_code=202)
    async def init(request: Request) -> JSONResponse:
        wanted = _read(await request.body(), max_metadata_size_bytes)
        answer = await desk.admit(wanted)
        return JSONResponse(answer.model_dump(), status_code=202)

    @routes.post("/cancel")
    async def cancel(request: CancelRequest) -> CancelResponse:
        return desk.cancel(request)

    @routes.get("/{rollout_id:path}/status")
    async def status(rollout_id: str) -> RolloutStatusResponse:
        return RolloutStatusResponse(rollout_id=rollout_id, status=desk.status(rollout_id))

    return routes


def _lifespan(
    desk: LoopDesk, cleanup_seconds: float, on_startup: Hook | None, on_shutdown: Hook | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The author's hooks around the desk: rollouts are over before `on_shutdown` takes anything away."""

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        desk.open()
        if on_startup is not None:
            await on_startup()
        sweeping = asyncio.create_task(desk.sweep(cleanup_seconds))
        yield
        sweeping.cancel()
        await desk.close()
        if on_shutdown is not None:
            await on_shutdown()

    return live


def _check_is_loop(given: Any) -> None:
    if not isinstance(given, RolloutAgentLoop):
        hint = " Make an instance of it." if isinstance(given, type) else ""
        raise TypeError(f"create_app needs an instance of RolloutAgentLoop, got {given!r}.{hint}")


def _positive(name: str, given: Any, otherwise: Any) -> Any:
    """0 is not "unlimited", and not the default either."""
    if given is None:
        return otherwise
    if given <= 0:
        raise ValueError(f"create_app: {name} must be above 0, got {given!r}; None is the default")
    return given


def _check_key(request: Request, api_key: str | None) -> None:
    if api_key is None:
        return
    given = request.headers.get("authorization", "")
    given = given[7:] if given[:7].lower() == "bearer " else given  # the raw key is taken, too
    if not hmac.compare_digest(given.strip().encode(), api_key.encode()):
        raise HTTPException(401, "Invalid or missing API key")


def _read(body: bytes, max_metadata_size_bytes: int) -> RolloutRequest:
    context = {"max_metadata_size_bytes": max_metadata_size_bytes}
    try:
        return RolloutRequest.model_validate_json(body, context=context)
    except ValidationError as error:
        # Without the input: it may hold a key.
        findings = [
            {"loc": ["body", *issue["loc"]], "msg": issue["msg"], "type": issue["type"]}
            for issue in error.errors()
        ]
        raise HTTPException(422, findings) from None
