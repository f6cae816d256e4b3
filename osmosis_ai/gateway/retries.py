"""When is an equal call a retry of an earlier one, and when a call of its own?

One call may come as several requests: the client's connection broke, or its patience ended. Sampling again
for each would train tokens that no agent has seen, and change what a seed gives. Requests are *equal* when
they go to the same sample of the same rollout, in the same dialect, with the same bytes. The rule:

1. `idempotency-key: K`. All requests with K in one sample are one call, whatever else they say; K with
   another body is refused (422 idempotency_key_reused).
2. An equal request whose answer nobody has got: the first equal request to come takes it over.
     - the answer was recorded and its client went away first: the very turn is sent again, nothing is
     sampled;
     - the client went away, or the engine failed, before there was an answer: the work was stopped, and is
       done again with the same seed, so it gives what the first would have given.
3. `x-stainless-retry-count` above 0 (the official OpenAI and Anthropic clients send it with each retry): the
   client says that it has no answer. Besides rule 2 it joins an equal call that is still being worked on, and
   else gets the latest equal answer again that was sent within `WINDOW_SECONDS`: it may have been lost on its
   last mile. Not if a later call has continued that answer, which proves that it arrived.
4. Everything else is a new call with a seed of its own: an equal request without such a header while another
   is being worked on, or after its answer was sent. So an agent that asks twice for two candidates gets two.

What is not known any more (`WINDOW_SECONDS` old, or one of more than `MAX_ATTEMPTS`) is a new call. A rollout
that has ended answers nothing, retries included. All of this outlives a restart of the gateway, by the notes
in the store (`notes.py`); an answer of which nobody knows whether it was sent counts as not sent, unless a
later call has continued it.

    request                                   first answer is ...        the request is
    equal, no header                          sent                       a new call
    equal, no header                          recorded, never sent       a replay
    equal, no header                          given up                   the same call, same seed
    equal, no header                          being worked on            a new call
    equal, retry-count 1                      sent, not continued        a replay
    equal, retry-count 1                      sent, and continued        a new call
    equal, retry-count 1                      being worked on            the same call: both get its answer
    any body, same idempotency-key            whatever                   the same call, or 422
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from osmosis_ai.gateway.call import Refusal, Reply
from osmosis_ai.gateway.capture import Work

WINDOW_SECONDS = 600.0  # as long as the official clients wait for an answer
MAX_ATTEMPTS = 1000  # of one rollout


class Waiter(Protocol):
    """A request that waits for the work on its call."""

    def ended(self, task: asyncio.Task[list[Reply]]) -> None:
        """The work is over: done, failed or cancelled."""
        ...


@dataclass(eq=False, slots=True)
class Attempt:
    """One call, however often it is asked for: `n` seeds, and `n` replies when it has been answered."""

    call_id: str
    request: bytes  # fingerprint of sample, dialect and body
    seeds: list[int]  # [n]
    began: float  # time.monotonic()
    key: bytes | None = None  # of sample and idempotency key
    replies: list[Reply] = field(default_factory=list)
    work: Work | None = None
    waiters: list[Waiter] = field(default_factory=list)
    sent: bool = False  # to a client that was there to the end
    continued: bool = False  # a later call has the answer in its history

    @property
    def answered(self) -> bool:
        return len(self.replies) == len(self.seeds)

    @property
    def lost(self) -> bool:
        """Nobody has got the answer, as far as is known, and nobody waits for it."""
        return not (self.sent or self.continued or self.waiters)

    def leave(self, waiter: Waiter) -> bool:
        """One request less waits; the last one stops the work, unless it is recording already.

        Whether the call may still be stopped, by this one or a later one that leaves.
        """
        self.waiters.remove(waiter)
        work = self.work
        if work is None or work.recording:
            return False
        if not self.waiters:
            self.work = None
            work.task.cancel()
        return True

    def ended(self, work: Work) -> None:
        """The work is over: tell who waits for it."""
        if not work.task.cancelled():
            work.task.exception()  # seen: there may be nobody left to tell
        if self.work is not work:  # it was stopped, and those who wait now wait for another
            return
        self.work = None
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.ended(work.task)


class Retries:
    """The calls of one rollout that a request may be a retry of."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Oldest first; a list, because an empty deque is ten times as large, and ended rollouts have one.
        self._attempts: list[Attempt] = []
        self._by_request: dict[bytes, list[Attempt]] = {}
        self._by_key: dict[bytes, Attempt] = {}
        self._by_ordinal: dict[int, Attempt] = {}
        self._arrived: list[int] = []  # turns whose answers have, since `newly_arrived` was asked

    def find(self, request: bytes, headers: Mapping[bytes, bytes], sample_id: str) -> Attempt | None:
        """The call that this request asks for again; None: a new one. Raises Refusal."""
        if key := _key(headers, sample_id):
            attempt = self._by_key.get(key)
            if attempt is not None and attempt.request != request:
                raise Refusal(
                    422,
                    "this idempotency-key was sent before with another request. Use a key for one call only",
                    code="idempotency_key_reused",
                    param="idempotency-key",
                )
            return attempt
        equal = [a for a in self._by_request.get(request, ()) if self._is_fresh(a)]
        if not equal:
            return None
        for attempt in equal:
            if attempt.lost:
                return attempt
        if not _retry_count(headers):
            return None
        at_work = [attempt for attempt in equal if not attempt.sent]
        if at_work:
            return min(at_work, key=lambda attempt: len(attempt.waiters))
        unproven = [attempt for attempt in equal if not attempt.continued]
        return unproven[-1] if unproven else None

    def begin(
        self, call_id: str, request: bytes, seeds: list[int], headers: Mapping[bytes, bytes], sample_id: str
    ) -> Attempt:
        """A new call."""
        attempt = Attempt(call_id, request, seeds, self._clock(), _key(headers, sample_id))
        while self._attempts and self._is_over(self._attempts[0]):
            self._forget(self._attempts.pop(0))
        self.add(attempt)
        return attempt

    def add(self, attempt: Attempt) -> None:
        """The newest attempt, from now on found."""
        self._attempts.append(attempt)
        if attempt.key is not None:
            self._by_key[attempt.key] = attempt
        else:
            self._by_request.setdefault(attempt.request, []).append(attempt)

    def recorded(self, attempt: Attempt, reply: Reply) -> None:
        """The attempt has one more reply, whose turn may prove that an earlier one arrived."""
        attempt.replies.append(reply)
        self._by_ordinal[reply.turn.ordinal] = attempt
        if reply.turn.parent is not None and (earlier := self._by_ordinal.get(reply.turn.parent)):
            earlier.continued = True

    def arrived(self, attempt: Attempt) -> None:
        """Its answer went to a client that was there to the end."""
        attempt.sent = True
        self._arrived += [reply.turn.ordinal for reply in attempt.replies]

    def newly_arrived(self) -> list[int]:
        """Turns whose answers have arrived since the last time."""
        ordinals, self._arrived = self._arrived, []
        return ordinals

    def have_arrived(self, ordinals: Sequence[int]) -> None:
        """What `newly_arrived` said in an earlier life."""
        for ordinal in ordinals:
            if (attempt := self._by_ordinal.get(ordinal)) is not None:
                attempt.sent = True

    def clear(self) -> None:
        """The rollout has ended."""
        for known in (self._attempts, self._by_request, self._by_key, self._by_ordinal):
            known.clear()

    def _is_fresh(self, attempt: Attempt) -> bool:
        return bool(attempt.waiters) or self._clock() - attempt.began < WINDOW_SECONDS

    def _is_over(self, attempt: Attempt) -> bool:
        too_many = len(self._attempts) >= MAX_ATTEMPTS and not attempt.waiters
        return too_many or not self._is_fresh(attempt)

    def _forget(self, attempt: Attempt) -> None:
        if attempt.key is not None:
            self._by_key.pop(attempt.key, None)
        elif equal := self._by_request.get(attempt.request):
            equal.remove(attempt)
            if not equal:
                del self._by_request[attempt.request]
        for reply in attempt.replies:
            self._by_ordinal.pop(reply.turn.ordinal, None)


def fingerprint(dialect: str, sample_id: str, body: bytes) -> bytes:
    """Equal for equal requests of a rollout."""
    digest = blake2b(body, digest_size=16)
    digest.update(f"\0{dialect}\0{sample_id}".encode("utf-8", "surrogateescape"))
    return digest.digest()


def _key(headers: Mapping[bytes, bytes], sample_id: str) -> bytes | None:
    key = headers.get(b"idempotency-key")
    if not key:
        return None
    return sample_id.encode("utf-8", "surrogateescape") + b"\0" + blake2b(key, digest_size=16).digest()


def _retry_count(headers: Mapping[bytes, bytes]) -> int:
    count = headers.get(b"x-stainless-retry-count", b"")
    return int(count) if count.isdigit() and len(count) < 10 else 0
