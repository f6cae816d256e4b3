"""An agent with nothing but the `openai` package: any OpenAI-compatible client can be trained."""

import json
import re

from openai import AsyncOpenAI

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext, get_rollout_context

MAX_MODEL_CALLS = 4
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.capitalize()} two integers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
    for name in ("multiply", "add")
]


def use_tool(name: str, arguments: str) -> str:
    """The result of a tool call; what is wrong with it goes back to the model, which may try again."""
    try:
        given = json.loads(arguments)
        return str(given["a"] * given["b"] if name == "multiply" else given["a"] + given["b"])
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {error}"


class CalculatorWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        # The whole integration: URL and key of this rollout, and the list that is the sample.
        client = AsyncOpenAI(base_url=rollout.chat_completions_url, api_key=rollout.api_key, max_retries=0)
        messages = list(ctx.prompt)
        rollout.register_agent("main", messages)  # "main" is the sample of calls that name none

        for _ in range(MAX_MODEL_CALLS):
            answer = await client.chat.completions.create(
                model="osmosis-rollout", messages=messages, tools=TOOLS, max_tokens=64
            )
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return
            for call in message.tool_calls:
                result = use_tool(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


class CalculatorGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        numbers = re.findall(r"-?\d+", ctx.sample.messages[-1].get("content") or "")
        ctx.set_reward(1.0 if numbers and numbers[-1] == ctx.label else 0.0)
