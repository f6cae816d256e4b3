"""The calculator agent with Strands: a workflow, and a grader that compares its answer with the label."""

import os
import re
from contextlib import suppress

from strands import tool
from strands.types.exceptions import MaxTokensReachedException

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel, OsmosisStrandsAgent

MAX_MODEL_CALLS = 4  # a policy that has not learned to answer would call tools for ever


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class CalculatorWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisStrandsAgent(
            name="calculator",
            model=OsmosisRolloutModel(params={"temperature": 1.0, "max_tokens": 64}),
            tools=[multiply, add],
            messages=ctx.prompt,
            callback_handler=None,
        )
        with suppress(MaxTokensReachedException):  # an answer that never ends is graded as far as it got
            await agent.invoke_async(limits={"turns": MAX_MODEL_CALLS})


def last_text(sample) -> str:
    """The text of the last message, if it is the agent's."""
    if not sample.messages or sample.messages[-1].get("role") != "assistant":
        return ""
    return " ".join(block["text"] for block in sample.messages[-1]["content"] if "text" in block)


class CalculatorGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for sample_id, sample in ctx.samples.items():
            numbers = re.findall(r"-?\d+", last_text(sample))
            correct = bool(numbers) and numbers[-1] == ctx.label
            ctx.set_sample_reward(sample_id, 1.0 if correct else 0.0)


if __name__ == "__main__":
    import uvicorn

    from osmosis_ai.rollout import LocalBackend, create_rollout_server

    backend = LocalBackend(workflow=CalculatorWorkflow, grader=CalculatorGrader)
    uvicorn.run(create_rollout_server(backend=backend), port=int(os.environ.get("PORT", "8000")))
