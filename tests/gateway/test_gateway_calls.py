"""Calls through a real server: what agents get, and what is recorded of it."""

import asyncio

from gateway_parts import ADD, CALL_2_3, chunks, streamed_text, user
from waiting import until

from osmosis_ai.errors import EngineError
from osmosis_ai.gateway.app import SamplingDefaults


async def test_a_call_is_answered_and_recorded_token_by_token(open_gateway, store, renderer):
    g = await open_gateway("The answer is 148.")
    status, answer = await g.chat(user("What is 37 times 4?"), sample="math")
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "The answer is 148."}
    assert answer["choices"][0]["finish_reason"] == "stop"
    [turn] = store.turns["r1"]
    [(prompt_ids, sampling, completion)] = g.engine.log
    assert turn.prompt_ids == prompt_ids
    assert renderer.decode(prompt_ids) == (
        "<|im_start|>user\nWhat is 37 times 4?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (turn.completion_ids, turn.logprobs, turn.policy_version) == (
        completion.token_ids, completion.logprobs, 3,
    )  # fmt: skip
    assert (turn.sample_id, turn.ordinal, turn.parent, turn.branch_reason) == ("math", 0, None, None)
    assert answer["usage"] == {
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": len(completion.token_ids),
        "total_tokens": len(prompt_ids) + len(completion.token_ids),
    }
    assert turn.sampling["temperature"] == sampling.temperature == 1.0


async def test_a_tool_call_comes_with_an_id_and_the_next_call_continues_its_tokens(open_gateway, store):
    g = await open_gateway(lambda prompt, _: "5" if "tool" in prompt.split("</tool_call>")[-1] else CALL_2_3)
    question = user("2 plus 3?")
    call = await g.say(question, tools=[ADD])
    assert call["content"] is None
    [tool_call] = call["tool_calls"]
    assert tool_call["function"] == {"name": "add", "arguments": '{"a": 2, "b": 3}'}
    assert tool_call["id"].startswith("call_0_0_")
    result = {"role": "tool", "tool_call_id": tool_call["id"], "content": "5"}
    assert (await g.say(question, call, result, tools=[ADD]))["content"] == "5"
    first, second = store.turns["r1"]
    assert first.finish_reason == "tool_calls"
    assert second.parent == 0
    known = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(known)] == known


async def test_the_same_rollout_seed_gives_the_same_seeds_and_call_ids(open_gateway, store):
    g = await open_gateway(CALL_2_3)
    other_key = g.gateway.admit("r2", seed=7)
    first = await g.say(user("2 plus 3?"), tools=[ADD])
    g.key = other_key
    assert await g.say(user("2 plus 3?"), tools=[ADD]) == first
    await g.say(user("2 plus 3?"), tools=[ADD])
    seeds = [sampling.seed for _, sampling, _ in g.engine.log]
    assert seeds[0] == seeds[1] != seeds[2]


async def test_a_stream_says_the_same_as_a_plain_answer(open_gateway):
    g = await open_gateway("Zähle: 😀 eins, zwei.")
    events = await g.stream(user("Zähle!"))
    parts = chunks(events)
    assert events[-1] == "data: [DONE]"
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert streamed_text(events) == "Zähle: 😀 eins, zwei."
    assert len(parts) > 5
    assert parts[-2]["choices"][0]["finish_reason"] == "stop"
    _, plain = await g.chat(user("Zähle!"))
    assert parts[-1]["usage"] == plain["usage"]


async def test_the_first_text_of_a_stream_is_there_before_the_engine_goes_on(open_gateway):
    g = await open_gateway("one two three")
    g.engine.hold, g.engine.hold_after = asyncio.Event(), 2
    body = {"model": "osmosis-rollout", "messages": [user("count")], "stream": True}
    url = g.gateway.base_url + "/v1/chat/completions"
    async with g.session.post(url, json=body, headers=g.headers()) as response:
        received = ""
        while not streamed_text(received.split("\n\n")):
            received += (await asyncio.wait_for(response.content.readany(), 60)).decode()
        assert g.engine.log == []
        g.engine.hold.set()
        received += await response.text()
    assert streamed_text(received.strip().split("\n\n")) == "one two three"


