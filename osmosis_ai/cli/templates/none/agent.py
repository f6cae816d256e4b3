"""An agent that totals orders, and the grader of its answers.

The agent talks to the model with nothing but OpenAI's client; any client of an OpenAI-style URL will do.
"""

import json
import re

from openai import AsyncOpenAI

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext, get_rollout_context

MAX_MODEL_CALLS = 6  # a model that never answers would call tools for ever
PRICES = {"apple": 40, "bread": 350, "cheese": 620, "lemon": 55, "milk": 130, "soap": 210}  # cents
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "price",
            "description": "The price of one piece of an item, in cents.",
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}},
                "required": ["item"],
            },
        },
    }
]


def price_of(item: str) -> str:
    """What the tool answers; a mistake is an answer too, so that the model can try again."""
    return str(PRICES[item]) if item in PRICES else f"no item {item!r}; there are {', '.join(PRICES)}"


def use_tool(arguments: str) -> str:
    try:
        return price_of(json.loads(arguments)["item"])
    except (ValueError, KeyError, TypeError) as error:
        return f"not the arguments of price: {error!r}"


def last_number(text: str) -> str | None:
    """The answer in a text: "3 apples are 120 cents" -> "120"."""
    numbers = re.findall(r"\d+", text)
    return numbers[-1] if numbers else None


class OrderWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        # The whole integration: URL and key of this rollout, and the list that the grader will see.
        client = AsyncOpenAI(base_url=rollout.chat_completions_url, api_key=rollout.api_key, max_retries=0)
        messages = list(ctx.prompt)
        rollout.register_agent("main", messages)
        for _ in range(MAX_MODEL_CALLS):
            answer = await client.chat.completions.create(
                model="osmosis-rollout", messages=messages, tools=TOOLS, max_tokens=256
            )
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return
            for call in message.tool_calls:
                result = use_tool(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


class OrderGrader(Grader):
    """1.0 when the last number of the answer is the label, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        answer = ctx.sample.messages[-1].get("content") or ""
        ctx.set_reward(1.0 if last_number(answer) == ctx.label else 0.0)
