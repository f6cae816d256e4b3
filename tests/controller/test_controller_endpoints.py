"""Endpoints that refuse, hang, or end their answer early: the rollout says so, and is tried again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from controller_bench import AGENTS, configure, run_eval

from osmosis_ai.types import Status

EXTERNAL = f"""
[rollout]
entrypoint = "{AGENTS}"
retries = 1
[dataset]
path = "rows.jsonl"
[llm]
model = "gpt-x"
base_url = "{{url}}"
retries = 0
timeout_seconds = 0.5
"""


WORDS = {
    "hangs": "did not answer: no connection within 10 s, or no whole answer within 0.5 s",
    "ends_early": "ended its answer early",
    "wrong_page": "answered with text/html, not JSON. Is base_url right? It usually ends in /v1",
    "no_key": 'answered 401: {"error": {"message": "bad key"}}; check the API key',
}


async def misbehave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An endpoint that does what the last word of the prompt says."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    body = await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
    match json.loads(body)["messages"][-1]["content"].split()[-1]:
        case "hangs":
            await reader.read()  # until the client has had enough
        case "ends_early":
            respond(writer, "200 OK", '{"choices": [', length=500)
        case "wrong_page":
            respond(writer, "200 OK", "<html>Welcome</html>", kind="text/html")
        case "no_key":
            respond(writer, "401 Unauthorized", '{"error": {"message": "bad key"}}')
    await writer.drain()
    writer.close()


def respond(
    writer: asyncio.StreamWriter,
    status: str,
    body: str,
    *,
    kind: str = "application/json",
    length: int | None = None,
) -> None:
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
    writer.write((head + body).encode())


async def test_what_is_wrong_with_the_endpoint_is_the_rollouts_reason(tmp_path: Path):
    server = await asyncio.start_server(misbehave, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    does = [(f"ok {word}", "right") for word in WORDS]
    config = configure(tmp_path, does, EXTERNAL.format(url=url), rollout__retries=0)
    rollouts = await run_eval(config, tmp_path)
    server.close()
    for rollout, words in zip(rollouts, WORDS.values(), strict=True):
        assert rollout.status is Status.PROVIDER_ERROR
        assert f"{url}/chat/completions" in rollout.reason
        assert words in rollout.reason


async def test_an_endpoint_that_refuses_connections_is_named(tmp_path: Path):
    url = "http://127.0.0.1:1/v1"
    [rollout] = await run_eval(configure(tmp_path, [("ok", "right")], EXTERNAL.format(url=url)), tmp_path)
    assert rollout.status is Status.PROVIDER_ERROR
    assert "http://127.0.0.1:1/v1/chat/completions cannot be reached" in rollout.reason


async def test_a_provider_error_is_tried_again_by_the_next_life_of_the_run_a_result_is_not(tmp_path: Path):
    broken = configure(tmp_path, [("ok", "right"), ("raises", "right")], llm__script=f"{AGENTS}:breaks")
    first, raised = await run_eval(broken, tmp_path)
    again, raised_again = await run_eval(broken, tmp_path)
    assert (first.status, first.attempt) == (Status.PROVIDER_ERROR, 2)
    assert "breaks raised ZeroDivisionError: division by zero" in first.reason
    assert (again.status, again.attempt) == (Status.PROVIDER_ERROR, 5)
    assert raised.status is Status.WORKFLOW_ERROR
    assert raised_again.rollout_id == raised.rollout_id


async def test_a_workflow_that_goes_on_without_its_model_has_no_reward(tmp_path: Path):
    config = configure(
        tmp_path,
        [("model_failure_ignored", "wrong")],
        llm__script=f"{AGENTS}:breaks_later",
        rollout__retries=0,
    )
    [rollout] = await run_eval(config, tmp_path)
    assert (rollout.status, rollout.reward) == (Status.PROVIDER_ERROR, None)
    assert "ZeroDivisionError" in rollout.reason
    assert len(rollout.turns) == 1  # what was answered is kept


TOO_LONG = {"error": {"code": "context_length_exceeded", "message": "no room for 9000 tokens"}}


@pytest.mark.parametrize(("body", "status"), [(TOO_LONG, "model_error"), ({}, "workflow_error")])
async def test_a_call_that_the_model_refuses_is_a_result_and_not_tried_again(
    tmp_path: Path, body: dict[str, Any], status: str
):
    """Status 400 either way: without a reason of the model's, the agent's request was wrong."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        respond(writer, "400 Bad Request", json.dumps(body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    [rollout] = await run_eval(configure(tmp_path, [("ok", "right")], EXTERNAL.format(url=url)), tmp_path)
    server.close()
    assert (rollout.status, rollout.attempt, rollout.reward) == (status, 0, None)


ANSWER = {
    "choices": [{"message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}


async def test_a_deadline_that_passes_while_the_endpoint_is_gone_is_not_the_workflows_fault(tmp_path: Path):
    answered = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        await reader.readuntil(b"\r\n\r\n")
        respond(writer, "200 OK", json.dumps(ANSWER))
        answered += 1
        if answered == 4:
            server.close()  # whoever comes from now on is refused
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    settings = {"max_concurrent": 4, "retries": 0, "agent_timeout_seconds": 2.0}
    config = configure(
        tmp_path,
        [("ok", "right")] * 8,
        EXTERNAL.format(url=url),
        llm__retries=9,
        **{f"rollout__{key}": value for key, value in settings.items()},
    )
    rollouts = await run_eval(config, tmp_path)
    assert [r.status for r in rollouts] == [Status.GRADED] * 4 + [Status.PROVIDER_ERROR] * 4
    reason = rollouts[-1].reason
    assert reason.startswith(f"the deadline passed while the endpoint did not answer: {url}/chat/completions")
