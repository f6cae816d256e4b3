"""Official clients and frameworks, as they are, over every wire: against the policy, and against a provider.

What an append-only agent has said and heard is one training sample, whatever the wire: each call continues
the tokens of the one before, and each sampled token is trained once, exactly as it was sampled.
"""

import asyncio

import anthropic
import openai
import pytest
from gateway_agents import (
    ANSWERS,
    CHAT_TOOL,
    MODEL,
    QUESTION,
    REACT_ANSWERS,
    STOP,
    TOOL_AGENTS,
    anthropic_client,
    openai_client,
    openai_completions,
    openai_completions_streamed,
)
from gateway_parts import assert_one_exact_training_sample, in_turn, user

from osmosis_ai.engine.completions import parse_completion
from osmosis_ai.errors import EngineError, ProviderError
from osmosis_ai.gateway.targets import ProviderTarget
from osmosis_ai.providers.scripted import ScriptedProvider


def as_message(text):
    """What a provider answers where the policy would have written this text."""
    parsed = parse_completion(text)
    calls = [{"function": {"name": c.name, "arguments": c.arguments}} for c in parsed.tool_calls]
    return {"content": parsed.content, **({"tool_calls": calls} if calls else {})}


@pytest.mark.parametrize("agent", TOOL_AGENTS, ids=lambda agent: agent.__name__)
async def test_an_agent_s_conversation_with_the_policy_is_one_exact_training_sample(
    open_gateway, store, agent
):
    g = await open_gateway(in_turn(ANSWERS))
    assert await agent(g.gateway.base_url + "/v1", g.key) == "The answer is 5. "
    turns = store.turns["r1"]
    assert len(turns) == 4
    assert_one_exact_training_sample(g, turns)
    assert [completion.token_ids for _, _, completion in g.engine.log] == [t.completion_ids for t in turns]
    assert [turn.malformed_tool_calls for turn in turns] == [0, 1, 0, 0]
    assert [len(turn.response.get("tool_calls", [])) for turn in turns] == [2, 1, 1, 0]


@pytest.mark.parametrize("agent", TOOL_AGENTS, ids=lambda agent: agent.__name__)
async def test_an_agent_s_conversation_with_a_provider_is_one_recorded_branch(open_gateway, store, agent):
    provider = ScriptedProvider.from_texts([as_message(text) for text in ANSWERS])
    g = await open_gateway("", target=ProviderTarget(provider))
    assert await agent(g.gateway.base_url + "/v1", g.key) == "The answer is 5. "
    turns = store.turns["r1"]
    assert [(turn.parent, turn.branch_reason) for turn in turns] == [
        (None, None),
        (0, None),
        (1, None),
        (2, None),
    ]
    assert [turn.messages[-1]["role"] for turn in turns] == ["user", "tool", "tool", "tool"]
    assert turns[2].response["content"] == "Let me see. "


@pytest.mark.parametrize("agent", [openai_completions, openai_completions_streamed])
async def test_raw_text_that_goes_on_is_one_exact_training_sample(open_gateway, store, renderer, agent):
    g = await open_gateway(in_turn(REACT_ANSWERS, "Thought:"))
    assert await agent(g.gateway.base_url + "/v1", g.key) == " The answer is 5."
    turns = store.turns["r1"]
    assert_one_exact_training_sample(g, turns)
    assert [turn.response["content"] for turn in turns] == [
        " I add.\nCall: 2 3", " I add again.\nCall: 4 5", " The answer is 5.",
    ]  # fmt: skip
    assert renderer.decode(turns[-1].prompt_ids) == (
        "You add.\nQuestion: 2 plus 3?\nThought: I add.\nCall: 2 3\nResult: 5\n"
        "Thought: I add again.\nCall: 4 5\nResult: 9\nThought:"
    )
    assert [turn.sampling["stopped_by"] for turn in turns[:2]] == [STOP, STOP]


@pytest.mark.parametrize("agent", [openai_completions, openai_completions_streamed])
async def test_raw_text_with_a_provider_is_one_recorded_branch(open_gateway, store, agent):
    def answer(messages, tools, random):
        text = REACT_ANSWERS[messages[0]["content"].count("Thought:") - 1]
        return {"content": text.split(STOP)[0]}

    g = await open_gateway("", target=ProviderTarget(ScriptedProvider(answer)))
    assert await agent(g.gateway.base_url + "/v1", g.key) == " The answer is 5."
    assert [(t.parent, t.branch_reason) for t in store.turns["r1"]] == [(None, None), (0, None), (1, None)]


