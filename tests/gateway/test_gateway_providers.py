"""The gateway in front of an external model."""

import pytest
from gateway_parts import ADD, chunks, streamed_text, user

from osmosis_ai.errors import ProviderError
from osmosis_ai.gateway.app import SamplingDefaults
from osmosis_ai.gateway.targets import ProviderTarget
from osmosis_ai.providers.base import ProviderAnswer
from osmosis_ai.providers.scripted import ScriptedProvider


def add_or_answer(messages, tools, random):
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": "The answer is " + messages[-1]["content"]}
    call = {"function": {"name": "add", "arguments": {"a": 2, "b": random.randrange(1000)}}}
    return {"tool_calls": [call]}


class Recorder:
    """A provider that keeps the requests; raises or answers what it was given."""

    def __init__(self, outcome=None):
        self.requests = []
        self.outcome = outcome or ProviderAnswer({"content": "ok"}, "stop", 5, 1, "big-model-1")

    async def complete(self, request, on_text=None):
        self.requests.append(request)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def close(self):
        pass


async def test_a_scripted_conversation_is_recorded_as_a_tree_without_tokens(open_gateway, store):
    g = await open_gateway("", target=ProviderTarget(ScriptedProvider(add_or_answer)))
    call = await g.say(user("2 plus 3?"), tools=[ADD])
    [tool_call] = call["tool_calls"]
    assert tool_call["id"].startswith("call_0_0_")
    result = {"role": "tool", "tool_call_id": tool_call["id"], "content": "5"}
    answer = await g.say(user("2 plus 3?"), call, result, tools=[ADD])
    assert answer["content"] == "The answer is 5"
    _, second = store.turns["r1"]
    assert (second.parent, second.prompt_ids, second.policy_version, second.model) == (
        0,
        [],
        None,
        "scripted",
    )
    assert (second.prompt_tokens, second.completion_tokens) == (9, 4)
    g.key = g.gateway.admit("r2", seed=7)
    assert await g.say(user("2 plus 3?"), tools=[ADD]) == call


async def test_a_streaming_agent_gets_the_provider_s_text_as_it_comes_and_the_usage(open_gateway):
    g = await open_gateway("", target=ProviderTarget(ScriptedProvider.from_texts(["one two three"])))
    events = await g.stream(user("count"))
    assert streamed_text(events) == "one two three"
    assert len([c for c in chunks(events) if c["choices"] and c["choices"][0]["delta"].get("content")]) > 1
    assert chunks(events)[-1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}


async def test_a_provider_gets_native_messages_parameters_and_the_run_s_defaults(open_gateway, store):
    provider = Recorder()
    defaults = SamplingDefaults(temperature=0.3, max_tokens=64)
    g = await open_gateway("", target=ProviderTarget(provider), sampling=defaults)
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}
    await g.say(image, max_completion_tokens=9, presence_penalty=0.2)
    [request] = provider.requests
    assert request.messages == [image]
    assert request.params == {"temperature": 0.3, "max_completion_tokens": 9, "presence_penalty": 0.2}
    [turn] = store.turns["r1"]
    assert turn.sampling == {**request.params, "seed": request.seed}
    assert turn.model == "big-model-1"


@pytest.mark.parametrize(
    ("status", "seen_as_failure"), [(400, False), (429, True), (502, True), (503, True), (504, True)]
)
async def test_a_provider_s_failure_keeps_its_status(open_gateway, status, seen_as_failure):
    provider = Recorder(ProviderError("http://x answered badly", status=status))
    g = await open_gateway("", target=ProviderTarget(provider))
    got, body = await g.chat(user("hello"))
    assert (got, body["error"]["message"]) == (status, "the provider failed: http://x answered badly")
    assert (g.gateway.counters("r1").failure is not None) == seen_as_failure


