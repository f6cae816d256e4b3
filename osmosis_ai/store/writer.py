"""One thread that writes, and commits everything that waits at once.

    await write(a) ┐
    await write(b) ├─> BEGIN  a  b  c  COMMIT (one fsync) ─> all three return
    await write(c) ┘

A write that fails is rolled back alone: then the batch is done again, each write in a savepoint of its own
(which costs two statements, so not the first time). A commit that fails (disk full, I/O error) fails
all that waited for it; the thread goes on, so the next write works as soon as the disk does.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw

from osmosis_ai.errors import StoreError

T = TypeVar("T")
Work = Callable[[apsw.Connection], Any]

MAX_BATCH = 512  # writes that share one commit


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


def _acknowledge_all(writes: list[_Write]) -> None:
    for write in writes:
        write.acknowledge()


class Writer:
    """Owns a connection; `write` may be awaited from any event loop."""

    def __init__(self, connection: apsw.Connection, path: Path, on_rollback: Callable[[], None]) -> None:
        self._connection = connection
        self._path = path
        self._on_rollback = on_rollback  # what was looked up inside the write is no longer true
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
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
        self._queue.put(write)
        result: T = await write.future
        return result

    def close(self) -> None:
        """Finish what waits, then stop. Blocks; safe to call twice."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._take()
            if batch:
                self._commit(batch)
                self._acknowledge(batch)

    def _take(self) -> tuple[list[_Write], bool]:
        """Wait for one write and take along all others that wait. False: the last batch."""
        batch: list[_Write] = []
        try:
            item = self._queue.get()
            while item is not None and len(batch) < MAX_BATCH:
                batch.append(item)
                item = self._queue.get_nowait()
            if item is not None:
                batch.append(item)
        except queue.Empty:
            return batch, True
        return batch, item is not None

    def _commit(self, batch: list[_Write]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            if not self._apply_together(batch):
                self._connection.execute("BEGIN IMMEDIATE")
                for write in batch:
                    self._apply(write)
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            if self._connection.in_transaction:
                with suppress(apsw.Error):  # the disk may refuse this too; the next BEGIN recovers
                    self._connection.execute("ROLLBACK")
            self._on_rollback()
            for write in batch:
                write.error = write.error or store_error(self._path, error)

    def _apply_together(self, batch: list[_Write]) -> bool:
        """False when one of them failed; then nothing was done."""
        try:
            for write in batch:
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

    @staticmethod
    def _acknowledge(batch: list[_Write]) -> None:
        """One wake-up per event loop, not one per write."""
        by_loop: dict[asyncio.AbstractEventLoop, list[_Write]] = {}
        for write in batch:
            by_loop.setdefault(write.loop, []).append(write)
        for loop, writes in by_loop.items():
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_acknowledge_all, writes)


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
