"""LiteLLM's names for models, against a stub of OpenAI's API on loopback."""

import json

import pytest
from aiohttp import web

from osmosis_ai.errors import ProviderError, UsageError
from osmosis_ai.providers.base import ProviderRequest
from osmosis_ai.providers.litellm import LiteLLMProvider
from osmosis_ai.providers.patience import RetryPolicy

MESSAGES = [{"role": "user", "content": "2 + 2?"}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
TOO_LONG = "context_length_exceeded"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
USAGE |= {"prompt_tokens_details": {"cached_tokens": 4}}


def request(**params):
    return ProviderRequest(MESSAGES, [ADD], params, seed=0)


def says(message, finish_reason="stop"):
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "big-1", "choices": [choice]}
    return 200, {**body, "usage": USAGE}


@pytest.fixture
async def api(monkeypatch):
    """`api(outcome, ...)`: the n-th request gets the n-th (status, body), or a list of chunks."""
    runners, providers = [], []

    async def start(*outcomes, **options):
        requests = []

        async def answer(call):
            requests.append(await call.json())
            outcome = outcomes[min(len(requests), len(outcomes)) - 1]
            if isinstance(outcome, tuple):
                return web.json_response(outcome[1], status=outcome[0])
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(call)
            for chunk in outcome:
                await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            return response

        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1)
        await site.start()
        runners.append(runner)
        monkeypatch.setenv(
            "OPENAI_API_BASE", f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        )
        retry = RetryPolicy(3, first_pause_seconds=0.001, throttled_seconds=0.02)
        providers.append(LiteLLMProvider("openai/big", api_key="sk-test", retry=retry, **options))
        return providers[-1], requests

    yield start
    for provider in providers:
        await provider.close()
    for runner in runners:
        await runner.cleanup()


async def test_a_call_goes_through_and_its_answer_comes_back_whole(api):
    provider, requests = await api(says({"content": None, "tool_calls": [CALL]}, "tool_calls"))
    answer = await provider.complete(request(temperature=0.5))
    assert (answer.finish_reason, answer.model) == ("tool_calls", "big-1")
    [call] = answer.message["tool_calls"]
    assert (call["id"], call["function"]) == ("c1", CALL["function"])
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (7, 3, 4)
    assert requests == [{"model": "big", "messages": MESSAGES, "tools": [ADD], "temperature": 0.5}]


async def test_text_is_streamed_as_it_comes(api):
    base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "big-1"}
    deltas = [{"role": "assistant", "content": "fo"}, {"content": "ur"}]
    chunks = [{**base, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks += [{**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    provider, _ = await api([*chunks, {**base, "choices": [], "usage": USAGE}])
    pieces = []
    answer = await provider.complete(request(), pieces.append)
    assert (pieces, answer.message["content"]) == (["fo", "ur"], "four")
    assert (answer.prompt_tokens, answer.completion_tokens) == (7, 3)


@pytest.mark.parametrize(
    ("outcome", "status", "code", "tries"),
    [
        ((500, {"error": {"message": "oops"}}), 502, "provider_error", 3),
        ((401, {"error": {"message": "bad key"}}), 502, "provider_error", 1),
        ((400, {"error": {"message": "x", "code": TOO_LONG}}), 400, TOO_LONG, 1),
        ((400, {"error": {"message": "what is foo?"}}), 400, "provider_error", 1),
    ],
)
async def test_failures_are_told_apart_and_tried_again_where_it_may_help(api, outcome, status, code, tries):
    provider, requests = await api(outcome)
    with pytest.raises(ProviderError, match="LiteLLM's openai/big answered") as failed:
        await provider.complete(request())
    assert (failed.value.status, failed.value.code, len(requests)) == (status, code, tries)


async def test_too_many_requests_is_waited_out(api):
    provider, requests = await api((429, {"error": {"message": "slow down"}}), says({"content": "4"}))
    assert (await provider.complete(request())).message["content"] == "4"
    assert (len(requests), provider.state().throttled) == (2, 1)


async def test_an_agent_cannot_send_the_key_elsewhere(api):
    provider, requests = await api(says({"content": "4"}))
    with pytest.raises(ProviderError, match="api_base cannot be passed to LiteLLM's openai/big") as failed:
        await provider.complete(request(api_base="http://127.0.0.1:1"))
    assert (failed.value.status, requests) == (400, [])


async def test_a_claude_is_not_told_a_top_p_that_says_nothing(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    provider = LiteLLMProvider("anthropic/claude-sonnet-4-5", retry=RetryPolicy(1))
    sent = []

    async def acompletion(**options):
        sent.append(options.get("top_p"))
        raise ValueError("that is enough")

    monkeypatch.setattr("litellm.acompletion", acompletion)
    for top_p in (1.0, 0.5):
        with pytest.raises(ProviderError, match="that is enough"):
            await provider.complete(request(temperature=1.0, top_p=top_p))
    await provider.close()
    assert sent == [None, 0.5]


def test_an_unknown_provider_and_a_missing_key_are_named(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(UsageError, match="LiteLLM knows no provider 'antropic'"):
        LiteLLMProvider("antropic/claude")
    with pytest.raises(UsageError, match=r"needs a key: export ANTHROPIC_API_KEY=\.\.\. first, and name"):
        LiteLLMProvider("anthropic/claude-sonnet-4-5")
