"""The two neighbours of a rollout server, as real HTTP servers: a policy with a script, and a controller."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")

from aiohttp import web

from osmosis_ai.rollout.backends.base import ExecutionRequest, ExecutionResult


def tool_call(name: str, arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def text(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


@dataclass
class Call:
    body: dict[str, Any]
    headers: dict[str, str]


@dataclass
class StubPolicy:
    """Answers the calls of each rollout with its script, the last answer again and again."""

    script: list[Any] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    url: str = ""
    delay: float = 0.0
    asked: dict[str, int] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(Call(json.loads(await request.read()), dict(request.headers)))
        if self.delay:
            await asyncio.sleep(self.delay)
        key = request.headers.get("x-rollout-id", "")
        turn = self.asked.get(key, 0)
        self.asked[key] = turn + 1
        entry = self.script[min(turn, len(self.script) - 1)]
        if callable(entry):
            entry = entry(request)
        if isinstance(entry, web.StreamResponse):
            return entry
        return web.json_response(completion(entry))


def completion(message: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    reason = finish_reason or ("tool_calls" if message.get("tool_calls") else "stop")
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "openai/osmosis-rollout",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def refusal(status: int, message: str, code: str = "") -> Callable[[web.Request], web.Response]:
    def answer(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": message, "code": code}}, status=status)

    return answer


async def _serve(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


@pytest.fixture
async def policy() -> AsyncIterator[StubPolicy]:
    stub = StubPolicy()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", stub.answer)
    runner, url = await _serve(app)
    stub.url = f"{url}/v1"
    yield stub
    await runner.cleanup()


@dataclass
class StubController:
    """Takes the callbacks of a rollout server."""

    url: str = ""
    # path, body, Authorization header
    received: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)  # to answer with, one per callback; then 200
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        self.received.append(
            (request.path, json.loads(await request.read()), request.headers.get("Authorization", ""))
        )
        self.arrived.set()
        return web.Response(status=self.statuses.pop(0) if self.statuses else 200)

    async def wait_for(self, count: int, seconds: float = 60.0) -> list[tuple[str, dict[str, Any], str]]:
        async with asyncio.timeout(seconds):
            while len(self.received) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return self.received


@pytest.fixture
async def controller() -> AsyncIterator[StubController]:
    stub = StubController()
    app = web.Application()
    app.router.add_post("/{tail:.*}", stub.take)
    runner, stub.url = await _serve(app)
    yield stub
    await runner.cleanup()


def strings_above(frame: FrameType, depth: int = 6) -> set[str]:
    """Every text that the locals of the frames above lead to: attributes, items, closures, arguments."""
    seen: dict[int, Any] = {}  # with the objects, so that no id is used twice
    found: set[str] = set()
    level: list[Any] = []
    above = frame.f_back
    while above is not None:
        level += above.f_locals.values()
        above = above.f_back
    for _ in range(depth):
        level = [item for item in level if id(item) not in seen]
        seen |= {id(item): item for item in level}
        found |= {item for item in level if isinstance(item, str)}
        level = [inner for item in level for inner in _inside(item)]
    return found


def _inside(item: Any) -> list[Any]:
    if isinstance(item, str | bytes | type | ModuleType):
        return []
    if isinstance(item, Mapping):
        return [*item.keys(), *item.values()]
    if isinstance(item, list | tuple | set | frozenset | deque):
        return list(item)
    names = [*getattr(item, "__dict__", ()), *getattr(type(item), "__slots__", ())]
    names += [
        "__self__",
        "__func__",
        "__closure__",
        "cell_contents",
        "func",
        "args",
        "keywords",
        "_callback",
        "_args",
    ]
    return [inner for name in names if (inner := _attribute(item, name)) is not None]


def _attribute(item: Any, name: str) -> Any:
    try:
        return getattr(item, name, None)
    except Exception:  # an empty cell, a property that needs more than we have
        return None


@dataclass
class Results:
    """What a backend reported for one rollout."""

    workflow: list[ExecutionResult] = field(default_factory=list)
    grader: list[ExecutionResult] = field(default_factory=list)


async def execute(
    backend: Any, policy: StubPolicy | None = None, grade: bool = True, **request: Any
) -> Results:
    """Run one rollout on the backend; the defaults are those of most tests."""
    results = Results()

    async def workflow_ended(result: ExecutionResult) -> None:
        results.workflow.append(result)

    async def grader_ended(result: ExecutionResult) -> None:
        results.grader.append(result)

    prompt = [{"role": "user", "content": "What is 37 times 4?"}]
    defaults: dict[str, Any] = {"id": "17", "prompt": prompt, "label": "148", "api_key": "llm-key"}
    if policy is not None:
        defaults["chat_completions_url"] = policy.url
    await backend.execute(
        ExecutionRequest(**{**defaults, **request}), workflow_ended, grader_ended if grade else None
    )
    return results
