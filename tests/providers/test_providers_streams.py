"""A provider that streams: its text goes on as it comes, the whole answer at the end, or an error."""

import asyncio
import json

import pytest
from aiohttp import web
from waiting import until

from osmosis_ai.errors import ProviderError
from osmosis_ai.providers.base import ProviderRequest
from osmosis_ai.providers.openai_compatible import OpenAICompatibleProvider
from osmosis_ai.providers.patience import RetryPolicy
from osmosis_ai.providers.scripted import ScriptedProvider
from osmosis_ai.providers.streamed import StreamedAnswer

REQUEST = ProviderRequest([{"role": "user", "content": "hello"}], [], {"temperature": 0.5}, seed=0)
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


def delta(finish_reason=None, **fields):
    return {"model": "big-1", "choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


def call(index, **fields):
    return delta(tool_calls=[{"index": index, **fields}])


ANSWER = [
    delta(role="assistant", content=""),
    delta(content="4"),
    delta(content="2"),
    delta("stop"),
    USAGE,
    "[DONE]",
]


@pytest.fixture
async def endpoint():
    """`await endpoint(chunks, ...)`: its n-th answer streams the n-th list; `None` in it breaks the line."""
    runners, providers = [], []

    async def start(*answers, **options):
        requests = []

        async def stream(request):
            requests.append((request.path, json.loads(await request.read())))
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for chunk in answers[min(len(requests), len(answers)) - 1]:
                if chunk is None:
                    request.transport.close()
                    return response
                if isinstance(chunk, asyncio.Event):
                    await chunk.wait()
                    continue
                data = chunk if isinstance(chunk, str) else json.dumps(chunk)
                await response.write(f": ping\n\ndata: {data}\n\n".encode())
            return response

        app = web.Application()
        app.router.add_post("/v1/{path:.*}", stream)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        port = site._server.sockets[0].getsockname()[1]
        retry = RetryPolicy(attempts=3, first_pause_seconds=0.001)
        provider = OpenAICompatibleProvider(f"http://127.0.0.1:{port}/v1", "big", retry=retry, **options)
        providers.append(provider)
        return provider, requests

    yield start
    for provider in providers:
        await provider.close()
    for runner in runners:
        await runner.cleanup()


async def test_text_is_handed_on_as_it_comes_and_the_answer_is_whole(endpoint):
    gate = asyncio.Event()
    provider, requests = await endpoint([*ANSWER[:2], gate, *ANSWER[2:]])
    pieces = []
    completing = asyncio.ensure_future(provider.complete(REQUEST, pieces.append))
    await until(lambda: pieces)
    assert (pieces, completing.done()) == (["4"], False)
    gate.set()
    answer = await completing
    assert pieces == ["4", "2"]
    assert (answer.message["content"], answer.finish_reason, answer.model) == ("42", "stop", "big-1")
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 2)
    [(_, body)] = requests
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


async def test_tool_calls_and_reasoning_are_put_together(endpoint):
    chunks = [
        delta(reasoning_content="Six "), delta(reasoning_content="times."),
        call(0, id="c1", type="function", function={"name": "add", "arguments": ""}),
        call(0, function={"arguments": '{"a": '}),
        call(1, id="c2", function={"name": "mul", "arguments": "{}"}),
        call(0, function={"arguments": "2}"}), delta("tool_calls"), USAGE, "[DONE]",
    ]  # fmt: skip
    provider, _ = await endpoint(chunks)
    answer = await provider.complete(REQUEST, lambda text: None)
    assert answer.message == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Six times.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
            {"id": "c2", "type": "function", "function": {"name": "mul", "arguments": "{}"}},
        ],
    }


async def test_content_that_is_streamed_in_parts_is_put_together_too(endpoint):
    thoughts = [{"type": "thinking", "thinking": "6 "}, {"type": "text", "text": "x 7."}]
    thinking = {"type": "thinking", "thinking": thoughts}
    chunks = [delta(content=[thinking]), delta(content=[{"type": "text", "text": "4"}]), *ANSWER[2:]]
    provider, _ = await endpoint(chunks)
    pieces = []
    answer = await provider.complete(REQUEST, pieces.append)
    assert pieces == ["4", "2"]
    assert answer.message == {"role": "assistant", "content": "42", "reasoning_content": "6 x 7."}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ([delta(content="4"), None], "ended its stream early|ended its answer early"),
        ([delta(content="4")], "ended its stream early, without a finish_reason"),
        ([delta(content="4"), {"error": {"message": "overloaded"}}], "overloaded"),
        ([delta(content="4"), "{not json"], "streamed what is no chunk"),
        ([delta(content="4"), delta(content=[{"type": "image_url"}])], "part of type 'image_url'"),
        ([delta(content="4"), delta("stop"), "[DONE]"], "without usage"),
    ],
)
async def test_a_stream_that_breaks_is_an_error_and_is_not_tried_again_once_text_was_handed_on(
    endpoint, broken, words
):
    provider, requests = await endpoint(broken, ANSWER)
    pieces = []
    with pytest.raises(ProviderError, match=words):
        await provider.complete(REQUEST, pieces.append)
    assert (pieces, len(requests)) == (["4"], 1)


async def test_a_stream_that_breaks_before_any_text_is_tried_again(endpoint):
    provider, requests = await endpoint([None], [{"error": "busy"}], ANSWER)
    pieces = []
    assert (await provider.complete(REQUEST, pieces.append)).message["content"] == "42"
    assert (pieces, len(requests)) == (["4", "2"], 3)


async def test_raw_text_goes_to_the_completions_of_the_endpoint(endpoint):
    chunks = [{"choices": [{"text": " 4"}]}, {"choices": [{"text": "2", "finish_reason": "length"}]}, USAGE]
    provider, requests = await endpoint(chunks)
    request = ProviderRequest([{"role": "user", "content": "6*7="}], [], {}, seed=0, prompt="6*7=")
    answer = await provider.complete(request, lambda text: None)
    assert (answer.message["content"], answer.finish_reason) == (" 42", "length")
    [(path, body)] = requests
    assert (path, body["prompt"], "messages" in body) == ("/v1/completions", "6*7=", False)


def test_a_stream_is_read_however_its_bytes_are_cut():
    raw = (
        b"".join(b"data: " + json.dumps(c).encode() + b"\r\n\r\n" for c in ANSWER[:-1]) + b"data: [DONE]\n\n"
    )
    for size in (1, 7, 50, len(raw)):
        pieces = []
        answer = StreamedAnswer(pieces.append)
        for start in range(0, len(raw), size):
            answer.feed(raw[start : start + size])
        assert (pieces, answer.done, answer.is_whole) == (["4", "2"], True, True)
        assert answer.document["choices"][0]["message"] == {"role": "assistant", "content": "42"}


async def test_a_script_is_streamed_word_by_word():
    pieces = []
    text = " one two\nthree  "
    answer = await ScriptedProvider.from_texts([text]).complete(REQUEST, pieces.append)
    assert pieces == [" one", " two", "\nthree", "  "]
    assert answer.message["content"] == text
