"""The gateway: each LLM call passes through here, from bytes to bytes, and leaves a turn behind.

request -> identity -> dialect -> place -> answer -> record (durable) -> dialect -> response
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import uvicorn

from osmosis_ai.errors import EngineError, InfrastructureError, ProviderError, StoreError
from osmosis_ai.gateway.call import ModelCall, Refusal, Reply, SamplingDefaults
from osmosis_ai.gateway.capture import CallCounts, OpenRollout
from osmosis_ai.gateway.dialects import chat
from osmosis_ai.gateway.identity import Registry
from osmosis_ai.gateway.targets import OnText, Target
from osmosis_ai.store.base import Store
from osmosis_ai.types import Turn

__all__ = ["Gateway", "SamplingDefaults"]

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

CHAT_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})
CHAT_PATH_OF_ROLLOUT = re.compile(r"/v1/rollouts/([^/]+)/chat/completions")
HEARTBEAT_SECONDS = 15.0  # clients and what stands between give up on silent streams after 30 or 60
MAX_BODY_BYTES = 64 * 2**20
GRACE_SECONDS = 1  # for connections to close at the end; all calls have been ended by then

_JSON = (b"content-type", b"application/json")
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_FINAL = (b"x-should-retry", b"false")  # OpenAI's clients retry 409 and some others unless told not to


class Gateway:
    """The endpoint for all rollouts of a run.

        gateway = Gateway(PolicyTarget(engine, info, renderer), store)
        await gateway.start()
        key = gateway.admit("rollout-1", seed=7, sampling=SamplingDefaults(training=True))
        ...                                   # the agent calls {gateway.base_url}/v1 with this key
        turns = await gateway.seal("rollout-1")
        await gateway.stop()

    Every call needs the key of an open rollout, so nothing is open to strangers whatever the host.
    Requests to other paths go to `extra_routes`.
    """

    def __init__(
        self,
        target: Target,
        store: Store,
        *,
        extra_routes: ASGIApp | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._target = target
        self._store = store
        self._extra_routes = extra_routes
        self._heartbeat_seconds = heartbeat_seconds
        self._rollouts = Registry()
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.base_url = ""  # set by `start`

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen, in the running loop. Port 0 takes a free one. Raises InfrastructureError when it cannot."""
        listener = _listen(host, port)
        shown = "127.0.0.1" if host in ("0.0.0.0", "") else host
        self.base_url = f"http://{shown}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            self,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=120,  # longer than the agents' pools, so that they close first
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110  uvicorn has no event
            await asyncio.sleep(0.001)
        if self._serving.done():
            self._serving.result()
            raise InfrastructureError(f"the gateway could not listen on {host}:{port}")

    async def stop(self) -> None:
        """Seal what is open and stop listening. Safe to call twice."""
        for rollout in self._rollouts.open_rollouts():
            await self.seal(rollout.rollout_id)
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._server = self._serving = None

    def admit(
        self,
        rollout_id: str,
        *,
        seed: int,
        sampling: SamplingDefaults | None = None,
        max_turns: int | None = None,
        token_budget: int | None = None,
    ) -> str:
        """Open a rollout for calls; returns its key, which dies with it.

        `token_budget` counts prompt and completion tokens of all turns; the call that reaches it is the last.
        """
        rollout = OpenRollout(
            rollout_id,
            self._store,
            seed=seed,
            defaults=sampling or SamplingDefaults(),
            max_turns=max_turns,
            token_budget=token_budget,
        )
        return self._rollouts.admit(rollout)

    async def seal(self, rollout_id: str) -> list[Turn]:
        """End the rollout: calls in progress are cancelled, later ones get 409. Its turns, in order.

        May be called again soon, and gives the same. KeyError for a rollout that is not known.
        """
        rollout = self._rollouts.get(rollout_id)
        turns = await rollout.seal()
        self._rollouts.ended(rollout_id)
        return turns

    def counters(self, rollout_id: str) -> CallCounts:
        """What became of the rollout's calls, after its end too. `.explain()` says it in words."""
        return self._rollouts.get(rollout_id).counts

    @property
    def strangers(self) -> dict[str, int]:
        """Calls without a rollout's key that name no rollout either, by error code."""
        return dict(self._rollouts.strangers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if path in CHAT_PATHS:
                return await self._chat(scope, receive, send, None)
            if found := CHAT_PATH_OF_ROLLOUT.fullmatch(path):
                return await self._chat(scope, receive, send, found[1])
            if path in ("/v1/models", "/models") and scope["method"] == "GET":
                return await _send_json(send, 200, chat.models())
            if path == "/health" and scope["method"] == "GET":
                health = {"status": "ok", "open_rollouts": len(self._rollouts.open_rollouts())}
                return await _send_json(send, 200, orjson.dumps(health))
        if self._extra_routes is not None:
            return await self._extra_routes(scope, receive, send)
        if scope["type"] == "http":
            refusal = Refusal(404, f"there is nothing at {scope['path']}", code="not_found")
            await _send_refusal(send, refusal)

    async def _chat(self, scope: Scope, receive: Receive, send: Send, id_in_path: str | None) -> None:
        started = time.perf_counter()
        try:
            body = await _read_body(receive)
            if scope["method"] != "POST":
                raise Refusal(405, f"use POST, not {scope['method']}", code="method_not_allowed")
            rollout, sample_id = self._rollouts.identify(dict(scope["headers"]), id_in_path)
        except Refusal as refusal:
            return await _send_refusal(send, refusal)
        except _ClientGoneError:
            return None
        try:
            call = chat.parse(body, for_policy=self._target.is_policy)
            rollout.check_limits()
        except Refusal as refusal:
            return await _send_refusal(send, rollout.refused(refusal))
        exchange = _Exchange(rollout, sample_id, call, rollout.next_call_id(), started)
        respond = self._stream if call.stream else self._plain
        return await respond(exchange, receive, send)

    async def _plain(self, exchange: _Exchange, receive: Receive, send: Send) -> None:
        with _working(exchange.rollout, self._answer(exchange, None), receive) as (work, gone):
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                exchange.rollout.counts.abandoned += 1
                return
            outcome = _outcome(work, exchange)
        if isinstance(outcome, Refusal):
            await _send_refusal(send, outcome)
        else:
            await _send_json(send, 200, chat.plain(exchange.call_id, outcome))

    async def _stream(self, exchange: _Exchange, receive: Receive, send: Send) -> None:
        """Nothing is sent before there is something to say, so an early failure has a status of its own."""
        texts: asyncio.Queue[str | None] = asyncio.Queue()
        events = chat.EventStream(exchange.call_id, int(time.time()))
        body = _StreamedBody(send)
        with _working(exchange.rollout, self._answer(exchange, texts.put_nowait), receive) as (work, gone):
            for task in (work, gone):
                task.add_done_callback(lambda _: texts.put_nowait(None))
            while not (work.done() or gone.done()):
                text = await self._next_text(texts)
                if text is None:
                    await body.send(chat.HEARTBEAT)
                elif text:
                    await body.send((b"" if events.sent else events.start()) + events.text(text))
            if not work.done():
                exchange.rollout.counts.abandoned += 1
                return
            outcome = _outcome(work, exchange)
        if isinstance(outcome, Reply):
            opening = b"" if events.sent else events.start()
            await body.end(opening + events.finish(outcome))
        elif body.started:
            await body.end(events.error(outcome))
        else:
            await _send_refusal(send, outcome)

    async def _next_text(self, texts: asyncio.Queue[str | None]) -> str | None:
        """All text since the last time; "" when the work has ended; None after a long silence."""
        try:
            async with asyncio.timeout(self._heartbeat_seconds):
                pieces = [await texts.get()]
        except TimeoutError:
            return None
        while not texts.empty():
            pieces.append(texts.get_nowait())
        return "".join(piece for piece in pieces if piece)

    async def _answer(self, exchange: _Exchange, on_text: OnText | None) -> Reply:
        """Answer and record: the part that a disconnect or the end of the rollout cancels."""
        rollout, sample_id, call = exchange.rollout, exchange.sample_id, exchange.call
        tree = rollout.tree(sample_id, self._target.new_tree())
        seed = rollout.next_seed(sample_id)
        answer = await self._target.answer(call, tree, rollout.defaults, seed, on_text)
        latency_ms = (time.perf_counter() - exchange.started) * 1000
        return await rollout.record(sample_id, call, answer, latency_ms)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One call on its way through."""

    rollout: OpenRollout
    sample_id: str
    call: ModelCall
    call_id: str
    started: float  # time.perf_counter()


class _ClientGoneError(Exception):
    """The client went away before its request was whole."""


class _Server(uvicorn.Server):
    """Leaves the process's signals alone: they belong to the command line."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _StreamedBody:
    """A response that begins with its first bytes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def send(self, data: bytes) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        await self.send(data)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


@contextlib.contextmanager
def _working(
    rollout: OpenRollout, answering: Any, receive: Receive
) -> Iterator[tuple[asyncio.Task[Reply], asyncio.Task[Any]]]:
    """The work on a call, and a task that ends when the client goes away; both cancelled on the way out."""
    work: asyncio.Task[Reply] = asyncio.create_task(answering)
    rollout.run(work)
    # The body has been read, so the next message can only be the disconnect.
    gone: asyncio.Task[Any] = asyncio.ensure_future(receive())
    try:
        yield work, gone
    finally:
        gone.cancel()
        work.cancel()


def _outcome(work: asyncio.Task[Reply], exchange: _Exchange) -> Reply | Refusal:
    """What the finished work came to. This is where a failure of a call is attributed."""
    rollout, sample_id = exchange.rollout, exchange.sample_id
    if work.cancelled():  # by `seal`: nothing else cancels work that is still waited for
        rollout.counts.abandoned += 1
        return rollout.has_ended()
    error = work.exception()
    if error is None:
        return work.result()
    if isinstance(error, Refusal):
        return rollout.refused(error)
    kind, refusal = _attributed(error)
    if refusal.status == 400 or refusal.status in (
        413,
        422,
    ):  # the agent's own request, by the provider's word
        return rollout.refused(refusal)
    rollout.failed(sample_id, kind, str(refusal))
    return refusal


def _attributed(error: BaseException) -> tuple[str, Refusal]:
    if isinstance(error, ProviderError):
        return "provider", Refusal(error.status, f"the provider failed: {error}", code="provider_error")
    if isinstance(error, EngineError):
        return "engine", Refusal(503, f"the engine failed: {error}", code="engine_error")
    if isinstance(error, StoreError):
        return "store", Refusal(503, f"the turn could not be stored: {error}", code="store_error")
    # Everything else is a fault of ours, here or in the engine; the agent gets an answer all the same.
    what = f"{type(error).__name__}: {error}"
    return "engine", Refusal(500, f"the gateway failed: {what}", code="internal_error")


async def _read_body(receive: Receive) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return _within_limit(message.get("body", b""))
    chunks, size = [message.get("body", b"")], 0
    while message["type"] == "http.request" and message.get("more_body"):
        message = await receive()
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > MAX_BODY_BYTES:
            break
    if message["type"] == "http.disconnect":
        raise _ClientGoneError
    return _within_limit(b"".join(chunks))


def _within_limit(body: bytes) -> bytes:
    if len(body) > MAX_BODY_BYTES:
        raise Refusal(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="request_too_large")
    return body


async def _send_refusal(send: Send, refusal: Refusal) -> None:
    retryable = refusal.status == 429 or refusal.status >= 500
    await _send_json(send, refusal.status, chat.error_body(refusal), [] if retryable else [_FINAL])


async def _send_json(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send(
        {"type": "http.response.start", "status": status, "headers": [_JSON, length, *(headers or [])]}
    )
    await send({"type": "http.response.body", "body": body})


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(4096)
    except OSError as error:
        listener.close()
        raise InfrastructureError(
            f"the gateway cannot listen on {host}:{port} ({error}). Is another run using the port?"
        ) from error
    listener.setblocking(False)
    return listener
