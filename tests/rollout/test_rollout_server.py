"""The rollout server over real HTTP: admission, callbacks, cancelling, draining."""

import asyncio
import inspect
import json
import math
import socket
import sys
import threading
from contextlib import asynccontextmanager

import aiohttp
import pytest
import uvicorn
from rollout_stubs import StubController, strings_above
from waiting import SECONDS, until

from osmosis_ai.errors import UsageError
from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ConcurrencyConfig,
    Grader,
    LocalBackend,
    RolloutSample,
    SampleSource,
    create_rollout_server,
    get_rollout_context,
)
from osmosis_ai.rollout.discovery import load_entrypoint
from osmosis_ai.rollout.server import callbacks, desk
from osmosis_ai.rollout.server.protocol import origin


class Said(SampleSource):
    async def get_sample(self, name):
        return RolloutSample(id=name, messages=[{"role": "assistant", "content": "148"}])


class Odd(SampleSource):
    """What a framework may keep that is no JSON: half a surrogate, a huge integer, bytes."""

    async def get_sample(self, name):
        content = {"text": "\ud83d", "seed": 2**70, "image": b"png"}
        return RolloutSample(id=name, messages=[{"role": "assistant", "content": content}])


RUNS = []
GATE = threading.Event()  # opened by a test: what is "held" ends then


class Workflow(AgentWorkflow):
    async def run(self, ctx):
        context = get_rollout_context()
        RUNS.append((context.rollout_id, context.api_key))
        metadata = ctx.metadata or {}
        await asyncio.sleep(metadata.get("seconds", 0))
        if metadata.get("held"):
            await until(GATE.is_set)
        context.register_sample_source("solver", Odd() if metadata.get("odd") else Said())
        if metadata.get("keep"):
            (ctx.artifacts_dir / "notes.txt").write_text("solved")
        if metadata.get("fail"):
            raise ValueError("boom")


class Exact(Grader):
    async def grade(self, ctx):
        if (ctx.metadata or {}).get("keep"):
            assert (ctx.artifacts_dir / "notes.txt").read_text() == "solved"
        ctx.set_sample_reward("solver", 1.0 if ctx.label == "148" else 0.0)


@asynccontextmanager
async def serving(max_concurrent=None, **options):
    """A rollout server on a free port; leaving the block shuts it down as a signal would."""
    RUNS.clear()
    GATE.clear()
    config = AgentWorkflowConfig(name="w", concurrency=ConcurrencyConfig(max_concurrent=max_concurrent))
    backend = LocalBackend(workflow=Workflow, grader=Exact, workflow_config=config)
    async with running(create_rollout_server(backend=backend, **options)) as client:
        yield client


@asynccontextmanager
async def running(app, **config):
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", **config))
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
        "chat_completions_url": f"{controller.url}/v1",
        "controller_api_key": "callback-key",
        "llm_api_key": "llm-key",
        "completion_callback_url": f"{controller.url}/v1/rollouts/{rollout_id}/completed",
        "grader_callback_url": f"{controller.url}/v1/rollouts/{rollout_id}/graded",
        **fields,
    }


async def test_neither_label_nor_callback_key_is_in_the_frames_above_the_workflow(controller):
    seen = set()

    class Nosy(AgentWorkflow):
        async def run(self, ctx):
            seen.update(strings_above(inspect.currentframe()))
            get_rollout_context().register_sample_source("solver", Said())

    backend = LocalBackend(workflow=Nosy, grader=Exact)
    async with running(create_rollout_server(backend=backend, api_key="server-key")) as client:
        sent = body(controller, label="the-label")
        await client.post("/rollout", json=sent, headers={"Authorization": "Bearer server-key"})
        await controller.wait_for(2)
    assert {"llm-key", f"{controller.url}/v1"} <= seen
    assert seen.isdisjoint({"the-label", "callback-key", "server-key", sent["completion_callback_url"]})


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


async def test_another_body_with_the_id_of_a_rollout_is_refused_and_changes_nothing(controller):
    async with serving() as client:
        await client.post("/rollout", json=body(controller))
        running = await client.post("/rollout", json=body(controller, label="another"))
        await controller.wait_for(2)
        ended = await client.post("/rollout", json=body(controller, label="another"))
        same = await client.post("/rollout", json=dict(reversed(body(controller).items())))
        assert [reply.status for reply in (running, ended, same)] == [409, 409, 202]
        assert (await running.json())["detail"].startswith("there is another rollout '17' here: ")
    assert (RUNS, len(controller.received)) == ([("17", "llm-key")], 2)


