"""Rollout servers that somebody else started: `[rollout] url` instead of an entrypoint.

Two kinds, told apart by what `/health` says:

    an AgentWorkflow's server       POST /rollout, two callbacks, its own grader
    a RolloutAgentLoop's server     POST /v1/rollout/init, LLM calls that name the rollout in their body,
                                    POST /v1/rollout/completed with status, reward and final messages

For the second kind we are what its protocol calls the training cluster. Its one key opens both the LLM calls
and the result, and the loop holds it: there the server says itself what its rollouts are worth.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from osmosis_ai.controller.rollout_server import (
    Body,
    Life,
    Order,
    RolloutServer,
    bearer,
    cancel_at,
    post,
    workflow_request,
)
from osmosis_ai.errors import InfrastructureError, UsageError
from osmosis_ai.gateway.terms import DEFAULT_SAMPLE
from osmosis_ai.lean_http import HttpPool
from osmosis_ai.types import ToolSchema

HEALTH_SECONDS = 5.0  # for one answer of /health
PULSE_SECONDS = 2.0  # between two looks at a server that runs rollouts
MISSED_PULSES = 3  # after so many in a row it is gone
RETURN_SECONDS = 60.0  # that a server which is gone may take to come back
LOOP_KEYS = ("max_turns", "max_tokens_total", "completion_params")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is."""

    url: str
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class LoopRequest:
    """What each request to a RolloutAgentLoop's server says beside its row."""

    completion_params: Mapping[str, Any]
    max_turns: int = 10
    max_tokens_total: int = 8192

    @classmethod
    def of(cls, workflow: Mapping[str, Any], sampling: Mapping[str, Any]) -> LoopRequest:
        """From the tables [workflow] and [sampling]. Raises UsageError."""
        if unknown := sorted(workflow.keys() - set(LOOP_KEYS)):
            raise UsageError(
                f"workflow.{unknown[0]}: a RolloutAgentLoop's server does not take it; it takes "
                f"{', '.join(LOOP_KEYS)}"
            )
        for key in ("max_turns", "max_tokens_total"):
            value = workflow.get(key, 1)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"workflow.{key} = {value!r} must be a whole number of at least 1")
        if not isinstance(workflow.get("completion_params", {}), dict):
            raise UsageError(
                f"workflow.completion_params = {workflow['completion_params']!r} must be a table"
            )
        rest = {key: value for key, value in workflow.items() if key != "completion_params"}
        return cls({**sampling, **workflow.get("completion_params", {})}, **rest)


async def connect(
    address: Address, protocol: str, workflow: Mapping[str, Any], sampling: Mapping[str, Any]
) -> RolloutServer:
    """The server at `address`; `protocol` is "auto", "agent_loop" or "workflow".

    `workflow` and `sampling` are the tables of the TOML. Raises UsageError, InfrastructureError.
    """
    pool = HttpPool()
    try:
        health = await _health(pool, address)
        loop = health.get("agent_loop")
        if protocol == "auto":
            protocol = "workflow" if loop is None else "agent_loop"
        await _check_key(pool, address, protocol)
    finally:
        await pool.close()
    if protocol == "agent_loop":
        return RemoteAgentLoop(address, health, LoopRequest.of(workflow, sampling))
    if workflow:
        raise UsageError(
            f"[workflow] sets {', '.join(workflow)}, which cannot reach the workflow at {address.url}: "
            "configure it where the server is started"
        )
    return RemoteWorkflows(address, health)


async def _health(pool: HttpPool, address: Address) -> Body:
    """What /health says. Raises InfrastructureError."""
    url = f"{address.url}/health"
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            response = await pool.get(url, {})
        health = json.loads(response.body) if response.status == 200 else None
    except (OSError, ValueError) as error:
        what = str(error) or type(error).__name__
        raise InfrastructureError(
            f"there is no rollout server at {address.url}: {what}. Start one with `osmosis serve`, or mend "
            "rollout.url"
        ) from error
    if not isinstance(health, dict):
        raise InfrastructureError(f"{url} answered {response.status}: that is no rollout server")
    return health


async def _check_key(pool: HttpPool, address: Address, protocol: str) -> None:
    """Learn now, not from each rollout, that the key is wrong. The route below does nothing but check it."""
    path = "/platform/health" if protocol == "agent_loop" else "/rollout/none/status"
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            response = await pool.get(address.url + path, bearer(address.api_key))
    except OSError as error:
        raise InfrastructureError(f"{address.url} gave no answer: {error}") from error
    if response.status == 401:
        given = "another key" if address.api_key else "a key: rollout.api_key_env names its variable"
        raise UsageError(f"the rollout server at {address.url} needs {given}")