async def test_a_stream_holds_tool_calls_back_and_sends_them_whole(open_gateway):
    g = await open_gateway("Sure. " + CALL_2_3)
    events = await g.stream(user("2 plus 3?"), tools=[ADD])
    assert streamed_text(events) == "Sure. "
    deltas = [choice["delta"] for chunk in chunks(events) for choice in chunk["choices"]]
    [calls] = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["index"] == 0
    assert calls[0]["function"] == {"name": "add", "arguments": '{"a": 2, "b": 3}'}


async def test_a_malformed_tool_call_is_delivered_and_counted(open_gateway, store, renderer):
    broken = '<tool_call>{"name": "add", "arguments": {"a": 2,}}</tool_call>'
    g = await open_gateway(broken)
    message = await g.say(user("2 plus 3?"), tools=[ADD])
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 2,}'}
    [turn] = store.turns["r1"]
    assert turn.malformed_tool_calls == 1
    assert renderer.decode(turn.completion_ids) == broken + "<|im_end|>"


async def test_a_malformed_call_that_the_framework_mended_is_still_the_same_call(open_gateway, store):
    g = await open_gateway('<tool_call>{"name": "add", "arguments": {"a": 2,}}</tool_call>')
    message = await g.say(user("2 plus 3?"), tools=[ADD])
    [call] = message["tool_calls"]
    mended = {**message, "tool_calls": [{**call, "function": {"name": "add", "arguments": "{}"}}]}
    error = {"role": "tool", "tool_call_id": call["id"], "content": "Error: arguments are not JSON"}
    await g.say(user("2 plus 3?"), mended, error, tools=[ADD])
    await g.say(user("2 plus 3?"), mended, error, await g.say(user("x")), tools=[ADD], sample="other")
    first, second, *_ = store.turns["r1"]
    assert second.parent == 0
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids


async def test_tool_choice_none_leaves_text_as_text(open_gateway):
    g = await open_gateway(CALL_2_3)
    message = await g.say(user("2 plus 3?"), tools=[ADD], tool_choice="none")
    assert message == {"role": "assistant", "content": CALL_2_3}


async def test_logprobs_are_those_of_the_sampled_tokens(open_gateway):
    g = await open_gateway("148")
    _, answer = await g.chat(user("37 times 4?"), logprobs=True)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [(token["token"], token["logprob"], token["bytes"]) for token in content] == [
        ("1", -0.5, [49]), ("4", -0.5, [52]), ("8", -0.5, [56]),
    ]  # fmt: skip


async def test_a_stop_that_is_a_special_token_ends_the_engine_s_work(open_gateway, store):
    g = await open_gateway("one<|im_start|>")
    message = await g.say(user("count"), stop=["<|im_start|>"])
    assert g.engine.log[0][1].stop_ids == (g.engine.renderer.special_id("<|im_start|>"),)
    assert message["content"].startswith("one")
    assert store.turns["r1"][0].sampling["stop"] == ["<|im_start|>"]


async def test_concurrent_calls_with_one_history_are_two_branches(open_gateway, store):
    g = await open_gateway(lambda prompt, sampling: str(sampling.seed))
    first = await g.say(user("go"))
    left, right = await asyncio.gather(
        g.say(user("go"), first, user("left")), g.say(user("go"), first, user("left"))
    )
    assert left != right
    assert [turn.parent for turn in store.turns["r1"]] == [None, 0, 0]
    assert [turn.branch_reason for turn in store.turns["r1"]] == [None, None, None]
    await g.say(user("go"), first, user("left"), right, user("on"))
    parent = store.turns["r1"][3].parent
    assert store.turns["r1"][parent].response["content"] == right["content"]


async def test_max_tokens_is_bounded_by_the_run_and_by_the_context(open_gateway, store):
    g = await open_gateway("one two three four", sampling=SamplingDefaults(max_tokens=50), max_context=100)
    await g.say(user("count"), max_tokens=4096)
    await g.say(user("count"), max_tokens=3)
    await g.say(user("count"))
    await g.say(user("x" * 70))
    prompt = len(g.engine.log[3][0])
    assert [turn.sampling["max_tokens"] for turn in store.turns["r1"]] == [50, 3, 50, 100 - prompt]
    assert store.turns["r1"][1].finish_reason == "length"
    status, answer = await g.chat(user("y" * 200))
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "context is 100" in answer["error"]["message"]