async def test_many_rollouts_at_once(controller):
    async with serving() as client:
        for n in range(100):
            fields = {"metadata": {"seconds": 0.2}}
            assert (await client.post("/rollout", json=body(controller, f"r{n}", **fields))).status == 202
        received = await controller.wait_for(200)
    graded = [reply for path, reply, _ in received if path.endswith("graded")]
    assert sorted(reply["rollout_id"] for reply in graded) == sorted(f"r{n}" for n in range(100))
    assert {reply["status"] for reply in graded} == {"success"}


ENTRYPOINT = """
from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend, create_rollout_server, get_rollout_context

class Solve(AgentWorkflow):
    async def run(self, ctx):
        get_rollout_context().register_agent("solver", [{"role": "assistant", "content": "148"}])

class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)

backend = LocalBackend(workflow=Solve, grader=Exact)
app = create_rollout_server(backend=backend)
"""


async def test_r26_an_entrypoint_that_builds_its_own_server_is_served_and_discovered(controller, tmp_path):
    (tmp_path / "main.py").write_text(ENTRYPOINT)
    found = load_entrypoint(str(tmp_path / "main.py"))
    assert (found.workflow.__name__, found.grader.__name__) == ("Solve", "Exact")
    async with running(sys.modules[found.workflow.__module__].app) as client:
        assert (await client.post("/rollout", json=body(controller))).status == 202
        (_, completed, _), (_, graded, _) = await controller.wait_for(2)
    assert (completed["status"], graded["samples"]["solver"]["reward"]) == ("success", 1.0)


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
        {"chat_completions_url": "http://127.0.0.1:port/v1"},
        {"judge_chat_completions_url": "ftp://judge"},
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
        for path in ("/rollout/17/status", "/rollout/17/result"):
            assert (await client.get(path)).status == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert (await client.post("/rollout/cancel", json={"ids": []}, headers=wrong)).status == 401
        right = {"Authorization": "Bearer server-key"}
        assert (await client.post("/rollout", json=body(controller), headers=right)).status == 202
        assert (await client.get("/health")).status == 200
        await controller.wait_for(2)


async def idle(client):
    return (await (await client.get("/health")).json())["concurrency"]["running"] == 0


async def test_health_tells_what_is_running(controller):
    async with serving() as client:
        await client.post("/rollout", json=body(controller, metadata={"held": True}))
        await until(lambda: RUNS)
        health = await (await client.get("/health")).json()
        assert health["status"] == "ok"
        assert health["concurrency"] == {"max_concurrent": None, "queued": 0, "running": 1}
        GATE.set()
        await controller.wait_for(2)


async def test_a_cancelled_rollout_stops_and_posts_nothing(controller):
    async with serving() as client:
        await client.post("/rollout", json=body(controller, "done"))
        await controller.wait_for(2)
        await client.post("/rollout", json=body(controller, "slow", metadata={"held": True}))
        await until(lambda: len(RUNS) == 2)
        reply = await client.post("/rollout/cancel", json={"ids": ["slow", "done", "never"]})
        assert await reply.json() == {"cancelled": ["slow"], "finished": ["done"], "unknown": ["never"]}
        await until(lambda: idle(client))
    assert len(controller.received) == 2


async def test_shutting_down_lets_rollouts_end(controller):
    async with serving(drain_seconds=SECONDS) as client:
        await client.post("/rollout", json=body(controller, metadata={"seconds": 0.3}))
        await until(lambda: RUNS)
    assert [reply["status"] for _, reply, _ in controller.received] == ["success", "success"]


async def test_what_does_not_end_before_the_shutdown_is_reported_as_failed(controller):
    async with serving(drain_seconds=0.1) as client:
        await client.post("/rollout", json=body(controller, metadata={"held": True}))
        await until(lambda: RUNS)
    assert [reply["status"] for _, reply, _ in controller.received] == ["failure", "failure"]
    assert "shut down before the rollout ended" in controller.received[0][1]["err_message"]
    assert {reply["err_category"] for _, reply, _ in controller.received} == {"internal_error"}


async def test_a_long_poll_that_a_shutdown_cuts_off_is_told_to_come_again(controller):
    app = create_rollout_server(backend=LocalBackend(workflow=Workflow, grader=Exact), drain_seconds=0.1)
    async with running(app, timeout_graceful_shutdown=0) as client:
        await client.post("/rollout", json=polled(controller, metadata={"seconds": 30}))
        waiting = asyncio.create_task(client.get("/rollout/17/result"))
        await asyncio.sleep(0.05)
    reply = await waiting
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")


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


# --- where callbacks go


@pytest.mark.parametrize("name", ["completion_callback_url", "grader_callback_url"])
async def test_a_callback_to_another_origin_than_the_controllers_is_refused(controller, name):
    async with serving() as client:
        reply = await client.post("/rollout", json=body(controller, **{name: "http://127.0.0.2:9/x"}))
        assert reply.status == 422
        problem = (await reply.json())["detail"]
    assert problem.startswith(
        f"{name} = 'http://127.0.0.2:9/x' is not at {controller.url}, where the controller"
    )
    assert "callback_origins" in problem
    assert RUNS == []


