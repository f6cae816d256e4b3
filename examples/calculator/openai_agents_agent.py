"""The calculator agent with the OpenAI Agents SDK: a workflow, and a grader of its answer."""

import os
import re
from contextlib import suppress

from agents import MaxTurnsExceeded, ModelSettings, Runner, function_tool

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)

MAX_MODEL_CALLS = 4  # a policy that has not learned to answer would call tools for ever


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


@function_tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class CalculatorWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisAgent(
            name="calculator",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(temperature=1.0, max_tokens=64),
            tools=[multiply, add],
        )
        session = OsmosisMemorySession(name="calculator")
        with suppress(MaxTurnsExceeded):  # an agent that never answers is graded as far as it got
            await Runner.run(agent, ctx.prompt, session=session, max_turns=MAX_MODEL_CALLS)


def last_text(sample) -> str:
    """The text of the last item, if it is the agent's."""
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
