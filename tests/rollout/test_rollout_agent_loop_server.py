"""The server of an agent loop, over real HTTP, with a training cluster behind it."""

import asyncio
import json
import threading
import time

import pytest
from cluster_stub import ADD, OneCall, a_cluster, request_for, serving
from rollout_stubs import text, tool_call
from waiting import SECONDS, until

from osmosis_ai.rollout import OsmosisLLMClient, RolloutClientSettings, RolloutSettings, create_app
from osmosis_ai.rollout.config import RolloutServerSettings
from osmosis_ai.rollout.core.exceptions import (
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
)
from osmosis_ai.rollout.debug_log import DebugLog, file_name

FAST = RolloutSettings(client=RolloutClientSettings(retry_base_delay=0.1, retry_max_delay=1.0))


def loop_with(run, tools=None):
    class Loop(OneCall):
        async def run(self, ctx):
            return await run(ctx)

    loop = Loop()
    loop.tools = [ADD] if tools is None else tools
    return loop


async def put_away(server, number):
    """So many rollouts have ended: a result is told before the server has put it away."""
    _, health = await server.get("/health")
    return (health["active_rollouts"], health["completed_rollouts"]) == (0, number)


# --- R9: init


async def test_r09_init_answers_202_with_the_tools_and_the_rollout_runs_to_its_completion():
    async with a_cluster() as cluster, serving(create_app(OneCall())) as server:
        assert await server.init(request_for(cluster)) == (202, {"rollout_id": "r-1", "tools": [ADD]})
        [completed] = await cluster.wait_for(1)
        assert (completed["status"], completed["reward"], completed["finish_reason"]) == (
            "COMPLETED", 1.0, "stop",
        )  # fmt: skip
        assert [m["role"] for m in completed["final_messages"]] == ["user", "assistant"]
        assert completed["metrics"]["num_llm_calls"] == 1
        assert completed["metrics"]["max_context_tokens"] == 15
        await until(lambda: put_away(server, 1))
        status, health = await server.get("/health")
    assert (status, health["status"], health["agent_loop"]) == (200, "healthy", "one-call")
    assert (health["active_rollouts"], health["completed_rollouts"]) == (0, 1)


async def test_r09_the_same_init_again_gets_the_same_answer_and_starts_nothing():
    async with a_cluster() as cluster, serving(create_app(OneCall())) as server:
        body = request_for(cluster)
        answers = await asyncio.gather(*(server.init(body) for _ in range(5)))
        await cluster.wait_for(1)
        answers.append(await server.init(body))  # it has ended, and is still known
        await server.init(request_for(cluster, "r-2", idempotency_key="r-1"))
        await asyncio.sleep(0.1)
    assert answers == [(202, {"rollout_id": "r-1", "tools": [ADD]})] * 6
    assert (len(cluster.chats), len(cluster.completions)) == (1, 1)


async def test_r09_tools_that_fail_start_no_run_and_may_be_asked_for_again():
    failures = [RuntimeError("no database"), None]

    class Loop(OneCall):
        def get_tools(self, request):
            if failures and (failure := failures.pop(0)):
                raise failure
            return [ADD]

    async with a_cluster() as cluster, serving(create_app(Loop())) as server:
        status, body = await server.init(request_for(cluster))
        assert (status, body["detail"].splitlines()[0]) == (
            500, "Loop.get_tools raised RuntimeError: no database",
        )  # fmt: skip
        assert cluster.chats == []
        assert (await server.init(request_for(cluster)))[0] == 202
        assert len(await cluster.wait_for(1)) == 1


async def test_r09_get_tools_that_blocks_holds_up_nobody():
    begun, woken = threading.Event(), threading.Event()

    class Loop(OneCall):
        def get_tools(self, request):
            if request.rollout_id == "slow":
                begun.set()
                woken.wait(SECONDS)
            return []

    async with a_cluster() as cluster, serving(create_app(Loop())) as server:
        slow = asyncio.create_task(server.init(request_for(cluster, "slow")))
        await until(begun.is_set)
        assert (await server.get("/health"))[0] == 200
        assert (await server.init(request_for(cluster, "quick")))[0] == 202
        assert not slow.done()
        woken.set()
        assert (await slow)[0] == 202


