"""An agent that totals orders, in the OpenAI Agents SDK, and the grader of its answers."""

import re
from contextlib import suppress

from agents import MaxTurnsExceeded, ModelSettings, Runner, function_tool

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)

MAX_MODEL_CALLS = 6  # a model that never answers would call tools for ever
PRICES = {"apple": 40, "bread": 350, "cheese": 620, "lemon": 55, "milk": 130, "soap": 210}  # cents


def price_of(item: str) -> str:
    """What the tool answers; a mistake is an answer too, so that the model can try again."""
    return str(PRICES[item]) if item in PRICES else f"no item {item!r}; there are {', '.join(PRICES)}"


@function_tool
def price(item: str) -> str:
    """The price of one piece of an item, in cents."""
    return price_of(item)


def last_number(text: str) -> str | None:
    """The answer in a text: "3 apples are 120 cents" -> "120"."""
    numbers = re.findall(r"\d+", text)
    return numbers[-1] if numbers else None


class OrderWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisAgent(
            name="main",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(max_tokens=256),
            tools=[price],
        )
        session = OsmosisMemorySession(name="main")  # its name is the sample id
        with suppress(MaxTurnsExceeded):  # an agent that never answers is graded as far as it got
            await Runner.run(agent, ctx.prompt, session=session, max_turns=MAX_MODEL_CALLS)


class OrderGrader(Grader):
    """1.0 when the last number of the answer is the label, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        last = ctx.sample.messages[-1]
        parts = last["content"] if last.get("role") == "assistant" else []
        answer = "".join(part.get("text", "") for part in parts)
        ctx.set_reward(1.0 if last_number(answer) == ctx.label else 0.0)
