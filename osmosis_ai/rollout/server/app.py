"""`create_rollout_server`: rollouts over HTTP, admitted at once and reported by callbacks."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from osmosis_ai.rollout.backends.base import (
    ExecutionBackend,
    ExecutionRequest,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_ai.rollout.server.callbacks import CallbackClient
from osmosis_ai.rollout.server.protocol import (
    CancelRequest,
    CancelResponse,
    GraderCompleteRequest,
    RolloutCompleteRequest,
    RolloutInitRequest,
    RolloutInitResponse,
)

logger = logging.getLogger(__name__)

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]
REMEMBERED = 10_000  # ended rollouts whose ids are still known, so that a repeated POST runs nothing twice


def create_rollout_server(
    *,
    backend: ExecutionBackend,
    lifespan: Lifespan | None = None,
    api_key: str | None = None,
    drain_seconds: float = 10.0,
) -> FastAPI:
    """An ASGI app that runs rollouts on `backend`.

    `api_key`, when given, must come as a bearer token with each POST; a server that listens off loopback
    needs one. On shutdown running rollouts have `drain_seconds` to end; what is left is reported as failed.
    """
    desk = _Desk(backend)

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if lifespan is not None:
                await stack.enter_async_context(lifespan(app))
            yield
            await desk.drain(drain_seconds)

    app = FastAPI(title="Osmosis rollout server", lifespan=live, docs_url=None, redoc_url=None)
    guarded = [Depends(_key_check(api_key))]

    @app.exception_handler(RequestValidationError)
    async def unusable(request: Request, error: RequestValidationError) -> JSONResponse:
        # Without the input that FastAPI would repeat: it may hold a key, or an infinity that JSON cannot.
        findings = [{"loc": issue["loc"], "msg": issue["msg"]} for issue in error.errors()]
        return JSONResponse({"detail": findings}, status_code=422)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return backend.health()

    @app.post("/rollout", status_code=202, dependencies=guarded)
    async def rollout(request: RolloutInitRequest) -> RolloutInitResponse:
        return desk.admit(request)

    @app.post("/rollout/cancel", dependencies=guarded)
    async def cancel(request: CancelRequest) -> CancelResponse:
        return desk.cancel(request.ids)

    return app


def _key_check(api_key: str | None) -> Callable[..., None]:
    def check(authorization: Annotated[str | None, Header()] = None) -> None:
        if api_key is None:
            return
        given = (authorization or "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), api_key.encode()):
            raise HTTPException(401, "this rollout server needs its key: Authorization: Bearer <key>")

    return check


@dataclass(slots=True)
class _Entry:
    """A rollout that was admitted. The task is held here: asyncio itself keeps only a weak reference."""

    request: RolloutInitRequest
    task: asyncio.Task[None] | None = None
    reported: set[str] = field(default_factory=set)  # phases whose one callback has been begun


class _Desk:
    """Admits rollouts, runs them as tasks, and sees to it that each phase is reported once."""

    def __init__(self, backend: ExecutionBackend) -> None:
        self._backend = backend
        self._callbacks = CallbackClient()
        self._running: dict[str, _Entry] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._draining = False

    def admit(self, request: RolloutInitRequest) -> RolloutInitResponse:
        """Start the rollout, once: a repeated id gets the same answer and no second run."""
        rollout_id = request.rollout_id
        if rollout_id not in self._running and rollout_id not in self._ended:
            if self._draining:
                raise HTTPException(503, "this rollout server is shutting down", {"Retry-After": "1"})
            entry = _Entry(request)
            self._running[rollout_id] = entry
            entry.task = asyncio.create_task(self._run(entry), name=f"rollout-{rollout_id}")
        return RolloutInitResponse(rollout_id=rollout_id)

    def cancel(self, ids: list[str]) -> CancelResponse:
        answer = CancelResponse()
        for rollout_id in ids:
            entry = self._running.get(rollout_id)
            if entry is not None and entry.task is not None:
                entry.task.cancel()
                answer.cancelled.append(rollout_id)
            else:
                (answer.finished if rollout_id in self._ended else answer.unknown).append(rollout_id)
        return answer

    async def drain(self, seconds: float) -> None:
        """Let running rollouts end for `seconds`, then report the rest as failed and let go of everything."""
        self._draining = True
        left = list(self._running.values())
        tasks = [entry.task for entry in left if entry.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        stopped = [entry for entry in left if entry.task is not None and not entry.task.done()]
        for entry in stopped:
            assert entry.task is not None
            entry.task.cancel()
        await asyncio.gather(*(self._report_shutdown(entry) for entry in stopped))
        await self._callbacks.close()
        await self._backend.close()

    async def _run(self, entry: _Entry) -> None:
        request = entry.request
        execution = ExecutionRequest(
            id=request.rollout_id,
            prompt=request.initial_messages,
            label=request.label,
            metadata=request.metadata,
            agent_timeout_sec=request.agent_timeout_sec,
            grader_timeout_sec=request.grader_timeout_sec,
            chat_completions_url=request.chat_completions_url,
            api_key=request.llm_api_key or request.controller_api_key,
        )

        async def workflow_ended(result: ExecutionResult) -> None:
            await self._report(entry, "workflow", result)

        async def grader_ended(result: ExecutionResult) -> None:
            await self._report(entry, "grader", result)

        graded = request.grader_callback_url is not None
        try:
            await self._backend.execute(execution, workflow_ended, grader_ended if graded else None)
        # The boundary of the backend: a fault of ours is reported too, for the phases without a result.
        except Exception as error:
            logger.exception("rollout %s: the backend failed", request.rollout_id)
            await self._report_rest(entry, f"the rollout server failed: {type(error).__name__}: {error}")
        finally:
            self._forget(request.rollout_id)

    def _forget(self, rollout_id: str) -> None:
        self._running.pop(rollout_id, None)
        self._ended[rollout_id] = None
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    async def _report(
        self, entry: _Entry, phase: str, result: ExecutionResult, attempts: int | None = None
    ) -> None:
        """The one callback of a phase. Whether it is delivered or not, there is no second one."""
        if phase in entry.reported:
            return
        entry.reported.add(phase)
        request = entry.request
        url = request.completion_callback_url
        body: RolloutCompleteRequest | GraderCompleteRequest = _completion(request, result)
        if phase == "grader":
            if request.grader_callback_url is None:
                return
            url, body = request.grader_callback_url, _graded(request, result)
        limits = {} if attempts is None else {"attempts": attempts}
        await self._callbacks.post(url, request.controller_api_key, body, **limits)

    async def _report_rest(self, entry: _Entry, message: str, attempts: int | None = None) -> None:
        failure = ExecutionResult(
            RolloutStatus.FAILURE, err_message=message, err_category=RolloutErrorCategory.AGENT_ERROR
        )
        for phase in ("workflow", "grader"):
            await self._report(entry, phase, failure, attempts)

    async def _report_shutdown(self, entry: _Entry) -> None:
        await self._report_rest(
            entry, "the rollout server was shut down before the rollout ended", attempts=1
        )


def _completion(request: RolloutInitRequest, result: ExecutionResult) -> RolloutCompleteRequest:
    return RolloutCompleteRequest(
        rollout_id=request.rollout_id,
        status=result.status,
        extra_fields=request.extra_fields,
        err_message=result.err_message,
        err_category=result.err_category,
        samples={} if result.succeeded else result.samples,
    )


def _graded(request: RolloutInitRequest, result: ExecutionResult) -> GraderCompleteRequest:
    return GraderCompleteRequest(
        rollout_id=request.rollout_id,
        status=result.status,
        samples=result.samples,
        err_message=result.err_message,
        err_category=result.err_category,
    )