async def test_what_the_model_refuses_has_its_own_code_and_is_no_failure_of_the_provider(open_gateway):
    refusal = ProviderError("no room", status=400, retryable=False, code="context_length_exceeded")
    provider = Recorder(refusal)
    g = await open_gateway("", target=ProviderTarget(provider))
    status, body = await g.chat(user("hello"))
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    counts = g.gateway.counters("r1")
    assert (counts.failure, counts.model_refusal.kind) == (None, "model")
    provider.outcome = ProviderAnswer({"content": "ok"}, "stop", 5, 1, "m")
    await g.say(user("hello"))  # a shorter one, say: the agent has mended it
    assert g.gateway.counters("r1").model_refusal is None


async def test_one_failure_and_then_an_answer_is_no_model_error(open_gateway):
    provider = Recorder(ProviderError("busy", status=429))
    g = await open_gateway("", target=ProviderTarget(provider))
    await g.chat(user("hello"))
    provider.outcome = ProviderAnswer({"content": "ok"}, "stop", 5, 1, "m")
    await g.say(user("hello"))
    assert g.gateway.counters("r1").failure is None


async def test_an_answer_that_is_no_message_is_the_provider_s_failure(open_gateway):
    provider = Recorder(ProviderAnswer({"content": 5}, "stop", 5, 1, "m"))
    g = await open_gateway("", target=ProviderTarget(provider))
    status, body = await g.chat(user("hello"))
    assert (status, body["error"]["code"]) == (502, "provider_error")


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "6 x 7."}]}
PICTURE = {"type": "image_url", "image_url": {"url": "data:x"}}
TEXTS = [{"type": "text", "text": "It is "}, {"type": "text", "text": "42"}]


async def test_an_answer_in_parts_is_streamed_as_text_and_reasoning(open_gateway, store):
    message = {"content": [THINKING, *TEXTS], "reasoning_content": None}
    provider = Recorder(ProviderAnswer(message, "stop", 5, 1, "m"))
    g = await open_gateway("", target=ProviderTarget(provider))
    events = await g.stream(user("6 x 7?"))
    assert streamed_text(events) == "It is 42"
    assert any('"reasoning_content":"6 x 7."' in event for event in events)
    [turn] = store.turns["r1"]
    assert (turn.response["content"], turn.response["reasoning_content"]) == ("It is 42", "6 x 7.")


async def test_an_answer_in_parts_comes_as_it_is_over_chat_and_as_blocks_over_messages(open_gateway):
    provider = Recorder(ProviderAnswer({"content": [THINKING, *TEXTS]}, "stop", 5, 1, "m"))
    g = await open_gateway("", target=ProviderTarget(provider))
    assert (await g.say(user("6 x 7?")))["content"] == [THINKING, *TEXTS]
    body = {"model": "osmosis-rollout", "max_tokens": 9, "messages": [user("6 x 7?")]}
    status, message = await g.post(body, path="/v1/messages")
    assert status == 200
    assert [block.get("text", block.get("thinking")) for block in message["content"]] == [
        "6 x 7.",
        "It is 42",
    ]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_a_picture_in_an_answer_cannot_be_streamed_and_is_no_turn(open_gateway, store, path):
    provider = Recorder(ProviderAnswer({"content": [PICTURE, *TEXTS]}, "stop", 5, 1, "m"))
    g = await open_gateway("", target=ProviderTarget(provider))
    body = {"model": "osmosis-rollout", "max_tokens": 9, "messages": [user("draw")], "input": "draw"}
    wanted = ("model", "input", "stream") if path.endswith("responses") else (
        "model", "max_tokens", "messages", "stream")  # fmt: skip
    status, answer = await g.post({key: {**body, "stream": True}[key] for key in wanted}, path=path)
    assert status == 502
    assert "m answered with a content part of type 'image_url'" in answer["error"]["message"]
    assert store.turns == {}
    assert (await g.say(user("draw")))["content"] == [PICTURE, *TEXTS]
