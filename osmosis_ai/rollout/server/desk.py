"""The desk: admits rollouts, runs them as tasks, reports each phase once, and keeps what they came to."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from osmosis_ai.errors import UsageError
from osmosis_ai.rollout.backends.base import (
    ExecutionBackend,
    ExecutionRequest,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_ai.rollout.server.callbacks import ATTEMPTS, CallbackClient, encode
from osmosis_ai.rollout.server.protocol import (
    CancelRequest,
    CancelResponse,
    GraderCompleteRequest,
    RolloutCompleteRequest,
    RolloutInitRequest,
    origin,
)

logger = logging.getLogger(__name__)

REMEMBERED = 10_000  # ended rollouts whose ids are still known, so that a repeated POST runs nothing twice
DELIVERED_KEPT = 256  # results that a callback has delivered are kept as well, but not more than these
RETRY_SECONDS = 5  # after which a controller that was refused for the length of the queue may ask again


class Refused(Exception):
    """A request that is answered with an HTTP status and a reason."""

    def __init__(self, status: int, reason: str, *, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


@dataclass(frozen=True, slots=True)
class DeskSettings:
    """What `create_rollout_server` was told."""

    max_queued: int | None = None
    callback_origins: Sequence[str] | None = None
    result_retention_seconds: float = 900.0
    artifacts_root: Path | None = None

    def __post_init__(self) -> None:
        if self.max_queued is not None and self.max_queued < 0:
            raise UsageError(f"max_queued must be at least 0, or None for no bound, got {self.max_queued}")
        if not self.result_retention_seconds > 0:
            raise UsageError(f"result_retention_sec must be above 0, got {self.result_retention_seconds}")
        for given in self.callback_origins or ():
            if given != origin(given):
                raise UsageError(
                    f"callback_origins: {given!r} is not an origin; write it like 'https://controller:8443'"
                )


@dataclass(slots=True)
class Entry:
    """A rollout that was admitted. The task is held here: asyncio itself keeps only a weak reference."""

    request: RolloutInitRequest
    fingerprint: int  # of the request: a repeated one is known by it
    status: RolloutStatus = RolloutStatus.QUEUED
    task: asyncio.Task[None] | None = None
    working: bool = True  # its workflow has not ended: it has a slot of the backend, or waits for one
    reported: set[str] = field(default_factory=set)  # phases whose one callback has been begun
    result: bytes | None = None  # the JSON of the last phase
    delivered: bool = False  # a callback has taken that result
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def graded(self) -> bool:
        """Whether a grader is asked for: by a URL for its callback, or by a controller that polls."""
        request = self.request
        return request.grader_callback_url is not None or (
            request.completion_callback_url is None and request.grade
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """What an ended rollout came to."""

    fingerprint: int  # of the request
    status: RolloutStatus
    result: bytes | None  # None: not kept any more
    expires: float  # time.monotonic() until which the result is kept


class Desk:
    """One per server. All of it runs in the server's event loop."""

    def __init__(self, backend: ExecutionBackend, settings: DeskSettings) -> None:
        self._backend = backend
        self._settings = settings
        self._callbacks = CallbackClient()
        self._running: dict[str, Entry] = {}
        self._ended: OrderedDict[str, Ended] = OrderedDict()  # in the order in which they ended
        self._delivered: OrderedDict[str, None] = OrderedDict()  # those that a callback has delivered
        self._working = 0  # admitted, and the workflow has not ended
        self._draining = False

    # --- what the routes ask for

    def admit(self, request: RolloutInitRequest) -> None:
        """Start the rollout, once: a repeated request gets the same answer and no second run."""
        rollout_id, fingerprint = request.rollout_id, hash(request.model_dump_json())
        known = self._running.get(rollout_id) or self._ended.get(rollout_id)
        if known is not None and known.fingerprint == fingerprint:
            return
        if known is not None:
            raise _taken(rollout_id)
        self._check_callbacks(request)
        if self._draining:
            raise _shutting_down()
        self._check_queue()
        entry = Entry(request, fingerprint)
        self._running[rollout_id] = entry
        self._working += 1
        entry.task = asyncio.create_task(self._run(entry), name=f"rollout-{rollout_id}")

    def cancel(self, asked: CancelRequest) -> CancelResponse:
        answer = CancelResponse()
        for rollout_id in self._asked_for(asked):
            entry = self._running.get(rollout_id)
            if entry is not None and entry.task is not None:
                entry.task.cancel()
                answer.cancelled.append(rollout_id)
            else:
                (answer.finished if rollout_id in self._ended else answer.unknown).append(rollout_id)
        return answer

    def status(self, rollout_id: str) -> RolloutStatus:
        if entry := self._running.get(rollout_id):
            return entry.status
        return self._known(rollout_id).status

    async def result(self, rollout_id: str, wait_seconds: float) -> bytes | RolloutStatus:
        """The JSON of the result, or the status of a rollout that has not ended after `wait_seconds`."""
        if entry := self._running.get(rollout_id):
            try:
                async with asyncio.timeout(wait_seconds):
                    await entry.over.wait()
            except TimeoutError:
                return entry.status
            except asyncio.CancelledError:  # by the server, which waits no longer for open requests
                raise _shutting_down() from None
            if entry.result is not None:
                return entry.result
        ended = self._known(rollout_id)
        if ended.result is None or ended.expires < time.monotonic():
            kept = f"{self._settings.result_retention_seconds:g} s"
            raise Refused(
                410,
                f"the result of rollout {rollout_id} ({ended.status}) is not kept any more (after {kept})",
            )
        return ended.result

    def health(self) -> dict[str, Any]:
        entries = self._running.values()
        phases = (RolloutStatus.QUEUED, RolloutStatus.RUNNING, RolloutStatus.GRADING)
        return {
            **self._backend.health(),
            "accepting": not self._draining,
            "max_queued": self._settings.max_queued,
            "rollouts": {phase.value: sum(e.status is phase for e in entries) for phase in phases},
        }

    async def drain(self, seconds: float) -> None:
        """Let running rollouts end for `seconds`, then report the rest as failed and let go of everything."""
        if self._draining:
            return
        self._draining = True
        left = list(self._running.values())
        tasks = [entry.task for entry in left if entry.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        stopped = [entry for entry in left if entry.task is not None and not entry.task.done()]
        reports = [
            self._report_rest(e, "the rollout server was shut down before the rollout ended", attempts=1)
            for e in stopped
        ]
        for entry in stopped:
            assert entry.task is not None
            entry.task.cancel()
        await asyncio.gather(*reports)
        await self._callbacks.close()
        await self._backend.close()

    # --- admission

    def _check_callbacks(self, request: RolloutInitRequest) -> None:
        """A callback goes to the controller and nowhere else: its URLs are no way to make us call anybody."""
        allowed = self._settings.callback_origins
        if allowed is None:
            allowed = (origin(request.chat_completions_url),)
        for name in ("completion_callback_url", "grader_callback_url"):
            url = getattr(request, name)
            if url is not None and origin(url) not in allowed:
                raise Refused(
                    422,
                    f"{name} = {url!r} is not at {' or '.join(allowed)}, where the controller is (the origin "
                    "of chat_completions_url, or create_rollout_server(callback_origins=[...]))",
                )

    def _check_queue(self) -> None:
        limit, most = self._backend.max_concurrency, self._settings.max_queued
        if limit and most is not None and self._working >= limit + most:
            raise Refused(
                429,
                f"{limit} rollouts run, which is the workflow's limit, and {self._working - limit} wait "
                f"(max_queued is {most})",
                retry_after=RETRY_SECONDS,
            )

    def _asked_for(self, asked: CancelRequest) -> Iterable[str]:
        if asked.ids is not None:
            return asked.ids
        return [name for name in self._running if name.startswith(asked.prefix or "")]

    def _known(self, rollout_id: str) -> Ended:
        ended = self._ended.get(rollout_id)
        if ended is None:
            raise Refused(404, f"there is no rollout {rollout_id!r} here")
        return ended

    # --- one rollout

    async def _run(self, entry: Entry) -> None:
        async def workflow_ended(result: ExecutionResult) -> None:
            self._workflow_over(entry)
            graded = entry.graded and result.succeeded
            entry.status = RolloutStatus.GRADING if graded else result.status
            await self._report(entry, "workflow", result)

        async def grader_ended(result: ExecutionResult) -> None:
            entry.status = result.status
            await self._report(entry, "grader", result)

        on_grader = grader_ended if entry.graded else None
        try:
            await self._backend.execute(self._execution(entry), workflow_ended, on_grader)
        except asyncio.CancelledError:
            if entry.result is None:
                entry.status = RolloutStatus.CANCELLED
                cancelled = ExecutionResult(entry.status, err_message="the rollout was cancelled")
                entry.result = encode(_result_body(entry, cancelled))
            raise
        # The boundary of the backend: a fault of ours is reported too, for the phases without a result.
        except Exception as error:
            logger.exception("rollout %s: the backend failed", entry.request.rollout_id)
            entry.status = RolloutStatus.FAILURE
            await self._report_rest(entry, f"the rollout server failed: {type(error).__name__}: {error}")
        finally:
            self._workflow_over(entry)
            self._forget(entry)

    def _execution(self, entry: Entry) -> ExecutionRequest:
        request, root = entry.request, self._settings.artifacts_root

        def started() -> None:
            entry.status = RolloutStatus.RUNNING

        return ExecutionRequest(
            id=request.rollout_id,
            prompt=request.initial_messages,
            label=request.label,
            metadata=request.metadata,
            row_index=request.row_index,
            agent_timeout_sec=request.agent_timeout_sec,
            grader_timeout_sec=request.grader_timeout_sec,
            chat_completions_url=request.chat_completions_url,
            api_key=request.llm_api_key or request.controller_api_key,
            judge_chat_completions_url=request.judge_chat_completions_url or "",
            judge_api_key=request.judge_api_key,
            artifacts_dir=None if root is None else root / request.rollout_id,
            on_start=started,
        )

    def _workflow_over(self, entry: Entry) -> None:
        self._working -= entry.working
        entry.working = False

    def _forget(self, entry: Entry) -> None:
        rollout_id, now = entry.request.rollout_id, time.monotonic()
        self._running.pop(rollout_id, None)
        expires = now + self._settings.result_retention_seconds
        self._ended[rollout_id] = Ended(entry.fingerprint, entry.status, entry.result, expires)
        entry.over.set()
        if entry.delivered:
            self._delivered[rollout_id] = None
            if len(self._delivered) > DELIVERED_KEPT:
                self._drop_result(self._delivered.popitem(last=False)[0])
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        self._drop_expired(now)

    def _drop_expired(self, now: float) -> None:
        """Results end in the order in which their rollouts did."""
        for rollout_id, ended in self._ended.items():
            if ended.expires > now:
                break
            self._drop_result(rollout_id)

    def _drop_result(self, rollout_id: str) -> None:
        ended = self._ended.get(rollout_id)
        if ended is not None:
            self._ended[rollout_id] = replace(ended, result=None)

    # --- reports

    async def _report(
        self, entry: Entry, phase: str, result: ExecutionResult, attempts: int = ATTEMPTS
    ) -> None:
        """The one callback of a phase. Whether it is delivered or not, there is no second one."""
        if phase in entry.reported:
            return
        entry.reported.add(phase)
        request = entry.request
        if phase == "grader" or not entry.graded:
            entry.result = encode(_result_body(entry, result))
            entry.over.set()
        if phase == "grader":
            url, body = request.grader_callback_url, entry.result
        else:
            url = request.completion_callback_url
            body = None if url is None else encode(_completion(request, result))
        if url is not None and body is not None:
            key = request.controller_api_key
            entry.delivered = await self._callbacks.post(url, key, body, attempts=attempts)

    async def _report_rest(self, entry: Entry, message: str, attempts: int = ATTEMPTS) -> None:
        entry.status = RolloutStatus.FAILURE
        for phase in ("workflow", "grader") if entry.graded else ("workflow",):
            await self._report(entry, phase, _our_failure(message), attempts)


def _our_failure(message: str) -> ExecutionResult:
    return ExecutionResult(
        RolloutStatus.FAILURE, err_message=message, err_category=RolloutErrorCategory.INTERNAL_ERROR
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


def _taken(rollout_id: str) -> Refused:
    return Refused(
        409,
        f"there is another rollout {rollout_id!r} here: a request with this id and another body came before. "
        "Give each rollout an id of its own; a request that is sent again must be the same",
    )


def _shutting_down() -> Refused:
    return Refused(503, "this rollout server is shutting down", retry_after=1)


def _result_body(entry: Entry, result: ExecutionResult) -> GraderCompleteRequest:
    """The body of the grader's callback, and of `GET /rollout/{id}/result`."""
    return GraderCompleteRequest(
        rollout_id=entry.request.rollout_id,
        status=result.status,
        samples=result.samples,
        err_message=result.err_message,
        err_category=result.err_category,
    )
