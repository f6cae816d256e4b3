"""The rollout server of a run: the user's code in a child process, started, watched and restarted here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.controller.rollout_server import Life, Order, cancel_at, post, workflow_request
from osmosis_ai.errors import EntrypointError, InfrastructureError
from osmosis_ai.gateway.terms import DEFAULT_SAMPLE
from osmosis_ai.lean_http import HttpPool
from osmosis_ai.types import ToolSchema

START_TIMEOUT_SECONDS = 120.0  # importing an agent framework on a busy machine takes seconds
STOP_TIMEOUT_SECONDS = 5.0
MAX_STARTS = 5  # a server that dies so often without one rollout coming to a result is given up
KILLED_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}  # statuses: out of memory, a person


class ServerDiedError(InfrastructureError):
    """The process with the user's code ended while rollouts were running in it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status  # negative: the signal that ended it


@dataclass(slots=True)
class UserCode:
    """What the child process serves."""

    entrypoint: str
    workflow: str = ""
    grader: str = ""
    overrides: dict[str, Any] = field(default_factory=dict)
    graded_sample: str | None = None  # grade only: conversations held elsewhere, as this sample
    artifacts_dir: str | None = None  # where a rollout may leave files, in a folder of its own
    debug_dir: str | None = None  # where it may log

    def as_request(self, api_key: str) -> dict[str, Any]:
        return {
            "entrypoint": self.entrypoint,
            "workflow": self.workflow or None,
            "grader": self.grader or None,
            "workflow_overrides": self.overrides,
            "require_grader": True,
            "graded_sample": self.graded_sample,
            "artifacts_dir": self.artifacts_dir,
            "debug_dir": self.debug_dir,
            "host": "127.0.0.1",
            "api_key": api_key,
        }


class UserServer:
    """A child process that serves `POST /rollout` on a free loopback port."""

    sample_id = DEFAULT_SAMPLE
    one_result = False

    def __init__(self, code: UserCode, log_path: Path, withheld: Collection[str] = ()) -> None:
        self._code = code
        self._withheld = withheld  # environment variables that the child does not get
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None
        self._life = Life()
        self._ending: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._starts = 0
        self.api_key = secrets.token_urlsafe(24)
        self.url = ""
        self.workflow = ""
        self.max_concurrent: int | None = None  # the workflow's own limit; None: unlimited

    async def ensure_running(self) -> Life:
        """Start the server, or start it again after it died (EntrypointError, InfrastructureError)."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return self._life
            if self._starts >= MAX_STARTS:
                raise InfrastructureError(
                    f"the rollout server died {self._starts} times without a rollout that came to a result; "
                    f"giving up.\n{self.log_tail()}"
                )
            self._starts += 1
            await self._start()
            return self._life

    async def launch(self, http: HttpPool, order: Order) -> list[ToolSchema]:
        body, patience = workflow_request(order), order.agent_timeout_seconds
        await post(http, f"{self.url}/rollout", body, self.api_key, patience_seconds=patience)
        return []

    def name_of(self, rollout_id: str) -> str:
        return rollout_id

    async def cancel(self, http: HttpPool, name: str) -> None:
        await cancel_at(http, f"{self.url}/rollout/cancel", self.api_key, name)

    def worked(self) -> None:
        """A rollout came to a result: the server is worth starting again when it dies."""
        self._starts = 0

    def death(self, status: int) -> ServerDiedError:
        what = f"the rollout server ended with status {status} while the rollout was running."
        return ServerDiedError(f"{what}\n{self.log_tail()}", status)

    def log_tail(self, lines: int = 12) -> str:
        """The end of what the user's code printed, for error messages."""
        if not self._log_path.exists():
            return "(it printed nothing)"
        text = self._log_path.read_text(errors="replace").splitlines()[-lines:]
        return f"End of {self._log_path}:\n" + "\n".join(f"    {line}" for line in text)

    async def stop(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()  # the child leaves when its standard input ends
        try:
            await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in self._withheld}
        return {**kept, "PYTHONUNBUFFERED": "1"}

    async def _start(self) -> None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "osmosis_ai.rollout.server",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment(),
                start_new_session=True,  # Ctrl-C reaches us alone; we then stop the child in order
            )
        self._life = Life()
        self._ending = asyncio.create_task(_await_end(self._process, self._life))
        assert self._process.stdin is not None
        request = self._code.as_request(self.api_key)
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        try:
            ready = await asyncio.wait_for(self._ready_line(), START_TIMEOUT_SECONDS)
        except TimeoutError:
            await self.stop()
            raise InfrastructureError(
                f"the rollout server did not start within {START_TIMEOUT_SECONDS:.0f} s.\n{self.log_tail()}"
            ) from None
        if not ready.get("ready"):
            await self.stop()
            raise EntrypointError(str(ready.get("error", "the rollout server did not start")))
        self.url = f"http://127.0.0.1:{ready['port']}"
        self.workflow = str(ready.get("workflow", ""))
        self.max_concurrent = await self._own_limit()

    async def _ready_line(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                message = json.loads(line)
                if isinstance(message, dict) and "ready" in message:
                    return message
        status = await self._process.wait()
        raise InfrastructureError(
            f"the rollout server ended with status {status} before it was ready.\n{self.log_tail()}"
        )

    async def _own_limit(self) -> int | None:
        pool = HttpPool()
        try:
            health = json.loads((await pool.get(f"{self.url}/health", {})).body)
        finally:
            await pool.close()
        limit = health.get("concurrency", {}).get("max_concurrent")
        return int(limit) if limit else None


async def _await_end(process: asyncio.subprocess.Process, life: Life) -> None:
    life.end(await process.wait())
