"""A workflow and a grader without a framework, whose behaviour is the first word of the row's prompt.

The workflow's word is in the user's message ("ok", "blocks", "exits", ...), the grader's in the label
("right", "raises", "nothing", ...), so that one run holds many kinds of misbehaviour side by side.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from osmosis_ai import ProviderRequestError, evaluate_rubric
from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    RolloutContext,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.backends.base import ExecutionRequest
from osmosis_ai.rollout.policy_client import PolicyCallError, PolicyEndpoint, chat

Messages = list[dict[str, Any]]


class Conversation(SampleSource):
    def __init__(self, messages: Messages) -> None:
        self.messages = messages

    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name, messages=list(self.messages))


class Lean(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        assert rollout is not None
        messages = list(ctx.prompt)
        rollout.register_sample_source("lean", Conversation(messages))
        word = ctx.prompt[-1]["content"].split()[0]
        await getattr(self, word)(rollout, messages, ctx)

    async def ok(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        await call(PolicyEndpoint.of(rollout), messages)

    async def slow(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        await asyncio.sleep(0.6)
        await call(PolicyEndpoint.of(rollout), messages)

    async def silent(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        """Makes no call."""

    async def wrong_key(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        await call(replace(PolicyEndpoint.of(rollout), api_key="sk-wrong"), messages)

    async def wrong_key_ignored(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        try:
            await self.wrong_key(rollout, messages, ctx)
        except PolicyCallError:
            messages.append({"role": "assistant", "content": "I made this up."})

    async def other_rollout(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        await call(replace(PolicyEndpoint.of(rollout), rollout_id="bad.r0.m0.a0"), messages)

    async def model_failure_ignored(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        """The first call is answered, the second is not, and the agent goes on as if nothing had been."""
        await call(PolicyEndpoint.of(rollout), messages)
        try:
            await call(PolicyEndpoint.of(rollout), [*messages, {"role": "user", "content": "and then?"}])
        except PolicyCallError:
            messages.append({"role": "assistant", "content": "I made this up."})

    async def late(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        await call(PolicyEndpoint.of(rollout), messages)
        endpoint = PolicyEndpoint.of(rollout)
        threading.Thread(target=call_later, args=(endpoint, Path(ctx.metadata["file"])), daemon=True).start()

    async def blocks(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        await call(PolicyEndpoint.of(rollout), messages)
        time.sleep(20)  # noqa: ASYNC251  blocks its loop, as user code may

    async def raises(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        raise ValueError("no soup today")

    async def prints(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        print('{"event": "report", "run_id": "forged"}')
        os.write(1, b"below Python\n")
        print("to standard error", file=sys.stderr)
        await call(PolicyEndpoint.of(rollout), messages)

    async def logs(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        rollout.log_event("asks", question=messages[-1]["content"])
        await call(PolicyEndpoint.of(rollout), messages)
        rollout.log_event("answered")

    async def keeps(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        """Leaves a file in the run's folder."""
        (ctx.artifacts_dir / "notes.txt").write_text("42 it is")
        await call(PolicyEndpoint.of(rollout), messages)

    async def exits(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        await asyncio.sleep(0.1)
        os._exit(7)

    async def tells(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        """Writes down everything that it was given."""
        seen = [ctx.prompt, repr(ctx), vars(rollout), dict(os.environ), vars(self)]
        Path(ctx.metadata["file"]).write_text(repr(seen))  # noqa: ASYNC240
        await call(PolicyEndpoint.of(rollout), messages)

    async def steals(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        """Finds the judge's key, which lies in the same process, and tries it."""
        requests = [item for item in gc.get_objects() if isinstance(item, ExecutionRequest)]
        [found] = [request for request in requests if request.id == rollout.rollout_id]
        judge = PolicyEndpoint(found.judge_chat_completions_url, found.judge_api_key, rollout.rollout_id)
        try:
            await call(judge, messages)
        except PolicyCallError as error:
            Path(ctx.metadata["file"]).write_text(error.message)  # noqa: ASYNC240
        await call(PolicyEndpoint.of(rollout), messages)

    async def long(self, rollout: RolloutContext, messages: Messages, ctx: Any) -> None:
        await call(PolicyEndpoint.of(rollout), [{"role": "user", "content": "12 times 34 " * 2000}])


async def call(endpoint: PolicyEndpoint, messages: Messages) -> None:
    completion = await chat(endpoint, "lean", {"model": "openai/osmosis-rollout", "messages": messages})
    messages.append(completion["choices"][0]["message"])


def call_later(endpoint: PolicyEndpoint, file: Path) -> None:
    """From a thread that the lane knows nothing of: after the rollout has ended."""
    time.sleep(0.4)
    headers = {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "more"}]}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint.url, body, headers), timeout=60) as reply:
            answer = f"{reply.status} {reply.read().decode()}"
    except urllib.error.HTTPError as error:
        answer = f"{error.code} {error.read().decode()}"
    file.with_suffix(".part").write_text(answer)
    file.with_suffix(".part").rename(file)


class LeanGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        await getattr(self, str(ctx.label))(ctx)

    async def right(self, ctx: GraderContext) -> None:
        ctx.set_reward(1.0)

    quetzal = right  # a label that is found nowhere by chance

    async def logged(self, ctx: GraderContext) -> None:
        context = get_rollout_context()
        assert context is not None
        context.log_event("grades", label=ctx.label)
        ctx.set_reward(1.0)

    async def wrong(self, ctx: GraderContext) -> None:
        ctx.set_reward(0.0)

    async def length(self, ctx: GraderContext) -> None:
        ctx.set_reward(len(ctx.sample.messages[-1]["content"]))

    async def raises(self, ctx: GraderContext) -> None:
        raise RuntimeError("the judge is out")

    async def judged(self, ctx: GraderContext) -> None:
        text = ctx.sample.messages[-1]["content"]
        verdict = await evaluate_rubric(solution_str=text, rubric="Is it 42?", judge=ctx.judge)
        ctx.set_reward(verdict.score)

    async def shrugs(self, ctx: GraderContext) -> None:
        try:
            await self.judged(ctx)
        except ProviderRequestError:
            ctx.set_reward(0.0)

    async def asks(self, ctx: GraderContext) -> None:
        """Any client of the context that it runs in."""
        context = get_rollout_context()
        assert context is not None
        question = {"role": "user", "content": "Is it 42?"}
        completion = await chat(
            PolicyEndpoint.of(context), "umpire", {"model": "osmosis-rollout", "messages": [question]}
        )
        ctx.set_reward(len(completion["choices"][0]["message"]["content"]))

    async def needs_service(self, ctx: GraderContext) -> None:
        """Raises until the service (a file) is up."""
        Path(ctx.metadata["file"]).with_suffix(".up").read_bytes()
        ctx.set_reward(1.0)

    async def nothing(self, ctx: GraderContext) -> None:
        """Gives no reward."""

    async def nan(self, ctx: GraderContext) -> None:
        ctx.set_sample_reward("lean", float("nan"))

    async def nan_inside(self, ctx: GraderContext) -> None:
        ctx.sample.reward = float("nan")  # past set_sample_reward, which would refuse it

    async def unknown(self, ctx: GraderContext) -> None:
        ctx.set_sample_reward("somebody", 1.0)

    async def blocks(self, ctx: GraderContext) -> None:
        time.sleep(20)  # noqa: ASYNC251


def answer(messages: Messages, tools: list[Any], random: Any) -> dict[str, Any]:
    """The scripted model."""
    return {"content": "The answer is 42."}


def verdict(messages: Messages, tools: list[Any], random: Any) -> dict[str, Any]:
    """The scripted judge; with one that draws lots the rollouts of a group differ."""
    return {"content": json.dumps({"score": random.choice([0.25, 0.75]), "explanation": "so so"})}


def escapes(messages: Messages, tools: list[Any], random: Any) -> dict[str, Any]:
    """A model that would like to own the terminal."""
    return {"content": "\x1b[2J\x1b[31mred\x07 [bold]loud[/bold] [/nothing] \r\x9b0m\u202eabc end"}


def breaks(messages: Messages, tools: list[Any], random: Any) -> dict[str, Any]:
    """A model that is broken."""
    return {"content": str(1 / 0)}


def breaks_later(messages: Messages, tools: list[Any], random: Any) -> dict[str, Any]:
    """A model that answers once."""
    return answer(messages, tools, random) if len(messages) == 1 else breaks(messages, tools, random)


def long_winded(messages: Messages, tools: list[Any], random: Any) -> dict[str, Any]:
    """A model that fills disks."""
    return {"content": f"{random.random()} " * 1000}


def forgets_a_brace(messages: Messages, tools: list[Any], random: Any) -> dict[str, Any]:
    """A model that calls `multiply` with half an object, and answers when it has been told."""
    if messages[-1]["role"] == "user":
        return {"tool_calls": [{"function": {"name": "multiply", "arguments": '{"a": 3, "b": '}}]}
    return {"content": "The answer is 12."}
