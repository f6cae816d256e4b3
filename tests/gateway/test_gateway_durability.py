"""`kill -9` of a process that runs gateway and store under load: what a client has got is stored, once."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import apsw
import pytest
from gateway_parts import make_tokenizer_folder

from osmosis_ai.engine.policy import chat_template
from osmosis_ai.store.base import RolloutFilter, RunRecord
from osmosis_ai.store.sqlite import SqliteStore

AGENTS = 12
KILLS = 24

# One interpreter, many lives: each line of input forks a child that serves until it is killed.
SERVER = """
import asyncio, json, os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[3]]
from gateway_parts import TextEngine, info
from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.render import TemplateRenderer
from osmosis_ai.gateway.targets import PolicyTarget
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Rollout

def say(what):
    os.write(1, (json.dumps(what) + "\\n").encode())  # one call: a kill leaves a whole line or none

async def life(number, agents):
    store = SqliteStore(sys.argv[1])
    await store.resume_run("run")
    engine = TextEngine(lambda prompt, sampling: f"answer {len(prompt)}", renderer)
    gateway = Gateway(PolicyTarget(engine, info(100_000, renderer.end_ids), renderer), store)
    await gateway.start()
    keys = {}
    for agent in range(agents):
        rollout_id = f"life{number}-{agent}"
        await store.start_rollout(Rollout(rollout_id, "run", agent, f"group-{number}", agent))
        keys[rollout_id] = gateway.admit(rollout_id, seed=agent)
    say({"url": gateway.base_url, "keys": keys, "pid": os.getpid()})
    await asyncio.Event().wait()

renderer = TemplateRenderer(Path(sys.argv[2]))
say("ready")
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        asyncio.run(life(*json.loads(line)))
    os.waitpid(pid, 0)
    say("dead")
"""


@pytest.fixture
def lives(tmp_path):
    """The server's process, and the path of its database."""
    folder = make_tokenizer_folder(tmp_path / "policy", chat_template())
    path = tmp_path / "osmosis.db"
    command = [sys.executable, "-c", SERVER, str(path), str(folder), str(Path(__file__).parent)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert json.loads(process.stdout.readline()) == "ready"
    yield process, path
    process.stdin.close()
    assert process.wait() == 0
    process.stdout.close()


async def agent(session, url, rollout_id, key, acknowledged):
    """Calls and continues until the server is gone; every second call is streamed."""
    messages = [{"role": "user", "content": rollout_id}]
    for turn in range(10_000):
        body = {"model": "osmosis-rollout", "messages": messages, "stream": bool(turn % 2)}
        headers = {"authorization": f"Bearer {key}"}
        try:
            async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
                assert response.status == 200
                text = await read_whole(response) if turn % 2 else await read_plain(response)
        except (aiohttp.ClientError, ConnectionError):
            return
        if text is None:
            return
        acknowledged.append((rollout_id, turn, text))
        messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "on"}]


async def read_plain(response):
    return (await response.json())["choices"][0]["message"]["content"]


async def read_whole(response):
    """The text of a stream that came to its [DONE]; None of one that did not."""
    events = (await response.text()).split("\n\n")
    if "data: [DONE]" not in events:
        return None
    chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
    return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])


async def live_and_die(process, number, seconds):
    """One life under load, ended by SIGKILL; what its clients have got."""
    process.stdin.write(json.dumps([number, AGENTS]) + "\n")
    started = json.loads(await asyncio.to_thread(process.stdout.readline))
    acknowledged = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        agents = [
            asyncio.create_task(agent(session, started["url"], rollout_id, key, acknowledged))
            for rollout_id, key in started["keys"].items()
        ]
        await asyncio.sleep(seconds)
        os.kill(started["pid"], signal.SIGKILL)
        await asyncio.gather(*agents)
    assert json.loads(await asyncio.to_thread(process.stdout.readline)) == "dead"
    return acknowledged


async def test_every_answer_that_a_client_has_got_survives_a_kill(lives):
    process, path = lives
    store = SqliteStore(path)
    await store.create_run(RunRecord("run", "train", "running", 0.0, {}, {}))
    await store.close()
    chance, acknowledged = random.Random(0), []
    for number in range(KILLS):
        acknowledged += await live_and_die(process, number, chance.uniform(0.02, 0.15))
    assert len(acknowledged) > 5 * KILLS
    db = apsw.Connection(str(path))
    assert db.execute("PRAGMA integrity_check").get == "ok"
    db.close()
    store = SqliteStore(path)
    found = {one.rollout_id: one.turns for one in await store.rollouts(RolloutFilter("run"))}
    await store.close()
    for rollout_id, turn, text in acknowledged:
        assert found[rollout_id][turn].response["content"] == text
    for (
        rollout_id,
        turns,
    ) in found.items():  # nothing twice: one turn a call, one call that nobody got at most
        answered = sum(name == rollout_id for name, _, _ in acknowledged)
        assert [turn.ordinal for turn in turns] == list(range(len(turns)))
        assert [turn.parent for turn in turns] == [None, *range(len(turns) - 1)][: len(turns)]
        assert answered <= len(turns) <= answered + 1


async def test_calls_that_wait_at_the_same_time_share_a_commit(tmp_path, renderer):
    from gateway_parts import OpenGateway, user

    from osmosis_ai.types import Rollout

    store = SqliteStore(tmp_path / "osmosis.db")
    await store.create_run(RunRecord("run", "train", "running", 0.0, {}, {}))
    await store.start_rollout(Rollout("r1", "run", 0, "g", 0))
    commits = []
    store._db.set_commit_hook(lambda: commits.append(1) or False)
    async with aiohttp.ClientSession() as session:
        gateway = await OpenGateway.start("ok", renderer, store, session)
        keys = []
        for number in range(64):
            await store.start_rollout(Rollout(f"a{number}", "run", 0, "g", number))
            keys.append(gateway.gateway.admit(f"a{number}", seed=0))
        commits.clear()
        body = {"model": "osmosis-rollout", "messages": [user("go")]}
        answers = await asyncio.gather(
            *(gateway.post(body, headers={"authorization": f"Bearer {key}"}) for key in keys)
        )
        await gateway.gateway.stop()
    assert {status for status, _ in answers} == {200}
    assert len(commits) < 48  # 64 turns
    await store.close()