async def test_an_allow_list_of_origins_replaces_the_rule(controller):
    fields = {"chat_completions_url": "http://models.example/v1"}
    async with serving(callback_origins=[controller.url]) as client:
        assert (await client.post("/rollout", json=body(controller, **fields))).status == 202
        await controller.wait_for(2)
    async with serving(callback_origins=["https://other.example"]) as client:
        assert (await client.post("/rollout", json=body(controller))).status == 422


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://Host:80/v1", "http://host"),
        ("https://host:443", "https://host"),
        ("http://host:8000/a?b", "http://host:8000"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("http://user@host:8000/v1", "http://host:8000"),
    ],
)
def test_the_origin_of_a_url(url, expected):
    assert origin(url) == expected


def test_an_allow_list_that_holds_a_path_is_refused_when_the_server_is_made():
    with pytest.raises(UsageError, match="not an origin"):
        create_rollout_server(backend=LocalBackend(workflow=Workflow), callback_origins=["http://host/v1"])


async def test_a_post_that_a_web_page_could_send_is_refused(controller):
    async with serving() as client:
        headers = {"Content-Type": "text/plain"}
        reply = await client.post("/rollout", data=json.dumps(body(controller)), headers=headers)
        assert reply.status == 415
    assert RUNS == []


# --- the queue


async def test_beyond_the_bound_of_the_queue_a_rollout_is_refused_until_one_has_ended(controller):
    slow = {"metadata": {"held": True}}
    async with serving(max_concurrent=1, max_queued=1) as client:
        replies = [await client.post("/rollout", json=body(controller, n, **slow)) for n in "abc"]
        await until(lambda: RUNS)
        assert [reply.status for reply in replies] == [202, 202, 429]
        assert replies[2].headers["Retry-After"] == "5"
        assert "1 wait (max_queued is 1)" in (await replies[2].json())["detail"]
        assert (await client.post("/rollout", json=body(controller, "a", **slow))).status == 202  # known
        health = await (await client.get("/health")).json()
        assert health["concurrency"] == {"max_concurrent": 1, "queued": 1, "running": 1}
        assert health["rollouts"] == {"queued": 1, "running": 1, "grading": 0}
        assert health["max_queued"] == 1
        assert await status(client, "b") == "queued"
        GATE.set()
        await controller.wait_for(4)
        assert (await client.post("/rollout", json=body(controller, "c"))).status == 202
        await controller.wait_for(6)
    assert [name for name, _ in RUNS] == ["a", "b", "c"]


async def test_a_cancelled_rollout_gives_its_place_in_the_queue_back(controller):
    async with serving(max_concurrent=1, max_queued=0) as client:
        await client.post("/rollout", json=body(controller, "a", metadata={"held": True}))
        await until(lambda: RUNS)
        assert (await client.post("/rollout", json=body(controller, "b"))).status == 429
        await client.post("/rollout/cancel", json={"all": True})
        await until(lambda: idle(client))
        assert (await client.post("/rollout", json=body(controller, "b"))).status == 202
        await controller.wait_for(2)


# --- status, result, cancel


async def status(client, rollout_id):
    reply = await client.get(f"/rollout/{rollout_id}/status")
    return (await reply.json())["status"] if reply.status == 200 else reply.status


async def test_the_status_of_a_rollout_from_admission_to_its_end(controller):
    async with serving() as client:
        assert await status(client, "17") == 404
        await client.post("/rollout", json=body(controller, metadata={"held": True}))
        await until(lambda: RUNS)
        assert await status(client, "17") == "running"
        GATE.set()
        await until(lambda: ended(client, "success"))


async def ended(client, expected):
    return await status(client, "17") == expected


def polled(controller, rollout_id="17", **fields):
    """A request of a controller that fetches the result."""
    return body(controller, rollout_id, completion_callback_url=None, grader_callback_url=None, **fields)


async def test_a_result_is_fetched_by_long_poll_without_any_callback(controller):
    async with serving() as client:
        await client.post("/rollout", json=polled(controller, metadata={"held": True}))
        await until(lambda: RUNS)
        early = await client.get("/rollout/17/result?wait=0.01")
        assert await early.json() == {"rollout_id": "17", "status": "running"}
        GATE.set()
        result = await (await client.get("/rollout/17/result")).json()
        again = await (await client.get("/rollout/17/result")).json()
    assert result == again
    assert (result["status"], result["samples"]["solver"]["reward"]) == ("success", 1.0)
    assert controller.received == []


async def test_a_result_can_be_fetched_beside_the_callbacks(controller):
    async with serving() as client:
        await client.post("/rollout", json=body(controller))
        _, (_, graded, _) = await controller.wait_for(2)
        assert await (await client.get("/rollout/17/result")).json() == graded


