"""What tokens cost, with numbers that can be checked by hand."""

from osmosis_ai.providers.prices import Prices, Usage, cost


def test_cached_tokens_cost_their_own_price_and_the_others_the_full_one():
    usage = Usage(prompt_tokens=1_000_000, completion_tokens=100_000, cached_tokens=400_000)
    assert round(cost(usage, Prices(2.0, 10.0, cached_input=0.5)), 9) == 2.4


def test_without_a_price_of_their_own_cached_tokens_cost_what_the_others_do():
    usage = Usage(prompt_tokens=1_000_000, completion_tokens=100_000, cached_tokens=400_000)
    assert round(cost(usage, Prices(2.0, 10.0)), 9) == 3.0
