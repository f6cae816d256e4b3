"""The dispatcher's seam: something that runs rollouts of the user's code when it is asked to.

Implementations: `user_server.UserServer` (a child process), `remote.RemoteWorkflows` and
`remote.RemoteAgentLoop` (servers that somebody else started).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from osmosis_ai.errors import InfrastructureError, OsmosisError
from osmosis_ai.lean_http import HttpPool, json_bytes
from osmosis_ai.types import Row, ToolSchema

if TYPE_CHECKING:
    from osmosis_ai.controller.judging import JudgeAccess

Body = dict[str, Any]  # JSON

REQUEST_SECONDS = 30.0  # for the answer to one request
CANCEL_SECONDS = 2.0
ROW_REFUSED = frozenset({413, 422})  # too large; not what a request is, e.g. with half of a surrogate pair
LONGEST_PAUSE_SECONDS = 30.0  # between two requests of a server that is full, whatever it asks for


class WorkflowRefusedError(OsmosisError):
    """The user's code failed before the rollout began, or the row cannot be sent: that is the result."""


@dataclass(frozen=True, slots=True)
class Order:
    """One rollout, as a server is asked for it."""

    rollout_id: str
    name: str  # of the rollout, at the server
    row: Row
    gateway_url: str  # without /v1
    llm_key: str
    callback_key: str  # the same as llm_key where the protocol has one key only
    agent_timeout_seconds: float
    grader_timeout_seconds: float
    judge: JudgeAccess | None = None


class Life:
    """One life of a server, from its start to its death, and who wants to hear of that."""

    def __init__(self) -> None:
        self._watchers: set[Callable[[int], None]] = set()

    def watch(self, told: Callable[[int], None]) -> None:
        """`told` is called once, with the exit status of the server's process, 0 where that is not known."""
        self._watchers.add(told)

    def unwatch(self, told: Callable[[int], None]) -> None:
        self._watchers.discard(told)

    def end(self, status: int) -> None:
        watchers, self._watchers = self._watchers, set()
        for told in watchers:
            told(status)


class RolloutServer(Protocol):
    """A server of the user's code."""

    max_concurrent: int | None  # its own limit; None: unlimited
    sample_id: str  # of LLM calls that name no sample
    one_result: (
        bool  # True: one message ends the rollout, reward included, sent with the key of its LLM calls
    )

    def name_of(self, rollout_id: str) -> str:
        """What the server knows the rollout as."""
        ...

    async def ensure_running(self) -> Life:
        """Return when it can be asked. Raises EntrypointError, UsageError, InfrastructureError."""
        ...

    async def launch(self, http: HttpPool, order: Order) -> list[ToolSchema]:
        """Ask for a rollout; the tools of its calls that bring none.

        Raises InfrastructureError, OSError without an answer, WorkflowRefusedError for the user's code.
        """
        ...

    async def cancel(self, http: HttpPool, name: str) -> None:
        """Nobody waits for the rollout any more. Raises nothing."""
        ...

    def death(self, status: int) -> InfrastructureError:
        """What rollouts that ran in it have come to."""
        ...

    def worked(self) -> None:
        """A rollout came to a result."""
        ...

    def log_tail(self) -> str:
        """What the user's code printed last, for error messages."""
        ...

    async def stop(self) -> None: ...


# --- the wire of an AgentWorkflow's server: POST /rollout


def workflow_request(order: Order) -> Body:
    base = f"{order.gateway_url}/v1"
    return {
        "rollout_id": order.name,
        "initial_messages": order.row.prompt,
        "label": order.row.label,
        "metadata": order.row.metadata,
        "chat_completions_url": base,
        "llm_api_key": order.llm_key,
        "controller_api_key": order.callback_key,
        "completion_callback_url": f"{base}/rollouts/{order.rollout_id}/completed",
        "grader_callback_url": f"{base}/rollouts/{order.rollout_id}/graded",
        "row_index": order.row.index,
        "agent_timeout_sec": order.agent_timeout_seconds,
        "grader_timeout_sec": order.grader_timeout_seconds,
        **judge_fields(order),
    }


def judge_fields(order: Order) -> Body:
    """Where the grader's own LLM calls go; nothing for a run without a judge."""
    if order.judge is None:
        return {}
    return {"judge_chat_completions_url": order.judge.url, "judge_api_key": order.judge.key}


async def cancel_at(http: HttpPool, url: str, key: str, name: str) -> None:
    """Ask the route `url` to cancel a rollout. A server without such a route goes on for nobody."""
    with suppress(OSError):  # the server is being stopped anyway; the rollout has its result
        async with asyncio.timeout(CANCEL_SECONDS):
            await http.post(url, _headers(key), json_bytes({"ids": [name]}))


# --- requests


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def post(http: HttpPool, url: str, body: Body, key: str, *, patience_seconds: float) -> Body:
    """The JSON of a 2xx. A server that is full (429, 503) is asked again, as it wishes, for so long."""
    content, headers = json_bytes(body), _headers(key)
    until = time.monotonic() + patience_seconds
    while True:
        async with asyncio.timeout(REQUEST_SECONDS):
            reply = await http.post(url, headers, content)
        if reply.status < 300:
            return _object(url, reply.body)
        text = reply.body[:500].decode(errors="replace")
        pause = _pause(reply.headers.get(b"retry-after"))
        # The user's own failure, or a row that the server does not take: nor would it the next time.
        if (reply.status == 500 and url.endswith("/init")) or reply.status in ROW_REFUSED:
            raise WorkflowRefusedError(f"{url} answered {reply.status}: {text}")
        if reply.status not in (429, 503) or time.monotonic() + pause > until:
            raise InfrastructureError(f"{url} answered {reply.status}: {text}")
        await asyncio.sleep(pause)


def _headers(key: str) -> dict[str, str]:
    return {"Content-Type": "application/json", **bearer(key)}


def _object(url: str, raw: bytes) -> Body:
    try:
        return dict(orjson.loads(raw) or {})
    except (TypeError, ValueError):
        raise InfrastructureError(f"{url} answered with what is no JSON object: {raw[:200]!r}") from None


def _pause(retry_after: bytes | None) -> float:
    try:
        return min(LONGEST_PAUSE_SECONDS, max(0.1, float(retry_after or b"1")))
    except ValueError:  # a date
        return LONGEST_PAUSE_SECONDS
