"""What tokens cost, with numbers that can be checked by hand."""

import pytest

from osmosis_ai.providers.prices import Prices, Usage, as_dollars, cost, usage_of
from osmosis_ai.types import Turn


def turn(prompt_tokens, completion_tokens, sampling):
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "sampling": sampling}
    return Turn(**dict.fromkeys(Turn.__dataclass_fields__) | counts)


def test_cached_tokens_cost_their_own_price_and_the_others_the_full_one():
    usage = Usage(prompt_tokens=1_000_000, completion_tokens=100_000, cached_tokens=400_000)
    assert round(cost(usage, Prices(2.0, 10.0, cached_input=0.5)), 9) == 2.4


def test_without_a_price_of_their_own_cached_tokens_cost_what_the_others_do():
    usage = Usage(prompt_tokens=1_000_000, completion_tokens=100_000, cached_tokens=400_000)
    assert round(cost(usage, Prices(2.0, 10.0)), 9) == 3.0


def test_the_tokens_of_turns_are_added_up_with_what_was_cached_of_them():
    turns = [turn(5, 2, {"temperature": 0.3}), turn(9, 4, {"cached_tokens": 5})]
    assert usage_of(turns) == Usage(prompt_tokens=14, completion_tokens=6, cached_tokens=5)


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0, "$0.00"), (1234.5, "$1,234.50"), (1, "$1.00"), (0.9999, "$1.00"), (0.4, "$0.40"), (0.42, "$0.42"),
        (0.01, "$0.01"), (0.0004, "$0.0004"), (0.00041236, "$0.000412"), (3e-6, "$0.000003"),
    ],
)  # fmt: skip
def test_an_amount_below_a_dollar_is_shown_with_three_significant_digits(amount, shown):
    assert as_dollars(amount) == shown