async def test_r09_what_is_no_request_is_refused_without_repeating_its_keys():
    async with a_cluster() as cluster, serving(create_app(OneCall())) as server:
        body = request_for(cluster, api_key="secret-key", server_url="nowhere")
        status, answer = await server.init(body)
    assert status == 422
    assert answer["detail"][0]["loc"] == ["body", "server_url"]
    assert "secret-key" not in json.dumps(answer)


# --- R7: create_app


async def test_r07_none_is_unlimited():
    running = []

    async def run(ctx):
        running.append(ctx.rollout_id)
        while len(running) < 150:  # noqa: ASYNC110  lanes share no event
            await asyncio.sleep(0.01)
        return ctx.complete([], reward=0.0)

    async with a_cluster() as cluster, serving(create_app(loop_with(run))) as server:
        await asyncio.gather(*(server.init(request_for(cluster, f"r-{i}")) for i in range(150)))
        await cluster.wait_for(150, seconds=30)


async def test_r07_max_concurrent_limits_and_health_shows_who_waits():
    gate, running = {"open": False}, []

    async def run(ctx):
        running.append(1)
        while not gate["open"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return ctx.complete([])

    async with a_cluster() as cluster, serving(create_app(loop_with(run), max_concurrent=2)) as server:
        for number in range(5):
            await server.init(request_for(cluster, f"r-{number}"))
        await until(lambda: len(running) == 2)
        _, health = await server.get("/health")
        gate["open"] = True
        await cluster.wait_for(5)
    assert health["concurrency"] == {"max_concurrent": 2, "queued": 3, "running": 2}
    assert health["active_rollouts"] == 5


@pytest.mark.parametrize("option", [{"max_concurrent": 0}, {"record_ttl_seconds": 0.0}])
def test_r07_zero_is_neither_unlimited_nor_the_default(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be above 0, got 0"):
        create_app(OneCall(), **option)


def test_r07_a_class_is_not_an_instance():
    with pytest.raises(TypeError, match=r"got .*OneCall.*Make an instance of it"):
        create_app(OneCall)


async def test_r07_a_full_queue_is_answered_429_when_it_has_a_bound():
    async def run(ctx):
        await asyncio.sleep(5)

    settings = RolloutSettings(server=RolloutServerSettings(max_queued_rollouts=1))
    app = create_app(loop_with(run), max_concurrent=1, settings=settings)
    async with a_cluster() as cluster, serving(app) as server:
        answers = []
        for number in range(3):
            answers.append((await server.init(request_for(cluster, f"r-{number}")))[0])
            await asyncio.sleep(0.05)
    assert answers == [202, 202, 429]


async def test_r07_records_are_forgotten_after_their_time():
    async with a_cluster() as cluster, serving(create_app(OneCall(), record_ttl_seconds=0.2)) as server:
        await server.init(request_for(cluster))
        await cluster.wait_for(1)

        async def run_again():
            await server.init(request_for(cluster))
            return len(cluster.completions) > 1

        await until(run_again)


async def test_r07_hooks_run_and_the_key_is_asked_for():
    ran = []

    async def started():
        ran.append("started")

    async def stopped():
        ran.append("stopped")

    app = create_app(OneCall(), on_startup=started, on_shutdown=stopped, api_key="osm_rollout_x")
    async with a_cluster() as cluster, serving(app) as server:
        assert ran == ["started"]
        body = request_for(cluster)
        assert await server.init(body) == (401, {"detail": "Invalid or missing API key"})
        assert (await server.init(body, Authorization="Bearer wrong"))[0] == 401
        assert (await server.init(body, Authorization="Bearer osm_rollout_x"))[0] == 202
        assert (await server.init(body, Authorization="osm_rollout_x"))[0] == 202
        assert (await server.get("/health"))[0] == 200
        assert (await server.get("/platform/health"))[0] == 401
        assert (await server.get("/platform/health", Authorization="Bearer osm_rollout_x"))[0] == 200
    assert ran == ["started", "stopped"]


async def test_r07_without_a_key_there_is_no_platform_health():
    async with serving(create_app(OneCall())) as server:
        assert (await server.get("/platform/health"))[0] == 404


async def test_a_loop_that_blocks_holds_up_only_itself():
    woken = threading.Event()

    async def run(ctx):
        if ctx.rollout_id == "blocks":
            woken.wait(SECONDS)
        return ctx.complete([])

    async with a_cluster() as cluster, serving(create_app(loop_with(run))) as server:
        await server.init(request_for(cluster, "blocks"))
        await server.init(request_for(cluster, "quick"))
        await cluster.wait_for(1)
        woken.set()
        first, second = await cluster.wait_for(2)
    assert (first["rollout_id"], second["rollout_id"]) == ("quick", "blocks")


async def test_rollouts_that_a_shutdown_stops_are_reported():
    async def run(ctx):
        await ctx.chat([{"role": "user", "content": "hello"}])
        await asyncio.sleep(30)

    async with a_cluster() as cluster:
        async with serving(create_app(loop_with(run))) as server:
            await server.init(request_for(cluster))
            while not cluster.chats:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        [completed] = cluster.completions
    assert (completed["status"], completed["error_message"]) == (
        "ERROR", "the server was shut down before the rollout ended",
    )  # fmt: skip


async def test_a_rollout_says_where_it_stands_and_can_be_cancelled():
    async def run(ctx):
        if ctx.request.rollout_id != "quick":
            await asyncio.sleep(30)
        return ctx.complete([])

    async with a_cluster() as cluster, serving(create_app(loop_with(run), max_concurrent=1)) as server:
        for rollout_id in ("quick", "slow-1", "slow-2", "slow/3"):
            await server.init(request_for(cluster, rollout_id, idempotency_key=f"{rollout_id}~key"))
        await cluster.wait_for(1)
        statuses = [
            (await server.get(f"/v1/rollout/{r}/status"))[1]["status"] for r in ("quick", "slow-1~key")
        ]
        assert statuses == ["success", "running"]
        for rollout_id in ("slow-2", "slow/3"):
            assert (await server.get(f"/v1/rollout/{rollout_id}/status"))[1]["status"] == "queued"
        asked = {"ids": ["slow-1~key", "quick", "never"]}
        async with server.http.post(f"{server.url}/v1/rollout/cancel", json=asked) as reply:
            assert await reply.json() == {
                "cancelled": ["slow-1~key"], "finished": ["quick"], "unknown": ["never"],
            }  # fmt: skip
        async with server.http.post(f"{server.url}/v1/rollout/cancel", json={"prefix": "slow"}) as reply:
            assert (await reply.json())["cancelled"] == ["slow-2", "slow/3"]
        assert (await server.get("/v1/rollout/slow-1/status"))[1]["status"] == "cancelled"
        assert (await server.get("/v1/rollout/never/status"))[0] == 404
        assert (await server.get("/health"))[1]["active_rollouts"] == 0
    assert [body["rollout_id"] for body in cluster.completions] == ["quick"]  # nobody hears of the others


async def test_a_fault_of_the_server_is_told_as_its_own(monkeypatch):
    async def fails(*_):
        raise RuntimeError("can't start new thread")

    app = create_app(loop_with(None))
    monkeypatch.setattr("osmosis_ai.rollout.server.agent_loop_desk.LoopDesk._run", fails)
    async with a_cluster() as cluster, serving(app) as server:
        await server.init(request_for(cluster))
        [body] = await cluster.wait_for(1)
    assert (body["status"], body["finish_reason"]) == ("ERROR", "internal_error")
    assert body["error_message"] == "the rollout server failed: RuntimeError: can't start new thread"


async def test_a_server_can_be_started_again_after_it_was_stopped():
    app = create_app(OneCall())
    async with a_cluster() as cluster:
        for number in (1, 2):
            async with serving(app) as server:
                assert (await server.init(request_for(cluster, f"r-{number}")))[0] == 202
                await cluster.wait_for(number)
    assert [completion["status"] for completion in cluster.completions] == ["COMPLETED"] * 2


# --- R10 and E1-2: one completion


async def test_r10_a_reward_of_none_stays_none():
    async def run(ctx):
        return ctx.complete([{"role": "user", "content": "x"}], finish_reason="max_turns", reward=None)

    async with a_cluster() as cluster, serving(create_app(loop_with(run))) as server:
        await server.init(request_for(cluster))
        [completed] = await cluster.wait_for(1)
    assert (completed["reward"], completed["finish_reason"]) == (None, "max_turns")


async def test_r10_a_completion_that_fails_is_repeated_word_for_word_and_is_never_another_one():
    async with a_cluster() as cluster, serving(create_app(OneCall(), settings=FAST)) as server:
        cluster.completed_statuses = [500, 503]
        await server.init(request_for(cluster))
        completions = await cluster.wait_for(3)
        await until(lambda: put_away(server, 1))
    assert completions == [completions[0]] * 3
    assert completions[0]["status"] == "COMPLETED"


async def test_r10_a_completion_that_never_arrives_is_given_up_after_its_retries():
    async with a_cluster() as cluster, serving(create_app(OneCall(), settings=FAST)) as server:
        cluster.completed_statuses = [500] * 9
        await server.init(request_for(cluster))
        await cluster.wait_for(3)
        await asyncio.sleep(0.5)
    assert [completion["status"] for completion in cluster.completions] == ["COMPLETED"] * 3


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, "return ctx.complete"),
        ("nan", "must be a finite number"),
        ("raise", "raised ValueError: boom"),
        ("exit", "SystemExit"),
    ],
)
async def test_whatever_run_does_ends_in_one_completion(returned, text):
    async def run(ctx):
        messages = [{"role": "user", "content": "hello"}]
        messages.append((await ctx.chat(messages)).message)
        if returned == "raise":
            raise ValueError("boom")
        if returned == "exit":
            raise SystemExit(3)
        return ctx.complete(messages, reward=float("nan")) if returned == "nan" else None

    async with a_cluster() as cluster, serving(create_app(loop_with(run))) as server:
        await server.init(request_for(cluster))
        [completed] = await cluster.wait_for(1)
    assert (completed["status"], completed["reward"]) == ("ERROR", None)
    assert text in completed["error_message"]
    assert [m["content"] for m in completed["final_messages"]] == ["hello", "148"]  # how far it came


