"""The lean HTTP client against servers that behave, and against raw sockets that do not."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from waiting import until

from osmosis_ai import lean_http
from osmosis_ai.lean_http import HttpPool


@asynccontextmanager
async def answering(*responses: bytes, end: bool = False):
    """A server that answers the n-th request of all with `responses[n]`, and closes after it with `end`."""
    seen, left = [], list(responses)

    async def serve(reader, writer):
        seen.append([])
        try:
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                seen[-1].append(head + await reader.readexactly(length))
                writer.write(left.pop(0))
                await writer.drain()
                if end:
                    break
            else:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = HttpPool()
    try:
        yield pool, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        await pool.close()
        server.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-One: 1\r\n\r\nhi"


async def test_a_request_on_the_wire():
    async with answering(OK) as (pool, url, seen):
        reply = await pool.post(f"{url}/v1/x?y=1", {"Authorization": "Bearer k", "x-sample-id": "né"}, b"{}")
    assert (reply.status, reply.headers[b"x-one"], reply.body) == (200, b"1", b"hi")
    host = url.removeprefix("http://").encode()
    assert seen == [
        [
            b"POST /v1/x?y=1 HTTP/1.1\r\nHost: " + host + b"\r\nAuthorization: Bearer k\r\n"
            b"x-sample-id: n\xc3\xa9\r\nContent-Length: 2\r\n\r\n{}"
        ]
    ]


async def test_calls_one_after_the_other_share_a_connection_and_calls_at_once_do_not():
    async with answering(OK, OK, OK, OK) as (pool, url, seen):
        for _ in range(2):
            await pool.post(url, {}, b"1")
        await asyncio.gather(pool.post(url, {}, b"2"), pool.post(url, {}, b"3"))
    assert sorted(len(requests) for requests in seen) == [1, 3]


@pytest.mark.parametrize(
    ("response", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"hi"),
        (b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", b""),
        (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\nRetry-After: 7\r\n\r\nbusy", b"busy"),
    ],
)
async def test_ways_to_write_a_response(response, body):
    async with answering(response, end=True) as (pool, url, _):
        assert (await pool.post(url, {}, b"{}")).body == body


@pytest.mark.parametrize(
    "response", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"SSH-2.0-x\r\n"]
)
async def test_a_response_that_is_not_whole_is_a_connection_error_and_nothing_is_sent_twice(response):
    async with answering(response, OK, end=True) as (pool, url, seen):
        with pytest.raises(ConnectionError):
            await pool.post(url, {}, b"{}")
    assert [len(requests) for requests in seen] == [1]


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again():
    async with answering(OK, OK, end=True) as (pool, url, seen):
        for _ in range(2):
            assert (await pool.post(url, {}, b"{}")).status == 200
            await asyncio.sleep(0.05)
    assert [len(requests) for requests in seen] == [1, 1]


async def test_idle_connections_are_closed_after_a_while(monkeypatch):
    monkeypatch.setattr(lean_http, "KEEP_ALIVE_SECONDS", 0.05)
    async with answering(OK, OK) as (pool, url, seen):
        await pool.post(url, {}, b"{}")
        await until(lambda: pool._idle == {})
        await pool.post(url, {}, b"{}")
    assert [len(requests) for requests in seen] == [1, 1]


async def test_a_cancelled_call_closes_its_connection_so_that_its_answer_meets_nobody():
    async with answering(b"", OK) as (pool, url, seen):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await pool.post(url, {}, b"{}")
        assert (await pool.post(url, {}, b"{}")).body == b"hi"
    assert len(seen) == 2


async def test_a_response_that_takes_too_long_is_a_timeout_and_closes_its_connection():
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", OK) as (pool, url, seen):
        with pytest.raises(TimeoutError, match="no whole response within"):
            await pool.post(url, {}, b"{}", seconds=0.2)
        assert (await pool.post(url, {}, b"{}", seconds=60)).body == b"hi"
    assert len(seen) == 2


async def test_nobody_there_is_an_os_error():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(OSError, match=str(port)):
        await HttpPool().post(f"http://127.0.0.1:{port}/", {}, b"{}")


@pytest.mark.parametrize("value", ["a\r\nx-rollout-id: other", "a\nb", "a\0b"])
async def test_a_header_cannot_smuggle_another(value):
    with pytest.raises(ValueError, match="'x-sample-id' holds a line break"):
        await HttpPool().post("http://127.0.0.1:1/", {"x-sample-id": value}, b"{}")


@pytest.mark.parametrize("url", ["ftp://host/", "http://", "http://host/a b", "http://host/é"])
async def test_what_is_no_url_is_refused(url):
    with pytest.raises(ValueError, match="http"):
        await HttpPool().post(url, {}, b"{}")


PIECES = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


async def test_a_body_may_be_read_as_it_comes_and_the_connection_is_kept():
    pieces = []
    async with answering(PIECES, OK) as (pool, url, seen):
        reply = await pool.post(url, {}, b"{}", lambda status, headers: pieces.append)
        assert (pieces, reply.body) == ([b"abc", b"de"], b"")
        assert (await pool.post(url, {}, b"{}", lambda status, headers: None)).body == b"hi"
    assert [len(requests) for requests in seen] == [2]


async def test_a_reader_that_has_enough_does_not_wait_for_the_end():
    unending = PIECES.removesuffix(b"0\r\n\r\n")
    async with answering(unending, OK) as (pool, url, seen):
        await pool.post(url, {}, b"{}", lambda status, headers: lambda piece: piece == b"de")
        assert (await pool.post(url, {}, b"{}")).body == b"hi"
    assert [len(requests) for requests in seen] == [1, 1]


async def test_what_a_reader_raises_ends_its_call_and_its_connection():
    def read(piece):
        raise KeyError("mine")

    async with answering(PIECES, OK) as (pool, url, seen):
        with pytest.raises(KeyError, match="mine"):
            await pool.post(url, {}, b"{}", lambda status, headers: read)
        assert (await pool.post(url, {}, b"{}")).body == b"hi"
    assert [len(requests) for requests in seen] == [1, 1]
