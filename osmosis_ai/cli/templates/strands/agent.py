"""An agent that totals orders, in Strands, and the grader of its answers."""

import re
from contextlib import suppress

from strands import tool
from strands.types.exceptions import MaxTokensReachedException

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel, OsmosisStrandsAgent

MAX_MODEL_CALLS = 6  # a model that never answers would call tools for ever
PRICES = {"apple": 40, "bread": 350, "cheese": 620, "lemon": 55, "milk": 130, "soap": 210}  # cents


def price_of(item: str) -> str:
    """What the tool answers; a mistake is an answer too, so that the model can try again."""
    return str(PRICES[item]) if item in PRICES else f"no item {item!r}; there are {', '.join(PRICES)}"


@tool
def price(item: str) -> str:
    """The price of one piece of an item, in cents."""
    return price_of(item)


def last_number(text: str) -> str | None:
    """The answer in a text: "3 apples are 120 cents" -> "120"."""
    numbers = re.findall(r"\d+", text)
    return numbers[-1] if numbers else None


class OrderWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisStrandsAgent(
            name="main",
            model=OsmosisRolloutModel(params={"max_tokens": 256}),
            tools=[price],
            messages=ctx.prompt,
            callback_handler=None,
        )
        with suppress(MaxTokensReachedException):  # an answer that was cut short is graded as far as it got
            await agent.invoke_async(limits={"turns": MAX_MODEL_CALLS})


class OrderGrader(Grader):
    """1.0 when the last number of the answer is the label, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        answer = "".join(block.get("text", "") for block in ctx.sample.messages[-1]["content"])
        ctx.set_reward(1.0 if last_number(answer) == ctx.label else 0.0)
