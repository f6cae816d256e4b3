"""The records of the RolloutAgentLoop protocol, and the tool schemas that authors build.

A tool may be given as these models or as a plain dict. Both keep everything that the author wrote (`items`,
nested objects, `default`, `anyOf`, ...): `wire_tools` gives what goes over the wire, without loss.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from osmosis_ai.rollout.backends.base import RolloutStatus
from osmosis_ai.rollout.config.settings import DEFAULT_MAX_METADATA_SIZE_BYTES, get_settings

__all__ = [
    "DEFAULT_MAX_METADATA_SIZE_BYTES",
    "CompletionUsage",
    "CompletionsChoice",
    "CompletionsRequest",
    "CompletionsResponse",
    "InitResponse",
    "MessageDict",
    "OpenAIFunctionCallSchema",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionParsedSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolCall",
    "OpenAIFunctionToolSchema",
    "RolloutMetrics",
    "RolloutRequest",
    "RolloutResponse",
    "RolloutStatus",
    "SamplingParamsDict",
    "ToolResponse",
    "get_max_metadata_size_bytes",
    "set_max_metadata_size_bytes",
    "wire_tools",
]

MessageDict = dict[str, Any]  # one OpenAI chat message
SamplingParamsDict = dict[str, Any]  # temperature, top_p, max_tokens, ...

_max_metadata_size_bytes: int | None = None


def get_max_metadata_size_bytes() -> int:
    """How large the JSON of a request's metadata may be."""
    if _max_metadata_size_bytes is not None:
        return _max_metadata_size_bytes
    return get_settings().max_metadata_size_bytes


def set_max_metadata_size_bytes(size: int) -> None:
    """Change it for this process."""
    global _max_metadata_size_bytes
    if size <= 0:
        raise ValueError(f"the largest size of metadata must be above 0 bytes, got {size}")
    _max_metadata_size_bytes = size


class _Record(BaseModel):
    # Validators are built at the first use: whoever imports the base classes does not pay for all of them.
    model_config = ConfigDict(defer_build=True)


# --- requests and answers ----------------------------------------------------------------------------


