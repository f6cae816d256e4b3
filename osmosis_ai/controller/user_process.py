"""The process with the user's code, from outside: made, told what to import and what to serve, and ended.

It imports as little as it can: a command makes the process before it imports what it needs itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import asyncio

STOP_TIMEOUT_SECONDS = 5.0


class UserProcess:
    """One process of `osmosis_ai.rollout.server`. `withheld`: environment variables that it does not get.

    process = UserProcess(["OPENAI_API_KEY"])   # OSError
    process.preload("/project/agent.py")        # an agent framework takes longer than all that follows
    answer = await process.serve({"entrypoint": "/project/agent.py", ...}, log_path, on_end)
    await process.stop()
    """

    def __init__(self, withheld: Collection[str] = ()) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in withheld}
        self._printed = _nameless_file()  # until there is a log
        self._process = subprocess.Popen(
            [sys.executable, "-m", "osmosis_ai.rollout.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env={**kept, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C reaches us alone; we then stop the child in order
        )
        self._ended: asyncio.Event | None = None
        self._answered = False

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it lives."""
        return self._process.returncode

    def preload(self, entrypoint: str) -> None:
        """Have the entrypoint imported. What is wrong with it is said when it is to be served."""
        self._write({"preload": entrypoint})

    async def serve(
        self, request: dict[str, Any], log_path: Path, on_end: Callable[[int], None]
    ) -> dict[str, Any]:
        """What it answers, ready or not; {} when it ended without a word. Once.

        What it has printed and prints goes to the end of `log_path`; `on_end` gets its exit status.
        """
        import asyncio

        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        answer: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._ended = ended

        def answered(message: dict[str, Any]) -> None:
            self._answered = True
            if not answer.done():
                answer.set_result(message)

        def over(status: int) -> None:
            ended.set()
            on_end(status)

        def attend() -> None:
            message = self._ask({**request, "log_path": str(log_path)})
            self._save_printed(log_path)
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(answered, message)
                loop.call_soon_threadsafe(over, self._process.wait())

        threading.Thread(target=attend, name="osmosis-user-process", daemon=True).start()
        return await answer

    async def end(self) -> int:
        """Its exit status, when it has ended."""
        assert self._ended is not None
        await self._ended.wait()
        return int(self._process.returncode)

    async def stop(self) -> None:
        """In order when it serves; at once when it is still being started. Safe to call twice."""
        import asyncio

        if self._ended is None or not self._answered:
            self.kill()
        elif not self._ended.is_set():
            assert self._process.stdin is not None
            self._process.stdin.close()  # the child leaves when its standard input ends
            try:
                await asyncio.wait_for(self._ended.wait(), STOP_TIMEOUT_SECONDS)
            except TimeoutError:
                self.kill()

    def kill(self) -> None:
        """With the programs that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # it leads a group of its own
        self._process.wait()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Write the request and wait for the answer: a line of JSON that says whether it is ready."""
        self._write(request)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(json.JSONDecodeError):
                message = json.loads(line)
                if isinstance(message, dict) and "ready" in message:
                    return message
        return {}

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it is dead, which its exit status says
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _save_printed(self, log_path: Path) -> None:
        """What a process that ended too early has printed; else it is in the log already."""
        with self._printed, suppress(OSError):  # the disk is full: nothing can be said about it there
            self._printed.seek(0)
            if text := self._printed.read():
                with log_path.open("ab") as log:
                    log.write(text)


def _nameless_file() -> BinaryIO:
    """Written to and read without a buffer, gone when it is closed."""
    if hasattr(os, "memfd_create"):  # needs no disk, and nothing to be imported
        return os.fdopen(os.memfd_create("osmosis-user-code"), "r+b", buffering=0)
    import tempfile

    return tempfile.TemporaryFile(buffering=0)
