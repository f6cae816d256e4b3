"""A workflow for conversations that were held elsewhere: it hands one over, for a grader to reward."""

from __future__ import annotations

from osmosis_ai.rollout.config.workflow import AgentWorkflowConfig
from osmosis_ai.rollout.context import get_rollout_context
from osmosis_ai.rollout.samples import MessagesSource
from osmosis_ai.rollout.workflow import AgentWorkflow, AgentWorkflowContext


class FinishedConfig(AgentWorkflowConfig):
    """Which sample the conversation is."""

    name: str = "finished"
    sample_id: str


class FinishedWorkflow(AgentWorkflow[FinishedConfig]):
    """The prompt is the conversation, the conversation is the sample; no model is asked."""

    async def run(self, ctx: AgentWorkflowContext[FinishedConfig]) -> None:
        context = get_rollout_context()
        if context is None or ctx.config is None:
            raise RuntimeError("FinishedWorkflow runs inside a RolloutContext, with its config")
        context.register_sample_source(ctx.config.sample_id, MessagesSource(list(ctx.prompt)))
