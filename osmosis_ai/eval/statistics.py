"""What rewards say, and how sure that is.

Attempts at one row are not independent of each other, rows are: every interval here treats the *row* as the
unit that was drawn. All functions take rewards by row, `{row_index: [reward of each attempt]}`; a rollout
that failed has no reward and is not in there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from osmosis_ai.errors import UsageError

Rewards = Mapping[int, Sequence[float]]  # row index -> the reward of each attempt at it
Method = Literal["exact", "bootstrap", "alike", "none"]
Bounds = tuple[float, float]  # the lowest and the highest value there is

UNIT = (0.0, 1.0)

ROUNDING = 1e-12  # values that differ by less are one and the same: 0.3 - 0.1 and 0.2 - 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over rows and the interval that holds the true one, with probability `confidence`.

    "exact" is Clopper-Pearson (Biometrika 26, 1934), "bootstrap" the percentile interval over resampled rows
    (Efron 1979). "alike": all rows have one and the same value, so there is nothing to resample, and the
    interval is as far as the rows that may differ unseen could move the mean (`_alike`). "none": low and high
    are None, because a single row says nothing about other rows, or because rows that are alike have rewards
    outside of 0 to 1, whose bounds nobody knows.
    """

    mean: float
    low: float | None
    high: float | None
    method: Method
    num_rows: int
    num_attempts: int
    confidence: float = 0.95

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.3f} [{self.why_no_interval}]"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def why_no_interval(self) -> str:
        """In words, where low and high are None."""
        return "one row: no interval" if self.num_rows == 1 else "all rows alike: no interval"


@dataclass(frozen=True, slots=True)
class PassEstimate:
    """pass@k: at least one of k attempts passes. pass^k: all k do. Each a mean over rows."""

    k: int
    at: Estimate  # pass@k
    hat: Estimate  # pass^k
    threshold: float  # a reward of at least this much passes


@dataclass(frozen=True, slots=True)
class Difference:
    """Second run minus first, over the rows that both have."""

    estimate: Estimate
    mean_first: float  # over the shared rows
    mean_second: float
    rows_better: int
    rows_worse: int
    num_unpaired: int  # rows that only one run has; they are not compared

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        low, high = self.estimate.low, self.estimate.high
        return low is not None and high is not None and (low > 0.0 or high < 0.0)


