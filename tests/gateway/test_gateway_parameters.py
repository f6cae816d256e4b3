"""Every parameter is honoured or refused by name; none is dropped."""

import json

import pytest
from gateway_parts import ADD, user

from osmosis_ai.gateway.app import SamplingDefaults
from osmosis_ai.gateway.call import Refusal
from osmosis_ai.gateway.dialects import chat


def parse(for_policy=True, **params):
    body = {"model": "osmosis-rollout", "messages": [user("hello")], **params}
    return chat.parse(json.dumps(body).encode(), for_policy=for_policy, recall=lambda name: None)


def test_what_the_agent_wishes_is_read():
    wish = parse(
        temperature=0.5, top_p=0.9, top_k=20, max_completion_tokens=64, seed=11, stop="<|im_start|>",
        logprobs=True, tool_choice="none",
    ).wish  # fmt: skip
    assert (wish.temperature, wish.top_p, wish.top_k, wish.max_tokens, wish.seed) == (0.5, 0.9, 20, 64, 11)
    assert (wish.stop, wish.logprobs, wish.tools_allowed) == (("<|im_start|>",), True, False)


@pytest.mark.parametrize(
    "params",
    [
        {"n": 1},
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"logit_bias": {}, "top_logprobs": 0, "parallel_tool_calls": True},
        {"response_format": {"type": "text"}, "tool_choice": "auto", "service_tier": "auto"},
        {"temperature": None, "stop": None, "n": None, "colour": None},
        {"stream": True, "stream_options": {"include_usage": False}},
        {"stop": []},
        {"max_tokens": 5, "max_completion_tokens": 5},
    ],
)
def test_values_that_change_nothing_are_accepted(params):
    assert parse(**params).wish.temperature is None


def test_user_metadata_and_store_are_recorded():
    call = parse(user="me", metadata={"k": "v"}, store=True)
    assert call.recorded == {"user": "me", "metadata": {"k": "v"}, "store": True}


@pytest.mark.parametrize(
    "params",
    [
        {"n": 0}, {"n": 65}, {"n": True}, {"presence_penalty": 0.1}, {"frequency_penalty": -1},
        {"logit_bias": {"5": 1}}, {"stop": ""},
        {"response_format": {"type": "json_object"}}, {"tool_choice": "required"}, {"top_logprobs": 3},
        {"tool_choice": {"type": "function", "function": {"name": "add"}}}, {"parallel_tool_calls": False},
        {"temperature": -1}, {"temperature": "hot"}, {"temperature": True}, {"top_p": 0}, {"top_p": 1.5},
        {"top_k": -1}, {"top_k": 1.5}, {"max_tokens": 0}, {"max_tokens": 4, "max_completion_tokens": 5},
        {"seed": -1}, {"seed": 2**63}, {"seed": "7"}, {"stop": 5}, {"stream": "yes"}, {"tools": [{}]},
        {"stream_options": {"colour": "red"}}, {"reasoning_effort": "low"}, {"functions": [{"name": "f"}]},
        {"colour": "red"}, {"echo": True}, {"logprobs": 5}, {"model": None}, {"messages": []},
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(params):
    with pytest.raises(Refusal) as refused:
        parse(**params)
    assert refused.value.status == 400
    assert (refused.value.param or "").split("[")[0].split(".")[0] in params
    assert next(iter(params)) in str(refused.value)


def test_a_provider_gets_every_parameter_as_it_came():
    params = {
        "presence_penalty": 0.3,
        "response_format": {"type": "json_object"},
        "stop": "\n",
        "colour": "red",
    }
    call = parse(for_policy=False, stream=True, tools=[ADD], **params)
    assert call.native_params == params
    assert call.tools == [ADD]
    for lost in ({"logprobs": True}, {"top_logprobs": 2}):
        with pytest.raises(Refusal, match=next(iter(lost))):
            parse(for_policy=False, **lost)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_p": 0.9}, {"top_k": 5}])
async def test_training_refuses_what_the_trainer_could_not_score(open_gateway, params):
    g = await open_gateway("ok", sampling=SamplingDefaults(training=True))
    status, body = await g.chat(user("hello"), **params)
    assert (status, body["error"]["code"]) == (400, "unsupported_in_training")
    assert body["error"]["param"] in params
    await g.say(user("hello"), temperature=0.7, top_p=1, top_k=0)
    assert g.engine.log[0][1].temperature == 0.7


async def test_errors_have_openai_s_shape_and_the_right_status(open_gateway):
    g = await open_gateway("ok")
    status, body = await g.post(b"{not json")
    assert status == 400
    assert body["error"].keys() == {"message", "type", "code", "param"}
    assert body["error"]["code"] == "invalid_json"
    status, body = await g.post({"model": "gpt-5", "messages": [user("hi")]})
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert "osmosis-rollout" in body["error"]["message"]
    status, _ = await g.post({"model": "openai/osmosis-rollout", "messages": [user("hi")]})
    assert status == 200
    assert g.gateway.counters("r1").refused == {"invalid_json": 1, "model_not_found": 1}
