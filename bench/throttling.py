"""Calls to an endpoint that has room for fewer of them: a limit that adapts, beside one that does not.

    python bench/throttling.py

A stub on loopback answers 4 calls at once, in 50 ms each, and the others with 429; 400 calls come, 64 at
once. The ideal is 400 / 4 * 50 ms and one request a call.
"""

from __future__ import annotations

import asyncio
import time
from unittest.mock import patch

from aiohttp import web

from osmosis_ai.providers import traffic
from osmosis_ai.providers.base import ProviderRequest
from osmosis_ai.providers.openai_compatible import OpenAICompatibleProvider
from osmosis_ai.providers.patience import RetryPolicy

ROOM, SECONDS, CALLS, AT_ONCE = 4, 0.05, 400, 64
USAGE = {"prompt_tokens": 1, "completion_tokens": 1}
ANSWER = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}], "usage": USAGE}
REQUEST = ProviderRequest([{"role": "user", "content": "hello"}], tools=[], params={}, seed=0)


class Fixed(traffic.Limit):
    def shrink(self, sent_at: float, in_flight: int) -> None:
        """Not even after a 429."""


class Stub:
    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers
        self.busy = self.requests = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        await request.read()
        if self.busy >= ROOM:
            return web.json_response({}, status=429, headers=self.headers)
        self.busy += 1
        await asyncio.sleep(SECONDS)
        self.busy -= 1
        return web.json_response(ANSWER)


async def measure(name: str, headers: dict[str, str]) -> None:
    stub, app = Stub(headers), web.Application()
    app.router.add_post("/v1/chat/completions", stub.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    retry = RetryPolicy(first_pause_seconds=SECONDS, max_pause_seconds=3)
    provider = OpenAICompatibleProvider(f"http://{host}:{port}/v1", "stub", retry=retry, most=AT_ONCE)
    started = time.perf_counter()
    await asyncio.gather(*(provider.complete(REQUEST) for _ in range(CALLS)))
    seconds = time.perf_counter() - started
    ideal = CALLS / ROOM * SECONDS
    print(f"| {name} | {stub.requests / CALLS:.2f} | {seconds / ideal:.2f} | {provider.state().limit} |")
    await provider.close()
    await runner.cleanup()


def main() -> None:
    print("| limit | requests per call | wall time / ideal | calls at once at the end |")
    print("| --- | --- | --- | --- |")
    for headers, words in (({}, ""), ({"Retry-After": "0.2"}, ", Retry-After: 0.2")):
        with patch.object(traffic, "Limit", Fixed):
            asyncio.run(measure(f"fixed{words}", headers))
        asyncio.run(measure(f"adapts{words}", headers))


if __name__ == "__main__":
    main()
