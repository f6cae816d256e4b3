"""Which rows a step takes: a function of seed and step alone, so that a resumed run needs no cursor."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def items_of_step(items: Sequence[T], step: int, count: int, seed: int) -> list[T]:
    """The `count` items of a step (from 1): consecutive pieces of one shuffled epoch after the other.

    5 items, 2 a step: step 1 takes places 0 and 1 of the first shuffle, step 3 takes place 4 of the first
    and place 0 of the second. An item comes once per epoch.
    """
    if step < 1:
        raise ValueError(f"steps are counted from 1, got {step}")
    picked, orders = [], {}
    for position in range((step - 1) * count, step * count):
        epoch, place = divmod(position, len(items))
        if epoch not in orders:
            order = list(range(len(items)))
            random.Random(f"{seed}/{epoch}").shuffle(order)
            orders[epoch] = order
        picked.append(items[orders[epoch][place]])
    return picked


def learning_rate(base: float, step: int, steps: int, *, warmup_steps: int, final_share: float) -> float:
    """Linear rise over `warmup_steps`, then a linear fall to `final_share` of `base` at the last step.

    base 1.0, 10 steps, 2 of warm-up, final share 0.2: step 1 gives 0.5, step 2 gives 1.0, step 10 gives 0.2.
    """
    if step <= warmup_steps:
        return base * step / warmup_steps
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return base * (1.0 - (1.0 - final_share) * progress)