async def test_a_deadline_ends_a_rollout_that_does_not():
    async def run(ctx):
        time.sleep(0.5)  # noqa: ASYNC251

    settings = RolloutSettings(server=RolloutServerSettings(request_timeout_seconds=0.1))
    async with a_cluster() as cluster, serving(create_app(loop_with(run), settings=settings)) as server:
        await server.init(request_for(cluster))
        [completed] = await cluster.wait_for(1)
    assert completed["error_message"] == "Loop.run exceeded its deadline of 0.1 s"


# --- R2, R3, R8: the client


async def test_r02_every_parameter_of_chat_is_sent_and_nothing_is_made_up():
    params = {"temperature": 0.3, "max_tokens": 9000, "seed": 7, "top_k": 5, "stop": ["x"], "logprobs": False,
              "response_format": {"type": "json_object"}, "user": None}  # fmt: skip
    async with a_cluster() as cluster, serving(create_app(OneCall())) as server:
        await server.init(request_for(cluster, completion_params=params, api_key="cluster-key"))
        await server.init(request_for(cluster, "r-2"))
        await cluster.wait_for(2)
    by_id = {chat.pop("rollout_id"): chat for chat in cluster.chats}
    plain = {"model": "default", "messages": request_for(cluster)["messages"], "tools": [ADD]}
    assert by_id["r-2"] == plain
    assert by_id["r-1"] == {**plain, **{k: v for k, v in params.items() if v is not None}}
    keys = {headers.get("Authorization") for headers in cluster.headers}
    assert keys == {"Bearer cluster-key", None}


