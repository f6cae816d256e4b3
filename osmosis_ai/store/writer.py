"""Commits everything that waits at once: applied where it was awaited, and committed there or by a thread.

    await write(a) ┐
    await write(b) ├─> BEGIN  a  b  c  COMMIT (one fsync) ─> all three return
    await write(c) ┘   on the event loop

The statements run on the event loop, where each costs some 10 us; a second thread would have to wait for the
interpreter lock before and after each of them, up to 5 ms a time when the loop has work to do. The commit
waits for the disk. Where that is a matter of some 0.3 ms, the loop waits itself: to hand it to a thread and
back takes more CPU than the statements. Where the disk is slower, a thread waits, and others gather meanwhile
for the next commit (`Pace`).

A write that fails is rolled back alone: the batch is rolled back and done again by the thread, each write in
a savepoint of its own. A batch that finds another process writing is tried again every half a millisecond;
after 10 ms the thread waits with it, and the loop for nobody. A commit that fails (disk full, I/O error)
fails all that waited for it; the next write works as soon as the disk does.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import apsw

from osmosis_ai.errors import StoreError

T = TypeVar("T")
Work = Callable[[apsw.Connection], Any]

MAX_BATCH = 128  # writes that share one commit
LOOP_WAITS_SECONDS = 0.001
COMMITS_ASIDE = 200
COME_AGAIN_SECONDS = 0.0005  # when another process is writing
GIVE_WAY_SECONDS = 0.01  # after that the thread waits for the other process
LOG_PAGES = 4000  # of the write-ahead log; then they are moved into the database, which no loop waits for
BUSY_TIMEOUT_MS = 10_000  # how long to wait for another process's commit


@dataclass(slots=True)
class _Write:
    """One write on its way: what to do, and who waits for it."""

    work: Work
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None

    def acknowledge(self) -> None:
        """Runs on the waiter's loop, after the commit."""
        if self.future.done():  # the waiter was cancelled; the write stands
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Pace:
    """Whether the event loop may wait for a commit itself: as long as it takes a millisecond, on average.

    Once it takes longer, a thread does the next `COMMITS_ASIDE`; then the loop tries again. What a thread
    measures says nothing: it waits for the interpreter lock, too.
    """

    def __init__(self) -> None:
        self._seconds = 0.0  # moving average of the loop's commits
        self._aside = 0  # commits that the thread still does

    def is_quick(self) -> bool:
        """Asked once for each commit."""
        if self._aside:
            self._aside -= 1
            return False
        return True

    def took(self, seconds: float) -> None:
        """A commit of the loop's."""
        self._seconds += (seconds - self._seconds) / 8
        if self._seconds > LOOP_WAITS_SECONDS:
            self._seconds, self._aside = 0.0, COMMITS_ASIDE


@dataclass(slots=True)
class _Batch:
    """Writes that share a commit; `applied` to an open transaction, or still to be done."""

    writes: list[_Write]
    applied: bool


