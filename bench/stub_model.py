"""A model of no latency, or a fixed one, in its own process: `python bench/stub_model.py [--seconds 2]`.

An OpenAI-compatible endpoint that asks for `multiply(37, 4)` and answers "148" when it has the result. A
request in which it says "seconds=1.5" waits as long. Prints its port, answers until its standard input ends.
A bare protocol on httptools, so that it is never what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import threading
from typing import Any

import httptools
import orjson
import uvloop

ASKED_SECONDS = re.compile(rb"seconds=([0-9.]+)")
TOOL_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "multiply", "arguments": '{"a": 37, "b": 4}'},
}
ASKS = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
ANSWERS = {"role": "assistant", "content": "148"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"


def _whole(message: dict[str, Any], reason: str) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": reason}
    common = {"id": "x", "object": "chat.completion", "created": 1, "model": "stub"}
    body = orjson.dumps({**common, "choices": [choice], "usage": USAGE})
    return HEAD % (b"application/json", len(body)) + body


def _streamed(message: dict[str, Any], reason: str) -> bytes:
    delta = dict(message)
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": 0, **TOOL_CALL}]
    common = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "stub"}
    chunks = [
        {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**common, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {**common, "choices": [], "usage": USAGE},
    ]
    body = b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    return HEAD % (b"text/event-stream", len(body)) + body


REPLIES = {  # (streamed, whether the tool's result is there) -> the whole response
    (streamed, done): make(*((ANSWERS, "stop") if done else (ASKS, "tool_calls")))
    for streamed, make in ((False, _whole), (True, _streamed))
    for done in (False, True)
}


class Connection(asyncio.Protocol):
    """One connection: a reply per request, in order."""

    seconds = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        request = orjson.loads(body)
        self._body.clear()
        asked = ASKED_SECONDS.search(body)
        seconds = float(asked.group(1)) if asked else self.seconds
        reply = REPLIES[bool(request.get("stream")), request["messages"][-1]["role"] == "tool"]
        if seconds:
            asyncio.get_running_loop().call_later(seconds, self._transport.write, reply)
        else:
            self._transport.write(reply)


async def serve(seconds: float) -> None:
    Connection.seconds = seconds
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.0, help="between a call and its answer")
    arguments = parser.parse_args()
    threading.Thread(target=leave_with_parent, daemon=True).start()
    uvloop.run(serve(arguments.seconds))
