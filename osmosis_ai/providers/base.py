"""The provider seam: an external model behind an HTTP API, for eval.

A provider speaks messages, not tokens: nothing that it answers can be trained on, token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from osmosis_ai.errors import ProviderDownError
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
    canonical: Sequence[Message] = ()  # the messages as they are recorded with the turn


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """The whole answer. Token counts are the model's own: an answer without them is a ProviderError."""

    message: Message
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    model: str  # the name that the endpoint gave to what answered
    cached_tokens: int = 0  # of the prompt tokens; 0 also where the endpoint does not tell
    native: bytes = b""  # the body of the endpoint's answer as it came; b"" where there is no endpoint


@dataclass(frozen=True, slots=True)
class ProviderState:
    """How a provider does now: for the live line, and for whoever decides whether a run goes on."""

    limit: int | None = None  # calls that it is sent at once, now; None: as many as come
    in_flight: int = 0
    waiting: int = 0  # calls that wait: for the limit, for what the endpoint asked for, for a probe
    throttled: int = 0  # answers so far that said "too many requests"
    failing: str = ""  # the last error, while nothing has been answered since several; calls wait
    down: ProviderDownError | None = None  # not None: the endpoint answers nothing, and calls fail at once


class Provider(Protocol):
    """Answers chat completions and raw text completions."""

    async def complete(self, request: ProviderRequest, on_text: OnText | None = None) -> ProviderAnswer:
        """One completion. Cancelling the call gives up on it. Raises ProviderError and nothing else.

        With `on_text` the text is handed over piece by piece as it comes; together the pieces are the
        beginning of the answer's content. Once a piece was handed over, a failure is final: nothing is tried
        again.
        """
        ...

    def state(self) -> ProviderState:
        """How it does now. Cheap: a live line may ask many times a second."""
        ...

    async def close(self) -> None:
        """Drop the connections. Safe to call twice."""
        ...
