"""Requests of each wire become the one typed call; what they cannot say is refused by name."""

import json

import pytest
from gateway_agents import anthropic_client
from gateway_parts import ADD, user

from osmosis_ai.gateway.call import Refusal
from osmosis_ai.gateway.dialects import DIALECTS, chat, completions, messages, responses
from osmosis_ai.gateway.targets import ProviderTarget
from osmosis_ai.providers.base import ProviderAnswer

MODEL = "osmosis-rollout"
IMAGE = "data:image/png;base64,AAAA"


def parse(dialect, for_policy=True, recall=lambda name: None, **body):
    return dialect.parse(json.dumps({"model": MODEL, **body}).encode(), for_policy=for_policy, recall=recall)


def assistant(text, *calls):
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": "add", "arguments": arguments}}
        for call_id, arguments in calls
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": tool_calls} if calls else {})}


def tool(call_id, text):
    return {"role": "tool", "content": text, "tool_call_id": call_id}


# --- Responses


def test_items_become_the_messages_that_they_were():
    call = parse(
        responses,
        instructions="Be brief.",
        input=[
            {"role": "user",
             "content": [{"type": "input_text", "text": "2 plus "}, {"type": "input_text", "text": "3?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Easy."}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 2}', "id": "fc_1"},
            {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "5"},
            {"type": "function_call_output", "call_id": "c2",
             "output": [{"type": "input_text", "text": "0"}]},
            {"type": "function_call", "call_id": "c3", "name": "add", "arguments": "{}"},
        ],
    )  # fmt: skip
    assert call.messages == [
        {"role": "system", "content": "Be brief."},
        user("2 plus 3?"),
        {**assistant("Let me see.", ("c1", '{"a": 2}'), ("c2", "{}")), "reasoning_content": "Easy."},
        tool("c1", "5"),
        tool("c2", "0"),
        assistant("", ("c3", "{}")),
    ]


def test_parameters_of_responses_are_read():
    call = parse(
        responses, input="hi", temperature=0.5, top_p=0.9, max_output_tokens=64, stream=True, store=False,
        tools=[{"type": "function", "name": "add", "description": "Add.", "parameters": {}, "strict": True}],
        tool_choice="none", user="me", metadata={"k": "v"}, include=["message.output_text.logprobs"],
        parallel_tool_calls=True, truncation="disabled", text={"format": {"type": "text"}}, reasoning={},
    )  # fmt: skip
    wish = call.wish
    assert (wish.temperature, wish.top_p, wish.max_tokens, wish.logprobs) == (0.5, 0.9, 64, True)
    assert (wish.tools_allowed, call.stream, call.continuable) == (False, True, False)
    assert call.tools == [
        {
            "type": "function",
            "function": {"name": "add", "description": "Add.", "parameters": {}, "strict": True},
        }
    ]
    assert call.recorded == {"user": "me", "metadata": {"k": "v"}}


@pytest.mark.parametrize(
    "params",
    [
        {"input": None}, {"input": []}, {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        {"input": [{"type": "web_search_call", "id": "w"}]}, {"input": [{"type": "function_call"}]},
        {"tools": [{"type": "web_search"}]}, {"tool_choice": "required"}, {"parallel_tool_calls": False},
        {"text": {"format": {"type": "json_object"}}}, {"reasoning": {"effort": "low"}}, {"background": True},
        {"conversation": "conv_1"}, {"prompt": {"id": "p"}}, {"previous_response_id": "resp_1"},
        {"truncation": "auto"}, {"include": ["file_search_call.results"]}, {"colour": "red"},
        {"instructions": 5}, {"max_output_tokens": 0}, {"top_logprobs": 2}, {"max_tool_calls": 3},
    ],
)  # fmt: skip
def test_responses_refuse_by_name(params):
    with pytest.raises(Refusal) as refused:
        parse(responses, **{"input": "hi", **params})
    assert refused.value.status == 400
    assert (refused.value.param or "").split("[")[0] in params


async def test_a_response_can_be_continued_by_its_name_within_the_rollout(open_gateway, store):
    g = await open_gateway("ok")

    async def respond(**body):
        return await g.post({"model": MODEL, "instructions": "Be brief.", **body}, path="/v1/responses")

    _, first = await respond(input="one")
    _, second = await respond(input="two", previous_response_id=first["id"])
    _, fork = await respond(input="three", previous_response_id=first["id"], store=False)
    status, refused = await respond(input="four", previous_response_id=fork["id"])
    assert (status, refused["error"]["code"]) == (400, "previous_response_not_found")
    assert [turn.parent for turn in store.turns["r1"]] == [None, 0, 0]
    assert [m["content"] for m in store.turns["r1"][1].messages] == ["Be brief.", "one", "ok", "two"]
    assert second["previous_response_id"] == first["id"]
    assert second["instructions"] == "Be brief."


# --- Messages


def test_blocks_become_the_messages_that_they_were():
    call = parse(
        messages,
        max_tokens=64,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": "2 plus 3?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Easy.", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2, "b": 3}},
                {"type": "tool_use", "id": "c2", "name": "add", "input": {"INVALID_JSON": '{"a": }'}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "5"},
                {"type": "tool_result", "tool_use_id": "c2", "is_error": True,
                 "content": [{"type": "text", "text": "not "}, {"type": "text", "text": "readable"}]},
                {"type": "text", "text": "Go "},
                {"type": "text", "text": "on."},
            ]},
        ],
    )  # fmt: skip
    thought = {"type": "thinking", "thinking": "Easy.", "signature": "s"}
    assert call.messages == [
        {"role": "system", "content": "Be brief."},
        user("2 plus 3?"),
        {
            **assistant("Let me see.", ("c1", '{"a": 2, "b": 3}'), ("c2", '{"a": }')),
            "thinking_blocks": [thought],
        },
        tool("c1", "5"),
        {**tool("c2", "not readable"), "is_error": True},
        user("Go on."),
    ]
    assert call.native_messages[2]["reasoning_content"] == "Easy."
    assert "thinking_blocks" not in call.native_messages[2]
    assert "is_error" not in call.native_messages[4]


