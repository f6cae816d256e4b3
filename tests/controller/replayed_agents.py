"""An agent that makes the same call twice, uses a tool, and asks for a stream."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.policy_client import PolicyEndpoint, chat

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


class Conversation(SampleSource):
    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages

    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name, messages=list(self.messages))


class AsksTwice(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        assert rollout is not None
        endpoint, messages = PolicyEndpoint.of(rollout), list(ctx.prompt)
        rollout.register_sample_source("asker", Conversation(messages))
        request = {"model": "osmosis-rollout", "messages": messages, "tools": [ADD], "top_p": 0.9}
        for _ in range(2):
            completion = await chat(endpoint, "asker", request)
        answer = completion["choices"][0]["message"]
        call_id = answer["tool_calls"][0]["id"]
        messages += [answer, {"role": "tool", "tool_call_id": call_id, "content": "5"}]
        text = await asyncio.to_thread(streamed_text, endpoint, {**request, "stream": True})
        messages.append({"role": "assistant", "content": text})


def streamed_text(endpoint: PolicyEndpoint, body: dict[str, Any]) -> str:
    headers = {
        "Authorization": f"Bearer {endpoint.api_key}",
        "Content-Type": "application/json",
        "x-sample-id": "asker",
    }
    request = urllib.request.Request(endpoint.url, json.dumps(body).encode(), headers)
    text = ""
    with urllib.request.urlopen(request, timeout=30) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
    return text


class Length(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(float(len(ctx.sample.messages[-1]["content"])))
