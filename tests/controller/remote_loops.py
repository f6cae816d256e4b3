"""An agent loop whose behaviour is the row's prompt."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from osmosis_ai.rollout import RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult

Messages = list[dict[str, Any]]


class Remote(RolloutAgentLoop):
    name = "remote"

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        return await getattr(self, messages[-1]["content"])(ctx, messages)

    async def ask(self, ctx: RolloutContext, messages: Messages) -> None:
        result = await ctx.chat(messages)
        messages.append(result.message)

    async def right(self, ctx: RolloutContext, messages: Messages) -> RolloutResult:
        await self.ask(ctx, messages)
        return ctx.complete(messages, reward=1.0)

    async def wrong(self, ctx: RolloutContext, messages: Messages) -> RolloutResult:
        await self.ask(ctx, messages)
        return ctx.complete(messages, reward=0.0)

    async def none(self, ctx: RolloutContext, messages: Messages) -> RolloutResult:
        await self.ask(ctx, messages)
        return ctx.complete(messages)

    async def nan(self, ctx: RolloutContext, messages: Messages) -> RolloutResult:
        await self.ask(ctx, messages)
        return ctx.complete(messages, reward=float("nan"))

    async def errs(self, ctx: RolloutContext, messages: Messages) -> RolloutResult:
        await self.ask(ctx, messages)
        return ctx.error("I give up")

    async def raises(self, ctx: RolloutContext, messages: Messages) -> RolloutResult:
        raise ValueError("no soup today")

    async def silent(self, ctx: RolloutContext, messages: Messages) -> RolloutResult:
        return ctx.complete(messages, reward=1.0)

    async def hangs(self, ctx: RolloutContext, messages: Messages) -> RolloutResult:
        await self.ask(ctx, messages)
        await asyncio.sleep(30)
        return ctx.complete(messages, reward=1.0)

    async def edits(self, ctx: RolloutContext, messages: Messages) -> RolloutResult:
        await self.ask(ctx, messages)
        messages[0] = {"role": "user", "content": "something else"}
        messages.append({"role": "user", "content": "again"})
        await self.ask(ctx, messages)
        return ctx.complete(messages, reward=1.0)

    async def tells(self, ctx: RolloutContext, messages: Messages) -> RolloutResult:
        await self.ask(ctx, messages)
        request = ctx.request.model_dump(
            include={"max_turns", "max_tokens_total", "completion_params", "metadata"}
        )
        messages.append({"role": "assistant", "content": json.dumps(request)})
        return ctx.complete(messages, reward=1.0)

    async def twice(self, ctx: RolloutContext, messages: Messages) -> RolloutResult:
        """Its own result first, a better one of its server's afterwards."""
        await self.ask(ctx, messages)
        body = {"rollout_id": ctx.request.rollout_id, "status": "COMPLETED", "reward": 0.0}
        url = f"{ctx.request.server_url}/v1/rollout/completed"
        headers = {"Authorization": f"Bearer {ctx.request.api_key}"}
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.post(url, json=body, headers=headers) as response:
                    assert response.status == 200
        return ctx.complete(messages, reward=1.0)


agent_loop = Remote()


def answer(messages: Messages, tools: list[Any], random: Any) -> dict[str, Any]:
    return {"content": "The answer is 12."}
