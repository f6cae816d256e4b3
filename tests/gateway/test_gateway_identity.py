"""One key opens one rollout, and dies with it."""

import asyncio

import pytest
from gateway_parts import user

from osmosis_ai.gateway import identity
from osmosis_ai.gateway.budget import Budget
from osmosis_ai.gateway.call import SamplingDefaults
from osmosis_ai.gateway.capture import KeptTurn, OpenRollout
from osmosis_ai.providers.prices import Prices
from osmosis_ai.types import Turn

BODY = {"model": "osmosis-rollout", "messages": [user("hello")]}


@pytest.fixture
async def g(open_gateway):
    return await open_gateway("ok")


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/chat/completions", "/v1/rollouts/r1/chat/completions"]
)
async def test_the_key_leads_to_the_rollout_on_every_path(g, store, path):
    status, _ = await g.post(BODY, path=path)
    assert status == 200
    assert store.turns["r1"][0].sample_id == "main"


async def test_headers_that_agree_are_accepted_and_name_the_sample(g, store):
    await g.post(BODY, headers=g.headers("solver", **{"x-rollout-id": "r1"}))
    await g.post(BODY, headers=g.headers("checker"))
    assert [(turn.sample_id, turn.parent, turn.branch_reason) for turn in store.turns["r1"]] == [
        ("solver", None, None), ("checker", None, None),
    ]  # fmt: skip


async def test_nobody_reads_or_writes_another_rollout(g, store):
    g.gateway.admit("r2", seed=0)
    status, body = await g.post(BODY, headers=g.headers(**{"x-rollout-id": "r2"}))
    assert (status, body["error"]["code"]) == (403, "wrong_rollout")
    status, body = await g.post(BODY, path="/v1/rollouts/r2/chat/completions")
    assert status == 403
    assert "key belongs to rollout r1, but the path names r2" in body["error"]["message"]
    assert store.turns == {}
    assert g.gateway.counters("r1").explain() == "2 calls named another rollout than its key's"


async def test_a_wrong_key_is_refused_and_noted_with_the_rollout_that_it_names(g):
    status, body = await g.post(BODY, headers={"authorization": "Bearer wrong", "x-rollout-id": "r1"})
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    status, body = await g.post(BODY, headers={})
    assert (status, body["error"]["code"]) == (401, "missing_api_key")
    assert g.gateway.counters("r1").explain() == "1 call came with a wrong key"
    assert g.gateway.strangers == {"missing_api_key": 1}


async def test_a_call_after_the_end_is_a_409_that_clients_do_not_repeat(g, store):
    await g.post(BODY)
    turns = await g.gateway.seal("r1")
    assert [turn.ordinal for turn in turns] == [0]
    url = g.gateway.base_url + "/v1/chat/completions"
    async with g.session.post(url, json=BODY, headers=g.headers()) as response:
        assert response.status == 409
        assert response.headers["x-should-retry"] == "false"
    assert len(store.turns["r1"]) == 1
    assert g.gateway.counters("r1").explain() == "1 call came after the rollout had ended"


async def ended(g, rollout_id):
    """A rollout of one call, sealed: its turns."""
    key = g.gateway.admit(rollout_id, seed=0)
    assert (await g.post(BODY, headers={"authorization": f"Bearer {key}"}))[0] == 200
    return await g.gateway.seal(rollout_id)


async def test_turns_are_given_again_while_few_tokens_are_kept(g, monkeypatch):
    first = await ended(g, "a")
    size = len(first[0].prompt_ids) + len(first[0].completion_ids)
    monkeypatch.setattr(identity, "KEPT_TOKENS", 2 * size)
    second = await ended(g, "b")
    assert await g.gateway.seal("a") == first
    third = await ended(g, "c")
    assert [await g.gateway.seal(name) for name in "abc"] == [[], second, third]
    assert g.gateway.counters("a").answered == 1
    monkeypatch.setattr(identity, "KEPT_TOKENS", size - 1)
    latest = await ended(g, "d")
    assert [await g.gateway.seal(name) for name in "abcd"] == [[], [], [], latest]


