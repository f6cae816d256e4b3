"""The nouns. Read this file first, then `controller/loop.py`.

A row of a dataset is given to a workflow as one or more *rollouts*; each LLM call of a rollout is a
*turn*; the grader rewards the *samples* (conversations) of a rollout; the rollouts of one row form a
*group*; a group becomes *training samples*, and a batch of these one *step* of the optimizer:

    Row -> Rollout (Turn, Turn, ...) -> Sample + reward -> Group -> TrainingSample -> PolicyVersion + 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Message = dict[str, Any]  # one OpenAI chat message: role, content, tool_calls, tool_call_id
TOOL_ERRORS = ("Error:", "An error occurred while running the tool")  # how frameworks begin a tool's failure
ToolSchema = dict[str, Any]  # one OpenAI tool: {"type": "function", "function": {...}}
PolicyVersion = int  # names the weights; 0 is the starting model, + 1 for each optimizer update


@dataclass(frozen=True, slots=True)
class Row:
    """One dataset item. The label is for the grader only: a workflow never sees it."""

    index: int  # position in the dataset file, from 0
    prompt: list[Message]
    label: str | None = None
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One LLM call as the gateway recorded it: P prompt tokens, C completion tokens.

    `parent` says whose tokens this prompt continues: `prompt_ids` starts, token for token, with the
    parent's `prompt_ids + completion_ids`. A turn without a parent starts a new branch of its sample.

    Example: turn 0 has prompt [1, 2] and completion [7, 8]; turn 1 continues it after a tool result
    [3, 4]: its parent is 0 and its prompt [1, 2, 7, 8, 3, 4].
    """

    rollout_id: str
    sample_id: str
    ordinal: int  # 0, 1, ... in the order in which the calls of the rollout were answered
    parent: int | None  # ordinal of the turn whose tokens the prompt continues; None: a new branch
    branch_reason: str | None  # why the call does not continue the latest turn of its sample
    messages: list[Message]  # the request's messages, canonical form
    tools: list[ToolSchema]
    response: Message
    finish_reason: str  # "stop", "length" or "tool_calls"
    prompt_ids: list[int]  # [P]; empty when an external provider answered
    completion_ids: list[int]  # [C], exactly as sampled, the end token included
    logprobs: list[float]  # [C] natural log, of the distribution each token was sampled from
    policy_version: PolicyVersion | None  # the weights that sampled it; None: an external provider
    prompt_tokens: int
    completion_tokens: int
    sampling: dict[str, Any]  # the parameters in force: temperature, top_p, max_tokens, seed, ...
    model: str
    malformed_tool_calls: int  # tool calls in the completion that could not be read
    latency_ms: float


@dataclass(slots=True)
class Sample:
    """One conversation of a rollout, as the grader sees and rewards it."""

    sample_id: str
    messages: list[Message] = field(default_factory=list)
    reward: float | None = None  # None is "no reward", which is not a reward of 0
    removed: bool = False  # the author took it out: neither rewarded nor trained
    metrics: dict[str, float] = field(default_factory=dict)
    frozen: bool = False  # its agent is not trained; a reward is welcome, and not needed


class Status(StrEnum):
    """Where a rollout stands. Each that is neither open nor GRADED is a failure, never a reward."""

    RUNNING = "running"
    GRADED = "graded"
    WORKFLOW_ERROR = "workflow_error"  # run() raised
    WORKFLOW_TIMEOUT = "workflow_timeout"  # run() exceeded its deadline
    NO_TURNS = "no_turns"  # run() made no LLM call through the gateway
    GRADER_ERROR = "grader_error"  # grade() raised, gave no reward, or not a finite one
    GRADER_TIMEOUT = "grader_timeout"
    MODEL_ERROR = "model_error"  # the model refused a call: no room in its context, a content filter
    OVER_BUDGET = "over_budget"  # it used up its tokens or dollars, and a call was refused for it
    PROVIDER_ERROR = "provider_error"  # the external model's endpoint could not answer
    INFRASTRUCTURE = "infrastructure"  # ours: the engine or rollout server failed, a callback never came
    CANCELLED = "cancelled"  # the run was stopped while it was running
    SUPERSEDED = "superseded"  # another attempt at the same place took its turn

    @property
    def is_terminal(self) -> bool:
        return self is not Status.RUNNING


RETRIED = frozenset({Status.INFRASTRUCTURE, Status.PROVIDER_ERROR})  # worth a second attempt


