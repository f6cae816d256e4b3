"""What an eval will take, from a few of its rollouts, against values worked out by hand."""

import math

import pytest

from osmosis_ai.eval.budget import RunBudget, Spending
from osmosis_ai.eval.plan import T_95, Expected, expected, make_plan, spread_evenly
from osmosis_ai.providers.prices import NOTHING, Prices, Usage
from osmosis_ai.types import Rollout, Status

PRICES = Prices(input=10.0, output=1e6)  # a dollar for each completion token


def outcome(tokens: int, seconds: float = 1.0):
    rollout = Rollout("r", "x", 0, "r0", 0, status=Status.GRADED, duration_seconds=seconds)
    values = {name: getattr(rollout.outcome, name) for name in rollout.outcome.__slots__}
    return type(rollout.outcome)(**{**values, "completion_tokens": tokens})


def test_a_total_is_predicted_with_students_interval():
    """8, 10 and 12: s = 2, t(2) = 4.303, 4 * 4.303 * 2 * sqrt(1/3 + 1/4) = 26.29"""
    found = expected([8, 10, 12], 4)
    assert found.total == 40
    assert (found.low, found.high) == pytest.approx((13.71, 66.29), abs=0.01)


def test_students_t_is_that_of_the_published_tables():
    """NIST/SEMATECH e-Handbook, 1.3.6.7.2, upper 0.975 quantiles."""
    assert [T_95[df - 1] for df in (1, 2, 5, 7, 10, 20, 30)] == [
        12.706, 4.303, 2.571, 2.365, 2.228, 2.086, 2.042,
    ]  # fmt: skip
    many = expected([1.0, 3.0] * 50, 100)  # s = sqrt(100 / 99), and the normal's 1.96
    assert many.high == pytest.approx(200 + 100 * 1.96 * math.sqrt(100 / 99) * math.sqrt(0.02))


def test_nothing_is_predicted_from_nothing_and_no_interval_from_one():
    assert expected([], 4) is None
    assert expected([10], 4) == Expected(40, None, None)
    assert expected([10, 12], 0) == Expected(0, 0.0, 0.0)
    assert expected([0, 100], 3).low == 0.0  # no less than nothing


def test_a_plan_has_tokens_dollars_and_the_time_of_so_many_at_once():
    plan = make_plan(12, [outcome(10, 4.0), outcome(10, 6.0)], PRICES, Usage(0, 20), at_once=5)
    assert (plan.to_do, plan.done, plan.tokens.total, plan.dollars.total) == (10, 2, 100, 100.0)
    assert (plan.tokens_spent, plan.dollars_spent) == (20, 20.0)
    assert plan.seconds.total == 10.0  # 10 rollouts of 5 s, 5 at once
    alone = make_plan(3, [outcome(10, 4.0), outcome(10, 6.0)], None, NOTHING, at_once=50)
    assert (alone.dollars, alone.seconds.total) == (None, 6.0)  # no less than one rollout takes


def test_the_pilot_is_spread_over_the_rows():
    assert spread_evenly(10, 3) == {0, 3, 6}
    assert spread_evenly(3, 8) == {0, 1, 2}
    assert sorted(spread_evenly(1000)) == [0, 125, 250, 375, 500, 625, 750, 875]


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (RunBudget(), ""),
        (RunBudget(tokens=31, dollars=31.0), ""),
        (RunBudget(tokens=30), "budget.run_tokens = 30 is used up (30 tokens): raise it, e.g. with --set"),
        (RunBudget(dollars=29.5), "budget.run_dollars = 29.5 is used up ($30.00): raise it, e.g. with --set"),
    ],
)
def test_a_budget_is_used_up_by_earlier_lives_too(budget, words):
    spending = Spending(budget, PRICES, earlier=Usage(0, 25))
    spending.add(outcome(5))
    assert spending.exhausted.startswith(words)
    assert bool(spending.exhausted) == bool(words)
    assert spending.dollars == 30.0
