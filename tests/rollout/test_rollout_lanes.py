"""What user code leaves behind in a lane does not reach what comes after it."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from contextlib import ExitStack, suppress

import pytest
from openai import AsyncOpenAI
from rollout_stubs import text

from osmosis_ai.rollout.backends.lane import LanePool
from osmosis_ai.rollout.backends.lane_loop import LaneTransport


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_client_that_nobody_closed_does_not_keep_a_later_connection_from_being_read(policy):
    """The next connection has the number of the client's by the time the client comes to close it."""
    policy.script = [text("148")]

    async def call() -> int:
        client = AsyncOpenAI(base_url=policy.url, api_key="key", max_retries=0)
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "37 * 4?"}])
        [number] = asyncio.get_running_loop()._transports
        return number

    async def run() -> bytes:
        number, loop = await call(), asyncio.get_running_loop()
        gc.collect()  # the connection is closed, and the client has begun a task that closes its connection
        with ExitStack() as sockets:
            ends = {}
            while number not in ends:
                pair = [sockets.enter_context(end) for end in socket.socketpair()]
                ends |= {pair[0].fileno(): pair, pair[1].fileno(): pair[::-1]}
            reader, writer = ends[number]
            readable = loop.create_future()
            loop.add_reader(reader, readable.set_result, None)
            await asyncio.sleep(0.1)
            writer.send(b"hello")
            await asyncio.wait_for(readable, 60)
            loop.remove_reader(reader)
            return reader.recv(5)

    lanes = LanePool()
    gc.disable()
    try:
        assert await lanes.run(run) == b"hello"
    finally:
        gc.enable()
        lanes.close()


async def test_a_connection_under_tls_is_one_of_the_lane_as_well():
    """The handshake is never answered, so what is below TLS can be looked at."""

    async def run() -> list[type]:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            secured = asyncio.open_connection(*listener.getsockname(), ssl=ssl.create_default_context())
            opening = asyncio.ensure_future(secured)
            end, _ = await loop.sock_accept(listener)
            with end:
                assert await loop.sock_recv(end, 1)
                kinds = [type(connection) for connection in loop._transports.values()]
                opening.cancel()
                with suppress(asyncio.CancelledError):
                    await opening
            return kinds

    lanes = LanePool()
    try:
        assert await asyncio.wait_for(lanes.run(run), 60) == [LaneTransport]
    finally:
        lanes.close()