async def test_ended_rollouts_of_many_tokens_leave_at_most_two_million_of_them(store):
    registry, left = identity.Registry(), []
    for number in range(60):
        rollout = OpenRollout(f"r{number}", store, seed=0, defaults=SamplingDefaults())
        rollout.turns.append(a_turn_of(tokens=100_000))
        registry.admit(rollout)
        registry.ended(rollout.rollout_id)
        left.append(rollout)
    assert sum(rollout.kept_tokens for rollout in left) == 2_000_000
    assert [len(rollout.turns) for rollout in left] == [0] * 40 + [1] * 20


def a_turn_of(tokens):
    turn = Turn(
        rollout_id="r", sample_id="main", ordinal=0, parent=None, branch_reason=None, messages=[], tools=[],
        response={}, finish_reason="stop", prompt_ids=[1] * (tokens - 1), completion_ids=[2], logprobs=[-0.5],
        policy_version=0, prompt_tokens=tokens - 1, completion_tokens=1, sampling={}, model="m",
        malformed_tool_calls=0, latency_ms=1.0,
    )  # fmt: skip
    return KeptTurn.of(turn, 0)


async def test_turns_tokens_and_dollars_can_be_limited(open_gateway):
    g = await open_gateway("ok", max_turns=1)
    await g.post(BODY)
    status, body = await g.post(BODY)
    assert (status, body["error"]["code"]) == (403, "turn_limit_reached")
    dear = Prices(input=1e6, output=1e6)  # a dollar a token
    for name, budget, code in [
        ("tokens", Budget(tokens=1), "token_budget_spent"),
        ("dollars", Budget(dollars=1.0, prices=dear), "dollar_budget_spent"),
    ]:
        headers = {"authorization": f"Bearer {g.gateway.admit(name, seed=0, budget=budget)}"}
        assert (await g.post(BODY, headers=headers))[0] == 200
        status, body = await g.post(BODY, headers=headers)
        assert (status, body["error"]["code"]) == (403, code)
        assert (
            f"its budget is {'$1.00' if name == 'dollars' else '1'} (budget.rollout_{name})"
            in (body["error"]["message"])
        )
        assert g.gateway.counters(name).over_budget == body["error"]["message"]


async def test_calls_that_are_under_way_when_a_budget_is_reached_are_answered_and_no_other(open_gateway):
    g = await open_gateway("ok", budget=Budget(tokens=1))
    g.engine.hold = asyncio.Event()
    calls = [asyncio.create_task(g.chat(user(f"hello {i}"))) for i in range(3)]
    async with asyncio.timeout(5):
        while len(g.engine.asked) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    g.engine.hold.set()
    assert [status for status, _ in await asyncio.gather(*calls)] == [200, 200, 200]
    assert (await g.chat(user("hello")))[0] == 403


async def test_a_rollout_is_admitted_once(g):
    with pytest.raises(ValueError, match="r1 has been admitted already"):
        g.gateway.admit("r1", seed=0)
    with pytest.raises(KeyError, match="r9 was not admitted"):
        await g.gateway.seal("r9")


async def test_a_sample_id_is_short_and_printable(g):
    status, body = await g.post(BODY, sample="x" * 300)
    assert (status, body["error"]["code"]) == (400, "invalid_sample_id")


async def test_models_health_and_unknown_paths(g):
    async def get(path):
        async with g.session.get(g.gateway.base_url + path) as response:
            return response.status, await response.json()

    assert (await get("/v1/models"))[1]["data"][0]["id"] == "osmosis-rollout"
    assert await get("/health") == (200, {"status": "ok", "open_rollouts": 1})
    assert (await get("/v1/nothing"))[0] == 404
    status, body = await get("/v1/chat/completions")
    assert (status, body["error"]["code"]) == (405, "method_not_allowed")


