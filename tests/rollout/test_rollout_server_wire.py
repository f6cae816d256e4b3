"""Both servers of a workflow say the same on the wire: the FastAPI app, and the child process's."""

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
import uvicorn

from osmosis_ai.rollout import AgentWorkflow, LocalBackend, create_rollout_server
from osmosis_ai.rollout.server.desk import Desk, DeskSettings
from osmosis_ai.rollout.server.lean import LeanServer
from osmosis_ai.rollout.server.routes import Routes

KEY = {"Authorization": "Bearer key"}
JSON = {"Content-Type": "application/json"}
REQUEST = b'{"rollout_id": "17", "initial_messages": [], "chat_completions_url": "http://127.0.0.1:9/v1"}'


class Idle(AgentWorkflow):
    async def run(self, ctx): ...


@asynccontextmanager
async def app(listener):
    made = create_rollout_server(backend=LocalBackend(workflow=Idle), api_key="key")
    server = uvicorn.Server(uvicorn.Config(made, log_level="error"))
    server.install_signal_handlers = lambda: None
    task = asyncio.create_task(server.serve(sockets=[listener]))
    yield
    server.should_exit = True
    await task


@asynccontextmanager
async def lean(listener):
    desk = Desk(LocalBackend(workflow=Idle), DeskSettings())
    server = LeanServer(Routes(desk, api_key="key", longest_wait_seconds=30.0))
    await server.start(listener)
    yield
    await desk.drain(1.0)
    await server.stop()


@pytest.fixture(params=[app, lean])
async def client(request):
    async with AsyncExitStack() as stack:
        listener = socket.create_server(("127.0.0.1", 0))
        await stack.enter_async_context(request.param(listener))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield await stack.enter_async_context(aiohttp.ClientSession(url))


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "says"),
    [
        ("GET", "/health", {}, b"", 200, '"accepting":true'),
        ("GET", "/nothing", KEY, b"", 404, '"detail":"Not Found"'),
        ("GET", "/rollout/17/other", KEY, b"", 404, '"detail":"Not Found"'),
        ("GET", "/rollout", KEY, b"", 405, "Method Not Allowed"),
        ("POST", "/rollout", JSON, REQUEST, 401, "Authorization: Bearer <key>"),
        ("POST", "/rollout", KEY, REQUEST, 415, '"POST /rollout takes application/json"'),
        ("POST", "/rollout", {**KEY, **JSON}, b"{", 422, '"loc":["body"]'),
        ("POST", "/rollout", {**KEY, **JSON}, b"{}", 422, "Field required"),
        ("POST", "/rollout", {**KEY, **JSON}, REQUEST, 202, '{"rollout_id":"17","status":"accepted"}'),
        ("POST", "/rollout/cancel", {**KEY, **JSON}, b'{"all": false}', 422, '"loc":["body","all"]'),
        ("POST", "/rollout/cancel", KEY, b'{"all": true}', 415, "takes application/json"),
        ("POST", "/rollout/cancel", {**KEY, **JSON}, b'{"ids": ["x"]}', 200, '"unknown":["x"]'),
        ("GET", "/rollout/1%2B8/status", KEY, b"", 404, "1+8"),
        ("GET", "/rollout/18/result?wait=soon", KEY, b"", 422, '"loc":["query","wait"]'),
        ("GET", "/rollout/18/result?wait=-1", KEY, b"", 422, '"loc":["query","wait"]'),
        ("GET", "/rollout/18/result?wait=1", KEY, b"", 404, "18"),
    ],
)
async def test_the_answer_to_a_request(client, method, path, headers, body, status, says):
    reply = await client.request(method, path, headers={"Content-Type": "text/plain", **headers}, data=body)
    assert reply.status == status
    assert says in (await reply.text())


async def test_a_long_poll_brings_the_result_as_soon_as_there_is_one(client):
    await client.post("/rollout", headers={**KEY, **JSON}, data=REQUEST)
    result = await (await client.get("/rollout/17/result?wait=20", headers=KEY)).json()
    assert (result["rollout_id"], result["status"]) == ("17", "failure")
    status = await (await client.get("/rollout/17/status", headers=KEY)).json()
    assert status == {"rollout_id": "17", "status": "failure"}