# --- one call, in each dialect


async def openai_chat_call(g, **more):
    client = openai_client(g.gateway.base_url + "/v1", g.key)
    made = await client.chat.completions.create(model=MODEL, messages=[user(QUESTION)], **more)
    return "".join([c.choices[0].delta.content or "" async for c in made if c.choices]) if more else made


async def responses_call(g, **more):
    client = openai_client(g.gateway.base_url + "/v1", g.key)
    made = await client.responses.create(model=MODEL, input=QUESTION, **more)
    return "".join([e.delta async for e in made if e.type == "response.output_text.delta"]) if more else made


async def completions_call(g, **more):
    client = openai_client(g.gateway.base_url + "/v1", g.key)
    made = await client.completions.create(model=MODEL, prompt=QUESTION, **more)
    return "".join([c.choices[0].text async for c in made if c.choices]) if more else made


async def messages_call(g, **more):
    client = anthropic_client(g.gateway.base_url, g.key)
    made = await client.messages.create(model=MODEL, max_tokens=99, messages=[user(QUESTION)], **more)
    return "".join([e.delta.text async for e in made if e.type == "content_block_delta"]) if more else made


CALLS = [openai_chat_call, responses_call, completions_call, messages_call]
NAMES = {"ids": lambda call: getattr(call, "__name__", None)}


@pytest.mark.parametrize("call", CALLS, **NAMES)
@pytest.mark.parametrize("error", [EngineError("out of memory"), ProviderError("too busy", status=429)])
async def test_clients_raise_what_the_status_says(open_gateway, call, error):
    if isinstance(error, EngineError):
        g = await open_gateway(lambda *_: (_ for _ in ()).throw(error))
    else:
        g = await open_gateway(
            "", target=ProviderTarget(ScriptedProvider(lambda *_: (_ for _ in ()).throw(error)))
        )
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as raised:
        await call(g)
    assert raised.value.status_code == (503 if isinstance(error, EngineError) else 429)
    assert str(error) in str(raised.value)


@pytest.mark.parametrize("call", CALLS, **NAMES)
async def test_clients_raise_for_a_wrong_key_and_after_the_end(open_gateway, call):
    g = await open_gateway("ok")
    key, g.key = g.key, "wrong"
    with pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError)):
        await call(g)
    g.key = key
    await call(g)
    await g.gateway.seal("r1")
    with pytest.raises((openai.ConflictError, anthropic.ConflictError)) as raised:
        await call(g)
    assert "rollout r1 has ended" in str(raised.value)


@pytest.mark.parametrize("call", CALLS, **NAMES)
async def test_clients_raise_when_a_stream_breaks(open_gateway, store, call):
    def breaks(messages, tools, random):
        raise ProviderError("the line is dead")

    class Breaking(ScriptedProvider):
        async def complete(self, request, on_text=None):
            on_text("one ")
            return await super().complete(request, on_text)

    g = await open_gateway("", target=ProviderTarget(Breaking(breaks)), heartbeat_seconds=0.01)
    with pytest.raises((openai.APIError, anthropic.APIError)) as raised:
        await call(g, stream=True)
    assert "the line is dead" in str(raised.value)
    assert store.turns == {}


@pytest.mark.parametrize("call", CALLS, **NAMES)
async def test_clients_live_with_heartbeats(open_gateway, call):
    g = await open_gateway("one two three", heartbeat_seconds=0.01)
    g.engine.hold, g.engine.hold_after = asyncio.Event(), 2
    asyncio.get_running_loop().call_later(0.1, g.engine.hold.set)
    assert await call(g, stream=True) == "one two three"


# --- what only one of them has


