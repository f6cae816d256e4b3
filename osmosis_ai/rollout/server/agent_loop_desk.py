"""The desk of an agent loop's server: admits rollouts, runs each once, and tells each result once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import HTTPException

from osmosis_ai.rollout.agent_loop import RolloutAgentLoop, RolloutResult, as_result, tools_for
from osmosis_ai.rollout.backends.base import RolloutStatus
from osmosis_ai.rollout.backends.failure import awaited, describe
from osmosis_ai.rollout.backends.lane import DeadlineExceeded, LanePool, WorkRaised
from osmosis_ai.rollout.client import OsmosisLLMClient
from osmosis_ai.rollout.config.settings import RolloutSettings
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.core.exceptions import OsmosisRolloutError
from osmosis_ai.rollout.core.schemas import InitResponse, RolloutRequest
from osmosis_ai.rollout.debug_log import DebugLog
from osmosis_ai.rollout.server.protocol import CancelRequest, CancelResponse

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0  # at shutdown, for the results that are on their way
RETRY_AFTER = {"Retry-After": "5"}
INTERNAL = "internal_error"  # the finish reason of a failure that is the server's own


@dataclass(slots=True)
class Refused:
    """Why there is no rollout."""

    status: int
    message: str


@dataclass(eq=False, slots=True)
class Record:
    """A rollout that was asked for, from init until it is forgotten."""

    key: str
    request: RolloutRequest
    opened: asyncio.Future[list[dict[str, Any]] | Refused]  # its tools, or why there are none
    started: bool = False  # the training cluster has its tools, and waits for its result
    task: asyncio.Task[None] | None = None
    status: RolloutStatus = RolloutStatus.QUEUED
    reporting: bool = False  # its one result has been begun to be told
    transcript: Callable[[], list[dict[str, Any]]] = field(default=list)  # how far it came
    ended_at: float = 0.0  # time.monotonic()


class LoopDesk:
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
        self._records: dict[str, Record] = {}  # by idempotency key, or rollout id
        self._ended: deque[Record] = deque()  # of these, oldest first
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
        if isinstance(opened, Refused):
            raise HTTPException(opened.status, opened.message)
        return InitResponse(rollout_id=record.request.rollout_id, tools=opened)

    def status(self, rollout_id: str) -> RolloutStatus:
        if (record := self._record(rollout_id)) is None:
            raise HTTPException(404, f"there is no rollout {rollout_id!r} here")
        return record.status

    def cancel(self, asked: CancelRequest) -> CancelResponse:
        """Stop rollouts. Their results are not told any more: whoever asked does not want them."""
        answer = CancelResponse()
        for rollout_id in self._asked_for(asked):
            record = self._record(rollout_id)
            if record is None:
                answer.unknown.append(rollout_id)
            elif record.task is None or record.task.done() or record.reporting:
                answer.finished.append(rollout_id)
            else:
                record.status = RolloutStatus.CANCELLED
                record.task.cancel()
                answer.cancelled.append(rollout_id)
        return answer

    def _record(self, rollout_id: str) -> Record | None:
        """The rollout with this idempotency key, or this id."""
        known = self._records.get(rollout_id)
        same_id = (record for record in self._records.values() if record.request.rollout_id == rollout_id)
        return known or next(same_id, None)

    def _asked_for(self, asked: CancelRequest) -> Iterable[str]:
        if asked.ids is not None:
            return asked.ids
        ids = [record.request.rollout_id for record in self._records.values() if record.ended_at == 0.0]
        return [rollout_id for rollout_id in ids if rollout_id.startswith(asked.prefix or "")]

    def _start(self, key: str, request: RolloutRequest) -> Record:
        if self._closing:
            raise HTTPException(503, "this server is shutting down", RETRY_AFTER)
        bound = self._settings.server.max_queued_rollouts
        if bound is not None and self._is_full() and self._queued >= bound:
            raise HTTPException(
                429, f"{self._queued} rollouts wait already, the limit is {bound}", RETRY_AFTER
            )
        record = Record(key, request, asyncio.get_running_loop().create_future())
        self._records[key] = record
        record.task = asyncio.create_task(self._live(record), name=f"rollout-{request.rollout_id}")
        return record

    def _is_full(self) -> bool:
        return self._max_concurrent is not None and self._running >= self._max_concurrent

    async def _live(self, record: Record) -> None:
        """The rollout from its tools to its result. Only with tools is it known, and only then it runs."""
        try:
            tools = await self._open(record)
            if tools is not None:
                await self._report(record, await self._result(record, tools))
        finally:
            if not record.opened.done():
                stopped = "the rollout was cancelled, or this server is shutting down"
                record.opened.set_result(Refused(503, stopped))
            if self._records.get(record.key) is record:
                record.ended_at = time.monotonic()
                self._ended.append(record)
            if self._log is not None:
                self._log.forget(record.request.rollout_id)

    async def _result(self, record: Record, tools: list[Any]) -> RolloutResult:
        """What the loop came to. Its slot is free again when the news goes out."""
        try:
            async with self._slot():
                record.status = RolloutStatus.RUNNING
                return await self._run(record, tools)
        # The boundary of the server: the author's code has one of its own, so this is a fault of ours.
        except Exception as error:
            logger.exception("rollout %s: the server failed", record.request.rollout_id)
            return _our_error(f"the rollout server failed: {type(error).__name__}: {error}")

    async def _open(self, record: Record) -> list[Any] | None:
        """What `get_tools` gives; None, and no record, when it cannot be used."""
        name = f"{type(self._loop).__name__}.get_tools"

        async def ask() -> tuple[list[Any], list[dict[str, Any]]]:
            return tools_for(self._loop, record.request)

        try:
            tools, plain = await self._lanes.run(ask, self._settings.server.request_timeout_seconds)
        except WorkRaised as raised:
            refused = Refused(500, describe(raised.error, name))
        except DeadlineExceeded:
            seconds = self._settings.server.request_timeout_seconds
            refused = Refused(500, f"{name} exceeded its deadline of {seconds:g} s")
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

    async def _run(self, record: Record, tools: list[Any]) -> RolloutResult:
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
                    returned = await awaited(self._loop.run(context), "run")
                    return as_result(returned, self._loop, request.rollout_id)

        try:
            return await self._lanes.run(work, deadline)
        except WorkRaised as raised:
            logger.error("rollout %s failed: %s", request.rollout_id, raised.error)
            return _error(describe(raised.error, name), record)
        except DeadlineExceeded:
            return _error(f"{name} exceeded its deadline of {deadline:g} s", record)

    async def _report(self, record: Record, result: RolloutResult, *, retries: int | None = None) -> None:
        """Tell the training cluster, once: a result that cannot be delivered never becomes another one."""
        if record.reporting:
            return
        record.reporting = True
        completed = result.status == "COMPLETED"
        record.status = RolloutStatus.SUCCESS if completed else RolloutStatus.FAILURE
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
        left = [record for record in left if record.status is not RolloutStatus.CANCELLED]
        stopped = _our_error("the server was shut down before the rollout ended")
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


def _error(message: str, record: Record) -> RolloutResult:
    result = _error_text(message)
    result.final_messages = record.transcript()
    return result


def _error_text(message: str) -> RolloutResult:
    return RolloutResult("ERROR", [], "error", error_message=message)


def _our_error(message: str) -> RolloutResult:
    return RolloutResult("ERROR", [], INTERNAL, error_message=message)
