"""The gateway: each LLM call passes through here, from bytes to bytes, and leaves a turn behind.

request -> identity -> dialect -> retry? -> place -> answer -> record (durable) -> dialect -> response
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from osmosis_ai import process
from osmosis_ai.errors import InfrastructureError, StoreError
from osmosis_ai.gateway.asgi import ASGIApp, pass_on
from osmosis_ai.gateway.budget import Budget
from osmosis_ai.gateway.call import MODEL, MODEL_NAMES, ModelCall, Refusal, SamplingDefaults
from osmosis_ai.gateway.capture import CallCounts, OpenRollout
from osmosis_ai.gateway.dialects import COUNTING, DIALECTS, chat
from osmosis_ai.gateway.dialects.base import Dialect
from osmosis_ai.gateway.exchange import Exchange
from osmosis_ai.gateway.identity import Admission, Registry, named_in
from osmosis_ai.gateway.restoring import Restoring
from osmosis_ai.gateway.retries import Attempt, fingerprint
from osmosis_ai.gateway.streams import send_refusal
from osmosis_ai.gateway.targets import Target
from osmosis_ai.gateway.terms import DEFAULT_SAMPLE
from osmosis_ai.lean_server import BACKLOG, MAX_BODY_BYTES, MAX_HEAD_BYTES, Connection, HttpServer, Request
from osmosis_ai.store.base import Store, TurnStore
from osmosis_ai.types import ToolSchema, Turn

__all__ = ["Gateway", "SamplingDefaults"]

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 15.0  # clients and what stands between give up on silent streams after 30 or 60


class Gateway:
    """The endpoint for all rollouts of a run.

        gateway = Gateway(PolicyTarget(engine, info, renderer), store)
        await gateway.start()
        key = gateway.admit("rollout-1", seed=7, sampling=SamplingDefaults(training=True))
        ...                                   # the agent calls {gateway.base_url}/v1 with this key
        turns = await gateway.seal("rollout-1")
        await gateway.stop()

    Every call needs the key of an open rollout, so nothing is open to strangers whatever the host.
    Requests to other paths go to `extra_routes`. With `restores`, a name, it also answers the rollouts that
    were admitted to the gateway of that name in the store (a whole `Store` then), by this process or another:
    see `restoring.py`.
    """

    def __init__(
        self,
        target: Target,
        store: TurnStore,
        *,
        extra_routes: ASGIApp | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        restores: str | None = None,
    ) -> None:
        self._target = target
        self._store = store
        self._extra_routes = extra_routes
        self._heartbeat_seconds = heartbeat_seconds
        self._rollouts = Registry()
        self._restoring: Restoring | None = None
        if restores is not None:
            self._restoring = Restoring(restores, cast(Store, store), target, self._rollouts)
        self._server: HttpServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # of requests that are not answered at once
        self.base_url = ""  # set by `start`

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, *, listener: socket.socket | None = None
    ) -> None:
        """Listen, in the running loop. Port 0 takes a free one. Raises InfrastructureError when it cannot.

        With `listener` it is this socket that is listened on, whatever host and port.
        """
        listener = listener or listen(host, port)
        process.spare_what_is_loaded()
        shown = "127.0.0.1" if host in ("0.0.0.0", "") else host
        self.base_url = f"http://{shown}:{listener.getsockname()[1]}"
        self._server = HttpServer(self.handle)
        await self._server.start(listener)

    async def stop(self) -> None:
        """Seal what is open and stop listening. Safe to call twice."""
        for rollout in self._rollouts.open_rollouts():
            await self.seal(rollout.rollout_id)
        if self._server is not None:
            await self._server.stop()
            self._server = None

    def admit(
        self,
        rollout_id: str,
        *,
        seed: int,
        sampling: SamplingDefaults | None = None,
        max_turns: int | None = None,
        budget: Budget | None = None,
        expires_seconds: float | None = None,
        sample_id: str = DEFAULT_SAMPLE,
        alias: str = "",
        awaits_tools: bool = False,
        key: str | None = None,
    ) -> str:
        """Open a rollout for calls; returns its key, which dies with it, or `expires_seconds` from now.

        Calls are answered until `max_turns` are taken or the `budget` is spent.
        `sample_id` is that of calls that name none, `alias` a second name of the rollout. With `awaits_tools`
        a call without tools waits for `offer_tools`, and gets those. `key` is one that was given out before.
        """
        rollout = OpenRollout(
            rollout_id,
            self._store,
            seed=seed,
            defaults=sampling or SamplingDefaults(),
            max_turns=max_turns,
            budget=budget,
        )
        return self._rollouts.admit(
            rollout,
            expires_seconds,
            default_sample=sample_id,
            alias=alias,
            awaits_tools=awaits_tools,
            key=key,
        )

    def offer_tools(self, rollout_id: str, tools: list[ToolSchema]) -> None:
        """The tools of the rollout's calls that bring none, from now on."""
        self._rollouts.admission(rollout_id).offer_tools(tools)

    async def restore(self, rollout_id: str) -> None:
        """Take up a rollout as it stands in the store, if it was admitted to the name that this gateway has.

        Its first call does the same. Raises StoreError.
        """
        if self._restoring is not None:
            await self._restoring.by_rollout(rollout_id)

    async def seal(self, rollout_id: str) -> list[Turn]:
        """End the rollout: calls in progress are cancelled, later ones get 409. Its turns, in order.

        Called again soon it gives the same, later nothing: turns are kept while those of the rollouts that
        have ended are few (`identity.KEPT_TOKENS`). KeyError for a rollout that is not known.
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

    def handle(self, request: Request, connection: Connection) -> None:
        """One request; the connection gets its answer, now or later."""
        try:
            self._begin(request, connection)
        except Exception as error:  # a fault of ours: the client of this request must not wait for ever
            _failed(error, request, connection)

    def _begin(self, request: Request, connection: Connection) -> None:
        path = request.path
        route = ROUTES.get(path) or route_of_rollout(path)
        if request.problem:
            return send_refusal(connection, _problem(request), route.dialect if route else chat)
        if route is not None:
            return self._serve(route, request, connection)
        if request.method == "GET":
            if _MODELS.fullmatch(path):
                return self._models(path, connection)
            if path == "/health":
                health = {"status": "ok", "open_rollouts": len(self._rollouts.open_rollouts())}
                return connection.answer(200, orjson.dumps(health))
        if self._extra_routes is not None:
            return self._later(pass_on(self._extra_routes, request, connection), request, connection)
        refusal = Refusal(404, f"there is nothing at {path}", code="not_found")
        send_refusal(connection, refusal, chat)

    def _later(self, answering: Coroutine[Any, Any, None], request: Request, connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(answering)
        self._tasks.add(task)

        def done(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                _failed(error, request, connection)

        task.add_done_callback(done)

    def _serve(self, route: Route, request: Request, connection: Connection) -> None:
        arrived = Arrived(route, request, connection, time.perf_counter())
        if request.method != "POST":
            refusal = Refusal(405, f"use POST, not {request.method}", code="method_not_allowed")
            return send_refusal(connection, refusal, route.dialect)
        encoding = request.headers.get(b"content-encoding", b"identity")
        if encoding.lower() != b"identity":
            name = encoding.decode("latin-1")[:80]
            problem = f"content-encoding {name!r} is not read here: send plain JSON"
            return send_refusal(connection, Refusal(415, problem, code="unsupported_encoding"), route.dialect)
        if (
            self._restoring is not None
            and (digest := self._rollouts.unknown_key(request.headers)) is not None
        ):
            return self._later(self._restored(arrived, self._restoring, digest), request, connection)
        self._known(arrived)

    async def _restored(self, arrived: Arrived, restoring: Restoring, key_digest: bytes) -> None:
        try:
            named = arrived.route.rollout_id or named_in(arrived.request.headers)
            await restoring.by_key(key_digest, named)
        except StoreError as error:
            refusal = Refusal(503, f"the rollout could not be looked up: {error}", code="store_error")
            return send_refusal(arrived.connection, refusal, arrived.route.dialect)
        if not arrived.connection.gone:
            self._known(arrived)

    def _known(self, arrived: Arrived) -> None:
        request, connection, dialect = arrived.request, arrived.connection, arrived.route.dialect
        try:
            admission, sample_id = self._rollouts.identify(request.headers, arrived.route.rollout_id)
        except Refusal as refusal:
            return send_refusal(connection, refusal, dialect)
        try:
            call = dialect.parse(
                request.body, for_policy=self._target.is_policy, recall=admission.answers.get
            )
            admission.check_named("body", call.rollout_id)
            if admission.waits_for_tools(call):
                return self._later(self._with_tools(arrived, admission, sample_id, call), request, connection)
            self._admitted(arrived, admission, sample_id, call)
        except Refusal as refusal:
            send_refusal(connection, admission.rollout.refused(refusal), dialect)
        except RecursionError:  # lists in lists in lists
            too_deep = Refusal(400, "the body is nested too deeply", code="invalid_json")
            send_refusal(connection, admission.rollout.refused(too_deep), dialect)

    async def _with_tools(
        self, arrived: Arrived, admission: Admission, sample_id: str, call: ModelCall
    ) -> None:
        try:
            call = await admission.with_tools(call)
            if not arrived.connection.gone:
                self._admitted(arrived, admission, sample_id, call)
        except Refusal as refusal:
            send_refusal(arrived.connection, admission.rollout.refused(refusal), arrived.route.dialect)

    def _admitted(self, arrived: Arrived, admission: Admission, sample_id: str, call: ModelCall) -> None:
        """Raises Refusal."""
        route, connection = arrived.route, arrived.connection
        if route.counts:
            tree = admission.rollout.tree(sample_id, self._target.new_tree)
            return connection.answer(200, route.dialect.counted(self._target.count(call, tree)))
        Exchange(
            admission,
            sample_id,
            call,
            arrived.request.body,
            _attempt(arrived, admission, sample_id, call),
            route.dialect,
            self._target,
            connection,
            arrived.at,
            self._heartbeat_seconds,
        ).begin()

    def _models(self, path: str, connection: Connection) -> None:
        name = path.rpartition("/models")[2].removeprefix("/")
        if name and name not in MODEL_NAMES:
            refusal = Refusal(404, f"there is no model {name!r} here: {MODEL!r} is", code="model_not_found")
            return send_refusal(connection, refusal, chat)
        connection.answer(200, orjson.dumps(_MODEL if name else _MODEL_LIST))


def _failed(error: BaseException, request: Request, connection: Connection) -> None:
    """A fault of ours: the client is told, and the log."""
    logger.error("%s %s failed", request.method, request.path, exc_info=error)
    refusal = Refusal(500, f"the gateway failed: {type(error).__name__}: {error}", code="internal_error")
    route = ROUTES.get(request.path) or route_of_rollout(request.path)
    send_refusal(connection, refusal, route.dialect if route else chat)


def _problem(request: Request) -> Refusal:
    """What is wrong with a request before anybody reads what it says."""
    if request.problem == 413:
        problem = f"the body is larger than {MAX_BODY_BYTES} bytes"
        return Refusal(413, problem, code="request_too_large")
    if request.problem == 431:
        return Refusal(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes", code="request_too_large")
    return Refusal(400, "this is no HTTP/1.1 request", code="invalid_http")


def _attempt(arrived: Arrived, admission: Admission, sample_id: str, call: ModelCall) -> Attempt:
    """The attempt that this request asks for again, or a new one. Raises Refusal."""
    prefix, headers = arrived.route.dialect.ID_PREFIX, arrived.request.headers
    rollout, retries = admission.rollout, admission.retries
    request = fingerprint(prefix, sample_id, arrived.request.body)
    attempt = retries.find(request, headers, sample_id)
    if attempt is not None and (attempt.answered or attempt.work is not None):
        return attempt
    rollout.check_limits(call.n if attempt is None else len(attempt.seeds) - len(attempt.replies))
    if attempt is not None:
        return attempt
    number = rollout.next_call_id().removeprefix(chat.ID_PREFIX)
    seeds = [rollout.next_seed(sample_id) for _ in range(call.n)]
    return retries.begin(prefix + number, request, seeds, headers, sample_id)


@dataclass(frozen=True, slots=True)
class Route:
    """What a path means."""

    dialect: Dialect
    counts: bool  # asked for the number of tokens only
    rollout_id: str | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request that goes to a dialect."""

    route: Route
    request: Request
    connection: Connection
    at: float  # time.perf_counter()