async def test_chat_gives_n_answers_that_are_n_branches(open_gateway, store):
    g = await open_gateway(lambda prompt, sampling: f"The answer is {sampling.seed % 1000}.")
    client = openai_client(g.gateway.base_url + "/v1", g.key)
    messages = [user(QUESTION)]
    answer = await client.chat.completions.create(model=MODEL, messages=messages, n=3, tools=[CHAT_TOOL])
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) == 3
    turns = store.turns["r1"]
    assert [turn.response["content"] for turn in turns] == texts
    assert [turn.parent for turn in turns] == [None, None, None]
    assert answer.usage.completion_tokens == sum(turn.completion_tokens for turn in turns)
    messages += [{"role": "assistant", "content": texts[1]}, user("Sure?")]
    await client.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL])
    assert store.turns["r1"][3].parent == 1
    stream = await client.chat.completions.create(model=MODEL, messages=messages, n=2, seed=5, stream=True)
    streamed = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == ["The answer is 5.", "The answer is 6."]


async def test_logprobs_come_in_each_dialect_that_has_them(open_gateway):
    g = await open_gateway("148")
    client = openai_client(g.gateway.base_url + "/v1", g.key)
    chat = await client.chat.completions.create(model=MODEL, messages=[user("?")], logprobs=True)
    assert [(t.token, t.logprob) for t in chat.choices[0].logprobs.content] == [
        ("1", -0.5),
        ("4", -0.5),
        ("8", -0.5),
    ]
    text = await client.completions.create(model=MODEL, prompt="?", logprobs=0)
    assert (text.choices[0].logprobs.tokens, text.choices[0].logprobs.text_offset) == (
        ["1", "4", "8"],
        [0, 1, 2],
    )
    response = await client.responses.create(model=MODEL, input="?", include=["message.output_text.logprobs"])
    assert [t.token for t in response.output[0].content[0].logprobs] == ["1", "4", "8"]


async def test_tokens_are_counted_as_the_call_would_have_them(open_gateway, store):
    g = await open_gateway("ok")
    client = anthropic_client(g.gateway.base_url, g.key)
    messages = [user("hello")]
    counted = await client.messages.count_tokens(model=MODEL, messages=messages, system="Be brief.")
    assert store.turns == {}
    answered = await client.messages.create(model=MODEL, messages=messages, system="Be brief.", max_tokens=9)
    assert counted.input_tokens == answered.usage.input_tokens == len(store.turns["r1"][0].prompt_ids)
    status, body = await g.post({"model": MODEL, "input": "hello"}, path="/v1/responses/input_tokens")
    assert (status, body["object"]) == (200, "response.input_tokens")
    g = await open_gateway("", target=ProviderTarget(ScriptedProvider.from_texts(["ok"])))
    with pytest.raises(anthropic.BadRequestError, match="does not estimate"):
        await anthropic_client(g.gateway.base_url, g.key).messages.count_tokens(
            model=MODEL, messages=messages
        )


async def test_models_are_listed_for_both_kinds_of_clients(open_gateway):
    g = await open_gateway("ok")
    listed = await openai_client(g.gateway.base_url + "/v1", g.key).models.list()
    assert [model.id for model in listed.data] == [MODEL]
    listed = await anthropic_client(g.gateway.base_url, g.key).models.list()
    assert [(model.id, model.type) for model in listed.data] == [(MODEL, "model")]
    model = await openai_client(g.gateway.base_url + "/v1", g.key).models.retrieve(MODEL)
    assert (model.id, model.object) == (MODEL, "model")
    with pytest.raises(openai.NotFoundError):
        await openai_client(g.gateway.base_url + "/v1", g.key).models.retrieve("gpt-7")


async def test_cut_answers_say_so_in_each_dialect(open_gateway):
    g = await open_gateway("one two three four five")
    client = openai_client(g.gateway.base_url + "/v1", g.key)
    response = await client.responses.create(model=MODEL, input="count", max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    async with client.responses.stream(model=MODEL, input="count", max_output_tokens=2) as stream:
        kinds = [event.type async for event in stream]
    assert kinds[-1] == "response.incomplete"
    claude = anthropic_client(g.gateway.base_url, g.key)
    message = await claude.messages.create(model=MODEL, messages=[user("count")], max_tokens=2)
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    message = await claude.messages.create(
        model=MODEL, messages=[user("count")], max_tokens=99, stop_sequences=[" thr", " four"]
    )
    assert (message.stop_reason, message.stop_sequence, message.content[0].text) == (
        "stop_sequence", " thr", "one two",
    )  # fmt: skip
