"""Means, intervals, pass@k and paired differences, against published and hand-computed values."""

import itertools
import math
import random

import numpy as np
import pytest

from osmosis_ai.errors import UsageError
from osmosis_ai.eval.compare import mcnemar_p_value
from osmosis_ai.eval.resampling import resampled_means
from osmosis_ai.eval.statistics import (
    Estimate,
    exact_interval,
    mean_reward,
    paired_difference,
    pass_rates,
    wilson_interval,
)


def by_row(*attempts):
    return dict(enumerate(attempts))


@pytest.mark.parametrize(
    ("passed", "total", "low", "high"),
    [  # R's binom.test
        (8, 10, 0.4439045, 0.9747893),
        (0, 10, 0.0, 0.3084971),
        (10, 10, 0.6915029, 1.0),
        (1, 1, 0.025, 1.0),
        (50, 100, 0.3983211, 0.6016789),
        (7, 20, 0.1539092, 0.5921885),
    ],
)
def test_exact_intervals_are_clopper_and_pearsons(passed, total, low, high):
    assert exact_interval(passed, total) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(
    ("passed", "total", "low", "high"),
    [  # statsmodels' proportion_confint(passed, total, method="wilson")
        (8, 10, 0.490162, 0.943318),
        (0, 10, 0.0, 0.277533),
        (10, 10, 0.722467, 1.0),
        (50, 100, 0.403832, 0.596168),
    ],
)
def test_score_intervals_are_wilsons(passed, total, low, high):
    assert wilson_interval(passed / total, total) == pytest.approx((low, high), abs=1e-6)


def test_an_exact_interval_has_a_closed_form_when_all_pass_even_for_many_rows():
    low, high = exact_interval(100_000, 100_000)
    assert (low, high) == (pytest.approx(0.025 ** (1 / 100_000), abs=1e-12), 1.0)
    low, high = exact_interval(40_000, 100_000)  # the normal approximation is good here
    assert (low, high) == pytest.approx(
        (0.4 - 1.96 * math.sqrt(0.24 / 1e5), 0.4 + 1.96 * math.sqrt(0.24 / 1e5)), abs=1e-5
    )


def test_rewards_of_0_and_1_with_one_attempt_per_row_get_the_exact_interval():
    estimate = mean_reward(by_row(*([1.0] for _ in range(8)), [0.0], [0.0]))
    assert (estimate.mean, estimate.method, estimate.num_rows, estimate.num_attempts) == (
        0.8,
        "exact",
        10,
        10,
    )
    assert str(estimate) == "0.800 [0.444, 0.975]"


def test_when_every_attempt_passes_the_interval_is_that_of_the_rows_not_a_point():
    estimate = mean_reward({row: [1.0] * 4 for row in range(20)})
    assert (estimate.method, estimate.num_rows, estimate.num_attempts) == ("exact", 20, 80)
    assert str(estimate) == "1.000 [0.832, 1.000]"


def test_a_row_counts_once_however_many_attempts_it_had():
    assert mean_reward(by_row([1.0, 1.0], [0.0, 1.0])).mean == 0.75
    assert mean_reward(by_row([1.0], [0.0, 0.0, 0.0, 1.0, 1.0, 0.0])).mean == pytest.approx(2 / 3)


def test_the_bootstrap_is_that_of_all_possible_draws():
    """Three rows have 27 equally likely draws; their exact quantiles are what many random draws approach."""
    values = [0.0, 0.4, 0.9]
    means = sorted(sum(draw) / 3 for draw in itertools.product(values, repeat=3))
    estimate = mean_reward(by_row(*([value] for value in values)))
    assert (estimate.low, estimate.high) == pytest.approx((means[0], means[-1]))
    narrow = mean_reward(by_row(*([value] for value in values)), confidence=0.5)
    assert (narrow.low, narrow.high) == pytest.approx((means[6], means[20]))


def test_drawing_counts_is_drawing_rows():
    """A thousand rows of three values; moved by rounding errors they are all distinct, and drawn by row."""
    values = np.repeat([0.0, 0.5, 1.0], [200, 500, 300])
    by_counts = resampled_means(values, np.random.default_rng(0))
    by_rows = resampled_means(values + np.arange(1000) * 1e-15, np.random.default_rng(0))
    assert by_counts.mean() == pytest.approx(by_rows.mean(), abs=1e-3)
    assert np.quantile(by_counts, [0.025, 0.975]) == pytest.approx(
        np.quantile(by_rows, [0.025, 0.975]), abs=2e-3
    )


