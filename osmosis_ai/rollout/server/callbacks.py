"""Callbacks to the controller: each is tried until it is taken, refused, or the attempts are used up."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import orjson

from osmosis_ai.lean_http import HttpPool
from osmosis_ai.rollout.server.protocol import GraderCompleteRequest, RolloutCompleteRequest

logger = logging.getLogger(__name__)

Report = RolloutCompleteRequest | GraderCompleteRequest

ATTEMPTS = 5
FIRST_DELAY_SECONDS = 0.5  # doubles up to LAST_DELAY_SECONDS
LAST_DELAY_SECONDS = 8.0
ATTEMPT_SECONDS = 10.0
RETRIED_STATUSES = frozenset({429, 500, 502, 503, 504})


class CallbackClient:
    """Posts JSON to the controller. A callback that fails is logged; it never becomes another callback."""

    def __init__(self) -> None:
        self._pool = HttpPool()

    async def post(self, url: str, api_key: str | None, payload: bytes, *, attempts: int = ATTEMPTS) -> bool:
        """Whether the controller has taken it (any 2xx)."""
        headers = {"Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        problem = ""
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(min(FIRST_DELAY_SECONDS * 2 ** (attempt - 1), LAST_DELAY_SECONDS))
            try:
                reply = await self._pool.post(url, headers, payload, seconds=ATTEMPT_SECONDS)
            except OSError as error:  # TimeoutError is one
                problem = str(error) or type(error).__name__
                continue
            if reply.status < 300:
                return True
            problem = f"HTTP {reply.status}: {reply.body[:200].decode(errors='replace')}"
            if reply.status not in RETRIED_STATUSES:
                break
        logger.error("callback to %s was not delivered: %s", url, problem)
        return False

    async def close(self) -> None:
        await self._pool.close()


def encode(body: Report) -> bytes:
    """The JSON of a report. A transcript that is no JSON does not lose the result: see `_encode_plainly`."""
    plain = body.model_dump()
    try:
        return orjson.dumps(plain, default=_jsonable, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return _encode_plainly(plain)


def _encode_plainly(plain: dict[str, Any]) -> bytes:
    """With half surrogates replaced and integers beyond 64 bits as text.

    Rewards and errors always get through. What still cannot be sent of a transcript is left out; the log says
    so.
    """
    for sample_id, sample in plain["samples"].items():
        for key in ("messages", "extra_fields"):
            try:
                sample[key] = _plain(sample[key])
                orjson.dumps(sample[key], default=_jsonable)
            # The boundary to what frameworks keep in a message: nested without end, with a repr that raises.
            except Exception as error:
                logger.warning("the %s of sample %r cannot be sent: %s", key, sample_id, error)
                sample[key] = type(sample[key])()
    return orjson.dumps(_plain(plain), default=_jsonable)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


def _jsonable(value: Any) -> Any:
    """What a framework may keep in a message beyond JSON: images as bytes, its own objects."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return repr(value)
