"""The rollout server of a run: the user's code in a child process, started, watched and restarted here."""

from __future__ import annotations

import asyncio
import secrets
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.controller.head_start import HeadStart
from osmosis_ai.controller.rollout_server import Life, Order, cancel_at, post, workflow_request
from osmosis_ai.controller.user_process import UserProcess
from osmosis_ai.errors import EntrypointError, InfrastructureError
from osmosis_ai.gateway.terms import DEFAULT_SAMPLE
from osmosis_ai.lean_http import HttpPool
from osmosis_ai.types import ToolSchema

START_TIMEOUT_SECONDS = 120.0  # importing an agent framework on a busy machine takes seconds
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

    def __init__(
        self,
        code: UserCode,
        log_path: Path,
        withheld: frozenset[str] = frozenset(),
        head_start: HeadStart | None = None,
    ) -> None:
        self._code = code
        self._withheld = withheld  # environment variables that the child does not get
        self._head_start = head_start
        self._log_path = log_path
        self._process: UserProcess | None = None
        self._life = Life()
        self._starting = asyncio.Lock()
        self._starts = 0
        self.api_key = secrets.token_urlsafe(24)
        self.url = ""
        self.workflow = ""
        self.max_concurrent: int | None = None  # the workflow's own limit; None: unlimited

    async def ensure_running(self) -> Life:
        """Start the server, or start it again after it died (EntrypointError, InfrastructureError)."""
        async with self._starting:
            if self._process is not None and self._process.status is None:
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
        if self._process is not None:
            await self._process.stop()

    async def _start(self) -> None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._process, self._life = self._new_process(), Life()
        request, until = self._code.as_request(self.api_key), START_TIMEOUT_SECONDS
        try:
            async with asyncio.timeout(until):
                answer = await self._process.serve(request, self._log_path, self._life.end)
        except TimeoutError:
            await self.stop()
            raise InfrastructureError(
                f"the rollout server did not start within {until:.0f} s.\n{self.log_tail()}"
            ) from None
        if not answer:
            status = await self._process.end()
            raise InfrastructureError(
                f"the rollout server ended with status {status} before it was ready.\n{self.log_tail()}"
            )
        if not answer.get("ready"):
            await self.stop()
            problem = str(answer.get("error", "the rollout server did not start"))
            if answer.get("error_type") == "OSError":
                raise InfrastructureError(f"the rollout server did not start: {problem}")
            raise EntrypointError(problem)
        self.url = f"http://127.0.0.1:{answer['port']}"
        self.workflow = str(answer.get("workflow", ""))
        self.max_concurrent = answer.get("max_concurrent")

    def _new_process(self) -> UserProcess:
        """The one that has a head start, once, else a fresh one."""
        ahead = (
            None if self._head_start is None else self._head_start.take(self._code.entrypoint, self._withheld)
        )
        try:
            return ahead or UserProcess(self._withheld)
        except OSError as error:  # no memory, no file descriptor
            raise InfrastructureError(f"the rollout server did not start: {error}") from error
