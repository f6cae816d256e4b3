"""The order of rows and the learning rate depend on seed and step alone."""

import pytest

from osmosis_ai.controller.schedule import items_of_step, learning_rate


def test_every_item_comes_once_per_epoch_and_a_step_may_span_two_epochs():
    items = list("abcde")
    order = [item for step in range(1, 6) for item in items_of_step(items, step, 2, seed=7)]
    assert sorted(order[:5]) == items
    assert sorted(order[5:]) == items
    assert order[:5] != order[5:]  # shuffled anew


def test_a_step_can_be_asked_for_without_the_ones_before_it():
    assert items_of_step(range(100), 40, 8, seed=1) == items_of_step(range(100), 40, 8, seed=1)
    assert items_of_step(range(100), 40, 8, seed=1) != items_of_step(range(100), 40, 8, seed=2)


def test_a_step_larger_than_the_dataset_takes_items_again():
    assert sorted(items_of_step("ab", 1, 4, seed=0)) == ["a", "a", "b", "b"]


def test_learning_rate_rises_and_falls():
    rates = [learning_rate(1.0, step, 10, warmup_steps=2, final_share=0.2) for step in (1, 2, 6, 10)]
    assert rates == pytest.approx([0.5, 1.0, 0.6, 0.2])
    assert learning_rate(0.3, 9, 10, warmup_steps=0, final_share=1.0) == 0.3
