"""The provider against a real server on loopback that misbehaves in each way."""

import asyncio
import json
import socket

import pytest
from aiohttp import web

from osmosis_ai.errors import ProviderError, UsageError
from osmosis_ai.providers.base import ProviderRequest
from osmosis_ai.providers.openai_compatible import OpenAICompatibleProvider
from osmosis_ai.providers.patience import RetryPolicy

GOOD = {
    "model": "big-model-1",
    "choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1},
}
REQUEST = ProviderRequest(
    messages=[{"role": "user", "content": "hello"}],
    tools=[],
    params={"temperature": 0.5, "presence_penalty": 0.1},
    seed=0,
)


PATIENCE = RetryPolicy(3, first_pause_seconds=1e-6, throttled_seconds=0.025)


@pytest.fixture
async def endpoint():
    """`await endpoint(behaviour, behaviour, ...)`: its n-th answer is made by the n-th behaviour."""
    runners, providers = [], []

    async def start(*behaviours, **options):
        requests = []

        async def answer(request):
            requests.append((request, json.loads(await request.read())))
            return await behaviours[min(len(requests), len(behaviours)) - 1](request)

        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1)
        await site.start()
        runners.append(runner)
        port = site._server.sockets[0].getsockname()[1]
        options = {"retry": RetryPolicy(first_pause_seconds=0.001), **options}
        provider = OpenAICompatibleProvider(f"http://127.0.0.1:{port}/v1", "big-model", **options)
        providers.append(provider)
        return provider, requests

    yield start
    for provider in providers:
        await provider.close()
    for runner in runners:
        await runner.cleanup()


def says(status=200, body=GOOD, **headers):
    async def behaviour(request):
        if isinstance(body, str):
            return web.Response(status=status, text=body, content_type="text/html", headers=headers)
        return web.json_response(body, status=status, headers=headers)

    return behaviour


async def hangs(request):
    await asyncio.sleep(30)


async def ends_early(request):
    response = web.StreamResponse(headers={"content-length": "1000", "content-type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    request.transport.close()
    return response


async def test_every_parameter_is_passed_on_and_the_answer_comes_back(endpoint):
    provider, requests = await endpoint(says(), api_key="sk-secret")
    answer = await provider.complete(REQUEST)
    assert (answer.message["content"], answer.prompt_tokens, answer.completion_tokens) == ("ok", 5, 1)
    assert answer.model == "big-model-1"
    [(request, body)] = requests
    assert body == {**REQUEST.params, "model": "big-model", "messages": list(REQUEST.messages)}
    assert request.headers["authorization"] == "Bearer sk-secret"


@pytest.mark.parametrize("behaviour", [says(429), says(500), says(503, **{"Retry-After": "0"}), ends_early])
async def test_what_may_pass_is_tried_again(endpoint, behaviour):
    provider, requests = await endpoint(behaviour, behaviour, says())
    assert (await provider.complete(REQUEST)).message["content"] == "ok"
    assert len(requests) == 3


async def test_retry_after_is_kept_and_too_long_a_one_is_not_waited_for(endpoint):
    provider, requests = await endpoint(says(429, **{"Retry-After": "0.2"}), says())
    started = asyncio.get_running_loop().time()
    await provider.complete(REQUEST)
    assert asyncio.get_running_loop().time() - started >= 0.2
    provider, requests = await endpoint(says(429, **{"Retry-After": "3600"}))
    with pytest.raises(ProviderError) as failed:
        await provider.complete(REQUEST)
    assert (failed.value.status, len(requests)) == (429, 1)


@pytest.mark.parametrize(
    ("behaviour", "status", "attempts", "words"),
    [
        (says(429, {"error": "slow down"}, **{"Retry-After": "0.01"}), 429, 3, "answered 429"),
        (says(429, {"error": {"code": "insufficient_quota"}}), 429, 1, "insufficient_quota"),
        (says(500, "<h1>oops</h1>"), 502, 3, "answered 500: <h1>oops</h1> (tried 3 times)"),
        (says(401, {"error": "no"}), 502, 1, "check the API key"),
        (says(404, {"error": "no"}), 502, 1, "check base_url and the model name 'big-model'"),
        (says(400, {"error": "too long"}), 400, 1, "answered 400"),
        (says(308, "", Location="https://x/v1"), 502, 1, "it has moved to https://x/v1: put that into base"),
        (says(200, "<html>welcome</html>"), 502, 1, "with text/html, not JSON. Is base_url right?"),
        (says(200, {"usage": {}}), 502, 1, "without choices[0].message"),
        (says(200, {"error": {"message": "quota"}}), 502, 1, "with status 200 and an error inside"),
        (says(200, {**GOOD, "usage": None}), 502, 1, "without usage, so its tokens are unknown"),
        (says(200, [1]), 502, 1, "with JSON that is no object"),
        (hangs, 504, 3, "did not answer"),
        (ends_early, 502, 3, "ended its answer early"),
    ],
)
async def test_what_fails_names_the_url_and_what_came(endpoint, behaviour, status, attempts, words):
    provider, requests = await endpoint(behaviour, retry=PATIENCE, total_seconds=0.15)
    with pytest.raises(ProviderError) as failed:
        await provider.complete(REQUEST)
    assert words in str(failed.value)
    assert "http://127.0.0.1" in str(failed.value)
    assert (failed.value.status, len(requests)) == (status, attempts)


async def test_an_endpoint_that_refuses_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    provider = OpenAICompatibleProvider(f"http://127.0.0.1:{port}/v1", "m", retry=RetryPolicy(2, 0.001))
    with pytest.raises(ProviderError, match=rf":{port}/v1/chat/completions cannot be reached") as failed:
        await provider.complete(REQUEST)
    assert failed.value.status == 503
    await provider.close()


async def test_one_connection_serves_many_calls(endpoint):
    ports = set()

    async def remember(request):
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.json_response(GOOD)

    provider, _ = await endpoint(remember)
    for _ in range(5):
        await provider.complete(REQUEST)
    assert len(ports) == 1


def test_a_base_url_that_is_no_url_is_a_usage_error():
    with pytest.raises(UsageError, match=r"llm\.base_url must be a URL"):
        OpenAICompatibleProvider("", "m")
