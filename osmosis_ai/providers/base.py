"""The provider seam: an external model behind an HTTP API, for eval.

A provider speaks messages, not tokens: nothing that it answers can be trained on, token by token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from osmosis_ai.types import Message, ToolSchema


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One LLM call as the agent made it."""

    messages: Sequence[Message]  # exactly as the agent sent them, images and unknown fields included
    tools: Sequence[ToolSchema]
    params: Mapping[str, Any]  # every other parameter of the request, but model, stream and stream_options
    seed: int  # of the request, or derived from the rollout's: the same call of the same rollout has the same


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """The whole answer. Token counts are the model's own: an answer without them is a ProviderError."""

    message: Message
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    model: str  # the name that the endpoint gave to what answered


class Provider(Protocol):
    """Answers chat completions. Streaming requests reach it as plain ones; the agent gets one delta."""

    async def complete(self, request: ProviderRequest) -> ProviderAnswer:
        """One completion. Cancelling the call gives up on it. Raises ProviderError and nothing else."""
        ...

    async def close(self) -> None:
        """Drop the connections. Safe to call twice."""
        ...
