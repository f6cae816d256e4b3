"""The backend seam: a place where a rollout's user code runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.samples import RolloutSample


class RolloutStatus(StrEnum):
    """How a phase (workflow or grader) of a rollout ended, and where a rollout stands before that."""

    PENDING = "pending"
    QUEUED = "queued"  # admitted, waits for its turn
    RUNNING = "running"
    GRADING = "grading"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    COMPLETED = "COMPLETED"  # these two: of a RolloutAgentLoop, on its own wire only
    ERROR = "ERROR"


class RolloutErrorCategory(StrEnum):
    """Who failed."""

    TIMEOUT = "timeout"  # the phase exceeded its deadline
    VALIDATION_ERROR = "validation_error"  # no samples, no reward, no grader
    HTTP_ERROR = "http_error"  # the policy did not answer a call
    AGENT_ERROR = "agent_error"  # the user's code raised
    INTERNAL_ERROR = "internal_error"  # ours: the backend or the server failed, or was shut down


@dataclass(slots=True)
class ExecutionRequest:
    """One rollout to run. Deadlines are seconds from the moment the user's code starts; None is none."""

    id: str
    prompt: list[dict[str, Any]]
    label: str | None = None
    metadata: dict[str, Any] | None = None
    row_index: int | None = None  # of the row in its dataset
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None
    chat_completions_url: str = ""
    api_key: str | None = None  # opens this rollout's LLM calls and nothing else
    judge_chat_completions_url: str = ""  # where the grader's own LLM calls go; "": it has none
    judge_api_key: str | None = None
    artifacts_dir: Path | None = None  # a folder for what the user's code wants to keep; made when asked for
    on_start: Callable[[], None] | None = None  # the backend calls it when the workflow has its slot


@dataclass(slots=True)
class ExecutionResult:
    """The one result of a phase. A failure keeps the samples that there were, as far as they got."""

    status: RolloutStatus
    samples: dict[str, RolloutSample] = field(default_factory=dict)
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None

    @property
    def succeeded(self) -> bool:
        return self.status is RolloutStatus.SUCCESS


ResultCallback = Callable[[ExecutionResult], Awaitable[None]]


class ExecutionBackend(ABC):
    """Runs rollouts; each phase ends in exactly one result."""

    @abstractmethod
    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        """Run the workflow, report, grade, report. Without `on_grader_complete` nothing is graded."""

    @property
    def max_concurrency(self) -> int:
        """Workflows that may run at once; 0 is unlimited."""
        return 0

    def health(self) -> dict[str, Any]:
        return {"status": "ok"}

    async def close(self) -> None:  # noqa: B027 (optional: most backends hold nothing)
        """Give back threads, processes and connections."""
