"""What every engine refuses before it begins: inside, a bad request would end the calls of others too."""

from __future__ import annotations

import math
from collections.abc import Sequence

from osmosis_ai.engine.base import EngineInfo, Sampling
from osmosis_ai.errors import EngineError, UsageError
from osmosis_ai.types import TrainingSample


def check_request(prompt_ids: Sequence[int], sampling: Sampling, info: EngineInfo) -> None:
    """Raise UsageError for a call of `sample` that cannot be answered."""
    if not prompt_ids:
        raise UsageError("the prompt has no tokens; a policy needs at least one to continue")
    if min(prompt_ids) < 0 or max(prompt_ids) >= info.vocab_size:
        raise UsageError(f"the prompt has a token id outside of the vocabulary of {info.vocab_size} tokens")
    _check_room(len(prompt_ids), sampling.max_tokens, info.max_context)
    if not 0 <= sampling.temperature < math.inf:
        raise UsageError(f"temperature must be 0 (greedy) or a number above it, got {sampling.temperature}")
    if not 0 < sampling.top_p <= 1:
        raise UsageError(f"top_p must be above 0 and at most 1, got {sampling.top_p}")
    if sampling.top_k < 0:
        raise UsageError(f"top_k must be 0 (all tokens) or a number of tokens, got {sampling.top_k}")


def _check_room(prompt_tokens: int, max_tokens: int, context: int) -> None:
    if max_tokens < 1:
        raise UsageError(f"max_tokens must be at least 1, got {max_tokens}")
    room = context - prompt_tokens
    if room < 1:
        raise UsageError(
            f"the prompt has {prompt_tokens} tokens and the policy's context is {context}, "
            "which leaves no room for a completion. Shorten the conversation."
        )
    if max_tokens > room:
        raise UsageError(
            f"{prompt_tokens} prompt tokens + max_tokens {max_tokens} exceed the policy's context of "
            f"{context}. Set max_tokens to at most {room}, or shorten the conversation."
        )


def check_rows(rows: Sequence[TrainingSample], *, max_context: int, vocab_size: int) -> None:
    """Raise EngineError for rows that cannot be scored: the message names the row by its place."""
    for index, row in enumerate(rows):
        length = len(row.token_ids)
        lengths = {length, len(row.loss_mask), len(row.logprobs), len(row.advantages), len(row.temperatures)}
        if lengths != {length} or not length:
            raise EngineError(f"row {index}: its streams must have one length above 0, got {sorted(lengths)}")
        if length > max_context:
            raise EngineError(
                f"row {index} has {length} tokens, more than the policy's context of {max_context}"
            )
        if row.loss_mask[0]:
            raise EngineError(f"row {index}: its first token cannot be trained, nothing predicts it")
        if min(row.token_ids) < 0 or max(row.token_ids) >= vocab_size:
            raise EngineError(f"row {index} has a token outside of the vocabulary of {vocab_size}")
