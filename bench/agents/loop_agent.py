"""The calculator agent as a RolloutAgentLoop, with the same tools and the same grading."""

from __future__ import annotations

import re
from typing import Any

from lean_agent import TOOLS, result_of

from osmosis_ai.rollout import RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult


class LoopCalculator(RolloutAgentLoop):
    """Calls the policy until it answers without a tool call."""

    name = "calculator"

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        return TOOLS

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        while True:
            result = await ctx.chat(messages, max_tokens=64)
            messages.append(result.message)
            if not result.has_tool_calls:
                break
            messages.extend(map(result_of, result.tool_calls))
        numbers = re.findall(r"-?\d+", result.content or "")
        right = bool(numbers) and numbers[-1] == ctx.request.metadata["ground_truth"]
        return ctx.complete(messages, reward=1.0 if right else 0.0)
