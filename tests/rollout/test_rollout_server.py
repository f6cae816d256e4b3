"""The rollout server over real HTTP: admission, callbacks, cancelling, draining."""

import asyncio
import math
import socket
from contextlib import asynccontextmanager

import aiohttp
import pytest
import uvicorn
from rollout_stubs import StubController

from osmosis_ai.rollout import (
    AgentWorkflow,
    Grader,
    LocalBackend,
    RolloutSample,
    SampleSource,
    create_rollout_server,
    get_rollout_context,
)
from osmosis_ai.rollout.server import callbacks


class Said(SampleSource):
    async def get_sample(self, name):
        return RolloutSample(id=name, messages=[{"role": "assistant", "content": "148"}])


RUNS = []


class Workflow(AgentWorkflow):
    async def run(self, ctx):
        context = get_rollout_context()
        RUNS.append((context.rollout_id, context.api_key))
        metadata = ctx.metadata or {}
        await asyncio.sleep(metadata.get("seconds", 0))
        context.register_sample_source("solver", Said())
        if metadata.get("fail"):
            raise ValueError("boom")


class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_sample_reward("solver", 1.0 if ctx.label == "148" else 0.0)


@asynccontextmanager
async def serving(**options):
    """A rollout server on a free port; leaving the block shuts it down as a signal would."""
    RUNS.clear()
    app = create_rollout_server(backend=LocalBackend(workflow=Workflow, grader=Exact), **options)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    server.install_signal_handlers = lambda: None
    task = asyncio.create_task(server.serve(sockets=[listener]))
    async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
        while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(0.01)
        yield client
    server.should_exit = True
    await task


def body(controller: StubController, rollout_id: str = "17", **fields):
    return {
        "rollout_id": rollout_id,
        "initial_messages": [{"role": "user", "content": "What is 37 times 4?"}],
        "label": "148",
        "chat_completions_url": "http://127.0.0.1:1/v1",
        "controller_api_key": "callback-key",
        "llm_api_key": "llm-key",
        "completion_callback_url": f"{controller.url}/v1/rollouts/{rollout_id}/completed",
        "grader_callback_url": f"{controller.url}/v1/rollouts/{rollout_id}/graded",
        **fields,
    }


async def test_a_rollout_is_accepted_at_once_and_reported_twice(controller):
    async with serving() as client:
        reply = await client.post("/rollout", json=body(controller, extra_fields={"step": 3}))
        assert (reply.status, await reply.json()) == (202, {"rollout_id": "17", "status": "accepted"})
        (path, completed, key), (graded_path, graded, _) = await controller.wait_for(2)
    assert (path, graded_path) == ("/v1/rollouts/17/completed", "/v1/rollouts/17/graded")
    assert key == "Bearer callback-key"
    assert completed == {
        "rollout_id": "17",
        "status": "success",
        "extra_fields": {"step": 3},
        "err_message": None,
        "err_category": None,
        "samples": {},
    }
    assert graded["status"] == "success"
    assert graded["samples"]["solver"]["reward"] == 1.0
    assert RUNS == [("17", "llm-key")]


async def test_without_an_llm_key_the_controllers_key_opens_the_policy(controller):
    async with serving() as client:
        await client.post("/rollout", json=body(controller, llm_api_key=None))
        await controller.wait_for(2)
    assert RUNS == [("17", "callback-key")]


async def test_a_second_post_of_the_same_id_runs_nothing_twice(controller):
    async with serving() as client:
        replies = await asyncio.gather(*(client.post("/rollout", json=body(controller)) for _ in range(3)))
        await controller.wait_for(2)
        late = await client.post("/rollout", json=body(controller))
        assert [reply.status for reply in [*replies, late]] == [202] * 4
    assert RUNS == [("17", "llm-key")]
    assert len(controller.received) == 2


async def test_many_rollouts_at_once(controller):
    async with serving() as client:
        for n in range(100):
            fields = {"metadata": {"seconds": 0.2}}
            assert (await client.post("/rollout", json=body(controller, f"r{n}", **fields))).status == 202
        received = await controller.wait_for(200)
    graded = [reply for path, reply, _ in received if path.endswith("graded")]
    assert sorted(reply["rollout_id"] for reply in graded) == sorted(f"r{n}" for n in range(100))
    assert {reply["status"] for reply in graded} == {"success"}


async def test_a_failing_workflow_fails_both_phases_with_its_reason_and_transcript(controller):
    async with serving() as client:
        await client.post("/rollout", json=body(controller, metadata={"fail": True}))
        (_, completed, _), (_, graded, _) = await controller.wait_for(2)
    assert completed["status"] == graded["status"] == "failure"
    assert completed["err_category"] == graded["err_category"] == "agent_error"
    assert completed["err_message"].startswith("Workflow.run raised ValueError: boom")
    assert graded["err_message"].startswith("not graded, the workflow failed: Workflow.run raised ValueError")
    assert completed["samples"]["solver"]["messages"] == [{"role": "assistant", "content": "148"}]


