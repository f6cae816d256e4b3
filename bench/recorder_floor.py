"""The floor that the gateway is measured against: the shortest honest recorder, and nothing else.

    python bench/recorder_floor.py UPSTREAM_URL FILE LISTENING_SOCKET_FD

Passes every call on as it came, streams the answer through as it comes, and writes both to FILE before the
answer is complete: safe from a kill of the process, not from a loss of power. No identity, tokens or limits.
"""

import socket
import sys

import uvloop
from aiohttp import ClientSession, TCPConnector, web


async def call(request: web.Request) -> web.StreamResponse:
    app, body = request.app, await request.read()
    async with app["client"].post(app["upstream"] + request.path, data=body) as answer:
        if answer.content_type != "text/event-stream":
            received = await answer.read()
            app["file"].write(b'{"request":%b,"response":%b}\n' % (body, received))
            return web.Response(body=received, status=answer.status, content_type=answer.content_type)
        response, pieces = web.StreamResponse(headers={"content-type": "text/event-stream"}), []
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            pieces.append(piece)
            await response.write(piece)
        app["file"].write(b'{"request":%b,"events":%r}\n' % (body, b"".join(pieces)))
        return response


async def opened(upstream: str, file: str) -> web.Application:
    app = web.Application(client_max_size=2**26)
    app["upstream"], app["file"] = upstream, open(file, "ab", buffering=0)  # noqa: ASYNC230, SIM115
    app["client"] = ClientSession(connector=TCPConnector(limit=0))
    app.router.add_post("/{path:.*}", call)
    return app


if __name__ == "__main__":
    uvloop.install()
    listener = socket.socket(fileno=int(sys.argv[3]))
    web.run_app(opened(*sys.argv[1:3]), sock=listener, access_log=None, print=None)
