"""What came over the wire is kept byte for byte: the agent's requests, and an external model's answers."""

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from gateway_parts import TextEngine, info

from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.targets import PolicyTarget, ProviderTarget
from osmosis_ai.providers.openai_compatible import OpenAICompatibleProvider
from osmosis_ai.store.base import RunRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Rollout

ANSWER = (
    b'{ "choices":[{"message":{"role":"assistant","content":"6","odd":1.50},"finish_reason":"stop"}],\n'
    b'"usage":{"prompt_tokens":3,"completion_tokens":1} }'
)
STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"content":"6"},"finish_reason":null}]}\n\n: hi\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
)
FIRST = b'{"model": "osmosis-rollout",\n "messages": [ {"role":"user","content":"2*3?", "name": null} ] }'
MORE = b', {"role":"assistant","content":"6"}, {"role":"user","content":"Sure?"} ] }'
SECOND = FIRST.replace(b" ] }", MORE)
STREAMED = SECOND.replace(b"] }", b'], "stream" :true}')


async def answers(request):
    streams = (await request.json()).get("stream")
    kind = "text/event-stream" if streams else "application/json"
    return web.Response(body=STREAM if streams else ANSWER, content_type=kind)


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "osmosis.db")
    await store.create_run(RunRecord("run", "eval", "running", 1.0, {}, {}))
    await store.start_rollout(Rollout("r", "run", 0, "g", 0))
    yield store
    await store.close()


async def call(gateway, key, bodies, path="chat/completions"):
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for body in bodies:
            async with session.post(f"{gateway.base_url}/v1/{path}", data=body) as response:
                assert response.status == 200, await response.text()
                await response.read()


async def test_requests_and_an_external_models_answers_are_kept_as_they_came(store):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answers)
    server = TestServer(app)
    await server.start_server()
    provider = OpenAICompatibleProvider(str(server.make_url("/v1")), "m")
    gateway = Gateway(ProviderTarget(provider), store)
    await gateway.start()
    await call(gateway, gateway.admit("r", seed=1), [FIRST, SECOND, STREAMED])
    natives = await store.natives("r")
    assert [(n.wire, n.sent, n.answered) for n in natives.values()] == [
        ("chat", FIRST, ANSWER),
        ("chat", SECOND, ANSWER),
        ("chat", STREAMED, STREAM),
    ]
    await gateway.stop()
    await provider.close()
    await server.close()


WIRES = {
    "chat/completions": '{{"messages" :[{turns}],"model":"osmosis-rollout",\t"n":1}}',
    "completions": '{{"prompt":"é \\u00e9 {turns}" , "model": "osmosis-rollout"}}',
    "responses": '{{"model":"osmosis-rollout", "input":[{turns}]}}',
    "messages": '{{"max_tokens":9, "messages":[{turns}] ,"model":"osmosis-rollout"}}\n',
}


@pytest.mark.parametrize("path", WIRES)
async def test_the_bodies_of_every_wire_come_back_byte_for_byte(store, renderer, path):
    engine = TextEngine(lambda *_: "ok", renderer)
    gateway = Gateway(PolicyTarget(engine, info(4096, renderer.end_ids), renderer), store)
    await gateway.start()
    turn = '{"role":"user" ,"content":"H\\u00e9llo, a text of more than 32 bytes"}'
    turns = turn if "[" in WIRES[path] else "and so on "
    joined = [" , ".join([turns] * count) for count in (1, 3, 2)]
    bodies = [WIRES[path].format(turns=one).encode() for one in joined]
    key = gateway.admit("r", seed=1)
    await call(gateway, key, bodies[:2], path)
    store.forget("r")  # what comes now stands alone
    await call(gateway, key, bodies[2:], path)
    assert [native.sent for native in (await store.natives("r")).values()] == bodies
    await gateway.stop()


async def test_each_of_several_answers_keeps_its_own_bytes(store):
    async def one_more(request):
        answers.append(ANSWER.replace(b'"6"', b'"%d"' % len(answers)))
        return web.Response(body=answers[-1], content_type="application/json")

    answers: list[bytes] = []
    app = web.Application()
    app.router.add_post("/v1/chat/completions", one_more)
    server = TestServer(app)
    await server.start_server()
    provider = OpenAICompatibleProvider(str(server.make_url("/v1")), "m")
    gateway = Gateway(ProviderTarget(provider), store)
    await gateway.start()
    body = FIRST.replace(b"{", b'{"n": 3, ', 1)
    await call(gateway, gateway.admit("r", seed=1), [body])
    natives = list((await store.natives("r")).values())
    assert [native.sent for native in natives] == [body] * 3
    assert sorted(native.answered for native in natives) == sorted(answers)
    await gateway.stop()
    await provider.close()
    await server.close()