async def test_r03_tool_calls_come_as_the_document_reads_them():
    async with a_cluster() as cluster, OsmosisLLMClient(cluster.url, "r-1") as client:
        cluster.script = [tool_call("add", '{"a": 1}'), text("1")]
        result = await client.chat_completions([{"role": "user", "content": "x"}])
        assert (result.has_tool_calls, result.tool_calls[0]["function"]["name"]) == (True, "add")
        assert (result.finish_reason, result.usage["total_tokens"]) == ("tool_calls", 15)
        metrics = client.get_metrics()
    assert (metrics.num_llm_calls, metrics.prompt_tokens, metrics.response_tokens) == (1, 10, 5)


async def test_r08_settings_given_to_create_app_reach_the_client():
    settings = RolloutSettings(
        client=RolloutClientSettings(timeout_seconds=1, max_retries=0, retry_base_delay=0.1)
    )
    async with a_cluster() as cluster, serving(create_app(OneCall(), settings=settings)) as server:
        cluster.chat_delay = 1.5
        await server.init(request_for(cluster))
        [completed] = await cluster.wait_for(1)
    assert "gave no answer within 1 s" in completed["error_message"]
    assert len(cluster.chats) == 1


@pytest.mark.parametrize(("retries", "calls"), [(0, 1), (2, 3)])
async def test_r08_server_errors_are_tried_again_as_often_as_the_settings_say(retries, calls):
    async with a_cluster() as cluster:
        cluster.chat_statuses = [503] * 9
        settings = RolloutClientSettings(max_retries=retries, retry_base_delay=0.1)
        async with OsmosisLLMClient(cluster.url + "/", "r-1", settings=settings) as client:
            with pytest.raises(OsmosisServerError, match="answered HTTP 503") as caught:
                await client.chat_completions([])
    assert (caught.value.status_code, len(cluster.chats)) == (503, calls)