def check_reachable(url: str, gateway_host: str) -> None:
    """Raise UsageError when the server at `url` is elsewhere and the gateway listens on loopback only."""
    if _is_loopback(gateway_host) and not _is_loopback(urlsplit(url).hostname or ""):
        raise UsageError(
            f"the rollout server at {url} cannot reach a gateway on {gateway_host}: set rollout.gateway_host "
            "to an address of this machine that it can reach"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Remote:
    """What both kinds share: whether the server is there."""

    sample_id = DEFAULT_SAMPLE

    def __init__(self, address: Address, health: Body) -> None:
        self.address = address
        self.max_concurrent: int | None = (health.get("concurrency") or {}).get("max_concurrent")
        # The server remembers rollouts longer than we live: those of an earlier run are not ours.
        self._suffix = secrets.token_hex(4)
        self._life: Life | None = Life()  # None: it is gone
        self._pulse: asyncio.Task[None] | None = None

    def name_of(self, rollout_id: str) -> str:
        return f"{rollout_id}~{self._suffix}"

    async def ensure_running(self) -> Life:
        if self._pulse is None or self._pulse.done():
            self._pulse = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(RETURN_SECONDS):
                while self._life is None:  # noqa: ASYNC110  `_watch` gives it a new one
                    await asyncio.sleep(0.1)
                return self._life
        except TimeoutError:
            raise InfrastructureError(
                f"the rollout server at {self.address.url} has not answered for {RETURN_SECONDS:.0f} s"
            ) from None

    def death(self, status: int) -> InfrastructureError:
        return InfrastructureError(
            f"the rollout server at {self.address.url} stopped answering while the rollout was running"
        )

    def worked(self) -> None:
        """It is not ours to start again."""

    def log_tail(self) -> str:
        return f"(what it printed is at {self.address.url})"

    async def stop(self) -> None:
        if self._pulse is not None:
            self._pulse.cancel()

    async def _watch(self) -> None:
        pool, missed = HttpPool(), 0
        try:
            while True:
                await asyncio.sleep(PULSE_SECONDS)
                try:
                    await _health(pool, self.address)
                except InfrastructureError:
                    missed += 1
                    if missed >= MISSED_PULSES and self._life is not None:
                        self._life.end(0)
                        self._life = None
                else:
                    missed = 0
                    self._life = self._life or Life()
        finally:
            await pool.close()


class RemoteWorkflows(_Remote):
    """An AgentWorkflow's server; it grades, too."""

    one_result = False

    async def launch(self, http: HttpPool, order: Order) -> list[ToolSchema]:
        url, patience = f"{self.address.url}/rollout", order.agent_timeout_seconds
        await post(http, url, workflow_request(order), self.address.api_key, patience_seconds=patience)
        return []

    async def cancel(self, http: HttpPool, name: str) -> None:
        await cancel_at(http, f"{self.address.url}/rollout/cancel", self.address.api_key, name)


class RemoteAgentLoop(_Remote):
    """A RolloutAgentLoop's server."""

    one_result = True

    def __init__(self, address: Address, health: Body, request: LoopRequest) -> None:
        super().__init__(address, health)
        self.sample_id = str(health.get("agent_loop") or DEFAULT_SAMPLE)
        self._request = request

    async def launch(self, http: HttpPool, order: Order) -> list[ToolSchema]:
        url, patience = f"{self.address.url}/v1/rollout/init", order.agent_timeout_seconds
        key = self.address.api_key
        answer = await post(http, url, self._body(order), key, patience_seconds=patience)
        tools = answer.get("tools") or []
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise InfrastructureError(
                f"{url} answered with tools that are no list of objects: {tools!r:.200}"
            )
        return tools

    async def cancel(self, http: HttpPool, name: str) -> None:
        """Without a server of ours there, the loop's next LLM call is refused, and that ends it."""
        await cancel_at(http, f"{self.address.url}/v1/rollout/cancel", self.address.api_key, name)

    def _body(self, order: Order) -> Body:
        row, request = order.row, self._request
        return {
            "rollout_id": order.rollout_id,
            "idempotency_key": order.name,
            "server_url": order.gateway_url,
            "messages": row.prompt,
            "completion_params": dict(request.completion_params),
            "max_turns": request.max_turns,
            "max_tokens_total": request.max_tokens_total,
            "metadata": loop_metadata(row.metadata, row.label, row.index),
            "api_key": order.llm_key,
        }


def loop_metadata(metadata: Mapping[str, Any] | None, label: str | None, index: int) -> Body:
    """Where a loop looks: the row's metadata, its place in the dataset, its label as "ground_truth"."""
    return {"row_index": index, **(metadata or {}), **({} if label is None else {"ground_truth": label})}