async def test_without_a_grader_url_nothing_is_graded(controller):
    async with serving() as client:
        await client.post("/rollout", json=body(controller, grader_callback_url=None))
        await controller.wait_for(1)
        await asyncio.sleep(0.1)
    assert len(controller.received) == 1


async def test_a_callback_is_tried_again_after_a_server_error_and_never_contradicted(controller, monkeypatch):
    monkeypatch.setattr(callbacks, "FIRST_DELAY_SECONDS", 0.01)
    controller.statuses = [503, 429, 200, 403]  # completion: third time lucky; grader: refused, not repeated
    async with serving() as client:
        await client.post("/rollout", json=body(controller))
        received = await controller.wait_for(4)
        await asyncio.sleep(0.2)
    assert [(path.rsplit("/", 1)[1], reply["status"]) for path, reply, _ in received] == [
        ("completed", "success"),
        ("completed", "success"),
        ("completed", "success"),
        ("graded", "success"),
    ]


async def test_a_callback_that_is_never_taken_is_given_up_and_the_rollout_is_still_graded(
    controller, monkeypatch
):
    monkeypatch.setattr(callbacks, "FIRST_DELAY_SECONDS", 0.01)
    controller.statuses = [500] * callbacks.ATTEMPTS
    async with serving() as client:
        await client.post("/rollout", json=body(controller))
        received = await controller.wait_for(callbacks.ATTEMPTS + 1)
    assert [reply["status"] for _, reply, _ in received] == ["success"] * 6
    assert received[-1][0].endswith("graded")


@pytest.mark.parametrize(
    "fields",
    [
        {"rollout_id": "../evil"},
        {"rollout_id": "a/b"},
        {"rollout_id": ""},
        {"rollout_id": ".."},
        {"agent_timeout_sec": 0},
        {"grader_timeout_sec": -1},
        {"completion_callback_url": "file:///etc/passwd"},
        {"initial_messages": "hello"},
    ],
)
async def test_a_request_that_does_not_hold_is_refused(controller, fields):
    async with serving() as client:
        assert (await client.post("/rollout", json={**body(controller), **fields})).status == 422
    assert RUNS == []


async def test_a_deadline_of_infinity_is_refused(controller):
    async with serving() as client:
        request = body(controller, agent_timeout_sec=math.inf)
        assert (await client.post("/rollout", json=request)).status == 422


async def test_with_a_key_only_its_owner_may_post(controller):
    async with serving(api_key="server-key") as client:
        assert (await client.post("/rollout", json=body(controller))).status == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert (await client.post("/rollout/cancel", json={"ids": []}, headers=wrong)).status == 401
        right = {"Authorization": "Bearer server-key"}
        assert (await client.post("/rollout", json=body(controller), headers=right)).status == 202
        assert (await client.get("/health")).status == 200
        await controller.wait_for(2)


async def test_health_tells_what_is_running(controller):
    async with serving() as client:
        await client.post("/rollout", json=body(controller, metadata={"seconds": 0.3}))
        await asyncio.sleep(0.1)
        health = await (await client.get("/health")).json()
        assert health["status"] == "ok"
        assert health["concurrency"] == {"max_concurrent": None, "queued": 0, "running": 1}
        await controller.wait_for(2)


async def test_a_cancelled_rollout_stops_and_posts_nothing(controller):
    async with serving() as client:
        await client.post("/rollout", json=body(controller, "done"))
        await controller.wait_for(2)
        await client.post("/rollout", json=body(controller, "slow", metadata={"seconds": 30}))
        await asyncio.sleep(0.1)
        reply = await client.post("/rollout/cancel", json={"ids": ["slow", "done", "never"]})
        assert await reply.json() == {"cancelled": ["slow"], "finished": ["done"], "unknown": ["never"]}
        await asyncio.sleep(0.2)
        assert (await (await client.get("/health")).json())["concurrency"]["running"] == 0
    assert len(controller.received) == 2


async def test_shutting_down_lets_rollouts_end(controller):
    async with serving(drain_seconds=5) as client:
        await client.post("/rollout", json=body(controller, metadata={"seconds": 0.3}))
        await asyncio.sleep(0.05)
    assert [reply["status"] for _, reply, _ in controller.received] == ["success", "success"]


async def test_what_does_not_end_before_the_shutdown_is_reported_as_failed(controller):
    async with serving(drain_seconds=0.1) as client:
        await client.post("/rollout", json=body(controller, metadata={"seconds": 30}))
        await asyncio.sleep(0.05)
    assert [reply["status"] for _, reply, _ in controller.received] == ["failure", "failure"]
    assert "shut down before the rollout ended" in controller.received[0][1]["err_message"]


async def test_the_users_lifespan_is_entered_and_left(controller):
    events = []

    @asynccontextmanager
    async def lifespan(app):
        events.append("up")
        yield
        events.append("down")

    async with serving(lifespan=lifespan) as client:
        assert (await client.get("/health")).status == 200
        assert events == ["up"]
    assert events == ["up", "down"]
