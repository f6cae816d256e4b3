"""Callbacks: how a rollout server tells the controller that a workflow or a grader has ended.

    POST /v1/rollouts/{id}/completed   the workflow ended
    POST /v1/rollouts/{id}/graded      the grader ended; carries the samples with their rewards
    POST /v1/rollout/completed         a RolloutAgentLoop's server: all of it at once, for the id in its body

Each carries the rollout's callback key, which user code never sees, but in the last case, where it is the
key of the loop's LLM calls. A callback is acknowledged only when what it says is in the store. A repeated one
is acknowledged again and changes nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from osmosis_ai.errors import OsmosisError

Body = dict[str, Any]  # JSON of the callback, compat 1.2.4
OnCallback = Callable[[Body], Awaitable[None]]

MAX_BODY_BYTES = 64 * 1024 * 1024
FINISHED = "/v1/rollout/completed"
REMEMBERED = 2048  # ended rollouts whose servers may still have something to say


@dataclass(slots=True)
class Expected:
    """A rollout that is out: its callback key and what to do with each callback."""

    key: str
    handlers: dict[str, OnCallback]
    taken: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # phase -> the first callback's work


class Callbacks:
    """ASGI application for the two callback routes; everything else is 404."""

    def __init__(self) -> None:
        self._expected: dict[str, Expected] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()  # rollout id -> callback key

    def expect(self, rollout_id: str, on_completed: OnCallback, on_graded: OnCallback) -> str:
        """Accept callbacks of a rollout from now on; returns its callback key."""
        key = secrets.token_urlsafe(24)
        self._expected[rollout_id] = Expected(key, {"completed": on_completed, "graded": on_graded})
        return key

    def expect_finished(self, rollout_id: str, key: str, on_finished: OnCallback) -> None:
        """Accept the one result of a RolloutAgentLoop's server from now on."""
        self._expected[rollout_id] = Expected(key, {"finished": on_finished})

    def forget(self, rollout_id: str) -> None:
        """The rollout has ended: late callbacks with its key are acknowledged and change nothing."""
        if (expected := self._expected.pop(rollout_id, None)) is not None:
            self._ended[rollout_id] = expected.key
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status, answer = await self._answer(scope, receive)
        body = orjson.dumps(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Any, receive: Any) -> tuple[int, Body]:
        parts = scope["path"].strip("/").split("/")
        posted = scope["method"] == "POST"
        if posted and scope["path"] == FINISHED:
            body = await _read_object(receive)
            if isinstance(body, str):
                return 400, {"error": body}
            expected = self._expects(str(body.get("rollout_id")), "finished", scope)
            return expected if isinstance(expected, tuple) else await _take(expected, "finished", body)
        if not posted or len(parts) != 4 or parts[:2] != ["v1", "rollouts"]:
            return 404, {"error": f"no such route: {scope['method']} {scope['path']}"}
        expected = self._expects(parts[2], parts[3], scope)
        if isinstance(expected, tuple):
            return expected
        body = await _read_object(receive)
        return (400, {"error": body}) if isinstance(body, str) else await _take(expected, parts[3], body)

    def _expects(self, rollout_id: str, phase: str, scope: Any) -> Expected | tuple[int, Body]:
        """The rollout that the callback is about, or the answer that it gets without being read."""
        if (key := self._ended.get(rollout_id)) and secrets.compare_digest(_bearer(scope), key.encode()):
            return 200, {"status": "ignored: the rollout has ended"}
        expected = self._expected.get(rollout_id)
        if expected is None or phase not in expected.handlers:
            return 404, {"error": f"no callback {phase!r} is expected for rollout {rollout_id!r}"}
        if not secrets.compare_digest(_bearer(scope), expected.key.encode()):
            return 401, {"error": f"wrong callback key for rollout {rollout_id!r}"}
        return expected


async def _take(expected: Expected, phase: str, body: Body) -> tuple[int, Body]:
    """The first callback of a phase counts; a repeated one waits for it and is acknowledged like it."""
    if phase not in expected.taken:
        expected.taken[phase] = asyncio.ensure_future(expected.handlers[phase](body))
    try:
        await asyncio.shield(expected.taken[phase])
    except OsmosisError as error:  # not stored, so not acknowledged: the server will try again
        expected.taken.pop(phase, None)
        return 503, {"error": str(error)}
    return 200, {"status": "ok"}


def _bearer(scope: Any) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return bytes(value.removeprefix(b"Bearer "))
    return b""


async def _read_object(receive: Any) -> Body | str:
    """The body as a JSON object, or what is wrong with it."""
    try:
        body = orjson.loads(await _read(receive))
    except (ValueError, orjson.JSONDecodeError) as error:
        return f"the callback's body is not JSON: {error}"
    if not isinstance(body, dict):
        return f"the callback's body must be an object, got {type(body).__name__}"
    return body


async def _read(receive: Any) -> bytes:
    chunks, size, more = [], 0, True
    while more:
        message = await receive()
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        more = message.get("more_body", False)
        if size > MAX_BODY_BYTES:
            raise ValueError(f"larger than {MAX_BODY_BYTES} bytes")
    return b"".join(chunks)
