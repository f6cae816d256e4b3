"""Lanes: a thread with an event loop, lent to one rollout at a time.

User code may block its loop, swallow cancellation, or raise SystemExit. In a lane it can hold up nobody else:
whoever waits for the lane keeps the deadline in its own loop, and goes on without the lane when it passes.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from osmosis_ai import process
from osmosis_ai.rollout import policy_client
from osmosis_ai.rollout.backends.lane_loop import LaneLoop

T = TypeVar("T")
CLOSE_SECONDS = 1.0
EXTRA_IDLE_SECONDS = 2.0
SETTLE_SECONDS = 4.0  # until the threads and connections of closed lanes are gone
SWEEP_SECONDS = 5.0  # for tasks that a rollout left behind to end after they were cancelled


class DeadlineExceeded(Exception):
    """The work did not end in time. Whether it still runs is unknown; what it brings is ignored."""


@dataclass(slots=True)
class _Ended(Generic[T]):
    """How work ended: with a value, or with anything that can be raised."""

    value: T | None
    error: BaseException | None


class _Job(Generic[T]):
    """One piece of work in a lane. `ended` belongs to the loop of whoever waits for it."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self.work = work
        self._home = asyncio.get_running_loop()
        self.ended: asyncio.Future[_Ended[T]] = self._home.create_future()
        self.task: asyncio.Task[None] | None = None  # set while the work runs
        self.cancelled = False

    def cancel(self) -> None:
        """Called in the lane's loop. Before its first step a task must not be cancelled, or it never runs."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    def end(self, ended: _Ended[T]) -> None:
        """Called in the lane's thread. A result that comes too late changes nothing."""
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._home.call_soon_threadsafe(self._set, ended)

    def _set(self, ended: _Ended[T]) -> None:
        if not self.ended.done():
            self.ended.set_result(ended)


class Lane:
    """A daemon thread that runs an event loop; it calls `on_free` when a job is over and cleaned up after."""

    def __init__(self, on_free: Callable[[Lane, bool], None]) -> None:
        self.free_since = 0.0  # time.monotonic() when it came back
        self._on_free = on_free
        self._loop = LaneLoop()
        # Not asyncio.all_tasks(): that goes through the tasks of all lanes.
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        factory: Any = self._make_task
        self._loop.set_task_factory(factory)
        self._closing = False
        policy_client.keep_session(self._loop)
        self._thread = threading.Thread(target=self._serve, name="osmosis-lane", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._loop.close()
            raise

    def start(self, work: Callable[[], Awaitable[T]]) -> _Job[T]:
        job = _Job(work)
        self._loop.call_soon_threadsafe(self._begin, job, context=contextvars.Context())
        return job

    def cancel(self, job: _Job[T]) -> None:
        """Ask the job to stop; a job that blocks does not hear it."""
        self._loop.call_soon_threadsafe(job.cancel)

    def close(self) -> None:
        """End the thread. Only for a lane that is free."""
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def wait_closed(self) -> None:
        self._thread.join(CLOSE_SECONDS)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closing:
            try:
                self._loop.run_forever()
            # A task that the user's code started raised SystemExit or KeyboardInterrupt, which asyncio lets
            # through. Whoever awaits that task sees it too; the lane itself goes on.
            except BaseException:
                continue
        self._loop.run_until_complete(self._clean_up())
        self._loop.close()

    async def _clean_up(self) -> None:
        await policy_client.close_session()
        await self._loop.shutdown_asyncgens()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **options: Any
    ) -> asyncio.Task[T]:
        task = asyncio.Task(work, loop=loop, **options)
        self._tasks.add(task)
        return task

    def _begin(self, job: _Job[T]) -> None:
        # A context of its own: nothing that one rollout sets is seen by the next.
        self._loop.create_task(self._run(job), context=contextvars.Context())

    async def _run(self, job: _Job[T]) -> None:
        if not job.cancelled:
            job.task = asyncio.current_task()
            try:
                ended = _Ended(await job.work(), None)
            # The boundary: whatever user code raises, SystemExit too, is the result of this job.
            except BaseException as error:
                ended = _Ended(None, error)
            job.task = None
            job.end(ended)
        clean = False
        try:
            clean = await self._sweep()
        finally:
            self._on_free(self, clean)

    async def _sweep(self) -> bool:
        """Cancel the tasks that the job left behind; whether they are gone."""
        own = asyncio.current_task()
        left = [task for task in self._tasks if task is not own and not task.done()]
        for task in left:
            task.cancel()
        if not left:
            return True
        _, pending = await asyncio.wait(left, timeout=SWEEP_SECONDS)
        return not pending


