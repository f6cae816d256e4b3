"""One process at a time works on a run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from osmosis_ai.errors import RunLockedError, StoreError


class RunLock:
    """An exclusive lock on `<folder>/lock`, held from `acquire` to `release` or the death of the process.

    The operating system holds it (flock), so a lock file that is left behind locks nothing. The file
    carries the process id of its holder for the error message.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises RunLockedError when another holder has it, StoreError when the folder cannot be made.
        """
        fd = self._open()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise RunLockedError(self._who(holder)) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def _open(self) -> int:
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Not inherited by programs that we start: a child that outlives us must not keep the lock.
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileExistsError as error:
            raise StoreError(
                f"{folder} cannot be made: {error}. Move that file away, or give this run another name."
            ) from error
        except OSError as error:
            raise StoreError(
                f"no run can be kept in {folder}: {error}. Choose a folder that may be written (--workspace)."
            ) from error

    def _who(self, holder: str) -> str:
        who = f"process {holder}" if holder else "another process"
        return (
            f"{who} works on the run in {self.path.parent} (it holds {self.path}). "
            "Wait for it or stop it, then start the same command again; or give this run another name."
        )

    def release(self) -> None:
        """Give the lock back; the file stays, empty. Safe to call twice."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