async def test_r08_connections_are_limited_and_only_some_are_kept():
    settings = RolloutClientSettings(max_connections=3, max_keepalive_connections=2)
    async with a_cluster() as cluster, OsmosisLLMClient(cluster.url, "r-1", settings=settings) as client:
        cluster.chat_delay = 0.5
        calls = [asyncio.create_task(client.chat_completions([])) for _ in range(4)]
        await until(lambda: len(cluster.chats) >= 3)
        assert len(cluster.chats) == 3
        await asyncio.gather(*calls)
    closed = [headers.get("Connection") == "close" for headers in cluster.headers]
    assert sorted(closed) == [False, False, True, True]


async def test_a_refusal_is_not_tried_again():
    async with a_cluster() as cluster, OsmosisLLMClient(cluster.url, "r-1", settings=FAST) as client:
        cluster.chat_statuses = [422]
        with pytest.raises(OsmosisValidationError, match="HTTP 422"):
            await client.chat_completions([])
    assert len(cluster.chats) == 1


async def test_no_answer_and_no_connection_are_told_apart():
    async with a_cluster() as cluster:
        cluster.chat_delay = 1.5
        async with OsmosisLLMClient(cluster.url, "r-1", timeout_seconds=1, max_retries=0) as client:
            with pytest.raises(OsmosisTimeoutError):
                await client.chat_completions([])
    async with OsmosisLLMClient("http://127.0.0.1:9", "r-1", max_retries=0) as client:
        with pytest.raises(OsmosisTransportError):
            await client.chat_completions([])


async def test_streaming_and_the_clients_own_keys_are_refused():
    async with OsmosisLLMClient("http://127.0.0.1:9", "r-1") as client:
        with pytest.raises(TypeError, match="stream"):
            await client.chat_completions([], stream=True)
        with pytest.raises(TypeError, match="'rollout_id'"):
            await client.chat_completions([], rollout_id="other")


# --- R13: the debug log


