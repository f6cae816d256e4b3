"""A gateway that forgets everything between two calls, beside one that does not: nobody sees a difference."""

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest
from gateway_agents import (
    ANSWERS,
    REACT_ANSWERS,
    anthropic_messages,
    openai_chat,
    openai_chat_streamed,
    openai_completions,
    openai_responses_by_name,
    strands_openai,
)
from gateway_parts import ADD, TextEngine, in_turn, info, user
from waiting import until

from osmosis_ai.errors import StoreError
from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.call import SamplingDefaults
from osmosis_ai.gateway.capture import derive_seed
from osmosis_ai.gateway.identity import new_key
from osmosis_ai.gateway.targets import PolicyTarget, ProviderTarget
from osmosis_ai.gateway.terms import Terms
from osmosis_ai.providers.scripted import ScriptedProvider
from osmosis_ai.store.base import AdmissionRecord, RolloutFilter, RunRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Rollout, Status

BODY = {"model": "osmosis-rollout", "messages": [user("37 times 4?")]}
RETRY = {"x-stainless-retry-count": "1"}
PATH = "/v1/chat/completions"


class Forgetful(Gateway):
    """Each call meets a gateway that was started just now."""

    def __init__(self, target, store):
        super().__init__(target, store)
        self.target, self.store = target, store

    def handle(self, request, connection):
        Gateway(self.target, self.store, restores="gateway").handle(request, connection)


@pytest.fixture
async def life(tmp_path, renderer):
    """`await life(kind, target)` opens rollout r1 at a gateway of that kind."""
    opened = []

    async def start(kind, target, terms=None):
        store = SqliteStore(tmp_path / f"{len(opened)}.db")
        await store.create_run(RunRecord("run", "train", "running", 0.0, {}, {}))
        await store.start_rollout(Rollout("r1", "run", 0, "g0", 0))
        key, digest = new_key()
        terms = terms or Terms(seed=7)
        await store.admissions.add(AdmissionRecord("r1", digest, "gateway", terms.as_json()))
        life = Life(target, store, kind(target, store), key)
        await life.gateway.start()
        opened.append(life)
        return life

    yield start
    for one in opened:
        await one.session.close()
        await one.gateway.stop()
        await one.store.close()


class Life:
    def __init__(self, target, store, gateway, key):
        self.target, self.store, self.gateway, self.key = target, store, gateway, key
        self.session = aiohttp.ClientSession()

    async def post(self, body, path=PATH, **headers):
        headers = {"authorization": f"Bearer {self.key}", **headers}
        async with self.session.post(self.gateway.base_url + path, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def turns(self):
        [rollout] = await self.store.rollouts(RolloutFilter("run"))
        return [replace(turn, latency_ms=0) for turn in rollout.turns]

    def dies(self):
        """What was in memory is gone; the next call finds what is on the disk."""
        fresh = Gateway(self.target, self.store, restores="gateway")
        self.gateway._rollouts, self.gateway._restoring = fresh._rollouts, fresh._restoring


def remembering(target, store):
    return Gateway(target, store, restores="gateway")


def policy(renderer, answer):
    return PolicyTarget(TextEngine(answer, renderer), info(4096, renderer.end_ids), renderer)


def by_seed(prompt, sampling):
    return f"The answer is {sampling.seed}."


AGENTS = {
    **dict.fromkeys(
        [openai_chat, openai_chat_streamed, openai_responses_by_name, anthropic_messages, strands_openai],
        in_turn(ANSWERS),
    ),
    openai_completions: in_turn(REACT_ANSWERS, "Thought:"),
}


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.__name__)
async def test_an_agent_s_turns_are_the_same_whether_or_not_the_gateway_forgets(life, renderer, agent):
    turns = []
    for kind in (remembering, Forgetful):
        one = await life(kind, policy(renderer, AGENTS[agent]))
        await agent(one.gateway.base_url + "/v1", one.key)
        turns.append(await one.turns())
    assert turns[0] == turns[1]
    assert [(turn.parent, turn.branch_reason) for turn in turns[1]] == [
        (None if i == 0 else i - 1, None) for i in range(len(turns[1]))
    ]


