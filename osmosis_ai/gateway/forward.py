"""What comes to a gateway process and is meant for the controller: callbacks.

A rollout server calls back where its LLM calls go, and some take no other address. Two requests a rollout,
so a hop does not matter; LLM calls have none.
"""

from __future__ import annotations

import orjson

from osmosis_ai.gateway.asgi import Receive, Scope, Send
from osmosis_ai.lean_http import HttpPool

PASSED = (b"authorization", b"content-type")  # headers that the controller reads


class Forward:
    """ASGI application that posts every POST to `base_url`, and hands its answer back."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._pool = HttpPool()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, body = await self._answer(scope, (await receive())["body"])
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, body: bytes) -> tuple[int, bytes]:
        if scope["method"] != "POST":
            return 404, orjson.dumps({"error": f"no such route: {scope['method']} {scope['path']}"})
        headers = {
            name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in PASSED
        }
        try:
            reply = await self._pool.post(self._base_url + scope["raw_path"].decode("ascii"), headers, body)
        except (OSError, ValueError) as error:
            return 502, orjson.dumps({"error": f"the controller was not reached: {error}"})
        return reply.status, reply.body

    async def close(self) -> None:
        await self._pool.close()
