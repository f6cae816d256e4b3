"""Any bytes over a raw socket, in any pieces: requests come out the same, and nothing hangs or falls over."""

import asyncio
import re
import socket
import threading
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osmosis_ai.lean_server import HttpServer

LIMITS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
RESPONSE = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Za-z ]+\r\n(?:[a-z-]+: [^\r\n]+\r\n)*\r\n")


class Loud:
    """A server in a thread of its own: answers with the request, at once or in the loop's next turn."""

    def __init__(self):
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._main(),))
        self._thread.start()
        assert self._ready.wait(10)

    async def _main(self):
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        listener = socket.create_server(("127.0.0.1", 0))
        server = HttpServer(self._handle)
        await server.start(listener)
        self.port = listener.getsockname()[1]
        self._ready.set()
        await self._over.wait()
        await server.stop()

    def _handle(self, request, connection):
        status = request.problem or 200
        if len(request.body) % 2:
            self._loop.call_soon(connection.answer, status, request.body, b"")
        else:
            connection.answer(status, request.body, b"")

    def stop(self):
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def says(self, pieces):
        """All that comes back until the connection ends; TimeoutError when it does not."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = b""
            try:
                for piece in pieces:
                    client.sendall(piece)
                while data := client.recv(65536):
                    received += data
            except (ConnectionResetError, BrokenPipeError):
                pass
            return received


@pytest.fixture(scope="module")
def server():
    server = Loud()
    yield server
    server.stop()


def responses(data):
    """(status, body) of each; AssertionError for what is none."""
    read = []
    while data:
        head = RESPONSE.match(data)
        assert head, data
        length = int(re.search(rb"content-length: (\d+)", head.group())[1])
        read.append((int(head[1]), data[head.end() : head.end() + length]))
        data = data[head.end() + length :]
    return read


def request(body, chunks, last):
    close = b"connection: close\r\n" if last else b""
    if not chunks:
        return b"POST /a HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (close, len(body), body)
    cuts = sorted({min(cut, len(body)) for cut in chunks} | {0, len(body)})
    parts = [body[a:b] for a, b in pairwise(cuts)]
    framed = b"".join(b"%x;e=1\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"POST /a HTTP/1.1\r\n%btransfer-encoding: chunked\r\n\r\n%b0\r\nx-t: 1\r\n\r\n" % (close, framed)


def cut(data, places):
    cuts = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(cuts)]


BODIES = st.lists(
    st.tuples(st.binary(max_size=50), st.lists(st.integers(1, 50), max_size=3)), min_size=1, max_size=5
)
PLACES = st.lists(st.integers(1, 900), max_size=6)


@LIMITS
@given(BODIES, PLACES)
def test_whole_requests_in_any_pieces_are_answered_in_order(server, bodies, places):
    sent = [request(body, chunks, i == len(bodies) - 1) for i, (body, chunks) in enumerate(bodies)]
    came = responses(server.says(cut(b"".join(sent), places)))
    assert came == [(200, body) for body, _ in bodies]


WORDS = st.sampled_from(
    [
        b"\r\n", b"\n", b"\r", b"0\r\n\r\n", b"POST / HTTP/1.1\r\n", b"content-length: 5\r\n", b": ", b"\x00",
        b"transfer-encoding: chunked\r\n", b"transfer-encoding: identity\r\n", b"upgrade: h2c\r\n", b"HEAD",
        b"connection: upgrade\r\n", b"expect: 100-continue\r\n", b"HTTP/1.0", b"-1", b"fffffffffffffff", b" ",
    ]
)  # fmt: skip
CHANGES = st.lists(  # where, how many bytes go, what comes instead
    st.tuples(st.integers(0, 400), st.integers(0, 9), WORDS), min_size=1, max_size=4
)


@LIMITS
@given(BODIES, PLACES, CHANGES)
def test_no_bytes_hang_a_connection_or_hurt_another(server, bodies, places, changes):
    data = b"".join(request(body, chunks, False) for body, chunks in bodies)
    for place, gone, word in changes:
        place %= len(data)
        data = data[:place] + word + data[place + gone :]
    # Whatever it is waiting for is never longer than this, which is no request either.
    end = b"\r\n\r\n0\r\n\r\n" + b"!" * 70_000
    came = server.says([*cut(data, places), end])
    for part in re.split(rb"HTTP/1\.1 100 Continue\r\n\r\n", came):
        assert part.startswith(b"HTTP/1.1 ") or not part
    assert responses(server.says([request(b"still here", [], True)])) == [(200, b"still here")]