class Writer:
    """Owns a connection; `write` may be awaited from any event loop."""

    def __init__(self, connection: apsw.Connection, path: Path, on_rollback: Callable[[], None]) -> None:
        self._connection = connection
        self._path = path
        self._on_rollback = on_rollback  # what was looked up inside the write is no longer true
        self._log_pages = 0
        connection.set_wal_hook(self._committed)  # in place of SQLite's own, which moves pages at once
        self._waiting: deque[_Write] = deque()
        # Held from BEGIN to the end of COMMIT, by the loop first and then by the thread.
        self._connection_in_use = threading.Lock()
        self._to_commit: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._pace = Pace()
        self._refused_since: float | None = None  # perf_counter(); another process has been writing since
        self._coming_again: set[asyncio.AbstractEventLoop] = set()  # loops that wait for it, for a moment
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="osmosis-store", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closed

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """Do `work` inside the next commit and return its result once that commit is on disk."""
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        loop = asyncio.get_running_loop()
        write = _Write(work, loop, loop.create_future())
        self._waiting.append(write)
        loop.call_soon(self._begin)  # not at once: what is awaited in the same moment comes along
        result: T = await write.future
        return result

    def close(self) -> None:
        """Finish what waits, then stop. Blocks; safe to call twice."""
        if not self._closed:
            self._closed = True
            self._to_commit.put(None)
        self._thread.join()

    def _begin(self) -> None:
        """Apply what waits, unless a batch is under way: then its end begins the next."""
        loop = asyncio.get_running_loop()
        while self._waiting and loop not in self._coming_again:
            if not self._connection_in_use.acquire(blocking=False):
                return
            writes = self._take()
            try:
                if writes and not self._start():
                    return self._give_way(writes, loop)
                if writes and not self._do_on_loop(writes):
                    return
            except BaseException as error:  # a second Ctrl-C, a database that cannot even roll back
                self._break_off(writes, error)
                raise
            self._connection_in_use.release()
            self._acknowledge(writes, loop)

    def _take(self) -> list[_Write]:
        writes: list[_Write] = []
        while self._waiting and len(writes) < MAX_BATCH:
            writes.append(self._waiting.popleft())
        return writes

    def _start(self) -> bool:
        """False when another process is writing, or the disk says no."""
        try:
            self._connection.set_busy_timeout(0)
            self._connection.execute("BEGIN IMMEDIATE")
        except apsw.Error:  # the thread will meet it again, and wait or report it
            return False
        finally:
            self._connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        self._refused_since = None
        return True

    def _give_way(self, writes: list[_Write], loop: asyncio.AbstractEventLoop) -> None:
        """Another process is writing, most often for a moment; what takes longer the thread waits for.

        SQLite's own waiting sleeps longer and longer, up to 0.1 s at a time.
        """
        now = perf_counter()
        self._refused_since = self._refused_since or now
        if now - self._refused_since > GIVE_WAY_SECONDS:
            self._refused_since = None
            self._to_commit.put(_Batch(writes, applied=False))
            return
        self._waiting.extendleft(reversed(writes))
        self._connection_in_use.release()
        self._coming_again.add(loop)
        loop.call_later(COME_AGAIN_SECONDS, self._come_again, loop)

    def _come_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._coming_again.discard(loop)
        self._begin()

    def _do_on_loop(self, writes: list[_Write]) -> bool:
        """Apply and commit what a transaction was started for; False: the thread goes on with it."""
        batch = _Batch(writes, self._apply_together(writes))
        if not (batch.applied and self._log_pages < LOG_PAGES and self._pace.is_quick()):
            self._to_commit.put(batch)
            return False
        began = perf_counter()
        self._commit(batch)
        self._pace.took(perf_counter() - began)
        return True

    def _run(self) -> None:
        while (batch := self._to_commit.get()) is not None:
            self._finish(batch)
        # Closed: what a loop has applied meanwhile, and then what no loop has taken.
        while self._finish_applied() or self._finish_waiting():
            pass

    def _finish_applied(self) -> bool:
        try:
            batch = self._to_commit.get(timeout=0.01)
        except queue.Empty:
            return False
        if batch is not None:
            self._finish(batch)
        return True

    def _finish_waiting(self) -> bool:
        if not self._connection_in_use.acquire(blocking=False):
            return True  # a loop is about to pass a batch on
        writes = self._take()
        self._finish(_Batch(writes, applied=False))
        return bool(writes)

    def _finish(self, batch: _Batch) -> None:
        if batch.writes:
            self._commit(batch)
        if self._log_pages >= LOG_PAGES:
            self._move_log()
        self._connection_in_use.release()
        if not self._acknowledge(batch.writes) and self._waiting:
            self._finish_waiting()

    def _commit(self, batch: _Batch) -> None:
        try:
            if not batch.applied:
                self._connection.execute("BEGIN IMMEDIATE")
                for write in batch.writes:
                    self._apply(write)
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            if self._connection.in_transaction:
                with suppress(apsw.Error):  # the disk may refuse this too; the next BEGIN recovers
                    self._connection.execute("ROLLBACK")
            self._on_rollback()
            for write in batch.writes:
                write.error = write.error or store_error(self._path, error)

    def _break_off(self, writes: list[_Write], error: BaseException) -> None:
        """Nothing of this batch is acknowledged, and the next one can begin."""
        with suppress(apsw.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._on_rollback()
        for write in writes:
            write.error = StoreError(f"{self._path}: the write was broken off by {type(error).__name__}")
        self._connection_in_use.release()
        self._acknowledge(writes)

    def _committed(self, _: apsw.Connection, database: str, log_pages: int) -> int:
        self._log_pages = log_pages
        return apsw.SQLITE_OK

    def _move_log(self) -> None:
        """What readers still need stays in the log; the next commit says how much that is."""
        self._log_pages = 0
        with suppress(apsw.Error):  # a full disk: the log keeps everything, and the next commit reports it
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _apply_together(self, writes: list[_Write]) -> bool:
        """False when one of them failed; then nothing was done."""
        try:
            for write in writes:
                write.result = write.work(self._connection)
        except Exception:  # whose fault it is shows when they are done one by one
            if self._connection.in_transaction:  # a full disk ends it
                self._connection.execute("ROLLBACK")
            self._on_rollback()
            return False
        return True

    def _apply(self, write: _Write) -> None:
        self._connection.execute("SAVEPOINT one_write")
        try:
            write.result = write.work(self._connection)
        except apsw.Error as error:
            if not self._connection.in_transaction:
                raise  # a full disk: SQLite has rolled the whole transaction back
            self._undo(write, store_error(self._path, error))
        except UnicodeEncodeError as error:
            self._undo(write, StoreError(f"{self._path} cannot hold text that is not UTF-8: {error}"))
        except Exception as error:  # whatever a write raises is its waiter's, never this thread's
            self._undo(write, error)
        self._connection.execute("RELEASE one_write")

    def _undo(self, write: _Write, error: Exception) -> None:
        self._connection.execute("ROLLBACK TO one_write")
        self._on_rollback()
        write.error = error

    def _acknowledge(self, writes: list[_Write], here: asyncio.AbstractEventLoop | None = None) -> bool:
        """One wake-up per event loop, not one per write; the first begins the next batch. False: none did.

        `here` is the loop that asks, which needs none.
        """
        by_loop: dict[asyncio.AbstractEventLoop, list[_Write]] = {}
        for write in writes:
            by_loop.setdefault(write.loop, []).append(write)
        woken = False
        for write in by_loop.pop(here, ()) if here is not None else ():
            write.acknowledge()
        for loop, done in by_loop.items():
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(self._wake, done)
                woken = True
        return woken

    def _wake(self, done: list[_Write]) -> None:
        for write in done:
            write.acknowledge()
        self._begin()


def store_error(path: Path, error: apsw.Error) -> StoreError:
    """What SQLite said, about which file, and the way out."""
    return StoreError(f"{path}: SQLite says '{error}' ({type(error).__name__}). {_way_out(path, error)}")


def _way_out(path: Path, error: apsw.Error) -> str:
    match error:
        case apsw.FullError():
            return (
                f"Free space on the disk that holds {path.parent} and start the same command again; "
                "everything that was acknowledged before is kept."
            )
        case apsw.IOError():
            return "The disk did not take or give the data; check it, then start the same command again."
        case apsw.BusyError():
            return "Another process holds the database; stop it, or wait until it is done, and try again."
        case apsw.NotADBError() | apsw.CorruptError():
            return "The file is not a whole SQLite database; restore it from a copy or move it away."
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError():
            return "Check that the file and its folder exist and may be written."
        case _:
            return "Nothing of this write was stored."