def test_the_bootstrap_agrees_with_the_normal_interval_where_that_holds():
    draw = random.Random(1)
    rewards = by_row(*([draw.random() for _ in range(4)] for _ in range(400)))
    means = [sum(row) / 4 for row in rewards.values()]
    center = sum(means) / 400
    error = math.sqrt(sum((value - center) ** 2 for value in means) / 400 / 400)
    estimate = mean_reward(rewards)
    assert estimate.method == "bootstrap"
    assert (estimate.low, estimate.high) == pytest.approx(
        (center - 1.96 * error, center + 1.96 * error), abs=6e-4
    )


def test_attempts_at_one_row_do_not_pass_for_independent_evidence():
    """Ten rows whose attempts always agree: a hundred attempts each make the interval no narrower."""
    once = by_row(*([0.2 + 0.6 * (row % 2)] for row in range(10)))
    often = {row: attempts * 100 for row, attempts in once.items()}
    assert (mean_reward(often).low, mean_reward(often).high) == pytest.approx(
        (mean_reward(once).low, mean_reward(once).high)
    )


def test_the_same_seed_gives_the_same_interval():
    rewards = by_row([0.1], [0.5], [0.7], [0.2])
    assert mean_reward(rewards, seed=3) == mean_reward(rewards, seed=3)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    draw, hits = random.Random(0), 0
    for _ in range(200):
        rates = [draw.random() for _ in range(40)]  # the mean of all rows' rates is 0.5
        rewards = by_row(*([float(draw.random() < rate) for _ in range(4)] for rate in rates))
        estimate = mean_reward(rewards)
        hits += estimate.low <= 0.5 <= estimate.high
    assert 180 <= hits <= 198


def test_one_row_has_a_mean_and_no_interval():
    assert mean_reward(by_row([0.5, 1.0])) == Estimate(0.75, None, None, "none", 1, 2)
    assert str(mean_reward(by_row([0.5, 1.0]))) == "0.750 [one row: no interval]"


def test_rows_that_are_all_alike_between_0_and_1_give_no_point():
    """At most 1 - 0.025 ** (1/20) = 0.1684 of the rows may differ, and be 0 or 1."""
    estimate = mean_reward({row: [0.5] for row in range(20)})
    assert (estimate.mean, estimate.method) == (0.5, "alike")
    assert (estimate.low, estimate.high) == pytest.approx((0.5 - 0.0842, 0.5 + 0.0842), abs=1e-4)
    halves = pass_rates({row: [1.0, 0.0] for row in range(20)}, 1)  # every row passes every other time
    assert (halves.at.low, halves.at.high) == pytest.approx((0.4158, 0.5842), abs=1e-4)


def test_rows_that_are_all_alike_outside_of_0_to_1_have_no_interval():
    estimate = mean_reward({row: [-2.5] for row in range(20)})
    assert (estimate.low, estimate.high, estimate.method) == (None, None, "none")
    assert str(estimate) == "-2.500 [all rows alike: no interval]"
    zeros = mean_reward({row: [-1.0, 1.0] for row in range(20)})  # means of 0 that are no coin flips
    assert str(zeros) == "0.000 [all rows alike: no interval]"


# --- pass@k


def test_pass_at_k_and_pass_hat_k_are_the_shares_of_all_subsets():
    attempts = [1.0, 0.0, 1.0, 0.0, 0.0]
    for k in (1, 2, 3, 5):
        subsets = list(itertools.combinations(attempts, k))
        rates = pass_rates(by_row(attempts), k)
        assert rates.at.mean == pytest.approx(sum(max(s) for s in subsets) / len(subsets))
        assert rates.hat.mean == pytest.approx(sum(min(s) for s in subsets) / len(subsets))


def test_pass_at_k_is_averaged_over_rows_and_has_a_threshold():
    rates = pass_rates(by_row([0.9, 0.4, 0.1, 0.95], [0.0, 0.0, 0.0, 0.0, 0.0]), 2, threshold=0.9)
    assert rates.at.mean == pytest.approx((5 / 6 + 0) / 2)
    assert rates.hat.mean == pytest.approx((1 / 6 + 0) / 2)
    assert (rates.k, rates.threshold, rates.at.num_rows, rates.at.num_attempts) == (2, 0.9, 2, 9)


