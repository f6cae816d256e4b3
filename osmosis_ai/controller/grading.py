"""Grading of what a RolloutAgentLoop's server gave no reward, in a child process as all user code.

The child is a rollout server whose workflow only hands over the conversation that it is given.
"""

from __future__ import annotations

import asyncio

import orjson

from osmosis_ai.controller.rollout_server import Body, Order, bearer, judge_fields, post
from osmosis_ai.controller.user_server import UserServer
from osmosis_ai.errors import InfrastructureError
from osmosis_ai.lean_http import HttpPool
from osmosis_ai.types import Message

POLL_SECONDS = 20.0  # that the server may keep one request for the result waiting
UNFINISHED = {"pending", "queued", "running", "grading"}


class Grading:
    """The grader or reward function of `rollout.grader_entrypoint`."""

    def __init__(self, server: UserServer) -> None:
        self._server = server

    async def start(self) -> None:
        """Raises EntrypointError, InfrastructureError."""
        await self._server.ensure_running()

    async def stop(self) -> None:
        await self._server.stop()

    async def grade(self, http: HttpPool, order: Order, messages: list[Message]) -> Body:
        """What a grader callback says: status, samples, err_message. Raises InfrastructureError."""
        try:
            await self._server.ensure_running()
            url, key = f"{self._server.url}/rollout", self._server.api_key
            await post(http, url, _request(order, messages), key, patience_seconds=30.0)
            result = await self._result(http, f"{url}/{order.rollout_id}/result")
        except OSError as error:
            what = str(error) or type(error).__name__
            raise InfrastructureError(
                f"the grading server failed: {what}\n{self._server.log_tail()}"
            ) from error
        self._server.worked()
        return result

    async def _result(self, http: HttpPool, url: str) -> Body:
        headers = bearer(self._server.api_key)
        while True:
            async with asyncio.timeout(POLL_SECONDS + 10):
                reply = await http.get(f"{url}?wait={POLL_SECONDS}", headers)
            if reply.status != 200:
                text = reply.body[:500].decode(errors="replace")
                raise InfrastructureError(f"{url} answered {reply.status}: {text}")
            body: Body = orjson.loads(reply.body)
            if body.get("status") not in UNFINISHED:
                return body


def _request(order: Order, messages: list[Message]) -> Body:
    return {
        "rollout_id": order.rollout_id,
        "initial_messages": messages,
        "label": order.row.label,
        "metadata": order.row.metadata,
        "chat_completions_url": f"{order.gateway_url}/v1",
        "grader_timeout_sec": order.grader_timeout_seconds,
        **judge_fields(order),
    }