class LanePool:
    """Lends lanes and makes new ones when none is free.

    `num_kept` of the free lanes stay; others end when nobody has needed them for `EXTRA_IDLE_SECONDS`. Where
    the system allows no further thread or open file, a rollout waits for a lane that comes back.
    """

    def __init__(self, num_kept: int = 64) -> None:
        self._num_kept = num_kept
        self._lock = threading.Lock()
        self._free: deque[Lane] = deque()  # the last used at the end
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._trimming = False
        self._closed = False
        atexit.register(self.close)  # a lane that is not closed leaves its connections to be complained about
        self.lent = 0  # lanes that are at work, or that never came back

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """The value of `work()`, run in a lane. Raises what it raises, or DeadlineExceeded after `timeout` s.

        An exception of the work comes wrapped in `WorkRaised`, so that it is never confused with one of ours:
        a CancelledError raised by user code must not cancel the caller.
        """
        lane = self._take() or await self._wait_for_lane()
        job = lane.start(work)
        try:
            await asyncio.wait((job.ended,), timeout=timeout)
        finally:  # in time, too late, or the caller was cancelled
            if not job.ended.done():
                job.ended.cancel()
                lane.cancel(job)
            self._trim_later()
        if job.ended.cancelled():
            raise DeadlineExceeded
        ended = job.ended.result()
        if ended.error is not None:
            raise WorkRaised(ended.error)
        return ended.value  # type: ignore[return-value]  # without an error there is a value

    def close(self) -> None:
        """End the free lanes, and the others as they become free."""
        with self._lock:
            self._closed = True
            free = list(self._free)
            self._free.clear()
        atexit.unregister(self.close)
        for lane in free:
            lane.close()
        for lane in free:
            lane.wait_closed()

    def _take(self) -> Lane | None:
        """A lane; None when the system gives no more and one that is at work must be waited for."""
        with self._lock:
            if self._free:
                self.lent += 1
                return self._free.pop()
            try:
                lane = Lane(self._give_back)
            except (OSError, RuntimeError):  # too many open files; "can't start new thread"
                if not self.lent:
                    raise
                return None
            self.lent += 1
            return lane

    async def _wait_for_lane(self) -> Lane:
        loop = asyncio.get_running_loop()
        while True:
            called = loop.create_future()
            with self._lock:
                self._waiting.append((loop, called))
            if lane := self._take():  # one came back just now
                called.cancel()
                return lane
            await called
            if lane := self._take():
                return lane

    def _give_back(self, lane: Lane, clean: bool) -> None:
        """Called in the lane's thread."""
        with self._lock:
            self.lent -= 1
            usable = clean and not self._closed
            if usable:
                lane.free_since = time.monotonic()
                self._free.append(lane)
            self._call_next()
        if not usable:
            lane.close()

    def _call_next(self) -> None:
        while self._waiting:
            loop, called = self._waiting.popleft()
            if not called.cancelled():
                with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                    loop.call_soon_threadsafe(_set, called)
                    return

    def _trim_later(self) -> None:
        if len(self._free) > self._num_kept and not self._trimming:
            self._trimming = True
            asyncio.get_running_loop().call_later(EXTRA_IDLE_SECONDS, self._trim)

    def _trim(self) -> None:
        """End the lanes that nobody has needed for a while, but for those that are kept."""
        self._trimming = False
        oldest, idle = time.monotonic() - EXTRA_IDLE_SECONDS, []
        with self._lock:
            while len(self._free) > self._num_kept and self._free[0].free_since <= oldest:
                idle.append(self._free.popleft())
        for lane in idle:
            lane.close()
        if idle:
            asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._give_memory_back)
        self._trim_later()

    def _give_memory_back(self) -> None:
        """When the lanes that were closed are gone, and if nothing runs that it would hold up."""
        if not self.lent:
            process.give_memory_back()


def _set(called: asyncio.Future[None]) -> None:
    if not called.done():
        called.set_result(None)


class WorkRaised(Exception):
    """User code raised `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error
