"""The smallest complete rollout: model and tools on the config, a bounded loop, a grader."""

import os
from typing import Any

from strands import tool

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    OsmosisRolloutModel,
    OsmosisStrandsAgent,
)


@tool(name="multiply")
def multiply_tool(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


class MultiplyWorkflowConfig(AgentWorkflowConfig):
    name: str = "multiply-workflow"
    model: Any
    tools: Any
    max_rounds: int = 8


multiply_workflow_config = MultiplyWorkflowConfig(
    model=OsmosisRolloutModel(params={"temperature": 1.0}),
    tools=[multiply_tool],
)


class MultiplyWorkflow(AgentWorkflow[MultiplyWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[MultiplyWorkflowConfig]) -> None:
        config = ctx.config or multiply_workflow_config
        agent = OsmosisStrandsAgent(
            name="multiply-agent",
            model=config.model,
            tools=config.tools,
            messages=ctx.prompt,
            callback_handler=None,
        )
        for _ in range(config.max_rounds):
            result = await agent.invoke_async()
            if not any("toolUse" in block for block in result.message.get("content", [])):
                break


class MultiplyGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for sample_id, sample in ctx.samples.items():
            answer = "".join(block.get("text", "") for block in sample.messages[-1]["content"])
            ctx.set_sample_reward(sample_id, 1.0 if ctx.label and ctx.label.strip() in answer else 0.0)


if __name__ == "__main__":
    import uvicorn

    from osmosis_ai.rollout import LocalBackend, create_rollout_server

    backend = LocalBackend(
        workflow=MultiplyWorkflow, workflow_config=multiply_workflow_config, grader=MultiplyGrader
    )
    uvicorn.run(create_rollout_server(backend=backend), port=int(os.environ.get("PORT", "8000")))
