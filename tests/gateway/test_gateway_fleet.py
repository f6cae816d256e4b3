"""Several gateway processes on one store, killed at work: agents go on, nothing is lost and nothing twice."""

import asyncio
import contextlib
import os
import random
import signal
import sys

import aiohttp
import httpx
import openai
import pytest
from fleet_worker import recipe
from gateway_parts import ADD, user

from osmosis_ai.errors import InfrastructureError
from osmosis_ai.gateway import process
from osmosis_ai.gateway.capture import derive_seed
from osmosis_ai.gateway.fleet import Fleet
from osmosis_ai.gateway.process import Recipe
from osmosis_ai.gateway.terms import Terms
from osmosis_ai.store.base import RunRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.train.samples import training_samples
from osmosis_ai.types import Rollout

AGENTS = 8
LENGTH = 20  # turns of a conversation
# A process that is ready in its first life, and ends at once in every other.
ONCE = """
import os, socket, sys, time
parent = socket.socket(fileno=int(sys.argv[1]))
os.close(os.open("{flag}", os.O_CREAT | os.O_EXCL))
parent.recv(65536)
parent.send(b'{{"ready": true}}' + bytes([10]))
time.sleep(60)
"""
BODY = {"model": "osmosis-rollout", "messages": [user("go")]}


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "osmosis.db")
    await store.create_run(RunRecord("run", "train", "running", 0.0, {}, {}))
    yield store
    await store.close()


@pytest.fixture
async def open_fleet(store, tmp_path, folder):
    """`await open_fleet("provider", 2)` starts that many processes."""
    opened = []

    async def start(kind, count):
        fleet = Fleet(store, recipe(tmp_path, kind, folder), count)
        opened.append(fleet)
        await fleet.start()
        return fleet

    yield start
    for fleet in opened:
        await fleet.stop()


async def admitted(fleet, store, number, **terms):
    await store.start_rollout(Rollout(f"r{number}", "run", number, f"g{number}", 0))
    return await fleet.admit(f"r{number}", Terms(seed=number, **terms))


async def post(access, body=BODY):
    headers = {"authorization": f"Bearer {access.key}"}
    url = access.base_url + "/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as response:
        return response.status, await response.json()


# --- killed under load


async def agent(access, over):
    """Talks until `over`, one conversation after the other, by an unmodified client; all that it has got."""
    client = openai.AsyncOpenAI(base_url=access.base_url + "/v1", api_key=access.key, max_retries=8)
    got, messages = [], []  # (sample id, text)
    while not over.is_set() or len(got) < 3:
        sample, position = f"c{len(got) // LENGTH}", len(got) % LENGTH
        messages = messages if position else [user("go")]
        asked = {"messages": messages, "extra_headers": {"x-sample-id": sample}}
        if position % 2:
            text = await streamed(client, asked)
        else:
            made = await client.chat.completions.create(model="osmosis-rollout", **asked)
            text = made.choices[0].message.content
        got.append((sample, text))
        messages = [*messages, {"role": "assistant", "content": text}, user("on")]
    await client.close()
    return got


async def streamed(client, asked):
    """The client retries until a stream begins; of one that breaks, its user asks again."""
    for _ in range(8):
        try:
            made = await client.chat.completions.create(model="osmosis-rollout", stream=True, **asked)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in made if chunk.choices])
        except (openai.APIConnectionError, httpx.TransportError):
            continue
    raise AssertionError("no stream came to its end")


def kill(one):
    with contextlib.suppress(ProcessLookupError):  # it is dead already, and has not been missed
        if one.pid is not None:
            os.kill(one.pid, signal.SIGKILL)


async def kill_now_and_then(fleet, kills, chance):
    for _ in range(kills):
        await asyncio.sleep(chance.uniform(0.15, 0.6))
        chosen = chance.choice(fleet.processes)
        while chosen.pid is None:  # noqa: ASYNC110  nobody is told
            await asyncio.sleep(0.01)
        kill(chosen)


async def kill_under_load(fleet, store, kills):
    """What each agent has got, and the turns of its rollout."""
    accesses = [await admitted(fleet, store, number) for number in range(AGENTS)]
    over = asyncio.Event()
    talking = [asyncio.create_task(agent(access, over)) for access in accesses]
    await kill_now_and_then(fleet, kills, random.Random(kills))
    over.set()
    got = await asyncio.gather(*talking)
    return got, [await fleet.seal(f"r{number}") for number in range(AGENTS)]


def assert_nothing_lost_and_nothing_twice(got, turns, number):
    assert [(turn.sample_id, turn.response["content"]) for turn in turns] == got
    assert [(turn.ordinal, turn.parent, turn.branch_reason) for turn in turns] == [
        (i, i - 1 if i % LENGTH else None, None) for i in range(len(turns))
    ]
    # What was being sampled when its process was killed is sampled again with the same seed.
    seeds = [derive_seed(number, sample, i % LENGTH) for i, (sample, _) in enumerate(got)]
    assert [turn.sampling["seed"] for turn in turns] == seeds


def assert_one_exact_training_sample_a_conversation(turns):
    samples = {turn.sample_id for turn in turns}
    rollout = Rollout("r", "run", 0, "g", 0, turns=turns)
    trained = {one.sample_id: one for one in training_samples(rollout, dict.fromkeys(samples, 1.0))}
    assert trained.keys() == samples
    for name, one in trained.items():
        sampled = [t for t, mask in zip(one.token_ids, one.loss_mask, strict=True) if mask]
        assert sampled == [t for turn in turns if turn.sample_id == name for t in turn.completion_ids]


