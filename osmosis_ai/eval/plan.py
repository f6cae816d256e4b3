"""What an eval will take, before it takes it: tokens, dollars and time, from a few of its own rollouts.

The first rollouts of a run are its pilot: rows spread evenly over the dataset. They are results like any
others, and what they took says what the rest will take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from osmosis_ai.eval.budget import usage_of_outcome
from osmosis_ai.providers.prices import Prices, Usage, cost
from osmosis_ai.types import Outcome

PILOT = 8  # rollouts
# Student's t, two-sided 95 %, by degrees of freedom from 1 on; 1.96 beyond
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expected:
    """A total that is not known yet, and the interval that holds it with 95 %."""

    total: float
    low: float | None  # None: of a single rollout nothing is known about others
    high: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is left to do, and what it will take. None: nothing has been tried yet, or no prices are known."""

    rollouts: int  # of the whole run
    done: int  # that have a result
    pilot: int  # rollouts that the estimates are from
    tokens: Expected | None
    dollars: Expected | None
    seconds: Expected | None
    dollars_spent: float | None  # by the run so far, with attempts that count no more
    tokens_spent: int
    at_once: int

    @property
    def to_do(self) -> int:
        return self.rollouts - self.done


def make_plan(
    rollouts: int, results: Sequence[Outcome], prices: Prices | None, spent: Usage, at_once: int
) -> Plan:
    """The plan for the rest of a run that has `spent` so much, from the results that it has."""
    rest = rollouts - len(results)
    usages = [usage_of_outcome(outcome) for outcome in results]
    each_second = [outcome.duration_seconds for outcome in results]
    return Plan(
        rollouts=rollouts,
        done=len(results),
        pilot=len(results),
        tokens=expected([usage.tokens for usage in usages], rest),
        dollars=None if prices is None else expected([cost(usage, prices) for usage in usages], rest),
        seconds=_wall_time(expected(each_second, rest), max(each_second, default=0.0), at_once),
        dollars_spent=None if prices is None else cost(spent, prices),
        tokens_spent=spent.tokens,
        at_once=at_once,
    )


def expected(seen: Sequence[float], rest: int) -> Expected | None:
    """The sum over `rest` further rollouts, from what each of those `seen` took; None when none was.

    Prediction interval of Student's t: rest * (mean -+ t * s * sqrt(1/n + 1/rest)), not below 0.
    seen [8, 10, 12], rest 4: 40, s = 2, t = 4.303, 4 * 4.303 * 2 * sqrt(1/3 + 1/4) = 26.3: [13.7, 66.3]
    """
    if not seen:
        return None
    number, mean = len(seen), sum(seen) / len(seen)
    if number == 1 or not rest:
        return Expected(mean * rest, None if rest else 0.0, None if rest else 0.0)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in seen) / (number - 1))
    t = T_95[number - 2] if number - 2 < len(T_95) else 1.96
    reach = rest * t * deviation * math.sqrt(1 / number + 1 / rest)
    return Expected(mean * rest, max(0.0, mean * rest - reach), mean * rest + reach)


def _wall_time(work: Expected | None, longest: float, at_once: int) -> Expected | None:
    """Seconds on the clock: the work shared by those that run at once, and no less than one rollout takes."""
    if work is None or work.total == 0.0:
        return work
    shared = [None if v is None else max(v / at_once, longest) for v in (work.total, work.low, work.high)]
    return Expected(shared[0] or 0.0, shared[1], shared[2])


def spread_evenly(total: int, number: int = PILOT) -> set[int]:
    """`number` positions of `total`, spread over all of them: 10 and 3 -> {0, 3, 6}"""
    return {position * total // number for position in range(number)} if number < total else set(range(total))
