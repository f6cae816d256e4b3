"""The agent's tool, the grader's reading, and an eval as a test. Run them with `pytest`."""

import agent


def test_a_price_is_looked_up():
    assert agent.price_of("apple") == "40"


def test_an_unknown_item_is_an_answer_that_says_what_there_is():
    assert agent.price_of("moon") == "no item 'moon'; there are apple, bread, cheese, lemon, milk, soap"


def test_the_last_number_is_the_answer():
    assert agent.last_number("3 apples are 120 cents") == "120"
    assert agent.last_number("I do not know.") is None


def test_most_orders_are_totalled(assert_eval):
    """`assert_eval` comes with Osmosis; a failure shows the rows with the lowest rewards."""
    report = assert_eval("eval.toml", min_mean=0.5)
    assert report.failures == {}
