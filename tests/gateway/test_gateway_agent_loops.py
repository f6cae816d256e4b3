"""Calls of a RolloutAgentLoop's server: the body names the rollout, the tools are the rollout's."""

import asyncio

import pytest
from gateway_parts import ADD, CALL_2_3, user

from osmosis_ai.gateway.targets import ProviderTarget
from osmosis_ai.providers.scripted import ScriptedProvider

BODY = {"model": "default", "messages": [user("hello")], "rollout_id": "r1"}
# What the public SDK's client sends with every call, whatever the author asks for.
OLD_CLIENT = {**BODY, "temperature": 1.0, "top_p": 1.0, "max_tokens": 512, "logprobs": True}


async def test_r32_the_body_names_the_rollout_and_gets_the_tokens_of_its_turn(open_gateway, store):
    g = await open_gateway("ok", sample_id="calculator")
    status, body = await g.post(OLD_CLIENT, headers={"authorization": f"Bearer {g.key}"})
    [turn] = store.turns["r1"]
    assert status == 200
    assert turn.sample_id == "calculator"
    assert body["choices"][0]["message"]["content"] == "ok"
    assert body["token_ids"] == turn.completion_ids
    assert body["prompt_token_ids"] == turn.prompt_ids
    assert body["logprobs"] == turn.logprobs == [-0.5] * len(turn.completion_ids)


async def test_r32_a_body_that_names_another_rollout_is_refused(open_gateway, store):
    g = await open_gateway("ok")
    status, body = await g.post({**BODY, "rollout_id": "r2"})
    assert (status, body["error"]["code"]) == (403, "wrong_rollout")
    assert "the body names r2" in body["error"]["message"]
    assert store.turns == {}


async def test_default_names_the_policy_only_where_the_body_names_the_rollout(open_gateway):
    g = await open_gateway("ok")
    status, _ = await g.post({"model": "default", "messages": [user("hello")]})
    assert status == 404


async def test_r32_a_call_that_comes_before_the_rollouts_tools_waits_for_them(open_gateway, store):
    g = await open_gateway(CALL_2_3, awaits_tools=True)
    call = asyncio.create_task(g.post(BODY))
    await asyncio.sleep(0.05)
    assert not call.done()
    g.gateway.offer_tools("r1", [ADD])
    status, body = await call
    assert status == 200
    assert body["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"
    assert store.turns["r1"][0].tools == [ADD]


async def test_a_call_that_brings_tools_waits_for_none(open_gateway, store):
    g = await open_gateway("ok", awaits_tools=True)
    status, _ = await g.post({**BODY, "tools": [ADD]})
    assert (status, store.turns["r1"][0].tools) == (200, [ADD])


async def test_a_call_that_waits_for_tools_hears_that_the_rollout_has_ended(open_gateway):
    g = await open_gateway("ok", awaits_tools=True)
    call = asyncio.create_task(g.post(BODY))
    await asyncio.sleep(0.05)
    await g.gateway.seal("r1")
    status, body = await call
    assert (status, body["error"]["code"]) == (409, "rollout_ended")


@pytest.mark.parametrize("name", ["r1", "r1~5f"])
async def test_a_rollout_may_have_a_second_name(open_gateway, name):
    g = await open_gateway("ok", alias="r1~5f")
    status, _ = await g.post(BODY, headers=g.headers(**{"x-rollout-id": name}))
    assert status == 200


async def test_r32_with_a_provider_the_logprobs_that_the_client_always_asks_for_are_left_out(open_gateway):
    g = await open_gateway("", target=ProviderTarget(ScriptedProvider.from_texts(["hi"])))
    status, body = await g.post(OLD_CLIENT)
    assert (status, body["choices"][0]["message"]["content"]) == (200, "hi")
    assert "token_ids" not in body
