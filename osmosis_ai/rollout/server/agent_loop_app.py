"""`create_app`: the server of a RolloutAgentLoop, which a training cluster asks for rollouts.

    POST /v1/rollout/init      202 with the tools; the rollout runs from then on (again: the same 202)
    GET  /health               what runs and what is done
    GET  /platform/health      the same behind the key

The rollout's LLM calls go to `{server_url}/v1/chat/completions`, its one result to
`{server_url}/v1/rollout/completed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from osmosis_ai.rollout.agent_loop import RolloutAgentLoop, RolloutResult, as_result, tools_for
from osmosis_ai.rollout.backends.failure import describe
from osmosis_ai.rollout.backends.lane import DeadlineExceeded, LanePool, WorkRaised
from osmosis_ai.rollout.client import OsmosisLLMClient
from osmosis_ai.rollout.config.settings import RolloutSettings, get_settings
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.core.exceptions import OsmosisRolloutError
from osmosis_ai.rollout.core.schemas import InitResponse, RolloutRequest
from osmosis_ai.rollout.debug_log import DebugLog

logger = logging.getLogger(__name__)

Hook = Callable[[], Awaitable[None]]
CLOSE_SECONDS = 5.0  # at shutdown, for the results that are on their way
RETRY_AFTER = {"Retry-After": "5"}


def create_app(
    agent_loop: RolloutAgentLoop,
    max_concurrent: int | None = None,
    record_ttl_seconds: float | None = None,
    *,
    settings: RolloutSettings | None = None,
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
    desk = _Desk(
        agent_loop,
        chosen,
        max_concurrent=_positive("max_concurrent", max_concurrent, limits.max_concurrent_rollouts),
        ttl=_positive("record_ttl_seconds", record_ttl_seconds, limits.record_ttl_seconds) or 0.0,
        log=None if debug_dir is None else DebugLog(debug_dir),
    )

    live = _lifespan(desk, limits.cleanup_interval_seconds, on_startup, on_shutdown)
    app = FastAPI(title=f"Osmosis agent loop {agent_loop.name}", lifespan=live, docs_url=None, redoc_url=None)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return desk.health()

    @app.get("/platform/health")
    async def platform_health(request: Request) -> dict[str, Any]:
        if api_key is None:
            raise HTTPException(404, "this server has no API key")
        _check_key(request, api_key)
        return desk.health()

    @app.post("/v1/rollout/init", status_code=202)
    async def init(request: Request) -> JSONResponse:
        _check_key(request, api_key)
        wanted = _read(await request.body(), chosen.max_metadata_size_bytes)
        answer = await desk.admit(wanted)
        return JSONResponse(answer.model_dump(), status_code=202)

    return app


def _lifespan(
    desk: _Desk, cleanup_seconds: float, on_startup: Hook | None, on_shutdown: Hook | None
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


@dataclass(slots=True)
class _Refused:
    """Why there is no rollout."""

    status: int
    message: str


@dataclass(eq=False, slots=True)
class _Record:
    """A rollout that was asked for, from init until it is forgotten."""

    key: str
    request: RolloutRequest
    opened: asyncio.Future[list[dict[str, Any]] | _Refused]  # its tools, or why there are none
    started: bool = False  # the training cluster has its tools, and waits for its result
    task: asyncio.Task[None] | None = None
    reporting: bool = False  # its one result has been begun to be told
    transcript: Callable[[], list[dict[str, Any]]] = field(default=list)  # how far it came
    ended_at: float = 0.0  # time.monotonic()


class _Desk:
    """Admits rollouts, runs each once, and tells each result once."""

    def __init__(
        self,
        loop: RolloutAgentLoop,
        settings: RolloutSettings,
        *,
        max_concurrent: int | None,
        ttl: float,
        log: DebugLog | None,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._max_concurrent = max_concurrent
        self._slots = None if max_concurrent is None else asyncio.Semaphore(max_concurrent)
        self._ttl = ttl
        self._log = log
        self._lanes = LanePool()
        self._records: dict[str, _Record] = {}  # by idempotency key, or rollout id
        self._ended: deque[_Record] = deque()  # of these, oldest first
        self._queued = 0
        self._running = 0
        self._completed = 0
        self._closing = False

    def health(self) -> dict[str, Any]:
        concurrency = {
            "max_concurrent": self._max_concurrent,
            "queued": self._queued,
            "running": self._running,
        }
        return {
            "status": "healthy",
            "agent_loop": self._loop.name,
            "active_rollouts": len(self._records) - len(self._ended),
            "completed_rollouts": self._completed,
            "concurrency": concurrency,
        }

    async def admit(self, request: RolloutRequest) -> InitResponse:
        """The tools, as soon as they are known. A rollout that is known already is not started again."""
        key = request.idempotency_key or request.rollout_id
        self._forget_old()
        record = self._records.get(key)
        if record is None:
            record = self._start(key, request)
        opened = await asyncio.shield(record.opened)  # a client that goes away takes nobody else along
        if isinstance(opened, _Refused):
            raise HTTPException(opened.status, opened.message)
        return InitResponse(rollout_id=record.request.rollout_id, tools=opened)

    def _start(self, key: str, request: RolloutRequest) -> _Record:
        if self._closing:
            raise HTTPException(503, "this server is shutting down", RETRY_AFTER)
        bound = self._settings.server.max_queued_rollouts
        if bound is not None and self._is_full() and self._queued >= bound:
            raise HTTPException(
                429, f"{self._queued} rollouts wait already, the limit is {bound}", RETRY_AFTER
            )
        record = _Record(key, request, asyncio.get_running_loop().create_future())
        self._records[key] = record
        record.task = asyncio.create_task(self._live(record), name=f"rollout-{request.rollout_id}")
        return record

    def _is_full(self) -> bool:
        return self._max_concurrent is not None and self._running >= self._max_concurrent

    async def _live(self, record: _Record) -> None:
        """The rollout from its tools to its result. Only with tools is it known, and only then it runs."""
        try:
            tools = await self._open(record)
            if tools is None:
                return
            async with self._slot():
                result = await self._run(record, tools)
            await self._report(record, result)  # outside of the slot: slow news hold up no rollout
        finally:
            if not record.opened.done():
                record.opened.set_result(_Refused(503, "this server is shutting down"))
            if self._records.get(record.key) is record:
                record.ended_at = time.monotonic()
                self._ended.append(record)
            if self._log is not None:
                self._log.forget(record.request.rollout_id)

    async def _open(self, record: _Record) -> list[Any] | None:
        """What `get_tools` gives; None, and no record, when it cannot be used."""
        name = f"{type(self._loop).__name__}.get_tools"

        async def ask() -> tuple[list[Any], list[dict[str, Any]]]:
            return tools_for(self._loop, record.request)

        try:
            tools, plain = await self._lanes.run(ask, self._settings.server.request_timeout_seconds)
        except WorkRaised as raised:
            refused = _Refused(500, describe(raised.error, name))
        except DeadlineExceeded:
            seconds = self._settings.server.request_timeout_seconds
            refused = _Refused(500, f"{name} exceeded its deadline of {seconds:g} s")
        else:
            record.opened.set_result(plain)
            record.started = True
            return tools
        logger.error("rollout %s was not started: %s", record.request.rollout_id, refused.message)
        del self._records[record.key]  # nothing was started, so another init may try again
        record.opened.set_result(refused)
        return None

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._slots is not None:
            self._queued += 1
            try:
                await self._slots.acquire()
            finally:
                self._queued -= 1
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if self._slots is not None:
                self._slots.release()

    async def _run(self, record: _Record, tools: list[Any]) -> RolloutResult:
        """Run the loop in a lane. Whatever becomes of it is a result."""
        request, deadline = record.request, self._settings.server.request_timeout_seconds
        name = f"{type(self._loop).__name__}.run"

        async def work() -> RolloutResult:
            async with OsmosisLLMClient(
                request.server_url, request.rollout_id, request.api_key, settings=self._settings, tools=tools
            ) as llm:
                record.transcript = llm.calls.transcript
                context = RolloutContext(
                    f"{request.server_url.rstrip('/')}/v1",
                    request.api_key,
                    request=request,
                    tools=tools,
                    llm=llm,
                    debug_log=self._log,
                    use_environment=False,
                )
                with context:
                    return as_result(await self._loop.run(context), self._loop, request.rollout_id)

        try:
            return await self._lanes.run(work, deadline)
        except WorkRaised as raised:
            logger.error("rollout %s failed: %s", request.rollout_id, raised.error)
            return _error(describe(raised.error, name), record)
        except DeadlineExceeded:
            return _error(f"{name} exceeded its deadline of {deadline:g} s", record)

    async def _report(self, record: _Record, result: RolloutResult, *, retries: int | None = None) -> None:
        """Tell the training cluster, once: a result that cannot be delivered never becomes another one."""
        if record.reporting:
            return
        record.reporting = True
        try:
            await self._send(record.request, result, retries)
        except OsmosisRolloutError as error:
            logger.error("the result of rollout %s was not delivered: %s", record.request.rollout_id, error)
        finally:
            self._completed += 1

    async def _send(self, request: RolloutRequest, result: RolloutResult, retries: int | None) -> None:
        async with OsmosisLLMClient(
            request.server_url, request.rollout_id, request.api_key, settings=self._settings
        ) as client:
            try:
                await client.complete_rollout(**_completion(result), retries=retries)
            except (TypeError, ValueError, RecursionError) as error:  # nothing was sent: it is no JSON
                failed = _error_text(f"the result cannot be written as JSON: {error}")
                await client.complete_rollout(**_completion(failed), retries=retries)

    def _forget_old(self) -> None:
        now = time.monotonic()
        while self._ended and now - self._ended[0].ended_at > self._ttl:
            del self._records[self._ended.popleft().key]

    async def sweep(self, interval_seconds: float) -> None:
        """Forget old records, now and then."""
        while True:
            await asyncio.sleep(interval_seconds)
            self._forget_old()

    def open(self) -> None:
        """Admit rollouts; a server may be started again after it was closed."""
        if self._closing:
            self._lanes, self._closing = LanePool(), False

    async def close(self) -> None:
        """Stop what runs, say so, and let go of everything."""
        self._closing = True
        left = [record for record in self._records.values() if record.task and not record.task.done()]
        for record in left:
            if record.task is not None and not record.reporting:
                record.task.cancel()
        if left:
            await asyncio.wait([r.task for r in left if r.task is not None], timeout=CLOSE_SECONDS)
        stopped = _error_text("the server was shut down before the rollout ended")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*(self._report(r, stopped, retries=0) for r in left if r.started))
        self._lanes.close()
        if self._log is not None:
            self._log.close()


def _completion(result: RolloutResult) -> dict[str, Any]:
    """The arguments of `complete_rollout`."""
    return {
        "status": result.status,
        "final_messages": result.final_messages,
        "finish_reason": result.finish_reason,
        "error_message": result.error_message,
        "metrics": result.metrics,
        "reward": result.reward,
    }


def _error(message: str, record: _Record) -> RolloutResult:
    result = _error_text(message)
    result.final_messages = record.transcript()
    return result


def _error_text(message: str) -> RolloutResult:
    return RolloutResult("ERROR", [], "error", error_message=message)
