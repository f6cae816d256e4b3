"""Many calls at once to a real endpoint on loopback that has too many of them, or is dead."""

import asyncio
import json
import socket
from asyncio import CancelledError
from contextlib import asynccontextmanager
from email.utils import formatdate
from random import Random
from time import time

import pytest
from aiohttp import web

from osmosis_ai.errors import ProviderDownError, ProviderError
from osmosis_ai.providers.base import ProviderAnswer, ProviderRequest
from osmosis_ai.providers.breaker import BreakerPolicy
from osmosis_ai.providers.openai_compatible import OpenAICompatibleProvider
from osmosis_ai.providers.patience import RetryPolicy
from osmosis_ai.providers.reply import seconds_of
from osmosis_ai.providers.traffic import Limit

RETRY = RetryPolicy(first_pause_seconds=0.01, max_pause_seconds=0.05)
BREAKER = BreakerPolicy(first_pause_seconds=0.05)


def asks(text):
    return ProviderRequest([{"role": "user", "content": text}], tools=[], params={}, seed=0)


def echo(text):
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 3}}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


class Endpoint:
    """Answers `room` calls at once, in `seconds`; the others get 429 with these headers."""

    def __init__(self, room, seconds=0.02, **headers):
        self.room, self.seconds, self.headers = room, seconds, headers
        self.busy = self.requests = self.most = 0
        self.broken = None  # else: the status that every call gets ...
        self.mended_after = float("inf")  # ... until there were so many

    async def answer(self, request):
        self.requests += 1
        text = json.loads(await request.read())["messages"][0]["content"]
        if self.broken and self.requests <= self.mended_after:
            return web.Response(status=self.broken, text="oops")
        if self.busy >= self.room:
            return web.json_response({"error": "slow down"}, status=429, headers=self.headers)
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.busy -= 1
        return web.json_response(echo(text))


@asynccontextmanager
async def serving(endpoint, **options):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1)
    await site.start()
    url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
    provider = OpenAICompatibleProvider(url, "big", **{"retry": RETRY, "breaker": BREAKER, **options})
    yield provider
    await provider.close()
    await runner.cleanup()


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "0.05"}], ids=["silent", "retry_after"])
async def test_in_a_storm_of_429_every_call_is_answered_and_fewer_are_sent_at_once(headers):
    endpoint = Endpoint(room=3, **headers)
    async with serving(endpoint, most=48) as provider:
        limits = []
        answers = await asyncio.gather(*(watched(provider, str(n), limits) for n in range(96)))
        assert [answer.message["content"] for answer in answers] == [str(n) for n in range(96)]
        state = provider.state()
    assert min(limits) <= 6 < 48  # it has come down to about what there is room for
    assert endpoint.requests == 96 + state.throttled
    assert state.throttled < 4 * 96  # at 48 at once to the end it would be hundreds more
    assert (state.in_flight, state.waiting, state.down) == (0, 0, None)


async def watched(provider, text, limits):
    answer = await provider.complete(asks(text))
    limits.append(provider.state().limit)
    return answer


async def test_no_more_calls_are_out_than_the_run_may_have_and_the_others_lose_no_time_waiting():
    endpoint = Endpoint(room=100, seconds=0.05)
    async with serving(endpoint, most=2, total_seconds=0.9) as provider:  # the last waits for 0.95 s
        answers = asyncio.gather(*(provider.complete(asks(str(n))) for n in range(40)))
        await asyncio.sleep(0)
        assert (provider.state().in_flight, provider.state().waiting) == (2, 38)
        assert len(await answers) == 40
    assert (endpoint.most, endpoint.requests) == (2, 40)


async def test_a_call_that_is_cancelled_gives_its_place_to_another():
    endpoint = Endpoint(room=100, seconds=30)
    async with serving(endpoint, most=1) as provider:
        stuck, waiting = (asyncio.create_task(provider.complete(asks(text))) for text in "ab")
        await asyncio.sleep(0.05)
        waiting.cancel()
        stuck.cancel()
        await asyncio.wait((stuck, waiting))
        endpoint.seconds = 0
        assert (await provider.complete(asks("c"))).message["content"] == "c"
        assert (provider.state().in_flight, provider.state().waiting) == (0, 0)


