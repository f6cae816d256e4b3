"""Advantages: a reward relative to its group. One function each, one line in ADVANTAGES to add one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence


def mean_baseline(rewards: Sequence[float]) -> list[float]:
    """Reward minus the group's mean. Source: Dr. GRPO, arXiv:2503.20783.

    Rewards 1, 0, 0, 1 give +0.5, -0.5, -0.5, +0.5; equal rewards give zeros: no signal.
    """
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)  # the mean of six times 0.2 is not quite 0.2
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def group_standardised(rewards: Sequence[float]) -> list[float]:
    """Reward minus the group's mean, over its standard deviation. GRPO, arXiv:2402.03300, section 4.1.

    The deviation is the population's. Rewards 1, 0, 0, 0 have mean 0.25 and deviation 0.4330: they give
    +1.7321, -0.5774, -0.5774, -0.5774. Equal rewards give zeros, not a division by zero.
    """
    centred = mean_baseline(rewards)
    deviation = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    if deviation < 1e-8:
        return [0.0] * len(centred)
    return [value / deviation for value in centred]


Advantage = Callable[[Sequence[float]], list[float]]

ADVANTAGES: Mapping[str, Advantage] = {
    "group_standardised": group_standardised,
    "mean_baseline": mean_baseline,
}
