"""What goes over the socket, byte for byte: the gateway's own HTTP/1.1."""

import asyncio
import gzip
import json
import socket
import sys

import pytest
from waiting import until

from osmosis_ai import lean_server as server
from osmosis_ai.gateway.targets import ProviderTarget
from osmosis_ai.lean_server import HttpServer
from osmosis_ai.providers.scripted import ScriptedProvider

BODY = json.dumps({"model": "osmosis-rollout", "messages": [{"role": "user", "content": "hello"}]}).encode()
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
ONE = b"POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\n"  # and a byte


class Echo:
    """A server that answers with what it was asked, and a raw connection to it."""

    def __init__(self):
        self.requests = []
        self.held = []  # answers that a test gives itself
        self.hold = False

    def handle(self, request, connection):
        self.requests.append(request)
        if self.hold:
            return self.held.append(connection)
        connection.answer(request.problem or 200, request.body)

    async def open(self, listener):
        self.server = HttpServer(self.handle)
        await self.server.start(listener)
        return await self.connect(listener.getsockname()[1])

    async def connect(self, port):
        self.port = port
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def read(self):
        """(status line, body) of the next response."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
        return head.partition("\r\n")[0], await self.reader.readexactly(length)

    async def closed(self):
        return await asyncio.wait_for(self.reader.read(), 60) == b""


@pytest.fixture
async def http():
    listener = socket.create_server(("127.0.0.1", 0))
    echo = await Echo().open(listener)
    yield echo
    echo.writer.close()
    await echo.server.stop()


async def test_a_connection_takes_one_request_after_the_other(http):
    for body in (b"one", b"two"):
        await http.send(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\n" + body)
        assert await http.read() == ("HTTP/1.1 200 OK", body)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have a lower bound of their own")
async def test_connections_that_come_while_the_gateway_is_busy_wait_to_be_accepted(http):
    clients = [socket.create_connection(("127.0.0.1", http.port), timeout=5) for _ in range(300)]
    for client in clients:  # nothing has been accepted: the loop had no turn
        client.close()


async def test_requests_that_come_ahead_are_answered_in_their_order(http):
    await http.send(b"".join(ONE + b"%d" % i for i in range(9)))
    assert [(await http.read())[1] for _ in range(9)] == [b"%d" % i for i in range(9)]


async def test_only_one_request_of_a_connection_is_in_hand(http):
    http.hold = True
    await http.send(
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\n1POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\n2"
    )
    await until(lambda: http.held)
    assert [request.body for request in http.requests] == [b"1"]
    http.held[0].answer(200, b"first")
    assert (await http.read())[1] == b"first"
    await until(lambda: len(http.held) == 2)
    assert [request.body for request in http.requests] == [b"1", b"2"]


async def test_a_request_may_come_in_any_pieces_and_in_chunks(http):
    head = b"POST /a%20b?q HTTP/1.1\r\nX-Name: v\r\ntransfer-encoding: chunked\r\n\r\n"
    for byte in head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n":
        http.writer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert (await http.read())[1] == b"abcde"
    assert (http.requests[0].path, http.requests[0].headers[b"x-name"]) == ("/a b", b"v")


@pytest.mark.parametrize(
    ("sent", "target"),
    [
        (b"http://gateway:80/v1/a%20b?c=/d", b"/v1/a%20b?c=/d"), (b"HTTPS://[::1]:9/", b"/"),
        (b"http://gateway", b"/"), (b"http://gateway?c=1", b"/?c=1"), (b"/http://x", b"/http://x"),
    ],
)  # fmt: skip
async def test_a_target_in_the_form_for_proxies_is_its_path_and_query(http, sent, target):
    await http.send(b"GET " + sent + b" HTTP/1.1\r\nhost: gateway\r\n\r\n")
    assert (await http.read())[0] == "HTTP/1.1 200 OK"
    assert http.requests[0].target == target


async def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(http):
    await http.send(b"POST / HTTP/1.1\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
    assert await http.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await http.send(b"ok")
    assert (await http.read())[1] == b"ok"


@pytest.mark.parametrize(
    "request_line", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"]
)
async def test_a_connection_that_is_not_to_be_kept_is_closed_behind_the_answer(http, request_line):
    await http.send(request_line)
    assert (await http.read())[0] == "HTTP/1.1 200 OK"
    assert await http.closed()


async def test_head_is_answered_without_a_body(http):
    await http.send(b"HEAD / HTTP/1.1\r\n\r\n")
    assert b"content-length" in await http.reader.readuntil(b"\r\n\r\n")
    await http.send(b"POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\nx")
    assert (await http.read())[1] == b"x"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"hello\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_no_request_gets_400_and_the_end_of_its_connection(http, nonsense):
    await http.send(nonsense)
    assert (await http.read())[0] == "HTTP/1.1 400 Bad Request"
    assert await http.closed()


async def test_bodies_and_heads_have_an_end(http, monkeypatch):
    monkeypatch.setattr(server, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(server, "MAX_HEAD_BYTES", 1000)
    await http.send(b"POST / HTTP/1.1\r\ncontent-length: 100000\r\n\r\n" + b"x" * 2000)
    assert (await http.read())[0].startswith("HTTP/1.1 413 ")  # Python 3.13 has other words for it
    await http.send(b"x" * 98_000)  # is thrown away
    assert await http.closed()
    await http.connect(http.port)
    for endless in (b"x: ", CHUNKED + b"0\r\nx: ", CHUNKED + b"1;x="):  # head, trailer, extension of a chunk
        await http.connect(http.port)
        await http.send(b"POST / HTTP/1.1\r\n" + endless)
        await asyncio.sleep(0.02)
        await http.send(b"y" * 2000)
        assert (await http.read())[0] == "HTTP/1.1 431 Request Header Fields Too Large"
        assert await http.closed()


async def test_a_body_that_is_too_long_is_refused_before_it_is_sent(http):
    await http.send(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 99999999999\r\n\r\n")
    assert (await http.read())[0] == "HTTP/1.1 413 Request Entity Too Large"
    assert await http.closed()


async def test_what_stands_behind_a_body_in_chunks_is_no_header(http):
    chunks = b"1\r\na\r\n0\r\nauthorization: other\r\nx-more: 1\r\n\r\n"
    await http.send(b"POST / HTTP/1.1\r\nauthorization: mine\r\n" + CHUNKED + chunks + ONE + b"b")
    assert [(await http.read())[1] for _ in range(2)] == [b"a", b"b"]
    first, second = http.requests
    assert first.headers == {b"authorization": b"mine", b"transfer-encoding": b"chunked"}
    assert second.headers == {b"content-length": b"1"}


async def test_a_client_that_does_not_read_its_answer_is_not_kept_for_ever(http, monkeypatch):
    monkeypatch.setattr(server, "QUIET_SECONDS", 0.0)
    http.hold = True
    await http.send(b"POST / HTTP/1.1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    await asyncio.sleep(0.05)
    http.writer.transport.pause_reading()
    http.held[0].answer(200, b"x" * 2**26)  # more than the sockets hold
    await asyncio.sleep(0.05)
    assert len(http.server.connections) == 1
    http.server._sweep()
    await asyncio.sleep(0.05)
    assert not http.server.connections


async def test_a_client_that_goes_away_is_noticed_at_once_and_once(http):
    http.hold = True
    await http.send(ONE + b"1")
    await until(lambda: http.held)
    [connection], gone = http.held, []
    connection.on_gone = lambda: gone.append(True)
    http.writer.close()
    await until(lambda: gone)
    assert gone == [True]
    connection.answer(200, b"nobody reads this")
    assert gone == [True]


async def test_a_quiet_connection_is_closed_and_a_waiting_one_is_not(http, monkeypatch):
    monkeypatch.setattr(server, "QUIET_SECONDS", 0.0)
    http.hold = True
    await http.send(ONE + b"1")
    await until(lambda: http.held)
    http.server._sweep()
    http.held[0].answer(200, b"ok")
    assert (await http.read())[1] == b"ok"
    http.server._sweep()
    assert await http.closed()


async def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_its_connection(http):
    http.hold = True
    await http.send(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
    await until(lambda: http.held)
    [connection] = http.held
    connection.stream(b"data: 1\n\n")
    connection.end(b"data: 2\n\n")
    received = await asyncio.wait_for(http.reader.read(), 60)
    assert received.endswith(b"\r\n\r\ndata: 1\n\ndata: 2\n\n")
    assert b"chunked" not in received


async def test_a_request_to_speak_another_protocol_is_answered_in_this_one(http):
    wish = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n"
    await http.send(b"GET / HTTP/1.1\r\n" + wish + b"\r\n")
    assert await http.read() == ("HTTP/1.1 200 OK", b"")
    await http.send(b"POST / HTTP/1.1\r\n" + wish + b"content-length: 4\r\n\r\nbo")  # as Java's client does
    await http.send(b"dy" + ONE + b"x")
    assert [(await http.read())[1] for _ in range(2)] == [b"body", b"x"]


async def test_the_gateway_says_why_it_does_not_read_a_request(open_gateway, monkeypatch):
    g = await open_gateway("ok")
    monkeypatch.setattr(server, "MAX_BODY_BYTES", 10)
    status, answer = await g.post(BODY)
    assert (status, answer["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
async def test_a_body_that_is_packed_is_refused_by_name(open_gateway, path):
    g = await open_gateway("ok")
    headers = {"authorization": f"Bearer {g.key}", "content-encoding": "gzip"}
    url = f"{g.gateway.base_url}/v1/{path}"
    async with g.session.post(url, data=gzip.compress(BODY), headers=headers) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (415, "unsupported_encoding")
    assert error["message"] == "content-encoding 'gzip' is not read here: send plain JSON"


class Faulty(ProviderTarget):
    def count(self, call, tree):
        raise RuntimeError("a fault of ours")


async def test_a_fault_of_ours_is_answered_and_hurts_one_call(open_gateway, caplog):
    g = await open_gateway("ok", target=Faulty(ScriptedProvider.from_texts(["ok"])))
    status, answer = await g.post(BODY, path="/v1/messages/count_tokens")
    assert (status, answer["error"]["code"]) == (500, "internal_error")
    assert "POST /v1/messages/count_tokens failed" in caplog.text
    assert (await g.post(BODY))[0] == 200