async def test_an_answer_cut_short_is_closed_by_tokens_that_nobody_sampled(open_gateway, store, renderer):
    g = await open_gateway("one two three four")
    cut = await g.say(user("count"), max_tokens=2)
    await g.say(user("count"), cut, user("go on"))
    first, second = store.turns["r1"]
    known = first.prompt_ids + first.completion_ids
    assert second.parent == 0
    assert renderer.decode(second.prompt_ids[len(known) :]) == (
        "<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_an_engine_that_fails_is_a_503_and_a_note_that_a_later_answer_clears(open_gateway, store):
    failing = [True]

    def answer(prompt, sampling):
        if failing[0]:
            raise EngineError("out of memory")
        return "fine"

    g = await open_gateway(answer)
    status, body = await g.chat(user("hello"))
    assert status == 503
    assert body["error"]["message"] == "the engine failed: out of memory"
    assert g.gateway.counters("r1").failure.message == "the engine failed: out of memory"
    failing[0] = False
    assert (await g.say(user("hello")))["content"] == "fine"
    assert g.gateway.counters("r1").failure is None
    assert g.gateway.counters("r1").failed == 1
    assert len(store.turns["r1"]) == 1


async def test_a_stream_that_fails_before_it_begins_has_a_status_and_later_an_error_event(open_gateway):
    g = await open_gateway("one two three", heartbeat_seconds=0.02)
    g.engine.answer = lambda *_: (_ for _ in ()).throw(EngineError("gone"))
    status, body = await g.chat(user("count"), stream=True)
    assert (status, body["error"]["code"]) == (503, "engine_error")
    g.engine.answer = lambda *_: "one two three"
    g.engine.hold, g.engine.hold_after = asyncio.Event(), 2

    async def seal_soon():
        await until(lambda: len(g.engine.asked) == 2)
        await asyncio.sleep(0.1)  # some heartbeats
        await g.gateway.seal("r1")

    events, _ = await asyncio.gather(g.stream(user("count")), seal_soon())
    assert ": ping" in events
    assert events[-1].startswith("event: error\ndata: ")
    assert "data: [DONE]" not in events


async def test_a_turn_that_cannot_be_stored_is_not_answered(open_gateway, store):
    g = await open_gateway("148")
    store.broken = True
    status, body = await g.chat(user("37 times 4?"))
    assert (status, body["error"]["code"]) == (503, "store_error")
    store.broken = False
    await g.say(user("37 times 4?"))
    assert [turn.ordinal for turn in store.turns["r1"]] == [0]


async def test_a_client_that_goes_away_stops_the_engine_and_leaves_nothing(open_gateway, store):
    g = await open_gateway("148")
    g.engine.hold = asyncio.Event()
    for number, stream in enumerate((False, True), 1):
        calling = asyncio.ensure_future(g.chat(user("37 times 4?"), stream=stream))
        await until(lambda: len(g.engine.asked) == number)
        calling.cancel()
        await until(lambda: g.engine.cancelled == len(g.engine.asked))
    assert g.engine.cancelled == 2
    assert store.turns == {}
    assert g.gateway.counters("r1").abandoned == 2
    assert await g.gateway.seal("r1") == []


async def test_seal_waits_for_a_turn_that_is_being_recorded(open_gateway, store):
    g = await open_gateway("148")
    store.delay_seconds = 0.1
    calling = asyncio.ensure_future(g.chat(user("37 times 4?")))
    await until(lambda: g.engine.log)
    turns = await g.gateway.seal("r1")
    assert turns == store.turns["r1"]
    assert len(turns) == 1
    assert await g.gateway.seal("r1") == turns
    status, body = await calling  # its turn belongs to the rollout, so its answer is given
    assert (status, body["choices"][0]["message"]["content"]) == (200, "148")


async def test_several_answers_count_as_so_many_turns_before_they_are_sampled(open_gateway):
    g = await open_gateway("148", max_turns=3)
    status, body = await g.chat(user("37 times 4?"), n=4)
    assert (status, body["error"]["code"]) == (403, "turn_limit_reached")
    assert "may take 3 turns and has 3 left, fewer than the 4 asked for" in body["error"]["message"]
    assert g.engine.log == []
    assert len((await g.chat(user("37 times 4?"), n=2))[1]["choices"]) == 2
    at_once = await asyncio.gather(*(g.chat(user("37 times 4?")) for _ in range(2)))
    assert sorted(status for status, _ in at_once) == [200, 403]
