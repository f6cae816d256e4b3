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

import numpy as np
from numpy.typing import NDArray

from osmosis_ai.errors import UsageError

Rewards = Mapping[int, Sequence[float]]  # row index -> the reward of each attempt at it
Method = Literal["exact", "bootstrap", "alike", "none"]
Floats = NDArray[np.float64]
Bounds = tuple[float, float]  # the lowest and the highest value there is

UNIT = (0.0, 1.0)

RESAMPLES = 10_000
BLOCK = 2_000_000  # random row numbers held at once
FEW = 10  # rows to a distinct value, from which on counts are cheaper to draw than rows
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
    means = np.array([sum(attempts) / len(attempts) for attempts in rewards.values()])
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
    at = np.array([1.0 - math.comb(n - c, k) / math.comb(n, k) for n, c in counts])
    hat = np.array([math.comb(c, k) / math.comb(n, k) for n, c in counts])
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
    before = np.array([sum(first[row]) / len(first[row]) for row in shared])
    after = np.array([sum(second[row]) / len(second[row]) for row in shared])
    change = after - before
    num = sum(len(first[row]) + len(second[row]) for row in shared)
    bounds = (-1.0, 1.0) if _bounds(first) and _bounds(second) else None
    return Difference(
        estimate=_resampled(change, bounds, num, confidence, seed),
        mean_first=float(before.mean()),
        mean_second=float(after.mean()),
        rows_better=int((change > 0).sum()),
        rows_worse=int((change < 0).sum()),
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
    values: Floats, bounds: Bounds | None, num_attempts: int, confidence: float, seed: int
) -> Estimate:
    """One value per row. Rows that are all 0 or 1 are coin flips, for which the exact interval is known.

    It also holds where the bootstrap fails: 20 of 20 passed is not [1, 1] but [0.832, 1].
    """
    if bounds is None or not np.isin(values, (0.0, 1.0)).all():
        return _resampled(values, bounds, num_attempts, confidence, seed)
    passed, total = int(values.sum()), len(values)
    low, high = exact_interval(passed, total, confidence)
    return Estimate(passed / total, low, high, "exact", total, num_attempts, confidence)


def _resampled(
    values: Floats, bounds: Bounds | None, num_attempts: int, confidence: float, seed: int
) -> Estimate:
    """The bootstrap, where there is something to resample."""
    if len(values) > 1 and np.ptp(values) <= ROUNDING:
        return _alike(values, bounds, num_attempts, confidence)
    return _bootstrap(values, num_attempts, confidence, seed)


def _alike(values: Floats, bounds: Bounds | None, num_attempts: int, confidence: float) -> Estimate:
    """All n rows have the value v, which is not the certainty that a resampling makes of it.

    Up to a share q of all rows may have another value and still leave n draws without one: q is the upper
    Clopper-Pearson bound for 0 of n. At worst these all have the lowest or the highest value there is.

    20 rows of 0.5, from 0 to 1:       q = 0.168, [0.5 - q * 0.5, 0.5 + q * 0.5] = [0.416, 0.584]
    6 rows from 0 to 1, a change of 1: q = 0.459, [1 - q * 2, 1] = [0.081, 1]; of 5 rows, [-0.044, 1]

    The last line is where McNemar's exact test has p = 0.031 and 0.063: the two always agree.
    """
    value, total = float(values[0]), len(values)
    if bounds is None:
        return Estimate(value, None, None, "none", total, num_attempts, confidence)
    share = exact_interval(0, total, confidence)[1]
    low, high = (value + share * (bound - value) for bound in bounds)
    return Estimate(value, low, high, "alike", total, num_attempts, confidence)


def _bootstrap(values: Floats, num_attempts: int, confidence: float, seed: int) -> Estimate:
    """Percentile interval over RESAMPLES draws of the rows with replacement; repeatable by its seed."""
    mean, num_rows = float(values.mean()), len(values)
    if num_rows == 1:
        return Estimate(mean, None, None, "none", 1, num_attempts, confidence)
    means = _resampled_means(values, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
    return Estimate(mean, float(low), float(high), "bootstrap", num_rows, num_attempts, confidence)


def _resampled_means(values: Floats, random: np.random.Generator) -> Floats:
    """[RESAMPLES] means of as many values as there are, drawn with replacement.

    Rewards mostly have few distinct values. How often each is drawn is multinomial: the same draw, and over
    10,000 rows some twenty times faster, for 0, 0.5 and 1 are three counts a draw and not 10,000 indices.
    """
    total = len(values)
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) * FEW <= total:
        return random.multinomial(total, counts / total, size=RESAMPLES) @ distinct / total
    means = np.empty(RESAMPLES)
    block = max(1, BLOCK // total)
    for start in range(0, RESAMPLES, block):
        size = min(block, RESAMPLES - start)
        means[start : start + size] = values[random.integers(total, size=(size, total))].mean(axis=1)
    return means


def _rate_with_upper_tail(passed: int, total: int, tail: float) -> float:
    """The rate p with P(X >= passed) = tail for X ~ Binomial(total, p), by bisection; passed >= 1."""
    successes = np.arange(passed, total + 1)
    steps = np.log(np.arange(total, 0, -1)) - np.log(np.arange(1, total + 1))
    log_choose = np.concatenate(([0.0], np.cumsum(steps)))[passed:]  # log C(total, i)
    low, high = 0.0, 1.0
    for _ in range(60):  # 2 ** -60 is below a float's resolution
        rate = (low + high) / 2.0
        logs = log_choose + successes * math.log(rate) + (total - successes) * math.log1p(-rate)
        low, high = (rate, high) if float(np.exp(logs).sum()) < tail else (low, rate)
    return (low + high) / 2.0
