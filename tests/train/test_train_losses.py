"""Losses against values computed by hand."""

import math

import pytest

torch = pytest.importorskip("torch")

from osmosis_ai.train.losses import LOSSES, cross_entropy, grpo, reinforce  # noqa: E402
from osmosis_ai.types import LossInput  # noqa: E402


def stream(logprobs, sampler, advantages, *, denominator=1.0, weights=None):
    logprobs = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    return LossInput(
        logprobs=logprobs,
        sampler_logprobs=torch.tensor(sampler, dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        weights=torch.tensor(weights or [1.0] * len(sampler), dtype=torch.float64),
        denominator=denominator,
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [(1.5, 1.0, -1.2, 1), (0.5, -1.0, 0.8, 1), (1.5, -1.0, 1.5, 0), (0.5, 1.0, -0.5, 0), (1.0, 2.0, -2.0, 0)],
)
def test_grpo_of_one_token(ratio, advantage, loss, clipped):
    output = grpo(stream([math.log(ratio)], [0.0], [advantage]))
    assert float(output.loss.detach()) == pytest.approx(loss)
    assert output.sums["clipped_tokens"] == clipped


def test_a_clipped_token_has_no_gradient_and_an_unclipped_one_minus_advantage_times_ratio():
    inputs = stream([math.log(1.5), math.log(1.1)], [0.0, 0.0], [1.0, 1.0], denominator=2.0)
    grpo(inputs).loss.backward()
    assert inputs.logprobs.grad.tolist() == pytest.approx([0.0, -1.1 / 2])


def test_reinforce_and_cross_entropy_by_hand():
    assert float(reinforce(stream([-0.5], [0.0], [2.0])).loss.detach()) == 1.0
    inputs = stream([-0.5, -1.5], [0.0, 0.0], [1.0, 1.0], denominator=2.0)
    assert float(cross_entropy(inputs).loss.detach()) == 1.0


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_loss_is_the_sum_of_its_microbatches(name):
    logprobs, sampler, advantages = [-0.1, -0.9, -2.0], [-0.2, -0.5, -2.5], [1.0, -1.0, 0.5]
    whole = float(LOSSES[name](stream(logprobs, sampler, advantages, denominator=3.0)).loss.detach())
    pieces = [
        float(LOSSES[name](stream([a], [b], [c], denominator=3.0)).loss.detach())
        for a, b, c in zip(logprobs, sampler, advantages, strict=True)
    ]
    assert sum(pieces) == pytest.approx(whole, abs=1e-12)
