"""One call is sampled once, however often it is asked for; two calls are sampled twice, however equal."""

import asyncio
import json

import openai
import pytest
from gateway_agents import anthropic_client, openai_client
from gateway_parts import user
from waiting import until

from osmosis_ai.gateway.call import Refusal
from osmosis_ai.gateway.retries import MAX_ATTEMPTS, WINDOW_SECONDS, Retries

BODY = {"model": "osmosis-rollout", "messages": [user("37 times 4?")]}
RETRY = {"x-stainless-retry-count": "1"}
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
BODIES = {
    "/v1/chat/completions": BODY,
    "/v1/completions": {"model": "osmosis-rollout", "prompt": "37 times 4?"},
    "/v1/responses": {"model": "osmosis-rollout", "input": "37 times 4?"},
    "/v1/messages": {**BODY, "max_tokens": 99},
}


def by_seed(prompt, sampling):
    return f"The answer is {sampling.seed}."


async def give_up(g, path="/v1/chat/completions", **more):
    """A client that sends its request, and closes the connection as soon as it is being worked on."""
    posting = asyncio.ensure_future(g.post({**BODIES[path], **more}, path=path))
    await until(lambda: g.engine.log if g.engine.hold is None else g.engine.asked)
    posting.cancel()
    await asyncio.gather(posting, return_exceptions=True)


# --- legitimate second calls


@pytest.mark.parametrize("path", PATHS)
async def test_an_equal_call_after_an_answer_is_a_new_sample(open_gateway, store, path):
    g = await open_gateway(by_seed)
    answers = [await g.post(BODIES[path], path=path) for _ in range(3)]
    assert [status for status, _ in answers] == [200, 200, 200]
    assert len({turn.response["content"] for turn in store.turns["r1"]}) == 3
    assert len({answer["id"] for _, answer in answers}) == 3


async def test_equal_calls_at_once_are_samples_of_their_own(open_gateway, store):
    g = await open_gateway(by_seed)
    g.engine.hold = asyncio.Event()
    posting = [asyncio.ensure_future(g.post(BODY)) for _ in range(4)]
    await until(lambda: len(g.engine.asked) == 4)
    g.engine.hold.set()
    answers = [answer["choices"][0]["message"]["content"] for _, answer in await asyncio.gather(*posting)]
    assert len(set(answers)) == len(store.turns["r1"]) == 4


# --- an answer that nobody got


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers", [{}, RETRY], ids=["equal", "retry"])
@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_that_was_recorded_and_not_delivered_is_sent_again(
    open_gateway, store, path, headers, stream
):
    g = await open_gateway(by_seed)
    store.delay_seconds = 0.2
    await give_up(g, path, stream=stream)  # sampled, and on its way to the disk
    await until(lambda: store.turns.get("r1"))
    store.delay_seconds = 0
    body = {**BODIES[path], "stream": stream}
    url = g.gateway.base_url + path
    async with g.session.post(url, json=body, headers=g.headers(**headers)) as response:
        text = await response.text()
    [turn] = store.turns["r1"]
    assert response.status == 200
    words = turn.response["content"].split()
    assert [word in text for word in words] == [True] * len(words)
    assert len(g.engine.log) == 1
    async with g.session.post(url, json=body, headers=g.headers()) as response:  # that one was delivered
        await response.read()
    assert len(g.engine.log) == len(store.turns["r1"]) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_was_given_up_is_stopped_and_sampled_with_the_same_seed_later(
    open_gateway, store, stream
):
    g = await open_gateway(by_seed)
    g.engine.hold, g.engine.hold_after = asyncio.Event(), 3
    await give_up(g, stream=stream)
    await until(lambda: g.engine.cancelled == 1)
    assert store.turns == {}
    g.engine.hold = None
    first, second = [await g.post({**BODY, "stream": False}) for _ in range(2)]
    g.key = g.gateway.admit("r2", seed=7)  # the same seed, without the trouble
    untroubled = [await g.post({**BODY, "stream": False}) for _ in range(2)]
    if not stream:  # an equal request
        assert [body["choices"] for _, body in untroubled] == [first[1]["choices"], second[1]["choices"]]
    assert len(g.engine.log) == 4


async def test_a_stream_that_broke_half_way_is_made_again_word_by_word(open_gateway, store):
    g = await open_gateway(by_seed)
    g.engine.hold, g.engine.hold_after = asyncio.Event(), 6
    url, body = g.gateway.base_url + "/v1/chat/completions", {**BODY, "stream": True}

    def text_of(raw):
        events = [json.loads(line[6:]) for line in raw.split("\n\n") if line.startswith("data: {")]
        return "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])

    async with g.session.post(url, json=body, headers=g.headers()) as response:
        raw = ""
        while not (seen := text_of(raw)):
            raw += (await response.content.readany()).decode()
        response.close()
    await until(lambda: g.engine.cancelled == 1)
    assert store.turns == {}  # never half-recorded
    g.engine.hold = None
    async with g.session.post(url, json=body, headers=g.headers(**RETRY)) as response:
        whole = text_of(await response.text())
    assert whole.startswith(seen)
    assert [turn.response["content"] for turn in store.turns["r1"]] == [whole]


async def test_a_call_whose_engine_failed_keeps_its_seed(open_gateway):
    seeds = []

    def answer(prompt, sampling):
        seeds.append(sampling.seed)
        if len(seeds) == 1:
            raise RuntimeError("a passing failure")
        return "fine"

    g = await open_gateway(answer)
    assert [(await g.post(BODY))[0] for _ in range(3)] == [500, 200, 200]
    assert seeds[0] == seeds[1] != seeds[2]


# --- what a client says of itself