async def test_r13_events_are_lines_of_one_file_per_rollout(tmp_path):
    async def run(ctx):
        assert ctx.debug_enabled
        ctx.log_event("pre_llm", turn=0, time="noon")
        ctx.log_event("odd", value={1, 2})
        return ctx.complete([])

    before = int(time.time())
    async with a_cluster() as cluster, serving(create_app(loop_with(run), debug_dir=str(tmp_path))) as server:
        await server.init(request_for(cluster, "rollout-abc123"))
        await server.init(request_for(cluster, "../evil"))
        await cluster.wait_for(2)
    [folder] = tmp_path.iterdir()
    assert before <= int(folder.name) <= time.time()
    names = sorted(path.name for path in folder.iterdir())
    assert names == [file_name("../evil"), "rollout-abc123.jsonl"]
    lines = [json.loads(line) for line in (folder / "rollout-abc123.jsonl").read_text().splitlines()]
    assert [(line["event"], line["rollout_id"], line["seq"]) for line in lines] == [
        ("pre_llm", "rollout-abc123", 0),
        ("odd", "rollout-abc123", 1),
    ]
    assert (lines[0]["turn"], lines[0]["time_"], lines[1]["value"]) == (0, "noon", "{1, 2}")
    assert before <= lines[0]["time"] <= lines[1]["time"]


async def test_r13_without_a_folder_events_go_nowhere():
    async def run(ctx):
        ctx.log_event("pre_llm", turn=0)
        return ctx.complete([], finish_reason=str(ctx.debug_enabled))

    async with a_cluster() as cluster, serving(create_app(loop_with(run))) as server:
        await server.init(request_for(cluster))
        [completed] = await cluster.wait_for(1)
    assert completed["finish_reason"] == "False"


@pytest.mark.parametrize("rollout_id", ["../evil", "/etc/x", "a/b", ".", "..", "", "a\x00b", "é", "x" * 256])
def test_r13_no_rollout_id_leaves_the_folder(tmp_path, rollout_id):
    name = file_name(rollout_id)
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()
    assert len(name.encode()) < 255
    assert name != file_name(rollout_id + "x")


def test_r13_a_log_that_cannot_be_written_ends_nothing(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    log = DebugLog(tmp_path / "file")
    log.write("r-1", "event", {})
    log.write("r-1", "event", {})
    log.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


# --- the document's own agent and servers


async def test_r01_r07_the_documents_calculator_runs_on_its_own_server(monkeypatch, tmp_path):
    import sys
    from pathlib import Path

    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "seeds"))
    monkeypatch.chdir(tmp_path)
    import seed_003_calculator
    import seed_003_server

    assert seed_003_server.settings.client == RolloutClientSettings()
    async with a_cluster() as cluster, serving(seed_003_calculator.app) as server:
        cluster.script = [tool_call("multiply", '{"a": 37, "b": 4}'), text("It is 148.")]
        status, answer = await server.init(request_for(cluster))
        assert (status, [t["function"]["name"] for t in answer["tools"]]) == (202, ["add", "multiply"])
        [completed] = await cluster.wait_for(1)
    assert (completed["status"], completed["reward"], completed["finish_reason"]) == (
        "COMPLETED",
        1.0,
        "stop",
    )
    assert [m["role"] for m in completed["final_messages"]] == ["user", "assistant", "tool", "assistant"]
    assert completed["metrics"]["num_tool_calls"] == 1
    for name in ("seed_003_calculator", "seed_003_server"):
        del sys.modules[name]


async def test_r07_the_documents_calculator_out_of_turns_gets_0_and_does_not_break(monkeypatch):
    import runpy
    from pathlib import Path

    seed = runpy.run_path(str(Path(__file__).parents[1] / "seeds" / "seed_003_calculator.py"))
    async with a_cluster() as cluster, serving(seed["app"]) as server:
        cluster.script = [tool_call("multiply", '{"a": 37, "b": 4}')]
        await server.init(request_for(cluster, max_turns=2))
        [completed] = await cluster.wait_for(1)
    assert (completed["reward"], completed["finish_reason"]) == (0.0, "max_turns")