async def test_other_paths_go_to_the_extra_routes(open_gateway):
    async def callbacks(scope, receive, send):
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b'"from the controller"'})

    g = await open_gateway("ok", extra_routes=callbacks)
    assert await g.post({}, path="/v1/rollouts/r1/completed") == (202, "from the controller")
    assert (await g.post(BODY))[0] == 200


BODIES = {
    "chat/completions": BODY,
    "completions": {"model": "osmosis-rollout", "prompt": "hello"},
    "responses": {"model": "osmosis-rollout", "input": "hello"},
    "messages": {"model": "osmosis-rollout", "messages": [user("hello")], "max_tokens": 9},
    "messages/count_tokens": {"model": "osmosis-rollout", "messages": [user("hello")]},
    "responses/input_tokens": {"model": "osmosis-rollout", "input": "hello"},
}


@pytest.mark.parametrize("end", BODIES)
async def test_every_wire_knows_each_way_to_say_whose_call_it_is(g, end):
    named = {"x-rollout-id": "r1"}
    for path in (f"/{end}", f"/v1/{end}", f"/v1/v1/{end}"):
        for headers in (g.headers(), g.headers(**named), {"x-api-key": g.key}, {"x-api-key": g.key, **named}):
            assert (await g.post(BODIES[end], path=path, headers=headers))[0] == 200, (path, headers)
    for path in (f"/v1/rollouts/r1/{end}", f"/v1/rollouts/r1/v1/{end}"):
        for headers in (g.headers(), {"x-api-key": g.key}, g.headers(**{"x-api-key": g.key})):
            assert (await g.post(BODIES[end], path=path, headers=headers))[0] == 200, (path, headers)


@pytest.mark.parametrize("end", BODIES)
async def test_no_wire_opens_another_rollout(g, store, end):
    other = g.gateway.admit("r2", seed=0)
    for path, headers, status, code in [
        (f"/v1/rollouts/r2/{end}", g.headers(), 403, "wrong_rollout"),
        (f"/v1/{end}", g.headers(**{"x-rollout-id": "r2"}), 403, "wrong_rollout"),
        (f"/v1/{end}", g.headers(**{"x-api-key": other}), 401, "conflicting_api_keys"),
        (f"/v1/rollouts/r2/{end}", {}, 401, "missing_api_key"),
        (f"/v1/{end}", {"x-api-key": "wrong"}, 401, "invalid_api_key"),
        (f"/v1/{end}", {"authorization": g.key}, 401, "missing_api_key"),
    ]:
        got, body = await g.post(BODIES[end], path=path, headers=headers)
        assert (got, body["error"]["code"]) == (status, code), path
    assert store.turns == {}


async def test_errors_come_in_the_dialect_of_their_wire(g):
    status, body = await g.post(BODIES["messages"], path="/v1/messages", headers={})
    assert status == 401
    assert body["type"] == "error"
    assert body["error"]["type"] == "authentication_error"
    status, body = await g.post(BODIES["responses"], path="/v1/responses", headers={})
    assert (status, body["error"]["type"]) == (401, "invalid_request_error")


async def test_a_key_dies_at_its_expiry_and_the_rollout_s_turns_stay(g):
    key = g.gateway.admit("r2", seed=0, expires_seconds=0.9)
    headers = {"authorization": f"Bearer {key}"}
    assert (await g.post(BODY, headers=headers))[0] == 200
    await asyncio.sleep(1.0)
    status, body = await g.post(BODY, headers=headers)
    assert (status, body["error"]["code"]) == (401, "key_expired")
    assert g.gateway.counters("r2").refused == {"key_expired": 1}
    assert len(await g.gateway.seal("r2")) == 1


async def test_an_answer_cannot_be_named_from_another_rollout(g):
    _, answer = await g.post({**BODIES["responses"]}, path="/v1/responses")
    g.key = g.gateway.admit("r2", seed=0)
    again = {**BODIES["responses"], "previous_response_id": answer["id"]}
    status, body = await g.post(again, path="/v1/responses")
    assert (status, body["error"]["code"]) == (400, "previous_response_not_found")
