# ruff: noqa: T201
"""The numbers of `docs/tokens.md`: one conversation with a trained policy, token by token.

    python docs/tokens_example.py .osmosis/runs/calculator/policy

The policy is one that has learnt the calculator (`make demo` leaves one there). Yours has other numbers.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from osmosis_ai.engine.base import EngineSpec
from osmosis_ai.engine.torch import TorchEngine
from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.render import TemplateRenderer
from osmosis_ai.gateway.targets import PolicyTarget
from osmosis_ai.store.base import RunRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.train.samples import training_samples
from osmosis_ai.types import Message, Rollout, Turn


def tool(name: str, about: str) -> dict[str, Any]:
    numbers = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    parameters = {"type": "object", "properties": numbers, "required": ["a", "b"]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


TOOLS = [tool("multiply", "Multiply two integers."), tool("add", "Add two integers.")]
QUESTION: list[Message] = [
    {"role": "system", "content": "You are a calculator. Use the tools, then answer with the number."},
    {"role": "user", "content": "What is 37 times 4?"},
]


async def main(folder: Path) -> None:
    engine, renderer = TorchEngine(), TemplateRenderer(folder)
    info = await engine.open(EngineSpec(folder, trainable=False))
    with tempfile.TemporaryDirectory() as temporary:
        store = SqliteStore(Path(temporary) / "osmosis.db")
        await store.create_run(RunRecord("docs", "eval", "running", time.time(), {}, {}))
        rollout = Rollout("docs.r0", "docs", row_index=0, group_id="r0", member=0)
        await store.start_rollout(rollout)
        gateway = Gateway(PolicyTarget(engine, info, renderer), store)
        await gateway.start()
        key = gateway.admit(rollout.rollout_id, seed=1)
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as client:
            await converse(client, f"{gateway.base_url}/v1/chat/completions")
        rollout.turns = await gateway.seal(rollout.rollout_id)
        await gateway.stop()
        await store.close()
    for turn in rollout.turns:
        show(turn, rollout.turns, renderer)
    for row in training_samples(rollout, {"main": 1.0}):
        print(f"training sample, {len(row.token_ids)} tokens, {row.trained_tokens} of them trained")
        print(f"  token_ids {row.token_ids}\n  loss_mask {row.loss_mask}")
        scored = (await engine.forward([row]))[0]
        pairs = [(a, b) for a, b, m in zip(row.logprobs, scored, row.loss_mask, strict=True) if m]
        print(f"  largest difference of sampler and trainer {max(abs(a - b) for a, b in pairs):.1e}")
    await engine.close()


async def converse(client: aiohttp.ClientSession, url: str) -> None:
    async def call(messages: list[Message]) -> Message:
        body = {"model": "osmosis-rollout", "messages": messages, "tools": TOOLS, "max_tokens": 40}
        async with client.post(url, json=body) as response:
            message: Message = (await response.json())["choices"][0]["message"]
            return message

    asked = await call(QUESTION)
    calls = asked.get("tool_calls") or []
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "148"} for c in calls]
    answer = await call([*QUESTION, asked, *results])
    again = {"role": "user", "content": "Are you sure?"}
    await call([*QUESTION, asked, *results, answer, again])  # continues turn 1
    edited = {**answer, "content": "It is 148."}  # not what the policy wrote
    await call([*QUESTION, asked, *results, edited, again])  # goes back to turn 0
    await call(QUESTION)  # the first call once more


def show(turn: Turn, turns: list[Turn], renderer: TemplateRenderer) -> None:
    kept = 0
    if turn.parent is not None:
        parent = turns[turn.parent]
        kept = len(parent.prompt_ids) + len(parent.completion_ids)
        assert turn.prompt_ids[:kept] == parent.prompt_ids + parent.completion_ids
    print(f"turn {turn.ordinal}  parent {turn.parent}  branch_reason {turn.branch_reason}")
    print(f"  kept      {kept} tokens of the parent")
    print(f"  new       {turn.prompt_ids[kept:]}\n            {renderer.decode(turn.prompt_ids[kept:])!r}")
    print(f"  sampled   {turn.completion_ids}\n            {renderer.decode(turn.completion_ids)!r}")
    print(f"  logprobs  {[round(value, 4) for value in turn.logprobs]}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
