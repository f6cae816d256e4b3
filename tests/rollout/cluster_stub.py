"""A training cluster as a real HTTP server, and requests for an agent loop server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn
from aiohttp import web
from rollout_stubs import _serve, completion, text

from osmosis_ai.rollout import RolloutAgentLoop


@dataclass
class Cluster:
    """Answers chat calls with its script (the last answer again and again), and takes completions."""

    script: list[Any] = field(default_factory=lambda: [text("148")])
    chats: list[dict[str, Any]] = field(default_factory=list)
    completions: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    chat_statuses: list[int] = field(default_factory=list)  # to answer with first; then 200
    completed_statuses: list[int] = field(default_factory=list)
    chat_delay: float = 0.0
    url: str = ""

    async def chat(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        self.chats.append(json.loads(await request.read()))
        await asyncio.sleep(self.chat_delay)
        if self.chat_statuses and (status := self.chat_statuses.pop(0)) != 200:
            return web.json_response({"error": "no"}, status=status)
        answer = self.script[min(len(self.chats), len(self.script)) - 1]
        return web.json_response(completion(answer))

    async def completed(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        self.completions.append(json.loads(await request.read()))
        return web.Response(status=self.completed_statuses.pop(0) if self.completed_statuses else 200)

    async def wait_for(self, count: int, seconds: float = 60.0) -> list[dict[str, Any]]:
        async with asyncio.timeout(seconds):
            while len(self.completions) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return self.completions


@asynccontextmanager
async def a_cluster() -> AsyncIterator[Cluster]:
    stub = Cluster()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", stub.chat)
    app.router.add_post("/v1/rollout/completed", stub.completed)
    runner, stub.url = await _serve(app)
    yield stub
    await runner.cleanup()


@dataclass
class Server:
    """An agent loop server under uvicorn, and a client for it."""

    url: str
    http: aiohttp.ClientSession

    async def init(self, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
        async with self.http.post(f"{self.url}/v1/rollout/init", json=body, headers=headers) as reply:
            return reply.status, await reply.json()

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path, headers=headers) as reply:
            return reply.status, await reply.json()


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[Server]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    running = asyncio.create_task(server.serve())
    while not server.started and not running.done():  # noqa: ASYNC110  uvicorn has no event
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as http:
        try:
            yield Server(f"http://127.0.0.1:{port}", http)
        finally:
            server.should_exit = True
            await running


def request_for(cluster: Cluster, rollout_id: str = "r-1", **more: Any) -> dict[str, Any]:
    prompt = [{"role": "user", "content": "What is 37 times 4?"}]
    body = {
        "rollout_id": rollout_id,
        "server_url": cluster.url,
        "messages": prompt,
        "completion_params": {},
        "metadata": {"ground_truth": "148"},
    }
    return {**body, **more}


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add numbers",
        "parameters": {
            "type": "object",
            "properties": {
                "numbers": {"type": "array", "items": {"type": "number"}, "default": [0]},
                "round": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                "how": {"type": "object", "properties": {"deep": {"type": "string", "enum": ["a", None]}}},
            },
            "additionalProperties": False,
        },
    },
}


class OneCall(RolloutAgentLoop):
    """Asks once and completes."""

    name = "one-call"
    tools: list[Any] = [ADD]

    def get_tools(self, request):
        return self.tools

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        result = await ctx.chat(messages, **ctx.request.completion_params)
        messages.append(result.message)
        return ctx.complete(messages, result.finish_reason, reward=1.0)