def mean_reward(rewards: Rewards, *, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """Mean over rows of each row's mean reward.

    {0: [1, 1], 1: [0, 1]}  ->  (1 + 0.5) / 2 = 0.75
    """
    _check(rewards, confidence)
    means = [sum(attempts) / len(attempts) for attempts in rewards.values()]
    return _estimate(means, _bounds(rewards), _num_attempts(rewards), confidence, seed)


def pass_rates(
    rewards: Rewards, k: int, *, threshold: float = 1.0, confidence: float = 0.95, seed: int = 0
) -> PassEstimate:
    """Unbiased pass@k (arXiv:2107.03374, section 2.1) and pass^k (arXiv:2406.12045), from n >= k attempts.

    A row with c of its n attempts passed:  pass@k = 1 - C(n-c, k) / C(n, k),  pass^k = C(c, k) / C(n, k)
    n = 4, c = 2, k = 2:                    1 - 1/6 = 0.833                    1/6 = 0.167
    """
    _check(rewards, confidence)
    fewest = min(rewards, key=lambda row: len(rewards[row]))
    if not 1 <= k <= len(rewards[fewest]):
        raise UsageError(
            f"pass@{k} needs at least {max(k, 1)} graded attempts per row and k of at least 1; "
            f"row {fewest} has {len(rewards[fewest])}. Raise the attempts or lower k."
        )
    counts = [(len(row), sum(reward >= threshold for reward in row)) for row in rewards.values()]
    at = [1.0 - math.comb(n - c, k) / math.comb(n, k) for n, c in counts]
    hat = [math.comb(c, k) / math.comb(n, k) for n, c in counts]
    num = _num_attempts(rewards)
    at_estimate, hat_estimate = (_estimate(rates, UNIT, num, confidence, seed) for rates in (at, hat))
    return PassEstimate(k, at_estimate, hat_estimate, threshold)


def paired_difference(
    first: Rewards, second: Rewards, *, confidence: float = 0.95, seed: int = 0
) -> Difference:
    """How much better the second run is, row by row; what is hard about a row cancels out."""
    _check(first, confidence)
    _check(second, confidence)
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise UsageError("the two runs have no row in common; compare runs over the same dataset")
    before = [sum(first[row]) / len(first[row]) for row in shared]
    after = [sum(second[row]) / len(second[row]) for row in shared]
    change = [new - old for old, new in zip(before, after, strict=True)]
    num = sum(len(first[row]) + len(second[row]) for row in shared)
    bounds = (-1.0, 1.0) if _bounds(first) and _bounds(second) else None
    return Difference(
        estimate=_resampled(change, bounds, num, confidence, seed),
        mean_first=_mean(before),
        mean_second=_mean(after),
        rows_better=sum(difference > 0 for difference in change),
        rows_worse=sum(difference < 0 for difference in change),
        num_unpaired=len(first.keys() ^ second.keys()),
    )


def exact_interval(passed: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson interval of a rate. 8 of 10: (0.444, 0.975); 0 of 10: (0, 0.308).

    `low` is the rate at which `passed` or more would be seen with probability (1 - confidence) / 2.
    """
    if not 0 <= passed <= total or total < 1:
        raise UsageError(
            f"an interval needs 0 <= passed <= total and a total of at least 1, got {passed}/{total}"
        )
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if passed == 0 else _rate_with_upper_tail(passed, total, tail)
    high = 1.0 if passed == total else 1.0 - _rate_with_upper_tail(total - passed, total, tail)
    return low, high


def wilson_interval(rate: float, total: int) -> tuple[float, float]:
    """95 % score interval of a rate (Wilson, JASA 22, 1927): cheap, and good enough for a line that lives.

    8 of 10: (0.490, 0.943); 0 of 10: (0, 0.278)
    """
    z = 1.959963984540054
    center = (rate + z * z / (2 * total)) / (1 + z * z / total)
    reach = z * math.sqrt(rate * (1 - rate) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, center - reach), min(1.0, center + reach)


# --- inside


def _check(rewards: Rewards, confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise UsageError(f"confidence must be between 0 and 1, got {confidence}")
    if not rewards:
        raise UsageError("there are no rewards to average: no row has a graded rollout")
    for row, attempts in rewards.items():
        if not attempts:
            raise UsageError(f"row {row} has no rewards; leave out rows without a graded rollout")
        for reward in attempts:
            if not math.isfinite(reward):
                raise UsageError(f"row {row} has a reward of {reward}; rewards are finite numbers")


def _num_attempts(rewards: Rewards) -> int:
    return sum(len(attempts) for attempts in rewards.values())


def _bounds(rewards: Rewards) -> Bounds | None:
    """What a reward can be: 0 to 1 where all are in there, else nobody knows."""
    seen = [reward for attempts in rewards.values() for reward in attempts]
    return UNIT if min(seen) >= 0.0 and max(seen) <= 1.0 else None


def _estimate(
    values: Sequence[float], bounds: Bounds | None, num_attempts: int, confidence: float, seed: int
) -> Estimate:
    """One value per row. Rows that are all 0 or 1 are coin flips, for which the exact interval is known.

    It also holds where the bootstrap fails: 20 of 20 passed is not [1, 1] but [0.832, 1].
    """
    if bounds is None or not all(value in (0.0, 1.0) for value in values):
        return _resampled(values, bounds, num_attempts, confidence, seed)
    passed, total = round(sum(values)), len(values)
    low, high = exact_interval(passed, total, confidence)
    return Estimate(passed / total, low, high, "exact", total, num_attempts, confidence)


def _resampled(
    values: Sequence[float], bounds: Bounds | None, num_attempts: int, confidence: float, seed: int
) -> Estimate:
    """The bootstrap, where there is something to resample."""
    if len(values) > 1 and max(values) - min(values) <= ROUNDING:
        return _alike(values, bounds, num_attempts, confidence)
    return _bootstrap(values, num_attempts, confidence, seed)


def _alike(values: Sequence[float], bounds: Bounds | None, num_attempts: int, confidence: float) -> Estimate:
    """All n rows have the value v, which is not the certainty that a resampling makes of it.

    Up to a share q of all rows may have another value and still leave n draws without one: q is the upper
    Clopper-Pearson bound for 0 of n. At worst these all have the lowest or the highest value there is.

    20 rows of 0.5, from 0 to 1:       q = 0.168, [0.5 - q * 0.5, 0.5 + q * 0.5] = [0.416, 0.584]
    6 rows from 0 to 1, a change of 1: q = 0.459, [1 - q * 2, 1] = [0.081, 1]; of 5 rows, [-0.044, 1]

    The last line is where McNemar's exact test has p = 0.031 and 0.063: the two always agree.
    """
    value, total = values[0], len(values)
    if bounds is None:
        return Estimate(value, None, None, "none", total, num_attempts, confidence)
    share = exact_interval(0, total, confidence)[1]
    low, high = (value + share * (bound - value) for bound in bounds)
    return Estimate(value, low, high, "alike", total, num_attempts, confidence)


def _bootstrap(values: Sequence[float], num_attempts: int, confidence: float, seed: int) -> Estimate:
    mean, num_rows = _mean(values), len(values)
    if num_rows == 1:
        return Estimate(mean, None, None, "none", 1, num_attempts, confidence)
    from osmosis_ai.eval.resampling import (
        percentile_interval,  # numpy: twice what all the rest takes to import
    )

    low, high = percentile_interval(values, confidence, seed)
    return Estimate(mean, low, high, "bootstrap", num_rows, num_attempts, confidence)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _rate_with_upper_tail(passed: int, total: int, tail: float) -> float:
    """The rate p with P(X >= passed) = tail for X ~ Binomial(total, p), by bisection; passed >= 1."""
    low, high = 0.0, 1.0
    for _ in range(60):  # 2 ** -60 is below a float's resolution
        rate = (low + high) / 2.0
        low, high = (rate, high) if _upper_tail(passed, total, rate) < tail else (low, rate)
    return (low + high) / 2.0


def _upper_tail(passed: int, total: int, rate: float) -> float:
    """P(X >= passed) for X ~ Binomial(total, rate), or 0.5 where it is at least that much.

    Half of it lies at the mean or above. Behind the mean each term is smaller than the one before, so that
    the first few hundred are all that there is, however many rows there are.

    8 of 10 at a rate of 0.5: (45 + 10 + 1) / 1024 = 0.0547
    """
    if passed <= math.floor(total * rate):
        return 0.5
    log_choose = math.lgamma(total + 1) - math.lgamma(passed + 1) - math.lgamma(total - passed + 1)
    term = math.exp(log_choose + passed * math.log(rate) + (total - passed) * math.log1p(-rate))
    summed, odds = 0.0, rate / (1.0 - rate)
    for count in range(passed, total + 1):
        summed += term
        if term <= summed * 2**-54:
            break
        term *= (total - count) / (count + 1) * odds
    return summed
