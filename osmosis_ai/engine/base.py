"""The engine seam: eight verbs between tokens and weights.

    open -> sample ... -> forward_backward -> optim_step -> publish -> sample ... -> save / load

An engine speaks tokens and knows nothing of messages, rollouts or algorithms: an algorithm writes the
per-token streams of a `TrainingSample` and hands over a loss function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from osmosis_ai.types import LossInput, LossOutput, PolicyVersion, TrainingSample


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to open."""

    path: Path  # a Hugging Face folder: config, safetensors, tokenizer, chat template
    adapter: Literal["none", "lora"] = "none"  # train all weights, or a LoRA adapter on frozen ones
    lora_rank: int = 8
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"  # "auto" takes cuda, then mps, then cpu
    seed: int = 0
    max_requests: int = 64  # sampled at once
    deterministic: bool = False  # one request at a time: bitwise repeatable, slower
    trainable: bool = True  # False: only samples, keeps no optimizer state


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What was opened, and what it can do."""

    version: PolicyVersion
    vocab_size: int
    max_context: int  # tokens of prompt + completion
    num_parameters: int
    num_trainable: int
    device: str
    arithmetic: Literal["float64", "float32", "bfloat16"]  # what both sides compute in; weights are narrower
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one completion. Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    max_tokens: int = 256
    seed: int = 0  # the same prompt, weights and seed give the same completion
    stop_ids: tuple[int, ...] = ()  # token ids that end the completion, beside the model's own


@dataclass(frozen=True, slots=True)
class Completion:
    """C sampled tokens."""

    token_ids: list[int]  # [C], the end token included when it was sampled
    logprobs: list[float]  # [C] natural log, of the distribution each token was sampled from
    finish_reason: Literal["stop", "length"]
    version: PolicyVersion  # the weights that sampled all of it


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One answered call as the engine itself saw it: what a test compares the training samples with."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    completion: Completion


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A loss and the step's denominator.

    `function` maps LossInput to LossOutput; extra keyword arguments come from `params`.
    """

    name: str
    function: Callable[..., LossOutput]
    denominator: float
    params: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OptimSpec:
    """AdamW with a clipped gradient."""

    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0  # 0: no clipping


@dataclass(frozen=True, slots=True)
class BackwardStats:
    """What `forward_backward` saw."""

    loss: float
    logprobs: list[list[float]]  # per row [T]: log p(token t | tokens < t); 0.0 where loss_mask is 0
    sums: dict[str, float]


@dataclass(frozen=True, slots=True)
class StepStats:
    """What `optim_step` did."""

    version: PolicyVersion  # the new one
    grad_norm: float  # before clipping


# Gets each token as it comes; true: it was the last one that is wanted.
OnToken = Callable[[int], bool | None]


class Engine(Protocol):
    """Turns prompt tokens into completion tokens, and may learn. All verbs may be called from one loop."""

    async def open(self, spec: EngineSpec) -> EngineInfo:
        """Load the model. Raises UsageError for a folder that is not a policy."""
        ...

    async def sample(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        on_token: OnToken | None = None,
    ) -> Completion:
        """One completion from the published weights. Cancelling the call stops the work.

        `on_token` is called on the event loop for each token as it comes. Where it returns true the
        completion ends with that token, as if by a stop. Raises EngineError.
        """
        ...

    async def forward(self, rows: Sequence[TrainingSample]) -> list[list[float]]:
        """Log-probabilities [T] per row under the current weights, no gradient; index 0 is 0.0."""
        ...

    async def forward_backward(
        self, rows: Sequence[TrainingSample], loss: LossSpec, microbatch_tokens: int = 16384
    ) -> BackwardStats:
        """Accumulate the gradient of `loss` over `rows`; call `optim_step` to apply it."""
        ...

    async def optim_step(self, spec: OptimSpec) -> StepStats:
        """Apply and clear the accumulated gradient: the next version. Not sampled from until `publish`."""
        ...

    async def publish(self) -> PolicyVersion:
        """From now on `sample` uses the trained weights; no cache of older weights survives."""
        ...

    async def save(self, path: Path, state: Mapping[str, Any], *, training: bool = True) -> None:
        """Write weights (+ optimizer, random state, `state`) to a folder that appears at once or not at all.

        The folder is an ordinary Hugging Face model folder; `training=False` leaves the optimizer out.
        """
        ...

    async def load(self, path: Path) -> dict[str, Any]:
        """Restore what `save` wrote, the version included; returns `state`."""
        ...

    async def close(self) -> None:
        """Stop sampling and free the model. Safe to call twice."""
        ...


__all__ = [
    "BackwardStats",
    "Completion",
    "Engine",
    "EngineInfo",
    "EngineSpec",
    "LossInput",
    "LossOutput",
    "LossSpec",
    "OptimSpec",
    "SampleRecord",
    "Sampling",
    "StepStats",
]
