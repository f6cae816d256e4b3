"""Losses: per-token streams in, one scalar out. One function each, one line in LOSSES to add one.

Every loss is a sum over the trained tokens of a microbatch divided by the denominator of the whole step,
so that splitting a batch into microbatches changes nothing. torch is imported when a loss runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from osmosis_ai.types import LossInput, LossOutput


def grpo(inputs: LossInput, *, clip_low: float = 0.2, clip_high: float = 0.2) -> LossOutput:
    """Clipped policy gradient on the ratio of the trained weights to the sampler's.

    Source: arXiv:2402.03300, equation 3 without the KL term; separate bounds from arXiv:2503.14476.

    One token, ratio 1.5, advantage +1:  loss -1.2  (clipped at 1.2)
    One token, ratio 0.5, advantage -1:  loss +0.8  (clipped at 0.8)
    One token, ratio 1.5, advantage -1:  loss +1.5  (not clipped: the step would make it worse)
    """
    import torch

    ratio = torch.exp(inputs.logprobs - inputs.sampler_logprobs)
    clipped = torch.clamp(ratio, 1.0 - clip_low, 1.0 + clip_high)
    per_token = -torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages)
    loss = (per_token * inputs.weights).sum() / inputs.denominator
    hit = (clipped * inputs.advantages < ratio * inputs.advantages).sum()
    return LossOutput(loss, {"clipped_tokens": float(hit)})


def reinforce(inputs: LossInput) -> LossOutput:
    """Plain policy gradient: minus advantage times log-probability. Source: Williams 1992, REINFORCE.

    One token, log-probability -0.5, advantage +2:  loss 1.0
    """
    per_token = -inputs.advantages * inputs.logprobs
    return LossOutput((per_token * inputs.weights).sum() / inputs.denominator)


def cross_entropy(inputs: LossInput) -> LossOutput:
    """Negative log-likelihood of the tokens: supervised fine-tuning.

    Two tokens with log-probabilities -0.5 and -1.5, denominator 2:  loss 1.0
    """
    return LossOutput(-(inputs.logprobs * inputs.weights).sum() / inputs.denominator)


LOSSES: Mapping[str, Callable[..., LossOutput]] = {
    "grpo": grpo,
    "reinforce": reinforce,
    "cross_entropy": cross_entropy,
}