async def test_a_dead_endpoint_is_found_out_by_a_few_calls_and_then_left_alone():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    provider = OpenAICompatibleProvider(url, "big", retry=RETRY, breaker=BREAKER)
    calls = [provider.complete(asks(str(n))) for n in range(200)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, ProviderDownError) for outcome in outcomes)
    assert str(outcomes[0]).startswith(f"{url} is down: ")
    assert "cannot be reached" in str(outcomes[0])
    assert isinstance(provider.state().down, ProviderDownError)
    await provider.close()


@pytest.mark.parametrize("status", [500, 401])
async def test_an_endpoint_that_only_fails_gets_few_requests_and_may_come_back(status):
    endpoint = Endpoint(room=100)
    endpoint.broken = status
    async with serving(endpoint, most=8) as provider:
        calls = [provider.complete(asks(str(n))) for n in range(100)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, ProviderError) for outcome in outcomes)
        assert f"answered {status}" in str(provider.state().down)
        assert endpoint.requests < 40
        endpoint.broken = None
        await asyncio.sleep(0.15)  # until a probe is due
        assert (await provider.complete(asks("again"))).message["content"] == "again"
        assert provider.state().down is None


async def test_a_short_outage_costs_time_and_no_call():
    endpoint = Endpoint(room=100, seconds=0.01)
    async with serving(endpoint, most=8) as provider:
        await provider.complete(asks("first"))
        endpoint.broken, endpoint.mended_after = 503, 12
        answers = await asyncio.gather(*(provider.complete(asks(str(n))) for n in range(40)))
        assert len(answers) == 40


async def test_whatever_the_endpoint_does_each_call_ends_and_gives_its_place_back():
    random = Random(7)

    class Moody(Endpoint):
        async def answer(self, request):
            mood = random.random()
            if mood < 0.2:
                return web.Response(status=random.choice([429, 500, 503]), headers={"Retry-After": "0.01"})
            if mood < 0.3:
                return web.Response(text=random.choice(["<html>", "{", "[]", '{"choices": []}']))
            if mood < 0.4:
                request.transport.close()
            return await super().answer(request)

    endpoint = Moody(room=10, seconds=0.005)
    async with serving(endpoint, most=16) as provider:
        calls = [asyncio.create_task(provider.complete(asks(str(n)))) for n in range(300)]
        for _ in range(40):  # meanwhile some give up: a few that are out, and some that wait
            random.choice(calls).cancel()
            await asyncio.sleep(0.005)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {ProviderAnswer, ProviderError, CancelledError}
        assert sum(isinstance(outcome, ProviderAnswer) for outcome in outcomes) > 150
        assert (provider.state().in_flight, provider.state().waiting) == (0, 0)


def test_one_wave_of_429_halves_the_limit_once_and_a_window_of_answers_adds_one():
    limit = Limit(64)
    for _ in range(60):
        limit.shrink(sent_at=0.0, in_flight=64)
    assert limit.calls == 32
    for _ in range(33):
        limit.grow()
    assert limit.calls == 33


def test_the_limit_is_at_least_one_call_and_at_most_what_was_given():
    limit = Limit(2)
    for _ in range(9):
        limit.shrink(sent_at=float("inf"), in_flight=2)
    assert limit.calls == 1
    for _ in range(99):
        limit.grow()
    assert limit.calls == 2


def test_retry_after_is_read_as_seconds_or_as_a_date():
    assert (seconds_of("2.5"), seconds_of("-1"), seconds_of(None)) == (2.5, 0.0, None)
    assert 50 < seconds_of(formatdate(time() + 60, usegmt=True)) <= 60
    assert [seconds_of(text) for text in ("soon", "nan", "inf")] == [None, None, None]


async def test_the_pauses_are_random_between_nothing_and_twice_as_much_each_time():
    retry = RetryPolicy(first_pause_seconds=0.5, max_pause_seconds=30)
    longest = [max(retry.pause(tries) for _ in range(500)) for tries in (1, 2, 3, 20)]
    for seen, bound in zip(longest, (0.5, 1, 2, 30), strict=True):
        assert bound * 0.9 < seen <= bound
    assert min(retry.pause(3) for _ in range(500)) < 0.1


async def test_the_tokens_that_the_endpoint_had_cached_are_counted():
    async with serving(Endpoint(room=1)) as provider:
        assert (await provider.complete(asks("x"))).cached_tokens == 3