async def test_the_same_with_a_provider(life):
    texts = [
        "one",
        {"content": "", "tool_calls": [{"function": {"name": "add", "arguments": "{bad"}}]},
        "three",
    ]
    turns = []
    for kind in (remembering, Forgetful):
        one = await life(kind, ProviderTarget(ScriptedProvider.from_texts(texts)))
        messages = [user("go")]
        for _ in texts:
            _, answer = await one.post({**BODY, "messages": messages})
            messages = [*messages, answer["choices"][0]["message"], user("on")]
        turns.append(await one.turns())
    assert turns[0] == turns[1]
    assert [turn.parent for turn in turns[1]] == [None, 0, 1]


# --- retries


CALLS_OF_BRANCHES = [
    [user("a")],
    [user("a"), 0, user("b")],
    [user("another a"), 0, user("b")],  # an edited history
    [user("a"), 0, user("c")],  # back to the first answer
    "Question: 2 + 3?\nAnswer:",  # a raw text, the newest of the sample
    [user("a"), 0, user("b"), 1, user("d")],  # on from the second answer
    [user("a")],  # once more
    [user("a"), 0, user("c"), 3, user("e")],
]


async def test_branches_go_on_with_the_same_tokens_whether_or_not_the_gateway_forgets(life, renderer):
    turns = []
    for kind in (remembering, Forgetful):
        one, answers = await life(kind, policy(renderer, by_seed)), []
        for call in CALLS_OF_BRANCHES:
            if isinstance(call, str):
                body = {"model": "osmosis-rollout", "prompt": call}
                status, answer = await one.post(body, "/v1/completions")
            else:
                messages = [answers[part] if isinstance(part, int) else part for part in call]
                status, answer = await one.post({**BODY, "messages": messages})
            assert status == 200, answer
            answers.append(answer["choices"][0].get("message"))
        turns.append(await one.turns())
    assert turns[0] == turns[1]
    assert [turn.parent for turn in turns[1]] == [None, 0, None, 0, None, 1, None, 3]
    prompts = [prompt for prompt, _, _ in one.target._engine.log]
    assert [turn.prompt_ids for turn in turns[1]] == prompts


async def test_of_several_answers_the_missing_ones_are_made_after_a_restart(life, renderer):
    one = await life(remembering, policy(renderer, by_seed))
    append, appended = one.store.append_turn, []

    async def dies_after_one(turn, note, native):
        if appended:
            raise StoreError("the process died")
        appended.append(turn)
        await append(turn, note, native)

    one.store.append_turn = dies_after_one
    body = {**BODY, "n": 3}
    assert (await one.post(body))[0] == 503
    one.store.append_turn = append
    one.dies()
    status, answer = await one.post(body)
    assert (status, len(answer["choices"])) == (200, 3)
    turns = await one.turns()
    assert [turn.sampling["seed"] for turn in turns] == [derive_seed(7, "main", i) for i in range(3)]
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == [turn.response["content"] for turn in turns]


@pytest.mark.parametrize("headers", [{}, RETRY], ids=["equal", "retry"])
async def test_an_answer_that_may_have_been_lost_with_the_gateway_is_sent_again(life, renderer, headers):
    one = await life(remembering, policy(renderer, by_seed))
    asked = {**BODY, "n": 2, "logprobs": True}
    _, first = await one.post(asked)
    one.dies()
    _, second = await one.post(asked, **headers)
    assert {**second, "created": 0} == {**first, "created": 0}
    assert len(await one.turns()) == 2