_ENDS = {end: Route(dialect, False) for end, dialect in DIALECTS.items()}
_ENDS |= {end: Route(dialect, True) for end, dialect in COUNTING.items()}
# Clients put /v1 before their path or expect it in their base URL; the URL that agents get ends in /v1.
ROUTES = {f"{base}/{end}": route for base in ("", "/v1", "/v1/v1") for end, route in _ENDS.items()}
_OF_ROLLOUT = re.compile(r"/v1/rollouts/([^/]+)(?:/v1)?/(.+)")
_MODELS = re.compile(r"(?:/v1){0,2}(?:/rollouts/[^/]+)?(?:/v1)?/models(?:/(?:openai/)?[^/]+)?")


def route_of_rollout(path: str) -> Route | None:
    """The route of a path that names a rollout: /v1/rollouts/ID/chat/completions, .../ID/v1/messages, ..."""
    found = _OF_ROLLOUT.fullmatch(path)
    route = _ENDS.get(found[2]) if found else None
    return replace(route, rollout_id=found[1]) if found and route else None


# One object for both kinds of clients: OpenAI's read object, created, owned_by; Anthropic's the others.
_MODEL = {
    "id": MODEL,
    "object": "model",
    "created": 0,
    "owned_by": "osmosis",
    "type": "model",
    "display_name": MODEL,
    "created_at": "1970-01-01T00:00:00Z",
}
_MODEL_LIST = {
    "object": "list", "data": [_MODEL], "has_more": False, "first_id": MODEL, "last_id": MODEL,
}  # fmt: skip


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InfrastructureError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: asyncio sets TCP_NODELAY only where it is, and without it the small pieces of a
    # stream wait 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InfrastructureError(
            f"the gateway cannot listen on {host}:{port} ({error}). Is another run using the port?"
        ) from error
    return listener
