"""One LLM call inside the gateway, whatever wire it came over, and what can become of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from osmosis_ai.errors import OsmosisError
from osmosis_ai.gateway.tree import Placement
from osmosis_ai.types import Message, PolicyVersion, ToolSchema, Turn

MODEL = "osmosis-rollout"  # the one model name that agents use
MODEL_NAMES = (MODEL, "openai/osmosis-rollout")  # the second is LiteLLM's spelling


class Refusal(OsmosisError):
    """A call that is not answered: an HTTP status and OpenAI's error fields."""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class SamplingWish:
    """What the agent asks of the policy's sampler; None where it leaves the choice to us."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    tools_allowed: bool = True  # False: tool_choice "none", the completion is text whatever it looks like


NO_WISH = SamplingWish()  # of calls to a provider, which gets the parameters as they came


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One LLM call: what the agent wants answered."""

    messages: list[Message]  # canonical form
    tools: list[ToolSchema]
    stream: bool
    wish: SamplingWish  # for the policy
    native_messages: list[Message]  # for a provider: as they came
    native_params: dict[str, Any]  # for a provider: every other parameter, as it came
    recorded: dict[str, Any] = field(default_factory=dict)  # kept with the turn, no effect: user, metadata
    prompt: str | None = None  # of a raw text completion; then `messages` is this text as a user's
    n: int = 1  # answers wanted, each a turn of its own
    echoed: dict[str, Any] = field(default_factory=dict)  # what the dialect's answer repeats of the request
    continuable: bool = False  # a later call of the rollout may name the answer instead of repeating it
    instructions: int = 0  # leading messages that such a later call does not inherit
    rollout_id: str | None = None  # that the body itself names; None: it names none


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What holds for calls that do not say otherwise; None leaves the choice to the policy or provider."""

    temperature: float | None = None  # policy: 1.0
    top_p: float | None = None  # policy: 1.0
    top_k: int | None = None  # policy: 0, all tokens
    max_tokens: int | None = (
        None  # of one completion; the policy treats it as a cap on the request's own, too
    )
    training: bool = False  # True: refuse what would sample from another distribution than the trainer scores


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy or a provider answered, before it has a place in the rollout."""

    message: Message  # role, content, tool_calls; a tool call without "id" gets one when it is recorded
    finish_reason: Literal["stop", "length", "tool_calls"] | str
    placement: Placement
    completion_ids: list[int]  # [C]; empty from a provider
    logprobs: list[float]  # [C]
    policy_version: PolicyVersion | None
    prompt_tokens: int
    completion_tokens: int
    sampling: dict[str, Any]  # the parameters in force
    model: str
    malformed_tool_calls: int = 0
    token_logprobs: list[tuple[str, float]] | None = None  # (token's text, logprob) when the agent asked
    native: bytes = b""  # an external model's answer as it came


@dataclass(frozen=True, slots=True)
class Reply:
    """A recorded turn on its way to the agent."""

    turn: Turn
    token_logprobs: list[tuple[str, float]] | None
