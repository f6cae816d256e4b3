"""One call on its way through: from its place in the rollout to the last byte of its answer.

The work on a call (answer, then record) is a task, the only one that a call costs. It belongs to an
`Attempt`, which several requests may wait for: see `retries.py`. When the last of them has gone away, the
work is stopped, unless the answer is being recorded already: a turn is recorded whole or not at all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from osmosis_ai.errors import EngineError, ProviderError, StoreError
from osmosis_ai.gateway.call import Answer, ModelCall, Refusal, Reply
from osmosis_ai.gateway.capture import Work
from osmosis_ai.gateway.dialects.base import Dialect
from osmosis_ai.gateway.identity import Admission
from osmosis_ai.gateway.notes import write_note
from osmosis_ai.gateway.retries import Attempt
from osmosis_ai.gateway.streams import Stream, send_refusal
from osmosis_ai.gateway.targets import Target, own_seed
from osmosis_ai.lean_server import Connection
from osmosis_ai.providers.parts import read_parts
from osmosis_ai.store.base import Native

AGENTS_OWN = frozenset({400, 413, 422})  # the agent's own request is at fault, by the provider's word

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Exchange:
    """One request, and the attempt that answers it. A `retries.Waiter`."""

    admission: Admission
    sample_id: str
    call: ModelCall
    body: bytes  # of the request, as it came
    attempt: Attempt
    dialect: Dialect
    target: Target
    connection: Connection
    started: float  # time.perf_counter()
    heartbeat_seconds: float
    stream: Stream | None = None  # of a call that streams

    def begin(self) -> None:
        """Answer now what has been answered before; else when the work on the call is over."""
        attempt = self.attempt
        if self.call.stream:
            events = self.dialect.events(attempt.call_id, self.call)
            self.stream = Stream(self.connection, events, self.dialect.HEARTBEAT, self.heartbeat_seconds)
        if attempt.answered:  # by an earlier request: nothing is sampled
            return self._reply(attempt.replies)
        attempt.waiters.append(self)
        self.connection.on_gone = self._left
        if attempt.work is None:
            self._start()

    def _start(self) -> None:
        work = Work(self.call.n - len(self.attempt.replies))
        work.task = asyncio.get_running_loop().create_task(self._work(work))
        work.task.add_done_callback(partial(self._over, work))
        self.attempt.work = work
        self.admission.rollout.begun(work)

    def _over(self, work: Work, _: asyncio.Task[list[Reply]]) -> None:
        self.admission.rollout.ended(work)
        self.attempt.ended(work)

    def _left(self) -> None:
        """The client went away; whether the work is stopped, the attempt decides."""
        if self.stream is not None:
            self.stream.stop()
        if self.attempt.leave(self):
            self.admission.rollout.counts.abandoned += 1

    def ended(self, task: asyncio.Task[list[Reply]]) -> None:
        """The work is over: the answer, or what became of it."""
        outcome = self._outcome(task)
        if not isinstance(outcome, Refusal):
            self._reply(outcome)
        elif self.stream is not None:
            self.stream.refuse(outcome, self.dialect)
        else:
            send_refusal(self.connection, outcome, self.dialect)

    def _reply(self, replies: Sequence[Reply]) -> None:
        try:
            if self.stream is not None:
                self.stream.finish(replies)
            else:
                self.connection.answer(200, self.dialect.plain(self.attempt.call_id, self.call, replies))
        except Exception:  # a fault of ours in the dialect: the client must not wait for ever
            logger.exception("call %s cannot be answered", self.attempt.call_id)
            return self.connection.abort()
        self.admission.retries.arrived(self.attempt)

    async def _work(self, work: Work) -> list[Reply]:
        """Answer and record: the part that a disconnect or the end of the rollout cancels."""
        attempt, call = self.attempt, self.call
        rollout, retries = self.admission.rollout, self.admission.retries
        answers = [self._sendable(answer) for answer in await self._answers()]
        work.recording = True
        latency_ms = (time.perf_counter() - self.started) * 1000
        for answer in answers:
            note = write_note(attempt, call, answer.placement, retries.newly_arrived())
            native = Native(self.dialect.WIRE, self.body, answer.native)
            reply = await rollout.record(work, self.sample_id, call, answer, latency_ms, note, native)
            retries.recorded(attempt, reply)
        if call.continuable:
            self.admission.keep(attempt.call_id, call, attempt.replies[0])
        return attempt.replies

    async def _answers(self) -> Sequence[Answer]:
        """The answers that are not recorded yet, all of them or none."""
        rollout, call = self.admission.rollout, self.call
        tree = rollout.tree(self.sample_id, self.target.new_tree)
        answering = [
            self.target.answer(
                call,
                tree,
                rollout.defaults,
                self._seed(index),
                None if self.stream is None else partial(self.stream.text, index),
            )
            for index in range(len(self.attempt.replies), call.n)
        ]
        if len(answering) == 1:
            return [await answering[0]]
        tasks = [asyncio.ensure_future(one) for one in answering]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def _sendable(self, answer: Answer) -> Answer:
        """An external model's answer in parts goes out as it came; where there is no way for parts, as text.

        Raises ProviderError for other parts than text and thinking.
        """
        parts = answer.message["content"]
        if isinstance(parts, str) or (self.stream is None and self.dialect.WIRE == "chat"):
            return answer
        try:
            text, thinking = read_parts(parts)
        except ValueError as error:
            raise ProviderError(
                f"{answer.model} answered with {error}. An agent that takes others can call "
                "/v1/chat/completions without stream",
                retryable=False,
            ) from error
        reasoning = {"reasoning_content": thinking} if thinking else {}
        return replace(answer, message={**reasoning, **answer.message, "content": text})

    def _seed(self, index: int) -> int:
        own = own_seed(self.call)
        return self.attempt.seeds[index] if own is None else own + index

    def _outcome(self, task: asyncio.Task[list[Reply]]) -> list[Reply] | Refusal:
        """What the finished work came to. This is where a failure of a call is attributed."""
        rollout = self.admission.rollout
        if task.cancelled():  # by `seal`: nothing else cancels work that is still waited for
            rollout.counts.abandoned += 1
            return rollout.has_ended()
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, Refusal):
            return rollout.refused(error, self.sample_id)
        kind, refusal = _attributed(error)
        if refusal.status in AGENTS_OWN:
            return rollout.refused(refusal, self.sample_id)
        rollout.failed(self.sample_id, kind, str(refusal))
        return refusal


def _attributed(error: BaseException) -> tuple[str, Refusal]:
    if isinstance(error, ProviderError):
        return "provider", Refusal(error.status, f"the provider failed: {error}", code=error.code)
    if isinstance(error, EngineError):
        return "engine", Refusal(503, f"the engine failed: {error}", code="engine_error")
    if isinstance(error, StoreError):
        return "store", Refusal(503, f"the turn could not be stored: {error}", code="store_error")
    # Everything else is a fault of ours, here or in the engine; the agent gets an answer all the same.
    what = f"{type(error).__name__}: {error}"
    return "engine", Refusal(500, f"the gateway failed: {what}", code="internal_error")
