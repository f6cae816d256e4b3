"""One call on its way through: from its place in the rollout to the last byte of its answer.

The work on a call (answer, then record) is a task of its own. It belongs to an `Attempt`, which several
requests may wait for: see `retries.py`. When the last of them has gone away, the work is stopped, unless the
answer is being recorded already: a turn is recorded whole or not at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from osmosis_ai.errors import EngineError, ProviderError, StoreError
from osmosis_ai.gateway.call import Answer, ModelCall, Refusal, Reply
from osmosis_ai.gateway.dialects.base import Dialect
from osmosis_ai.gateway.identity import Admission
from osmosis_ai.gateway.notes import write_note
from osmosis_ai.gateway.retries import Attempt
from osmosis_ai.gateway.targets import OnText, Target, own_seed
from osmosis_ai.gateway.texts import Texts
from osmosis_ai.gateway.wire import Receive, Send, StreamedBody, send_json, send_refusal

AGENTS_OWN = frozenset({400, 413, 422})  # the agent's own request is at fault, by the provider's word


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, and the attempt that answers it."""

    admission: Admission
    sample_id: str
    call: ModelCall
    attempt: Attempt
    dialect: Dialect
    target: Target
    started: float  # time.perf_counter()
    heartbeat_seconds: float

    async def respond(self, receive: Receive, send: Send) -> None:
        if self.attempt.answered:  # by an earlier request: nothing is sampled
            await self._replay(receive, send)
        elif self.call.stream:
            await self._stream(receive, send)
        else:
            await self._plain(receive, send)

    async def _replay(self, receive: Receive, send: Send) -> None:
        attempt, body = self.attempt, StreamedBody(send)
        gone = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        if gone.done():  # this client has gone away too: the answer is for the next
            return
        gone.cancel()
        if self.call.stream:
            events = self.dialect.events(attempt.call_id, self.call)
            await body.end(events.start() + events.finish(attempt.replies))
        else:
            await send_json(send, 200, self.dialect.plain(attempt.call_id, self.call, attempt.replies))
        self.admission.retries.arrived(attempt)

    async def _plain(self, receive: Receive, send: Send) -> None:
        with self._waiting(receive, None) as (work, gone):
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return self._left(work)
            outcome = self._outcome(work)
            if isinstance(outcome, Refusal):
                await send_refusal(send, outcome, self.dialect)
            else:
                attempt = self.attempt
                await send_json(send, 200, self.dialect.plain(attempt.call_id, self.call, outcome))
                self.admission.retries.arrived(attempt)

    async def _stream(self, receive: Receive, send: Send) -> None:
        """Nothing is sent before there is something to say, so an early failure has a status of its own."""
        texts = Texts(self.heartbeat_seconds)
        events = self.dialect.events(self.attempt.call_id, self.call)
        body, opening = StreamedBody(send), events.start()
        with self._waiting(receive, texts) as (work, gone):
            for task in (work, gone):
                task.add_done_callback(texts.end)
            while not (work.done() or gone.done()):
                pieces = await texts.next()
                if pieces is None:
                    await body.send(self.dialect.HEARTBEAT)
                elif pieces:
                    for index, text in pieces:
                        opening += events.text(index, text)
                    await body.send(opening)
                    opening = b""
            if gone.done():
                return self._left(work)
            outcome = self._outcome(work)
            if not isinstance(outcome, Refusal):
                await body.end(opening + events.finish(outcome))
                self.admission.retries.arrived(self.attempt)
            elif body.started:
                await body.end(events.error(outcome))
            else:
                await send_refusal(send, outcome, self.dialect)

    def _waiting(self, receive: Receive, texts: Texts | None) -> _Waiting:
        attempt = self.attempt
        work = attempt.work
        if work is None:
            work = asyncio.create_task(self._work(texts))
            attempt.work = work
            work.add_done_callback(attempt.ended)
            self.admission.rollout.run(work)
        return _Waiting(attempt, work, receive)

    async def _work(self, texts: Texts | None) -> list[Reply]:
        """Answer and record: the part that a disconnect or the end of the rollout cancels."""
        attempt, call = self.attempt, self.call
        rollout, retries = self.admission.rollout, self.admission.retries
        answers = await self._answers(texts)
        attempt.recording = True
        latency_ms = (time.perf_counter() - self.started) * 1000
        for answer in answers:
            note = write_note(attempt, call, answer.placement, retries.newly_arrived())
            reply = await rollout.record(self.sample_id, call, answer, latency_ms, note)
            retries.recorded(attempt, reply)
        if call.continuable:
            self.admission.keep(attempt.call_id, call, attempt.replies[0])
        return attempt.replies

    async def _answers(self, texts: Texts | None) -> Sequence[Answer]:
        """The answers that are not recorded yet, all of them or none."""
        rollout = self.admission.rollout
        tree = rollout.tree(self.sample_id, self.target.new_tree())
        missing = range(len(self.attempt.replies), self.call.n)
        answering = [
            self.target.answer(self.call, tree, rollout.defaults, self._seed(index), _on_text(texts, index))
            for index in missing
        ]
        if len(answering) == 1:
            return [await answering[0]]
        tasks = [asyncio.ensure_future(one) for one in answering]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def _seed(self, index: int) -> int:
        own = own_seed(self.call)
        return self.attempt.seeds[index] if own is None else own + index

    def _left(self, work: asyncio.Task[list[Reply]]) -> None:
        """The client went away; whether the work is stopped, the attempt decides."""
        if not work.done() and not self.attempt.recording:
            self.admission.rollout.counts.abandoned += 1

    def _outcome(self, work: asyncio.Task[list[Reply]]) -> list[Reply] | Refusal:
        """What the finished work came to. This is where a failure of a call is attributed."""
        rollout = self.admission.rollout
        if work.cancelled():  # by `seal`: nothing else cancels work that is still waited for
            rollout.counts.abandoned += 1
            return rollout.has_ended()
        error = work.exception()
        if error is None:
            return work.result()
        if isinstance(error, Refusal):
            return rollout.refused(error, self.sample_id)
        kind, refusal = _attributed(error)
        if refusal.status in AGENTS_OWN:
            return rollout.refused(refusal, self.sample_id)
        rollout.failed(self.sample_id, kind, str(refusal))
        return refusal


class _Waiting:
    """While a request waits: the work, and a task that ends when the client goes away."""

    def __init__(self, attempt: Attempt, work: asyncio.Task[list[Reply]], receive: Receive) -> None:
        self._attempt = attempt
        self._work = work
        # The body has been read, so the next message can only be the disconnect.
        self._gone: asyncio.Task[Any] = asyncio.ensure_future(receive())

    def __enter__(self) -> tuple[asyncio.Task[list[Reply]], asyncio.Task[Any]]:
        self._attempt.waiters += 1
        return self._work, self._gone

    def __exit__(self, *_: object) -> None:
        self._gone.cancel()
        self._attempt.leave()


def _on_text(texts: Texts | None, index: int) -> OnText | None:
    if texts is None:
        return None
    return partial(texts.put, index)


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