@dataclass(slots=True)
class Rollout:
    """One run of a workflow on a row, with everything that came of it."""

    rollout_id: str
    run_id: str
    row_index: int
    group_id: str  # the rollouts of one row at one step share it
    member: int  # 0, 1, ... G-1 within the group
    attempt: int = 0  # + 1 each time the same place is tried again after a failure of ours
    step: int = 0  # the step that it was made for; 0 in an eval
    status: Status = Status.RUNNING
    reason: str = ""  # what went wrong, in words; empty when graded
    samples: dict[str, Sample] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    started_at: float = 0.0  # seconds since the epoch
    duration_seconds: float = 0.0

    @property
    def reward(self) -> float | None:
        """Mean reward of the samples that count; None unless the rollout was graded."""
        rewards = [s.reward for s in self.samples.values() if not s.removed and s.reward is not None]
        if self.status is not Status.GRADED or not rewards:
            return None
        return sum(rewards) / len(rewards)

    @property
    def branches(self) -> Counter[str]:
        """Calls that do not continue the latest turn of their sample, by reason."""
        return Counter(turn.branch_reason for turn in self.turns if turn.branch_reason is not None)

    @property
    def sampled_tokens(self) -> int:
        """Completion tokens of all turns, as counted by whoever answered."""
        return sum(turn.completion_tokens for turn in self.turns)

    @property
    def tool_errors(self) -> int:
        """Tool results, each counted once, that say they are errors: `is_error`, or a text of TOOL_ERRORS."""
        failed = {
            (message.get("tool_call_id"), str(message.get("content")))
            for turn in self.turns
            for message in turn.messages
            if message.get("role") == "tool"
            and (message.get("is_error") or str(message.get("content")).startswith(TOOL_ERRORS))
        }
        return len(failed)

    @property
    def outcome(self) -> Outcome:
        """The rollout in a few numbers."""
        return Outcome(
            rollout_id=self.rollout_id,
            row_index=self.row_index,
            group_id=self.group_id,
            member=self.member,
            attempt=self.attempt,
            step=self.step,
            status=self.status,
            reason=self.reason,
            reward=self.reward,
            turns=len(self.turns),
            prompt_tokens=sum(turn.prompt_tokens for turn in self.turns),
            completion_tokens=self.sampled_tokens,
            cached_tokens=sum(turn.sampling.get("cached_tokens", 0) for turn in self.turns),
            malformed_tool_calls=sum(turn.malformed_tool_calls for turn in self.turns),
            tool_errors=self.tool_errors,
            branches=dict(self.branches),
            model_seconds=sum(turn.latency_ms for turn in self.turns) / 1000,
            started_at=self.started_at,
            duration_seconds=self.duration_seconds,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rollout came to, without its conversation: all that statistics need of ten thousand of them."""

    rollout_id: str
    row_index: int
    group_id: str
    member: int
    attempt: int
    step: int
    status: Status
    reason: str
    reward: float | None
    turns: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # of the prompt tokens, as far as an external endpoint has told
    malformed_tool_calls: int
    tool_errors: int  # as `Rollout.tool_errors`
    branches: Mapping[str, int]  # as `Rollout.branches`
    model_seconds: float  # from each call to its answer, summed over the turns
    started_at: float  # seconds since the epoch
    duration_seconds: float


@dataclass(slots=True)
class Group:
    """The G rollouts of one row: what an advantage is relative to."""

    group_id: str
    row: Row
    rollouts: list[Rollout]


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One sequence to train on: T tokens, of which those with loss_mask 1 were sampled by the policy.

    Example: prompt [1, 2], sampled [7, 8], tool result [3], sampled [9]:
        token_ids  [1, 2,  7,    8,   3,  9  ]
        loss_mask  [0, 0,  1,    1,   0,  1  ]
        logprobs   [0, 0, -0.1, -0.5, 0, -0.2]
        advantages [0, 0,  0.7,  0.7, 0,  0.7]
        versions   [-1,-1, 3,    3,  -1,  3  ]
        temperatures [1, 1, 1,   1,   1,  1  ]
    """

    token_ids: list[int]  # [T]
    loss_mask: list[int]  # [T] 1: sampled by the policy and trained here, 0: context
    logprobs: list[float]  # [T] the sampler's, natural log; 0.0 where loss_mask is 0
    advantages: list[float]  # [T] 0.0 where loss_mask is 0
    versions: list[int]  # [T] policy version that sampled the token; -1 where loss_mask is 0
    temperatures: list[float]  # [T] that the token was sampled at; 1.0 where loss_mask is 0
    group_id: str
    rollout_id: str
    sample_id: str
    weight: float = 1.0  # multiplies the loss of each token

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask)


@dataclass(frozen=True, slots=True)
class LossInput:
    """Per-token streams of one microbatch, tensors of shape [N]: only the N trained tokens of its rows.

    `logprobs` carries the gradient; all others are constants.
    """

    logprobs: Tensor  # [N] of the weights being trained
    sampler_logprobs: Tensor  # [N] of the weights that sampled
    advantages: Tensor  # [N]
    weights: Tensor  # [N] the row's weight, repeated
    denominator: float  # of the whole step, so that splitting into microbatches changes nothing


@dataclass(frozen=True, slots=True)
class LossOutput:
    """The scalar to differentiate, and sums over the microbatch's tokens to add up over the step."""

    loss: Tensor  # scalar
    sums: Mapping[str, float] = field(default_factory=dict)  # e.g. {"clipped": 3.0}
