"""Two agents in one rollout: a solver (Strands) and a checker (OpenAI Agents SDK), each with its own reward.

Each agent is a sample of the rollout, by its name. In training a sample is compared with the samples of the
same name in its group, so that each agent has a baseline of its own, though both are the same policy.
"""

import re
from contextlib import suppress

from agents import ModelSettings, Runner
from strands import tool
from strands.types.exceptions import MaxTokensReachedException

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    OsmosisRolloutModel,
    OsmosisStrandsAgent,
)
from osmosis_ai.rollout.integrations.agents import openai_agents as checking

MAX_MODEL_CALLS = 4


class TwoAgentsConfig(AgentWorkflowConfig):
    name: str = "two-agents"
    frozen: str = ""  # "solver" or "checker": answered by the policy, graded, not trained


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class TwoAgents(AgentWorkflow[TwoAgentsConfig]):
    async def run(self, ctx: AgentWorkflowContext[TwoAgentsConfig]) -> None:
        frozen = ctx.config.frozen if ctx.config else ""
        answer = await self.solve(ctx.prompt, trainable=frozen != "solver")
        await self.check(ctx.prompt[-1]["content"], answer, trainable=frozen != "checker")

    async def solve(self, prompt: list[dict], *, trainable: bool) -> str:
        solver = OsmosisStrandsAgent(
            name="solver",
            model=OsmosisRolloutModel(params={"max_tokens": 48}, trainable=trainable),
            tools=[multiply, add],
            messages=prompt,
            callback_handler=None,
        )
        with suppress(MaxTokensReachedException):  # an answer that never ends is checked as far as it got
            await solver.invoke_async(limits={"turns": MAX_MODEL_CALLS})
        return text_of(solver.messages[-1])

    async def check(self, question: str, answer: str, *, trainable: bool) -> None:
        checker = checking.OsmosisAgent(
            name="checker",
            instructions="You check answers. Say right or wrong.",
            model=checking.OsmosisRolloutModel(trainable=trainable),
            model_settings=ModelSettings(max_tokens=16),
        )
        session = checking.OsmosisMemorySession(name="checker")
        await Runner.run(checker, f"{question}\nAnswer: {answer}", session=session, max_turns=1)


def text_of(message: dict) -> str:
    """The text of a message, whichever framework wrote it, if it is the agent's."""
    if message.get("role") != "assistant":
        return ""
    return " ".join(part["text"] for part in message["content"] if "text" in part)


class Both(Grader):
    """The solver is worth its answer, the checker its verdict."""

    async def grade(self, ctx: GraderContext) -> None:
        numbers = re.findall(r"-?\d+", text_of(ctx.samples["solver"].messages[-1]))
        solved = bool(numbers) and numbers[-1] == ctx.label
        verdict = text_of(ctx.samples["checker"].messages[-1]).strip().rstrip(".")
        ctx.set_sample_reward("solver", 1.0 if solved else 0.0)
        ctx.set_sample_reward("checker", 1.0 if verdict == ("right" if solved else "wrong") else 0.0)
