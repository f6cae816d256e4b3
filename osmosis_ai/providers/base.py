"""The provider seam: an external model behind an HTTP API, for eval.

A provider speaks messages, not tokens: nothing that it answers can be trained on, token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from osmosis_ai.types import Message, ToolSchema

OnText = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One LLM call as the agent made it."""

    messages: Sequence[Message]  # as the agent sent them, images and unknown fields included
    tools: Sequence[ToolSchema]
    params: Mapping[str, Any]  # every other parameter of the request, but model, n, stream and stream_options
    seed: int  # of the request, or derived from the rollout's: the same call of the same rollout has the same
    prompt: str | None = None  # of a raw text completion; then `messages` is this text as a user's


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """The whole answer. Token counts are the model's own: an answer without them is a ProviderError."""

    message: Message
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    model: str  # the name that the endpoint gave to what answered


class Provider(Protocol):
    """Answers chat completions and raw text completions."""

    async def complete(self, request: ProviderRequest, on_text: OnText | None = None) -> ProviderAnswer:
        """One completion. Cancelling the call gives up on it. Raises ProviderError and nothing else.

        With `on_text` the text is handed over piece by piece as it comes; together the pieces are the
        beginning of the answer's content. Once a piece was handed over, a failure is final: nothing is tried
        again.
        """
        ...

    async def close(self) -> None:
        """Drop the connections. Safe to call twice."""
        ...
