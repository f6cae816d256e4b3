"""The calculator agent without a framework: two calls with a tool in between, by the lean client."""

from __future__ import annotations

import json
import re
from typing import Any

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext, get_rollout_context
from osmosis_ai.rollout.policy_client import PolicyEndpoint, chat

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} two integers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
    for name in ("multiply", "add")
]
FUNCTIONS = {"multiply": lambda a, b: a * b, "add": lambda a, b: a + b}


class LeanWorkflow(AgentWorkflow):
    """Calls the policy until it answers without a tool call."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        assert rollout is not None
        endpoint, self.messages = PolicyEndpoint.of(rollout), list(ctx.prompt)
        rollout.register_agent("calculator", self)
        body = {"model": "osmosis-rollout", "messages": self.messages, "tools": TOOLS, "max_tokens": 64}
        while True:
            message = (await chat(endpoint, "calculator", body))["choices"][0]["message"]
            self.messages.append(message)
            if not message.get("tool_calls"):
                return
            self.messages.extend(map(result_of, message["tool_calls"]))


def result_of(call: dict[str, Any]) -> dict[str, Any]:
    value = FUNCTIONS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
    return {"role": "tool", "tool_call_id": call["id"], "content": str(value)}


class CalculatorGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for sample_id, sample in ctx.samples.items():
            numbers = re.findall(r"-?\d+", sample.messages[-1]["content"] or "")
            correct = bool(numbers) and numbers[-1] == ctx.label
            ctx.set_sample_reward(sample_id, 1.0 if correct else 0.0)