async def test_a_polled_rollout_that_is_not_to_be_graded_has_its_samples_without_rewards(controller):
    async with serving() as client:
        await client.post("/rollout", json=polled(controller, grade=False))
        result = await (await client.get("/rollout/17/result")).json()
    assert result["samples"]["solver"]["reward"] is None
    assert result["samples"]["solver"]["messages"] == [{"role": "assistant", "content": "148"}]


async def test_a_failed_rollout_is_fetched_with_its_reason_and_transcript(controller):
    async with serving() as client:
        await client.post("/rollout", json=polled(controller, metadata={"fail": True}))
        result = await (await client.get("/rollout/17/result")).json()
    assert result["status"] == "failure"
    assert "ValueError: boom" in result["err_message"]
    assert result["samples"]["solver"]["messages"] == [{"role": "assistant", "content": "148"}]


async def test_a_result_is_kept_for_its_time_and_then_gone(controller):
    async with serving(result_retention_sec=0.2) as client:
        await client.post("/rollout", json=polled(controller))
        assert (await client.get("/rollout/17/result")).status == 200
        await asyncio.sleep(0.3)
        gone = await client.get("/rollout/17/result")
        assert gone.status == 410
        assert "not kept any more (after 0.2 s)" in (await gone.json())["detail"]
        assert (await client.get("/rollout/18/result")).status == 404


async def test_results_that_were_delivered_do_not_pile_up(controller, monkeypatch):
    monkeypatch.setattr(desk, "DELIVERED_KEPT", 3)
    async with serving() as client:
        for n in range(5):
            await client.post("/rollout", json=body(controller, f"r{n}"))
            await controller.wait_for(2 * n + 2)
            await until(lambda: idle(client))
        kept = [(await client.get(f"/rollout/r{n}/result")).status for n in range(5)]
    assert kept == [410, 410, 200, 200, 200]


async def test_rollouts_are_cancelled_by_prefix(controller):
    async with serving() as client:
        for name in ("run1.a", "run1.b", "run2.a"):
            await client.post("/rollout", json=polled(controller, name, metadata={"held": True}))
        await until(lambda: len(RUNS) == 3)
        reply = await client.post("/rollout/cancel", json={"prefix": "run1."})
        assert await reply.json() == {"cancelled": ["run1.a", "run1.b"], "finished": [], "unknown": []}
        result = await (await client.get("/rollout/run1.a/result")).json()
        assert (result["status"], result["err_message"]) == ("cancelled", "the rollout was cancelled")
        assert [await status(client, name) for name in ("run1.b", "run2.a")] == ["cancelled", "running"]
        reply = await client.post("/rollout/cancel", json={"all": True})
        assert (await reply.json())["cancelled"] == ["run2.a"]


@pytest.mark.parametrize("asked", [{}, {"ids": [], "all": True}, {"prefix": ""}, {"all": False}])
async def test_a_cancellation_names_exactly_one_of_ids_prefix_and_all(controller, asked):
    async with serving() as client:
        assert (await client.post("/rollout/cancel", json=asked)).status == 422


# --- what is never lost


async def test_a_transcript_that_is_no_json_loses_neither_its_reward_nor_the_rest(controller):
    async with serving() as client:
        await client.post("/rollout", json=body(controller, metadata={"odd": True}))
        _, (_, graded, _) = await controller.wait_for(2)
    content = graded["samples"]["solver"]["messages"][0]["content"]
    assert (graded["status"], graded["samples"]["solver"]["reward"]) == ("success", 1.0)
    assert content == {"text": "?", "seed": str(2**70), "image": "cG5n"}


class Broken(LocalBackend):
    async def execute(self, request, on_workflow_complete, on_grader_complete=None):
        raise OSError("no space left on device")


async def test_a_fault_of_the_backend_is_reported_in_its_own_words(controller):
    app = create_rollout_server(backend=Broken(workflow=Workflow))
    async with running(app) as client:
        await client.post("/rollout", json=body(controller))
        received = await controller.wait_for(2)
    assert {reply["err_message"] for _, reply, _ in received} == {
        "the rollout server failed: OSError: no space left on device"
    }


async def test_each_rollout_has_a_folder_for_its_files_when_the_server_has_one(controller, tmp_path):
    async with serving(artifacts_dir=tmp_path / "artifacts") as client:
        await client.post("/rollout", json=body(controller, "a"))
        await client.post("/rollout", json=body(controller, "b", metadata={"keep": True}))
        received = await controller.wait_for(4)
    assert {reply["status"] for _, reply, _ in received} == {"success"}
    files = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert files == ["artifacts/b/notes.txt"]
    assert not (tmp_path / "artifacts" / "a").exists()
