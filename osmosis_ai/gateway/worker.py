"""A gateway in a process of its own, from inside: it answers agents on a socket and its parent on another.

The parent opens both and passes them on, so the agents' one outlives this process: who connects while it is
started again waits, and nobody is refused. Parent and child speak JSON, a line each way:

    {"id": 1, "seal": "rollout-1"}              -> {"id": 1, "counts": {...}, "provider": {...}}
    {"id": 2, "offer_tools": "rollout-1", ...}  -> {"id": 2}

No admission is spoken of: the first call of a rollout finds it in the store (`restoring.py`), in this life of
the process or in a later one. When the parent goes away, so does the child.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.asgi import ASGIApp
from osmosis_ai.gateway.targets import Target
from osmosis_ai.store.base import Store

MAX_LINE_BYTES = 64 * 2**20

Message = dict[str, Any]  # one line


@dataclass(frozen=True, slots=True)
class Parts:
    """What the process opens for its gateway."""

    target: Target
    store: Store
    report: Callable[[], Message]  # said with each answer: how the provider does
    extra_routes: ASGIApp | None = None  # for what is no LLM call


OpenParts = Callable[[Message], AbstractAsyncContextManager[Parts]]


async def serve(channel_fd: int, open_parts: OpenParts) -> None:
    """Serve until the parent goes away. `open_parts` is called with what the parent asks for first."""
    reader, writer = await asyncio.open_unix_connection(
        sock=socket.socket(fileno=channel_fd), limit=MAX_LINE_BYTES
    )
    request = json.loads(await reader.readline())
    try:
        async with open_parts(request["parts"]) as parts:
            gateway = Gateway(
                parts.target, parts.store, restores=request["name"], extra_routes=parts.extra_routes
            )
            await gateway.start(listener=socket.socket(fileno=request["listener_fd"]))
            _say(writer, {"ready": True})
            await _answer_all(gateway, parts, reader, writer)
            await gateway.stop()
    except OsmosisError as error:
        _say(writer, {"error": str(error)})
        await writer.drain()
    writer.close()


async def _answer_all(
    gateway: Gateway, parts: Parts, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    answering: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.create_task(_answer(gateway, parts, json.loads(line), writer))
        answering.add(task)
        task.add_done_callback(answering.discard)


async def _answer(gateway: Gateway, parts: Parts, question: Message, writer: asyncio.StreamWriter) -> None:
    answer: Message = {"id": question["id"]}
    try:
        if (rollout_id := question.get("seal")) is not None:
            await gateway.restore(rollout_id)
            await gateway.seal(rollout_id)
            parts.store.forget(rollout_id)  # the parent ends it
            answer |= {"counts": asdict(gateway.counters(rollout_id)), "provider": parts.report()}
        else:
            await gateway.restore(question["offer_tools"])
            gateway.offer_tools(question["offer_tools"], question["tools"])
    except OsmosisError as error:  # the store: the parent, which needs it too, decides what that means
        answer["error"] = str(error)
    _say(writer, answer)


def _say(writer: asyncio.StreamWriter, message: Message) -> None:
    if not writer.is_closing():  # the parent is gone
        writer.write(json.dumps(message).encode() + b"\n")
