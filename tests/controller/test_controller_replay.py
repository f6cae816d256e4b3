"""A run against a real endpoint, and the same run again when the endpoint is gone."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from controller_bench import run_eval

from osmosis_ai.config import load_config
from osmosis_ai.errors import UsageError
from osmosis_ai.store.export.jsonl import run_lines
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Rollout, Status

CONFIG = """
[rollout]
entrypoint = "{agents}"
retries = 0
[dataset]
path = "rows.jsonl"
[llm]
model = "big"
base_url = "{url}"
[eval]
attempts = 2
"""


@asynccontextmanager
async def restless_model():
    """No two answers are alike: text, reasoning, ids of tool calls and usage count the requests."""
    count = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        body = await request.json()
        usage = {"prompt_tokens": count, "completion_tokens": 2 * count}
        usage["prompt_tokens_details"] = {"cached_tokens": count}
        call = {"id": f"call-{count}", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        message = {"role": "assistant", "content": "no " * count, "reasoning_content": f"hm {count}"}
        if not body.get("stream"):
            choice = {"message": {**message, "tool_calls": [call]}, "finish_reason": "tool_calls"}
            return web.json_response({"model": f"big-{count}", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        chunks = [{"choices": [{"delta": message, "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
        for chunk in chunks:
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1)
    await site.start()
    yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
    await runner.cleanup()


async def record(folder: Path) -> list[Rollout]:
    rows = [json.dumps({"user_prompt": f"row {n}", "ground_truth": "x"}) for n in range(3)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    async with restless_model() as url:
        agents = Path(__file__).with_name("replayed_agents.py")
        (folder / "recorded.toml").write_text(CONFIG.format(agents=agents, url=url))
        return await run_eval(load_config(folder / "recorded.toml"), folder)


async def replay(folder: Path, reference: str = "recorded", **settings: Any) -> list[Rollout]:
    given = {"run.name": "again", "llm.model": "replay", "llm.replay": reference}
    given |= {key.replace("__", "."): value for key, value in settings.items()}
    return await run_eval(load_config(folder / "recorded.toml", given), folder)


async def answers(folder: Path, rollouts: list[Rollout]) -> list[bytes]:
    """What the endpoint sent, as the store has it."""
    store = SqliteStore(folder / "ws" / "osmosis.db")
    natives = [await store.natives(rollout.rollout_id) for rollout in rollouts]
    await store.close()
    return [native.answered for by_turn in natives for native in by_turn.values()]


async def export(folder: Path) -> None:
    """The run in a file, its workspace out of the way."""
    store = SqliteStore(folder / "ws" / "osmosis.db")
    lines = [line async for line in run_lines(store, await store.get_run("recorded"))]
    await store.close()
    (folder / "ws").rename(folder / "elsewhere")
    (folder / "export.jsonl").write_text("\n".join(lines))


def what_was_said(rollouts: list[Rollout]) -> bytes:
    """Rewards and turns, all but the names of rollouts and the time that they took."""
    said = [
        [rollout.row_index, rollout.member, rollout.reward]
        + [asdict(turn) | {"rollout_id": "", "latency_ms": 0} for turn in rollout.turns]
        for rollout in rollouts
    ]
    return json.dumps(said).encode()


async def test_a_replayed_run_says_byte_for_byte_what_the_recorded_one_did(tmp_path: Path):
    recorded = await record(tmp_path)
    assert [rollout.status for rollout in recorded] == [Status.GRADED] * 6
    assert len({turn.response["content"] for rollout in recorded for turn in rollout.turns}) == 18
    replayed = await replay(tmp_path)
    assert what_was_said(replayed) == what_was_said(recorded)
    assert await answers(tmp_path, replayed) == (bodies := await answers(tmp_path, recorded))
    assert [body[:6] for body in bodies[:3]] == [b'{"mode', b'{"mode', b"data: "]
    await export(tmp_path)
    assert what_was_said(await replay(tmp_path, "export.jsonl")) == what_was_said(recorded)


async def test_a_call_that_was_never_recorded_says_what_differs(tmp_path: Path):
    await record(tmp_path)
    for rollout in await replay(tmp_path, sampling__temperature=0.5):
        assert (rollout.status, rollout.reward) == (Status.PROVIDER_ERROR, None)
        name = rollout.rollout_id.replace("again", "recorded")
        differs = f"it differs from turn 0 of rollout {name}: temperature was 1.0, is 0.5"
        assert f"the replay of recorded has no answer: {differs}" in rollout.reason
    with pytest.raises(UsageError, match=r"'other': there is no such run in this workspace. Known: "):
        await replay(tmp_path, "other", run__name="third")
