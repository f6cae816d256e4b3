"""`OsmosisLLMClient`: from an agent loop to the training cluster that asked for the rollout."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import aiohttp
import orjson

from osmosis_ai.rollout.config.settings import RolloutClientSettings, RolloutSettings, get_settings
from osmosis_ai.rollout.core.exceptions import (
    OsmosisRolloutError,
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
)
from osmosis_ai.rollout.core.llm_client import CallLog, CompletionsResult, read_completion
from osmosis_ai.rollout.core.schemas import RolloutMetrics, RolloutResponse, RolloutStatus, wire_tools

__all__ = ["CompletionsResult", "OsmosisLLMClient"]

CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 2.0  # below the 5 s after which uvicorn closes an idle connection
OURS = frozenset({"messages", "rollout_id"})  # keys of a chat call that are not parameters


class OsmosisLLMClient:
    """The calls of one rollout. Belongs to the event loop that first uses it; close it there.

    None takes the value of `settings`, and without them that of the process (`get_settings()`). `tools` go
    along with each chat call that does not bring its own.
    """

    def __init__(
        self,
        server_url: str,
        rollout_id: str,
        api_key: str | None = None,
        timeout_seconds: float | None = None,
        max_retries: int | None = None,
        complete_rollout_retries: int | None = None,
        settings: RolloutClientSettings | RolloutSettings | None = None,
        *,
        tools: Sequence[Any] = (),
    ) -> None:
        chosen = settings or get_settings()
        base = chosen.client if isinstance(chosen, RolloutSettings) else chosen
        given = {
            "timeout_seconds": timeout_seconds,
            "max_retries": max_retries,
            "complete_rollout_retries": complete_rollout_retries,
        }
        changed = {key: value for key, value in given.items() if value is not None}
        self.settings = RolloutClientSettings(**{**base.model_dump(), **changed})
        self.server_url = server_url.rstrip("/")
        self.rollout_id = rollout_id
        self.calls = CallLog()
        self._api_key = api_key
        self._tools = wire_tools(tools)
        self._session: aiohttp.ClientSession | None = None
        self._in_flight = 0

    async def __aenter__(self) -> OsmosisLLMClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def get_metrics(self) -> RolloutMetrics:
        return self.calls.metrics()

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        """Ask the training cluster's model; every keyword is sent, None stands for "not given".

        5xx, timeouts and lost connections are tried again. Raises an OsmosisRolloutError.
        """
        if clash := sorted(OURS & kwargs.keys()):
            raise TypeError(f"chat takes no parameter {clash[0]!r}: the client sets it")
        if kwargs.get("stream"):
            raise TypeError("chat(stream=True) is not supported: the answer comes in one piece")
        params = {key: value for key, value in kwargs.items() if value is not None}
        if "tools" in params:
            params["tools"] = wire_tools(params["tools"])
        elif self._tools:
            params["tools"] = self._tools
        body = {"model": "default", "messages": messages, "rollout_id": self.rollout_id, **params}
        self.calls.asked(messages)
        started = time.perf_counter()
        raw = await self._post("/v1/chat/completions", body, retries=self.settings.max_retries)
        result = self._read(raw)
        self.calls.answered(result, (time.perf_counter() - started) * 1000)
        return result

    async def complete_rollout(
        self,
        status: str,
        final_messages: list[dict[str, Any]],
        finish_reason: str = "stop",
        error_message: str | None = None,
        metrics: RolloutMetrics | None = None,
        reward: float | None = None,
        *,
        retries: int | None = None,
    ) -> None:
        """Tell the training cluster how the rollout ended; the same words are repeated until they arrive.

        Raises an OsmosisRolloutError when they do not, TypeError or ValueError when they cannot be written.
        """
        response = RolloutResponse(
            rollout_id=self.rollout_id,
            status=RolloutStatus(status),
            final_messages=final_messages,
            finish_reason=finish_reason,
            error_message=error_message,
            metrics=metrics,
            reward=reward,
        )
        attempts = self.settings.complete_rollout_retries if retries is None else retries
        await self._post("/v1/rollout/completed", response.model_dump(), retries=attempts)

    async def _post(self, path: str, body: dict[str, Any], *, retries: int) -> bytes:
        """The body of a 200. The delay before retry n (from 0) is base * 2**n, at most retry_max_delay."""
        payload = _encode(body)
        for attempt in range(retries + 1):
            try:
                return await self._attempt(path, payload)
            except OsmosisValidationError:
                raise
            except OsmosisRolloutError:
                if attempt == retries:
                    raise
                delay = self.settings.retry_base_delay * 2**attempt
                await asyncio.sleep(min(delay, self.settings.retry_max_delay))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _attempt(self, path: str, payload: bytes) -> bytes:
        url = self.server_url + path
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        if self._in_flight >= self.settings.max_keepalive_connections:
            headers["Connection"] = "close"  # one more than may be kept for later
        self._in_flight += 1
        try:
            async with self._open().post(
                url, data=payload, headers=headers, allow_redirects=False
            ) as response:
                status, raw = response.status, await response.read()
        except TimeoutError as error:
            seconds = self.settings.timeout_seconds
            raise OsmosisTimeoutError(f"{url} gave no answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            detail = str(error) or type(error).__name__
            raise OsmosisTransportError(f"{url} gave no answer: {detail}") from error
        finally:
            self._in_flight -= 1
        if status == 200:
            return raw
        message = f"{url} answered HTTP {status}: {raw[:500].decode(errors='replace') or 'no body'}"
        if status >= 500:
            raise OsmosisServerError(message, status)
        raise OsmosisValidationError(message, status)

    def _read(self, raw: bytes) -> CompletionsResult:
        try:
            return read_completion(orjson.loads(raw))
        except ValueError as error:
            message = f"{self.server_url} answered a chat call with HTTP 200 and {raw[:200]!r}: {error}"
            raise OsmosisValidationError(message, 200) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:  # made inside the loop that uses it
            settings = self.settings
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=settings.max_connections, keepalive_timeout=KEEP_ALIVE_SECONDS
                ),
                timeout=aiohttp.ClientTimeout(
                    total=settings.timeout_seconds,
                    sock_connect=min(CONNECT_SECONDS, settings.timeout_seconds),
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


def _encode(body: dict[str, Any]) -> bytes:
    """As JSON; values that have no JSON (an author's own objects in a message) as their repr."""
    try:
        return orjson.dumps(body, default=repr)
    except TypeError:  # integers beyond 64 bits, half characters, keys that are no text
        return json.dumps(body, default=repr).encode()