def test_pass_at_k_of_many_attempts_stays_exact():
    """n = 200, c = 10, k = 100: the closed form of the paper overflows floats when done by factorials."""
    expected = 1 - math.prod(1 - 100 / i for i in range(191, 201))  # the paper's stable product
    assert pass_rates(by_row([1.0] * 10 + [0.0] * 190), 100).at.mean == pytest.approx(expected, rel=1e-12)


def test_pass_at_k_needs_k_attempts():
    with pytest.raises(
        UsageError, match=r"pass@3 needs at least 3 graded attempts per row .* row 1 has 2\. Raise"
    ):
        pass_rates(by_row([1.0] * 3, [1.0] * 2), 3)
    with pytest.raises(UsageError, match="k of at least 1"):
        pass_rates(by_row([1.0]), 0)


# --- two runs


def test_a_paired_difference_compares_rows_that_both_runs_have():
    first = {0: [0.0, 0.0], 1: [1.0], 2: [0.0], 3: [0.5], 9: [1.0]}
    second = {0: [1.0, 0.0], 1: [1.0], 2: [1.0], 3: [0.0]}
    found = paired_difference(first, second)
    assert found.estimate.mean == pytest.approx((0.5 + 0 + 1 - 0.5) / 4)
    assert (found.mean_first, found.mean_second) == (0.375, 0.625)
    assert (found.rows_better, found.rows_worse, found.num_unpaired, found.estimate.num_rows) == (2, 1, 1, 4)
    assert not found.is_clear


def test_a_small_but_steady_difference_is_clear_although_rows_differ_widely():
    first = {row: [row / 100] for row in range(80)}
    second = {row: [row / 100 + 0.02 + 0.01 * (row % 2)] for row in range(80)}
    found = paired_difference(first, second)
    assert found.is_clear
    assert (found.estimate.low, found.estimate.high) == pytest.approx((0.025, 0.025), abs=0.002)
    assert mean_reward(first).high > mean_reward(second).low  # unpaired, the intervals overlap


@pytest.mark.parametrize(
    ("rows", "before", "after", "low", "high"),
    [  # 1 - 0.025 ** (1 / rows) of the rows may differ unseen: 0.459 of 6, 0.522 of 5
        (6, 0, 1, 0.081, 1),
        (5, 0, 1, -0.044, 1),
        (5, 1, 0, -1, 0.044),
        (5, 1, 1, -0.522, 0.522),
        (5, 0.25, 0.5, 0.25 - 0.522 * 1.25, 0.25 + 0.522 * 0.75),
    ],
)
def test_rows_that_all_went_the_same_way_give_no_point(rows, before, after, low, high):
    found = paired_difference({r: [before] for r in range(rows)}, {r: [after] for r in range(rows)})
    assert (found.estimate.mean, found.estimate.method) == (after - before, "alike")
    assert (found.estimate.low, found.estimate.high) == pytest.approx((low, high), abs=1e-3)


@pytest.mark.parametrize("rows", [4, 5, 6, 7])
def test_rows_that_all_flipped_are_as_clear_as_mcnemars_test_says(rows):
    found = paired_difference({r: [0.0] for r in range(rows)}, {r: [1.0] for r in range(rows)})
    assert found.is_clear == (mcnemar_p_value(0, rows) < 0.05)


def test_a_steady_change_is_no_point_for_a_rounding_error():
    """0.3 - 0.2 and 0.2 - 0.1 differ in the last bit."""
    found = paired_difference({0: [0.2], 1: [0.1]}, {0: [0.3], 1: [0.2]})
    assert found.estimate.method == "alike"


def test_runs_without_a_shared_row_cannot_be_compared():
    with pytest.raises(UsageError, match="no row in common; compare runs over the same dataset"):
        paired_difference({1: [1.0]}, {2: [1.0]})


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({}, "there are no rewards to average: no row has a graded rollout"),
        ({4: []}, "row 4 has no rewards; leave out rows without a graded rollout"),
        ({4: [math.nan]}, "row 4 has a reward of nan; rewards are finite numbers"),
    ],
)
def test_nothing_to_average_is_an_error_not_a_zero(rewards, message):
    for use in (mean_reward, lambda r: pass_rates(r, 1), lambda r: paired_difference({4: [1.0]}, r)):
        with pytest.raises(UsageError, match=message):
            use(rewards)