# A process with a policy's tokenizer takes seconds to start: that it goes on as exactly is in
# test_gateway_restoring.py too, without a kill.
KILLS = [pytest.param("provider", 4)]
KILLS += [pytest.param(*many, marks=pytest.mark.slow) for many in (("provider", 100), ("policy", 25))]


@pytest.mark.parametrize(("kind", "kills"), KILLS)
async def test_agents_whose_gateway_is_killed_go_on_and_nothing_is_lost_or_twice(
    open_fleet, store, kind, kills
):
    fleet = await open_fleet(kind, 2)
    got, turns = await kill_under_load(fleet, store, kills)
    assert sum(one.restarts for one in fleet.processes) >= 0.9 * kills
    for number in range(AGENTS):
        assert_nothing_lost_and_nothing_twice(got[number], turns[number], number)
        if kind == "policy":
            assert_one_exact_training_sample_a_conversation(turns[number])


# --- the seam


async def test_rollouts_are_spread_over_the_processes_and_each_has_its_own_url(open_fleet, store):
    fleet = await open_fleet("provider", 2)
    accesses = await asyncio.gather(*(admitted(fleet, store, number) for number in range(4)))
    assert [access.base_url for access in accesses] == [p.base_url for p in fleet.processes] * 2
    assert [(await post(access))[0] for access in accesses] == [200] * 4
    wrong = await post(type(accesses[0])(accesses[1].base_url, accesses[0].key))
    assert (wrong[0], wrong[1]["error"]["code"]) == (401, "invalid_api_key")
    [turn] = await fleet.seal("r0")
    assert turn.rollout_id == "r0"
    assert fleet.counters("r0").answered == 1
    assert (await post(accesses[0]))[0] == 409
    assert await fleet.seal("r0") == [turn]
    assert fleet.provider_reports == {"1/2": {"in_flight": 0}}


async def test_tools_reach_a_call_that_waits_for_them_in_its_process(open_fleet, store):
    fleet = await open_fleet("provider", 1)
    access = await admitted(fleet, store, 0, awaits_tools=True)
    waiting = asyncio.create_task(post(access))
    await asyncio.sleep(0.05)
    await fleet.offer_tools("r0", [ADD])
    assert (await waiting)[0] == 200
    assert [turn.tools for turn in await fleet.seal("r0")] == [[ADD]]


async def test_a_rollout_whose_process_was_started_again_says_so_when_it_ends(open_fleet, store):
    fleet = await open_fleet("provider", 1)
    access = await admitted(fleet, store, 0)
    await post(access)
    kill(fleet.processes[0])
    [turn] = await fleet.seal("r0")  # asks the next process
    counts = fleet.counters("r0")
    assert (turn.ordinal, counts.answered, counts.restarts) == (0, 1, 1)
    assert (await post(access))[0] == 409


async def test_a_process_that_hangs_is_killed_and_the_next_one_answers(open_fleet, store, monkeypatch):
    fleet = await open_fleet("provider", 1)
    await post(await admitted(fleet, store, 0))
    os.kill(fleet.processes[0].pid, signal.SIGSTOP)
    monkeypatch.setattr(process, "ANSWER_SECONDS", 0.2)
    sealing = asyncio.create_task(fleet.seal("r0"))
    while not fleet.processes[0].restarts:  # noqa: ASYNC110  nobody is told
        await asyncio.sleep(0.01)
    monkeypatch.undo()
    assert [turn.ordinal for turn in await sealing] == [0]


async def test_a_fleet_is_stopped_while_a_process_is_being_started_again(open_fleet, store):
    fleet = await open_fleet("provider", 1)
    kill(fleet.processes[0])
    while fleet.processes[0].pid is not None:  # noqa: ASYNC110  nobody is told
        await asyncio.sleep(0.001)
    await asyncio.wait_for(fleet.stop(), 10)
    assert fleet.processes[0].pid is None


async def test_a_process_that_cannot_be_started_again_is_given_up_and_agents_hear_at_once(store, tmp_path):
    once = ONCE.format(flag=tmp_path / "flag")
    fleet = Fleet(store, Recipe([sys.executable, "-c", once], {}, tmp_path / "log"), 1)
    await fleet.start()
    access = await admitted(fleet, store, 0)
    kill(fleet.processes[0])
    assert await fleet.seal("r0") == []
    failure = fleet.counters("r0").failure
    assert (failure.kind, "gateway process 1/1 died 5 times at its start" in failure.message) == (
        "gateway",
        True,
    )
    with pytest.raises(InfrastructureError, match="gateway process 1/1 died 5 times at its start: "):
        await admitted(fleet, store, 1)
    with pytest.raises(aiohttp.ClientConnectorError):
        await post(access)
    await fleet.stop()


async def test_a_program_that_is_not_there_is_said(store, tmp_path):
    fleet = Fleet(store, Recipe([str(tmp_path / "nothing")], {}, tmp_path / "log"), 1)
    with pytest.raises(InfrastructureError, match=r"gateway process 1/1 did not start: .*nothing"):
        await fleet.start()


async def test_a_process_that_does_not_start_is_said_and_none_is_left(open_fleet):
    with pytest.raises(InfrastructureError, match=r"process 1/2 did not start: it ended with status 3"):
        await open_fleet("broken", 2)