async def test_a_retry_gets_the_answer_that_was_sent_unless_a_later_call_proves_that_it_arrived(
    open_gateway, store
):
    g = await open_gateway(by_seed)
    _, first = await g.post(BODY)
    _, again = await g.post(BODY, headers=g.headers(**RETRY))
    assert (again["id"], again["choices"]) == (first["id"], first["choices"])
    assert len(g.engine.log) == 1
    await g.say(*BODY["messages"], first["choices"][0]["message"], user("Sure?"))
    _, new = await g.post(BODY, headers=g.headers(**RETRY))
    assert new["id"] != first["id"]
    assert [turn.branch_reason for turn in store.turns["r1"]] == [None, None, "resampled"]


async def test_a_retry_of_a_call_that_is_being_worked_on_joins_it(open_gateway, store):
    g = await open_gateway(by_seed)
    g.engine.hold, g.engine.hold_after = asyncio.Event(), 2
    first = asyncio.ensure_future(g.post(BODY))
    await until(lambda: g.engine.asked)
    second = asyncio.ensure_future(g.post(BODY, headers=g.headers(**RETRY)))
    await asyncio.sleep(0.05)
    first.cancel()  # the one that began it goes away; the work goes on for the other
    await asyncio.sleep(0.05)
    assert g.engine.cancelled == 0
    g.engine.hold.set()
    status, answer = await second
    assert (status, len(store.turns["r1"]), len(g.engine.log)) == (200, 1, 1)
    assert answer["choices"][0]["message"]["content"] == store.turns["r1"][0].response["content"]


async def test_an_idempotency_key_is_one_call(open_gateway, store):
    g = await open_gateway(by_seed)
    key = {"idempotency-key": "k1"}
    _, first = await g.post(BODY, headers=g.headers(**key))
    _, again = await g.post(BODY, headers=g.headers(**key))
    assert first["id"] == again["id"]
    status, body = await g.post({**BODY, "temperature": 0.5}, headers=g.headers(**key))
    assert (status, body["error"]["code"]) == (422, "idempotency_key_reused")
    _, other = await g.post(BODY, headers=g.headers("elsewhere", **key))
    _, new = await g.post(BODY, headers=g.headers(**{"idempotency-key": "k2"}))
    assert len({first["id"], other["id"], new["id"]}) == 3
    g.key = g.gateway.admit("r2", seed=7)
    _, foreign = await g.post(BODY, headers=g.headers(**key))
    assert foreign["id"] != first["id"]


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_an_official_client_that_lost_its_patience_is_answered_once(open_gateway, store, wire):
    g = await open_gateway(by_seed)
    store.delay_seconds = 0.6  # the first try ends while its answer is being written
    if wire == "openai":
        client = openai_client(g.gateway.base_url + "/v1", g.key).with_options(timeout=0.4, max_retries=5)
        answer = await client.chat.completions.create(**BODY)
        text = answer.choices[0].message.content
    else:
        client = anthropic_client(g.gateway.base_url, g.key).with_options(timeout=0.4, max_retries=5)
        answer = await client.messages.create(**BODY, max_tokens=99)
        text = answer.content[0].text
    assert [turn.response["content"] for turn in store.turns["r1"]] == [text]
    assert len(g.engine.log) == 1


async def test_a_retry_after_the_end_of_the_rollout_is_refused(open_gateway):
    g = await open_gateway(by_seed)
    await g.post(BODY)
    await g.gateway.seal("r1")
    with pytest.raises(openai.ConflictError):
        client = openai_client(g.gateway.base_url + "/v1", g.key)
        await client.chat.completions.create(**BODY, extra_headers=RETRY)


async def test_a_lost_answer_is_replayed_even_when_the_turns_are_used_up(open_gateway, store):
    g = await open_gateway(by_seed, max_turns=1)
    store.delay_seconds = 0.2
    await give_up(g)
    await until(lambda: store.turns.get("r1"))
    assert [(await g.post(BODY))[0] for _ in range(2)] == [200, 403]


async def test_several_answers_of_one_call_are_made_up_for_where_they_are_missing(open_gateway, store):
    g = await open_gateway(by_seed)
    appended = store.append_turn

    async def full_after_one(turn, note, native):
        store.broken = turn.ordinal == 1
        await appended(turn, note, native)

    store.append_turn = full_after_one
    assert (await g.post({**BODY, "n": 3}))[0] == 503
    store.append_turn, store.broken = appended, False
    _, answer = await g.post({**BODY, "n": 3})
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [turn.response["content"] for turn in store.turns["r1"]] == texts
    assert len(set(texts)) == 3


# --- what is known, and for how long


def test_what_is_old_or_too_much_is_forgotten():
    now = [0.0]
    retries = Retries(lambda: now[0])
    first = retries.begin("c1", b"request", [1], {}, "main")
    assert retries.find(b"request", {}, "main") is first
    now[0] = WINDOW_SECONDS
    assert retries.find(b"request", {}, "main") is None
    for number in range(MAX_ATTEMPTS + 5):
        retries.begin(f"c{number}", b"%d" % number, [1], {}, "main")
    assert retries.find(b"4", {}, "main") is None
    assert retries.find(b"5", {}, "main").call_id == "c5"
    assert len(retries._by_request) == MAX_ATTEMPTS


def test_a_key_of_one_call_does_not_fit_another():
    retries = Retries()
    headers = {b"idempotency-key": b"k"}
    attempt = retries.begin("c1", b"request", [1], headers, "main")
    assert retries.find(b"request", headers, "main") is attempt
    with pytest.raises(Refusal, match="idempotency-key was sent before with another request"):
        retries.find(b"another", headers, "main")
    assert retries.find(b"another", headers, "other sample") is None
