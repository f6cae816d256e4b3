"""`AgentWorkflow`: what an agent does with one prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

TConfig = TypeVar("TConfig")


@dataclass(slots=True)
class AgentWorkflowContext(Generic[TConfig]):
    """What a workflow is given. The label is not here: a workflow never sees it."""

    prompt: list[dict[str, Any]]  # OpenAI chat messages of the row
    config: TConfig | None = None
    metadata: dict[str, Any] | None = None  # the row's; None when it has none
    _artifacts_dir: Path | None = field(default=None, repr=False)

    @property
    def artifacts_dir(self) -> Path | None:
        """A folder of this rollout for files to keep; None when the server keeps none."""
        return made(self._artifacts_dir)


def made(folder: Path | None) -> Path | None:
    """The folder, there from now on: most rollouts never ask for theirs."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return folder


class AgentWorkflow(ABC, Generic[TConfig]):
    """Subclass it and implement `run`. One instance is made for each rollout.

    Build agents and sessions inside `run`: there they find the active `RolloutContext`, are routed to the
    policy, and leave their conversation as a sample.
    """

    # True only for a RolloutAgentLoop: its author computes rewards in `run`, from metadata["ground_truth"],
    # and finds metadata["row_index"].
    row_in_metadata: ClassVar[bool] = False

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[TConfig]) -> Any:
        """Run the agent once. What it returns is ignored; what it raises fails the rollout."""
        raise NotImplementedError
