"""The wire of a rollout server: what each request is answered, whatever the server is made of.

`app.py` puts these routes into a FastAPI app, for authors; `lean.py` behind a server that starts at once, for
the process that a controller starts.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import orjson
from pydantic import BaseModel, Field, ValidationError

from osmosis_ai.rollout.server.desk import Desk, Refused
from osmosis_ai.rollout.server.protocol import (
    CancelRequest,
    RolloutInitRequest,
    RolloutInitResponse,
    RolloutStatusResponse,
)

HEALTH = "/health"  # the only route without a key
# path -> method
ROUTES = {
    HEALTH: "GET",
    "/rollout": "POST",
    "/rollout/cancel": "POST",
    "/rollout/{rollout_id}/status": "GET",
    "/rollout/{rollout_id}/result": "GET",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, without its route."""

    headers: Mapping[str, str]  # names in lower case
    query: str = ""
    body: bytes = b""
    rollout_id: str = ""  # of the path


@dataclass(frozen=True, slots=True)
class Answer:
    """JSON, and its status."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Routes:
    """The answers of one desk. `longest_wait_seconds`: of one long poll for a result."""

    def __init__(self, desk: Desk, *, api_key: str | None, longest_wait_seconds: float) -> None:
        self._desk = desk
        self._api_key = api_key
        self._longest = longest_wait_seconds
        self._answers: dict[str, Callable[[Asked], Awaitable[Answer]]] = {
            HEALTH: self._health,
            "/rollout": self._admit,
            "/rollout/cancel": self._cancel,
            "/rollout/{rollout_id}/status": self._status,
            "/rollout/{rollout_id}/result": self._result,
        }

    async def answer(self, route: str, asked: Asked) -> Answer:
        """The answer at one of `ROUTES`. What it raises is a fault of ours."""
        try:
            if route != HEALTH:
                self._check_key(asked)
            return await self._answers[route](asked)
        except Refused as refused:
            return _json({"detail": refused.reason}, refused.status, refused.headers)

    def _check_key(self, asked: Asked) -> None:
        if self._api_key is None:
            return
        given = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._api_key.encode()):
            raise Refused(401, "this rollout server needs its key: Authorization: Bearer <key>")

    async def _health(self, asked: Asked) -> Answer:
        return _json(self._desk.health())

    async def _admit(self, asked: Asked) -> Answer:
        _check_json(asked, "POST /rollout")
        try:
            request = RolloutInitRequest.model_validate_json(asked.body)
        except ValidationError as error:
            return _unusable(error.errors(), "body")
        self._desk.admit(request)
        return _json(RolloutInitResponse(rollout_id=request.rollout_id).model_dump(), 202)

    async def _cancel(self, asked: Asked) -> Answer:
        _check_json(asked, "POST /rollout/cancel")
        try:
            request = CancelRequest.model_validate_json(asked.body)
        except ValidationError as error:
            return _unusable(error.errors(), "body")
        return _json(self._desk.cancel(request).model_dump())

    async def _status(self, asked: Asked) -> Answer:
        status = self._desk.status(asked.rollout_id)
        return _json(RolloutStatusResponse(rollout_id=asked.rollout_id, status=status).model_dump())

    async def _result(self, asked: Asked) -> Answer:
        """The result as soon as there is one, else the status after `wait` seconds."""
        try:
            query = _Wait.model_validate(dict(parse_qsl(asked.query)))
        except ValidationError as error:
            return _unusable(error.errors(), "query")
        wait = self._longest if query.wait is None else min(query.wait, self._longest)
        found = await self._desk.result(asked.rollout_id, wait)
        if isinstance(found, bytes):
            return Answer(200, found)
        return _json(RolloutStatusResponse(rollout_id=asked.rollout_id, status=found).model_dump())


class _Wait(BaseModel):
    """The query of `GET /rollout/{id}/result`."""

    wait: float | None = Field(None, ge=0, allow_inf_nan=False)


def _check_json(asked: Asked, what: str) -> None:
    """A page in a browser can post text to this machine without asking, but not JSON."""
    if not asked.headers.get("content-type", "").startswith("application/json"):
        raise Refused(415, f"{what} takes application/json")


def _json(content: dict[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, orjson.dumps(content), headers or {})


def _unusable(errors: Sequence[Any], place: str) -> Answer:
    # Without the input that pydantic would repeat: it may hold a key, or an infinity that JSON cannot.
    findings = [{"loc": [place, *issue["loc"]], "msg": issue["msg"]} for issue in errors]
    return _json({"detail": findings}, 422)