async def test_an_answer_that_had_arrived_is_not_sent_again_to_a_second_candidate(life, renderer):
    one = await life(remembering, policy(renderer, by_seed))
    _, first = await one.post(BODY)
    await one.post({**BODY, "messages": [user("something else")]})  # written behind the arrival of the first
    one.dies()
    _, candidate = await one.post(BODY)
    assert candidate["choices"][0]["message"] != first["choices"][0]["message"]
    assert len(await one.turns()) == 3


async def test_an_idempotency_key_outlives_the_gateway(life, renderer):
    one = await life(remembering, policy(renderer, by_seed))
    headers = {"idempotency-key": "k"}
    _, first = await one.post(BODY, **headers)
    one.dies()
    assert (await one.post(BODY, **headers))[1]["id"] == first["id"]
    assert (await one.post({**BODY, "seed": 1}, **headers))[0] == 422
    assert len(await one.turns()) == 1


async def test_a_call_that_the_gateway_took_with_it_is_sampled_with_its_seed(life, renderer):
    target = policy(renderer, by_seed)
    one = await life(remembering, target)
    await one.post(BODY)
    target._engine.hold = asyncio.Event()
    asking = asyncio.ensure_future(one.post({**BODY, "messages": [user("second")]}))
    await until(lambda: len(target._engine.asked) == 2)
    one.dies()
    asking.cancel()
    target._engine.hold = None
    await one.post({**BODY, "messages": [user("second")]}, **RETRY)
    seeds = [sampling.seed for sampling in target._engine.asked]
    assert seeds[1] == seeds[2] != seeds[0]
    assert [turn.sampling["seed"] for turn in await one.turns()] == [seeds[0], seeds[2]]


# --- terms


async def test_limits_expiry_tools_and_the_end_outlive_the_gateway(life, renderer):
    terms = Terms(seed=7, sampling=SamplingDefaults(temperature=0.5), max_turns=2, awaits_tools=True)
    one = await life(Forgetful, policy(renderer, by_seed), terms)
    await one.store.admissions.offer_tools("r1", [ADD])
    statuses = [(await one.post({**BODY, "messages": [user(str(i))]}))[0] for i in range(3)]
    assert statuses == [200, 200, 403]
    turns = await one.turns()
    assert [(turn.sampling["temperature"], turn.tools) for turn in turns] == [(0.5, [ADD])] * 2
    await one.store.admissions.seal("r1")
    status, answer = await one.post(BODY)
    assert (status, answer["error"]["code"]) == (409, "rollout_ended")


async def test_a_rollout_that_has_ended_is_not_taken_up(life, renderer):
    one = await life(Forgetful, policy(renderer, by_seed))
    await one.store.end_rollout("r1", Status.INFRASTRUCTURE, "", [], 0.0)
    assert (await one.post(BODY))[0] == 409


async def test_a_key_expires_by_the_clock_on_the_wall(life, renderer):
    one = await life(Forgetful, policy(renderer, by_seed), Terms(seed=7, expires_at=1.0))
    status, answer = await one.post(BODY)
    assert (status, answer["error"]["code"]) == (401, "key_expired")


async def test_a_rollout_of_another_gateway_is_a_stranger_s(life, renderer):
    one = await life(remembering, policy(renderer, by_seed))
    other = Gateway(one.target, one.store, restores="another")
    await other.start()
    one.gateway, mine = other, one.gateway
    assert (await one.post(BODY))[0] == 401
    await other.stop()
    one.gateway = mine
    assert (await one.post(BODY))[0] == 200


async def test_no_key_is_in_the_database(life, renderer, tmp_path):
    one = await life(remembering, policy(renderer, by_seed))
    await one.post(BODY)
    assert one.key.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("0.db*"))
    [(turn, note)] = await one.store.admissions.answered("r1")
    assert sorted(note) == ["began", "chain", "id", "request", "seeds"]
    assert (note["id"], note["seeds"]) == ("chatcmpl-r1-1", [turn.sampling["seed"]])
    assert len(json.dumps(note)) < 200
