"""The way to the policy: a lean client for one endpoint, `POST {chat_completions_url}/chat/completions`.

It never repeats a call: a call that may have been sampled must not be sampled twice in silence. It sets no
time limit for the answer either: that is the rollout's deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import orjson

from osmosis_ai.lean_http import HttpPool, Reply, json_bytes
from osmosis_ai.rollout.context import RolloutContext

POLICY_MODEL = "openai/osmosis-rollout"  # the name under which every workflow knows the policy


class PolicyCallError(Exception):
    """A call to the policy that brought no answer."""

    def __init__(
        self, message: str, *, status: int | None = None, code: str = "", retry_after: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status  # HTTP status; None when there was no response
        self.code = code  # the machine-readable reason in the body, such as context_length_exceeded
        self.retry_after = retry_after

    @property
    def is_context_overflow(self) -> bool:
        return self.code == "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class PolicyEndpoint:
    """Where a sample's calls go, and how they say which sample and rollout they belong to."""

    base_url: str
    api_key: str | None
    rollout_id: str

    @classmethod
    def of(cls, context: RolloutContext) -> PolicyEndpoint:
        if not context.chat_completions_url:
            raise RuntimeError(
                f"the context of rollout {context.rollout_id or '(no id)'} has no chat_completions_url, so "
                "there is no model to call (in a grader: the run has no [judge], and the policy that is "
                "graded is none)"
            )
        return cls(context.chat_completions_url.rstrip("/"), context.api_key, context.rollout_id)

    @property
    def url(self) -> str:
        path = "/chat/completions"
        return self.base_url if self.base_url.endswith(path) else self.base_url + path

    def identity(self, sample_id: str) -> dict[str, str]:
        return {"x-rollout-id": self.rollout_id, "x-sample-id": sample_id}


_kept: WeakKeyDictionary[asyncio.AbstractEventLoop, HttpPool] = WeakKeyDictionary()


def keep_session(loop: asyncio.AbstractEventLoop) -> None:
    """Let the calls made in `loop` share connections; whoever calls this ends it with `close_session`."""
    _kept.setdefault(loop, HttpPool())


async def close_session() -> None:
    """Close the shared connections of the running loop."""
    pool = _kept.pop(asyncio.get_running_loop(), None)
    if pool is not None:
        await pool.close()


async def _post(url: str, headers: Mapping[str, str], body: bytes) -> Reply:
    kept = _kept.get(asyncio.get_running_loop())
    if kept is not None:
        return await kept.post(url, headers, body)
    pool = HttpPool()  # a loop that somebody else made and will drop, as a synchronous `agent(...)` does
    try:
        return await pool.post(url, headers, body)
    finally:
        await pool.close()


async def chat(
    endpoint: PolicyEndpoint,
    sample_id: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The chat completion for `body`. Raises PolicyCallError when there is none.

    `headers` are additions; they cannot replace the key or the identity of the call.
    """
    sent = {**(headers or {}), "Content-Type": "application/json", **endpoint.identity(sample_id)}
    if endpoint.api_key:
        sent["Authorization"] = f"Bearer {endpoint.api_key}"
    try:
        reply = await _post(endpoint.url, sent, json_bytes(body))
    except OSError as error:
        detail = str(error) or type(error).__name__
        raise PolicyCallError(f"the policy at {endpoint.url} gave no answer: {detail}") from error
    if reply.status != 200:
        retry_after = reply.headers.get(b"retry-after", b"").decode("latin-1") or None
        raise _refusal(endpoint.url, reply.status, reply.body, retry_after)
    return _completion(endpoint.url, reply.body)


def _refusal(url: str, status: int, raw: bytes, retry_after: str | None) -> PolicyCallError:
    message, code = raw[:500].decode(errors="replace"), ""
    try:
        error = orjson.loads(raw)["error"]
        message, code = str(error["message"]), str(error.get("code") or "")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        pass  # not the error body of an OpenAI-compatible endpoint: shown as it came
    text = f"the policy at {url} answered HTTP {status}: {message or 'no body'}"
    return PolicyCallError(text, status=status, code=code, retry_after=retry_after)


def _completion(url: str, raw: bytes) -> dict[str, Any]:
    try:
        completion: dict[str, Any] = orjson.loads(raw)
        if isinstance(completion["choices"][0]["message"], dict):
            return completion
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        pass
    raise PolicyCallError(
        f"the policy at {url} answered HTTP 200 with something that is no chat completion: "
        f"{raw[:200].decode(errors='replace')!r}",
        status=200,
    )