@pytest.mark.parametrize(
    "params",
    [
        {"messages": []}, {"messages": [{"role": "tool", "content": "5"}]}, {"messages": [5]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f"}]}]},
        {"system": 5}, {"system": [{"type": "image"}]}, {"max_tokens": 0}, {"temperature": "hot"},
        {"tools": [{"type": "bash_20250124", "name": "bash"}]}, {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "add"}}, {"stop_sequences": [""]},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, {"colour": "red"},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"mcp_servers": [{"url": "x"}]},
    ],
)  # fmt: skip
def test_messages_refuse_by_name(params):
    with pytest.raises(Refusal) as refused:
        parse(messages, **{"max_tokens": 9, "messages": [user("hi")], **params})
    assert refused.value.status == 400
    assert (refused.value.param or "").split("[")[0].split(".")[0] in params


@pytest.mark.parametrize(
    "arguments",
    [
        '{"n": 123456789012345678901234567890}', '{"x": 1e22, "y": -0.0, "z": 1.0}', '{"x": 1e400}',
        '{"t": "\\ud83d"}', '{"t": "\\ud83d\\ude00 \\u00e9"}', '{"a": 1, "a": 2}', "{}", "[1]", "",
        '{"INVALID_JSON": "x"}', '{"a": true, "b": null, "c": [1, {"d": 2.50}]}', '{"a": 2,}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
async def test_arguments_survive_the_way_through_an_input_object(open_gateway, store, arguments, streamed):
    call = '<tool_call>{"name": "add", "arguments": ' + arguments + "}</tool_call>"
    g = await open_gateway(lambda prompt, _: "done" if "tool\n" in prompt else call)
    client = anthropic_client(g.gateway.base_url, g.key)
    request = {"model": MODEL, "max_tokens": 99, "tools": [{"name": "add", "input_schema": {}}]}
    asked = [user("2 plus 3?")]
    if streamed:
        async with client.messages.stream(**request, messages=asked) as stream:
            message = await stream.get_final_message()
    else:
        message = await client.messages.create(**request, messages=asked)
    uses = [block for block in message.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": "tool"} for use in uses]
    history = [*asked, {"role": "assistant", "content": message.content}]
    await client.messages.create(
        **request, messages=[*history, {"role": "user", "content": results or "tool\n"}]
    )
    assert [turn.parent for turn in store.turns["r1"]] == [None, 0]


# --- Completions


@pytest.mark.parametrize(
    "params",
    [{"prompt": [1, 2]}, {"prompt": ["a", "b"]}, {"prompt": ""}, {"logprobs": 3}, {"echo": True},
     {"best_of": 2}, {"suffix": "x"}, {"tools": [ADD]}, {"n": 0}],
)  # fmt: skip
def test_completions_refuse_by_name(params):
    with pytest.raises(Refusal) as refused:
        parse(completions, **{"prompt": "hi", **params})
    assert refused.value.param in params


async def test_raw_text_that_does_not_go_on_is_a_new_branch_with_a_reason(open_gateway, store):
    g = await open_gateway("five")

    async def complete(prompt):
        await g.post({"model": MODEL, "prompt": prompt}, path="/v1/completions")

    for prompt in ("2+3=", "2+3=five. 1+1=", "2+3=six. 1+1=", "2+3=", "Else:"):
        await complete(prompt)
    assert [(turn.parent, turn.branch_reason) for turn in store.turns["r1"]] == [
        (None, None), (0, None), (None, "edited_history"), (None, "resampled"), (None, "new_conversation"),
    ]  # fmt: skip
    assert store.turns["r1"][0].messages == [user("2+3=")]
    end = store.turns["r1"][0].completion_ids[-1]
    assert end in store.turns["r1"][1].prompt_ids  # the end token that was sampled stays


# --- stop texts


@pytest.mark.parametrize(
    ("text", "stop", "said", "behind"),
    [
        ("I add.\nObservation: 5", ["\nObservation:"], "I add.", ": 5"),
        ("one two three", ["two", "one two"], "", " three"),
        ("Zähle 😀 eins", ["😀"], "Zähle ", " eins"),
        ("nothing of it", ["\n\n", "zzz"], "nothing of it", ""),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_cut_at_the_first_stop_and_its_tokens_are_exact(
    open_gateway, store, renderer, text, stop, said, behind, stream
):
    g = await open_gateway(text)
    if stream:
        events = await g.stream(user("go"), stop=stop)
        parts = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
        answer = "".join(c["delta"].get("content") or "" for part in parts for c in part["choices"])
    else:
        answer = (await g.say(user("go"), stop=stop))["content"]
    assert answer == said
    [turn] = store.turns["r1"]
    [(_, _, completion)] = g.engine.log
    assert turn.finish_reason == "stop"
    assert turn.response["content"] == said
    kept = len(turn.completion_ids)
    assert turn.completion_ids == completion.token_ids[:kept]
    assert turn.logprobs == completion.logprobs[:kept]
    if said == text:
        assert kept == len(completion.token_ids)
    else:
        whole = renderer.decode(turn.completion_ids)
        [found] = [s for s in stop if whole.startswith(said + s)]
        assert found not in renderer.decode(
            turn.completion_ids[:-1]
        )  # it ends with the token that completes it
        assert turn.sampling["tokens_after_stop"] == len(completion.token_ids) - kept == 0
    await g.say(user("go"), {"role": "assistant", "content": said}, user("on"), stop=stop)
    second = store.turns["r1"][1]
    assert second.parent == 0
    known = turn.prompt_ids + turn.completion_ids
    assert second.prompt_ids[: len(known)] == known


# --- providers


class Recorder:
    def __init__(self, message):
        self.requests = []
        self.message = message

    async def complete(self, request, on_text=None):
        self.requests.append(request)
        return ProviderAnswer(self.message, "stop", 5, 1, "big-model-1")

    async def close(self):
        pass


async def test_responses_and_messages_are_asked_for_in_chat_completions(open_gateway):
    provider = Recorder({"content": "ok"})
    g = await open_gateway("", target=ProviderTarget(provider))
    image = {"type": "image_url", "image_url": {"url": IMAGE}}
    await g.post(
        {
            "model": MODEL,
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]}],
            "max_output_tokens": 9, "reasoning": {"effort": "low"}, "text": {"verbosity": "low", "format": {
                "type": "json_schema", "name": "out", "schema": {}, "strict": True}},
            "tool_choice": {"type": "function", "name": "add"}, "store": False,
        },
        path="/v1/responses",
    )  # fmt: skip
    await g.post(
        {
            "model": MODEL, "max_tokens": 9, "top_k": 3, "stop_sequences": ["x"], "system": "Look.",
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "messages": [
                {"role": "user", "content": [{"type": "image", "source": {
                    "type": "base64", "media_type": "image/png", "data": "AAAA"}}]}],
        },
        path="/v1/messages",
    )  # fmt: skip
    of_responses, of_messages = provider.requests
    assert of_responses.messages == [{"role": "user", "content": [image]}]
    assert of_responses.params == {
        "max_completion_tokens": 9, "reasoning_effort": "low", "verbosity": "low",
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "out", "schema": {}, "strict": True},
        },
        "tool_choice": {"type": "function", "function": {"name": "add"}},
    }  # fmt: skip
    assert of_messages.messages == [
        {"role": "system", "content": "Look."},
        {"role": "user", "content": [image]},
    ]
    assert of_messages.params == {
        "max_tokens": 9, "top_k": 3, "stop": ["x"], "tool_choice": "required", "parallel_tool_calls": False,
    }  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_s_reasoning_comes_out_on_every_wire_and_may_come_back(open_gateway, store, stream):
    provider = Recorder({"content": "42", "reasoning_content": "Six times seven."})
    g = await open_gateway("", target=ProviderTarget(provider))
    client = anthropic_client(g.gateway.base_url, g.key)
    request = {"model": MODEL, "max_tokens": 9}
    if stream:
        async with client.messages.stream(**request, messages=[user("?")]) as streamed:
            message = await streamed.get_final_message()
    else:
        message = await client.messages.create(**request, messages=[user("?")])
    assert [block.type for block in message.content] == ["thinking", "text"]
    history = [user("?"), {"role": "assistant", "content": message.content}, user("Sure?")]
    await client.messages.create(**request, messages=history)
    assert provider.requests[1].messages[1]["reasoning_content"] == "Six times seven."
    assert store.turns["r1"][1].parent == 0
    _, answer = await g.post({"model": MODEL, "input": "?"}, path="/v1/responses")
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert answer["output"][0]["summary"] == [{"type": "summary_text", "text": "Six times seven."}]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_every_dialect_refuses_another_model_and_what_is_no_json(dialect):
    body = {"messages": [user("hi")], "prompt": "hi", "input": "hi"}
    with pytest.raises(Refusal) as refused:
        dialect.parse(json.dumps({**body, "model": "gpt-5"}).encode(), for_policy=True, recall=lambda _: None)
    assert refused.value.status == 404
    with pytest.raises(Refusal, match="not JSON"):
        dialect.parse(b"{", for_policy=True, recall=lambda _: None)
    assert chat.ID_PREFIX != dialect.ID_PREFIX or dialect is chat
