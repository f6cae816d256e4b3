"""What an agent loop's LLM client is, what an answer looks like, and what is kept of the calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from osmosis_ai.rollout.core.schemas import RolloutMetrics
from osmosis_ai.rollout.messages import copied


@dataclass(frozen=True, slots=True)
class CompletionsResult:
    """The answer to `ctx.chat`. Append `message` to the conversation as it is."""

    message: dict[str, Any]  # its content is a text, "" where the wire has null
    token_ids: list[int] = field(default_factory=list)  # when the training cluster sends them
    logprobs: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)  # prompt_tokens, completion_tokens, total_tokens
    finish_reason: str = "stop"

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.message.get("tool_calls"))

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        return self.message.get("tool_calls") or []

    @property
    def content(self) -> Any:
        return self.message.get("content") or ""


class LLMClientProtocol(Protocol):
    """Whatever answers `ctx.chat`."""

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult: ...

    def get_metrics(self) -> RolloutMetrics: ...


def read_completion(body: Any) -> CompletionsResult:
    """The result in the JSON of a chat completion. Raises ValueError when it is none.

    A content of null becomes "": with it a plain `answer in message["content"]` works after a turn that
    only called tools, and the gateway takes the two for the same message.
    """
    try:
        choice = body["choices"][0]
        message = dict(choice["message"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"no chat completion: {type(error).__name__}: {error}") from error
    if message.get("content") is None:
        message["content"] = ""
    logprobs = body.get("logprobs")
    return CompletionsResult(
        message={"role": "assistant", **message},
        token_ids=body.get("token_ids") or [],
        logprobs=logprobs if isinstance(logprobs, list) else [],
        usage=dict(body.get("usage") or {}),
        finish_reason=choice.get("finish_reason") or "stop",
    )


class CallLog:
    """The calls of one rollout so far: their sums, and the conversation of the latest one."""

    def __init__(self) -> None:
        self._num_calls = self._prompt_tokens = self._response_tokens = self._max_context_tokens = 0
        self._latency_ms = 0.0
        self._asked: Sequence[dict[str, Any]] = ()
        self._answer: dict[str, Any] | None = None

    def asked(self, messages: Sequence[dict[str, Any]]) -> None:
        """A call begins. The messages are the author's own objects, which later turns add to."""
        self._asked, self._answer = tuple(messages), None

    def answered(self, result: CompletionsResult, latency_ms: float) -> None:
        self._answer = result.message
        prompt = int(result.usage.get("prompt_tokens") or 0)
        response = int(result.usage.get("completion_tokens") or 0)
        self._num_calls += 1
        self._latency_ms += latency_ms
        self._prompt_tokens += prompt
        self._response_tokens += response
        self._max_context_tokens = max(self._max_context_tokens, prompt + response)

    def transcript(self) -> list[dict[str, Any]]:
        """How far the conversation came: what a rollout that failed leaves behind."""
        answer = [] if self._answer is None else [self._answer]
        return [copied(message) for message in (*self._asked, *answer)]

    def metrics(self) -> RolloutMetrics:
        return RolloutMetrics(
            llm_latency_ms=self._latency_ms,
            num_llm_calls=self._num_calls,
            prompt_tokens=self._prompt_tokens,
            response_tokens=self._response_tokens,
            max_context_tokens=self._max_context_tokens,
        )
