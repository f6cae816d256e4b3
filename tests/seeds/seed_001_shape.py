# ruff: noqa
# fmt: off
# A code block of seed document 001; the imports, which it left out, are added.
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar
from osmosis_ai.rollout import AgentWorkflowContext

TConfig = TypeVar("TConfig")

class AgentWorkflow(Generic[TConfig], ABC):
    def __init__(self, config: TConfig | None = None):
        self.config = config

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[TConfig]) -> Any:
        raise NotImplementedError
