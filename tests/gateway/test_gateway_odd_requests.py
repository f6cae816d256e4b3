"""Requests of any shape get an answer that names what is wrong, on every wire: none is a fault of ours."""

import json

import pytest
from gateway_parts import user

from osmosis_ai.gateway.call import Refusal
from osmosis_ai.gateway.dialects import chat, completions, messages, responses

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL_USE = {"type": "tool_use", "id": "a", "name": "f", "input": {"a": 1}}
RESULT = {
    "type": "tool_result",
    "tool_use_id": "a",
    "content": [{"type": "text", "text": "6"}],
    "is_error": True,
}
WHOLE = {
    chat: {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "a", "content": "6"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "stream_options": {"include_usage": True},
        "stop": ["a"],
        "rollout_id": "r",
        "metadata": {},
    },
    completions: {"prompt": "x", "stop": "a", "n": 1, "stream_options": {}, "best_of": 1},
    messages: {
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, TOOL_USE]},
            {"role": "user", "content": [RESULT, {"type": "text", "text": "x"}]},
        ],
        "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "stop_sequences": ["a"],
        "thinking": {"type": "disabled"},
    },
    responses: {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}], "content": []},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "6"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "tool_choice": "auto",
        "include": [],
        "text": {"format": {"type": "text"}, "verbosity": None},
        "reasoning": {"effort": None},
    },
}
ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    1e300,
    2**70,
    "",
    "x",
    "auto",
    [],
    [1],
    [[]],
    [{}],
    [None],
    {},
    {"a": 1},
    {"type": [1]},
]


def places(value, here=()):
    yield here
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*here, key))


def replaced(value, place, odd):
    if not place:
        return odd
    copy = value.copy()
    copy[place[0]] = replaced(value[place[0]], place[1:], odd)
    return copy


@pytest.mark.parametrize("for_policy", [True, False])
@pytest.mark.parametrize("dialect", WHOLE, ids=lambda dialect: dialect.WIRE)
def test_whatever_stands_at_any_place_of_a_request_is_read_or_refused(dialect, for_policy):
    whole = {"model": "osmosis-rollout", **WHOLE[dialect]}
    refused = 0
    for place in places(whole):
        for odd in ODD:
            body = json.dumps(replaced(whole, place, odd)).encode()
            try:
                dialect.parse(body, for_policy=for_policy, recall={}.get)
            except Refusal as refusal:
                refused += 1
                assert refusal.status in (400, 404)
    assert refused > len(ODD)


@pytest.mark.parametrize("choice", ["auto", "any", {}, {"type": ["auto"]}])
@pytest.mark.parametrize("for_policy", [True, False])
def test_a_tool_choice_in_another_spelling_is_refused_and_not_dropped(choice, for_policy):
    body = {"model": "osmosis-rollout", "messages": [user("hi")], "tool_choice": choice}
    with pytest.raises(Refusal, match="tool_choice must be"):
        messages.parse(json.dumps(body).encode(), for_policy=for_policy, recall={}.get)


async def test_what_is_nested_too_deeply_to_be_read_is_refused(open_gateway):
    g = await open_gateway("ok")
    content = b'[{"type":"tool_use","id":"a","name":"f","input":{"a":' + b"[" * 900 + b"]" * 900 + b"}}]"
    body = b'{"model":"osmosis-rollout","messages":[{"role":"assistant","content":' + content + b"}]}"
    status, answer = await g.post(body, path="/v1/messages")
    assert (status, answer["error"]["message"]) == (400, "the body is nested too deeply")


async def test_what_no_client_could_read_goes_out_as_text_over_messages(open_gateway):
    arguments = '{"a": ' + "[" * 600 + "]" * 600 + "}"
    call = '<tool_call>{"name": "f", "arguments": ' + arguments + "}</tool_call>"
    g = await open_gateway(call, max_context=8192)
    body = {"model": "osmosis-rollout", "messages": [user("go")], "max_tokens": 4000}
    body["tools"] = [{"name": "f", "input_schema": {}}]
    status, answer = await g.post(body, path="/v1/messages")
    assert (status, answer["content"][0]["input"]) == (200, {messages.INVALID_JSON: arguments})


async def test_a_tool_call_that_is_nested_too_deeply_is_kept_and_can_be_continued(open_gateway):
    arguments = '{"a": ' + "[" * 600 + "]" * 600 + "}"
    call = '<tool_call>{"name": "f", "arguments": ' + arguments + "}</tool_call>"
    g = await open_gateway(lambda prompt, _: "ok" if "too deep" in prompt else call, max_context=8192)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    answer = await g.say(user("go"), tools=tools)
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "too deep"}
    assert (await g.say(user("go"), answer, result, tools=tools))["content"] == "ok"
    assert [(turn.parent, turn.branch_reason) for turn in await g.gateway.seal("r1")] == [
        (None, None),
        (0, None),
    ]