class RolloutRequest(_Record):
    """What the training cluster asks for: one rollout."""

    rollout_id: str = Field(min_length=1, max_length=256)
    server_url: str  # of the training cluster: where LLM calls and the completion go
    messages: list[dict[str, Any]]
    completion_params: dict[str, Any]
    tool_server_url: str | None = None
    max_turns: int = 10
    max_tokens_total: int = 8192
    metadata: dict[str, Any] = Field(default_factory=dict)  # the row's, with its label as "ground_truth"
    api_key: str | None = Field(default=None, repr=False)  # sent with the calls to `server_url`
    idempotency_key: str | None = None

    @field_validator("rollout_id")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be blank")
        return value

    @field_validator("server_url")
    @classmethod
    def _http_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"must be an http:// or https:// URL with a host, got {value!r}")
        return value

    @field_validator("metadata")
    @classmethod
    def _small_json(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        try:
            size = len(json.dumps(value).encode())
        except (TypeError, ValueError) as error:
            raise ValueError(f"must be JSON: {error}") from error
        limit = (info.context or {}).get("max_metadata_size_bytes") or get_max_metadata_size_bytes()
        if size > limit:
            raise ValueError(
                f"is {size} bytes of JSON, the limit is {limit}; raise it with "
                "OSMOSIS_ROLLOUT_MAX_METADATA_SIZE_BYTES"
            )
        return value


class InitResponse(_Record):
    """The answer to `/v1/rollout/init`: the rollout runs, and these are its tools."""

    rollout_id: str
    tools: list[dict[str, Any]] = Field(default_factory=list)

    @field_validator("tools", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return wire_tools(value) if isinstance(value, list | tuple) else value


class RolloutMetrics(_Record):
    """What a rollout took."""

    total_latency_ms: float = 0.0  # of run(), waiting for its turn not included
    llm_latency_ms: float = 0.0
    tool_latency_ms: float = 0.0  # as told by ctx.record_tool_call
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    max_context_tokens: int = 0  # prompt + completion of the longest call


class RolloutResponse(_Record):
    """What is posted to `/v1/rollout/completed`."""

    rollout_id: str
    status: RolloutStatus  # COMPLETED or ERROR
    final_messages: list[dict[str, Any]] = Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    reward: float | None = None  # None: the reward is computed elsewhere
    metrics: RolloutMetrics | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)


class CompletionsRequest(_Record):
    """A chat call of a rollout, as the training cluster reads it; unknown parameters are kept."""

    model_config = ConfigDict(extra="allow")

    model: str = "default"
    messages: list[dict[str, Any]]
    rollout_id: str
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    stop: list[str] | None = None
    logprobs: bool = True


class CompletionUsage(_Record):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class CompletionsChoice(_Record):
    index: int = 0
    message: dict[str, Any]
    finish_reason: str = "stop"


class CompletionsResponse(_Record):
    """The answer to a chat call. The last three are the training cluster's own."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str = "default"
    choices: list[CompletionsChoice]
    usage: CompletionUsage | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_token_ids: list[int] | None = None


# --- tools -------------------------------------------------------------------------------------------


class _Schema(_Record):
    """Keeps what it does not know, and sends what the author gave: no more, no less."""

    model_config = ConfigDict(extra="allow")

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        extra = self.model_extra or {}
        return {
            key: value
            for key, value in handler(self).items()
            if key in extra
            or (value is not None and (key in self.model_fields_set or key in ("type", "properties")))
        }


class OpenAIFunctionPropertySchema(_Schema):
    """One argument: any JSON schema."""

    type: str | list[str] | None = None
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(_Schema):
    """All arguments: a JSON schema of type object."""

    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema | bool] = Field(default_factory=dict)
    required: list[str] = Field(default_factory=list)


class OpenAIFunctionSchema(_Schema):
    """One function."""

    name: str
    description: str | None = None
    parameters: OpenAIFunctionParametersSchema | None = None
    strict: bool = False


class OpenAIFunctionToolSchema(_Schema):
    """One tool."""

    type: str = "function"
    function: OpenAIFunctionSchema


# What is no JSON type is left to `json`, which refuses it.
_AS_JSON = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def wire_tools(tools: Iterable[Any]) -> list[dict[str, Any]]:
    """Tools as plain dicts of JSON, independent of the author's objects. TypeError for anything else."""
    plain = []
    for position, tool in enumerate(tools):
        if isinstance(tool, BaseModel):
            given = tool.model_dump(mode="json")
        elif isinstance(tool, dict):
            given = tool
        else:
            raise TypeError(f"tool {position} must be a dict or an OpenAIFunctionToolSchema, got {tool!r}")
        try:
            plain.append(_plain(given))
        except (TypeError, ValueError) as error:
            raise TypeError(f"tool {position} is not JSON: {error}") from error
    return plain


def _plain(given: dict[str, Any]) -> Any:
    """Through JSON and back. Raises TypeError, ValueError for what is none."""
    try:
        text = orjson.dumps(given, option=_AS_JSON)
        if b"null" not in text:  # with it, it may be a NaN
            return orjson.loads(text)
    except TypeError:
        pass  # an integer of more than 64 bits, or no JSON at all
    return json.loads(json.dumps(given, ensure_ascii=False, allow_nan=False).encode())


class OpenAIFunctionParsedSchema(_Record):
    """A call as the model wrote it."""

    name: str
    arguments: str


class OpenAIFunctionCallSchema(_Record):
    """A call with its arguments read."""

    name: str
    arguments: dict[str, Any]

    @staticmethod
    def from_openai_function_parsed_schema(
        parsed: OpenAIFunctionParsedSchema,
    ) -> tuple[OpenAIFunctionCallSchema, bool]:
        """The call, and whether its arguments could not be read (they are then empty)."""
        try:
            arguments = json.loads(parsed.arguments)
        except json.JSONDecodeError:
            arguments = None
        unreadable = not isinstance(arguments, dict)
        return OpenAIFunctionCallSchema(
            name=parsed.name, arguments={} if unreadable else arguments
        ), unreadable


class OpenAIFunctionToolCall(_Record):
    """A call with its id."""

    id: str
    type: str = "function"
    function: OpenAIFunctionCallSchema


class ToolResponse(_Record):
    """What a tool gives back."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def is_empty(self) -> bool:
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        return bool(self.text) and not self.image and not self.video
