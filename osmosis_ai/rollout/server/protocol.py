"""The wire protocol between a controller and a rollout server, as typed records."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator, model_validator

from osmosis_ai.rollout.backends.base import RolloutErrorCategory, RolloutStatus
from osmosis_ai.rollout.samples import RolloutSample

_ORIGIN = re.compile(r"(https?://[a-z0-9.-]+(?::([1-9][0-9]{0,4}))?)[/?#]")  # of nearly all URLs

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RolloutInitRequest(BaseModel):
    """`POST /rollout`: run the workflow on these messages, then the grader, and call back.

    Without callback URLs the controller fetches the result (`GET /rollout/{id}/result`), and `grade` says
    whether there is one of the grader's.
    """

    rollout_id: str
    initial_messages: list[dict[str, Any]]
    label: str | None = None  # for the grader only
    metadata: dict[str, Any] | None = None
    row_index: int | None = None  # of the row in its dataset; an agent loop finds it in its metadata
    chat_completions_url: str
    llm_api_key: str | None = None  # given to the workflow; the controller's key when there is none
    controller_api_key: str | None = None  # sent with the callbacks, never visible to user code
    completion_callback_url: str | None = None
    grader_callback_url: str | None = None  # beside a completion_callback_url: without it nothing is graded
    grade: bool = True  # without callback URLs: whether to grade
    judge_chat_completions_url: str | None = None  # for LLM calls of the grader; never trained
    judge_api_key: str | None = None  # opens the judge, not the policy
    agent_timeout_sec: Seconds | None = None
    grader_timeout_sec: Seconds | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)  # come back with the completion callback

    @field_validator("rollout_id")
    @classmethod
    def one_path_segment(cls, value: str) -> str:
        if not value or len(value) > 200 or value in {".", ".."} or not _is_segment(value):
            raise ValueError(
                "rollout_id must be one path segment: 1 to 200 letters, digits or one of . _ - : @ ~ +"
            )
        return value

    @field_validator(
        "chat_completions_url", "completion_callback_url", "grader_callback_url", "judge_chat_completions_url"
    )
    @classmethod
    def http_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError(f"must be an http:// or https:// URL, got {value!r}")
        if value is not None:
            origin(value)  # raises ValueError for a port that is no number
        return value


def origin(url: str) -> str:
    """`http://Host:80/v1/x` -> `http://host`: scheme, host and port, the scheme's own port left out."""
    plain = _ORIGIN.match(url)
    if plain is not None and plain[2] not in ("80", "443") and int(plain[2] or 0) < 65_536:
        return plain[1]
    parts = urlsplit(url)
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    port = None if parts.port == {"http": 80, "https": 443}.get(parts.scheme) else parts.port
    return f"{parts.scheme}://{shown}" + ("" if port is None else f":{port}")


def _is_segment(value: str) -> bool:
    return all(character.isascii() and (character.isalnum() or character in "._-:@~+") for character in value)


class RolloutInitResponse(BaseModel):
    """The answer 202: the rollout is known, and will end in exactly one callback per phase."""

    rollout_id: str
    status: str = "accepted"


class RolloutCompleteRequest(BaseModel):
    """What is posted to `completion_callback_url` when the workflow has ended."""

    rollout_id: str
    status: RolloutStatus
    extra_fields: dict[str, Any] = Field(default_factory=dict)
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    samples: dict[str, RolloutSample] = Field(default_factory=dict)  # of a failure: as far as it got


class GraderCompleteRequest(BaseModel):
    """What is posted to `grader_callback_url` when the grader has ended, or could not begin."""

    rollout_id: str
    status: RolloutStatus
    samples: dict[str, RolloutSample] = Field(default_factory=dict)
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None


class RolloutStatusResponse(BaseModel):
    """`GET /rollout/{id}/status`, and the answer of `.../result` while there is no result."""

    rollout_id: str
    status: RolloutStatus  # queued, running, grading; then success, failure or cancelled


class CancelRequest(BaseModel):
    """`POST /rollout/cancel`: the rollouts with these ids, or with this prefix, or all; exactly one of them.

    A cancelled rollout posts no more callbacks: its controller asked for that.
    """

    ids: list[str] | None = None
    prefix: str | None = Field(None, min_length=1)
    all: Literal[True] | None = None

    @model_validator(mode="after")
    def exactly_one(self) -> Self:
        given = [name for name in ("ids", "prefix", "all") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of ids, prefix and all, got {' and '.join(given) or 'none'}")
        return self


class CancelResponse(BaseModel):
    cancelled: list[str] = Field(default_factory=list)
    finished: list[str] = Field(default_factory=list)
    unknown: list[str] = Field(default_factory=list)
