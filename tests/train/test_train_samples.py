"""Sampled tokens become training samples exactly as sampled, once."""

import pytest
from train_nouns import rollout, turn

from osmosis_ai.train.samples import TokenProofError, training_samples


def test_a_conversation_of_two_turns_is_one_training_sample_and_only_sampled_tokens_are_trained():
    first = turn(0, [1, 2], [7, 8])
    second = turn(1, [1, 2, 7, 8, 3], [9], parent=0)
    (sample,) = training_samples(rollout(1.0, turns=[first, second]), {"main": 0.5})
    assert sample.token_ids == [1, 2, 7, 8, 3, 9]
    assert sample.loss_mask == [0, 0, 1, 1, 0, 1]
    assert sample.logprobs == [0, 0, -0.1 * 7, -0.1 * 8, 0, -0.1 * 9]
    assert sample.advantages == [0, 0, 0.5, 0.5, 0, 0.5]
    assert sample.versions == [-1, -1, 3, 3, -1, 3]
    assert sample.temperatures == [1, 1, 0.7, 0.7, 1, 0.7]


def test_a_turn_that_two_branches_share_is_trained_in_the_first_of_them_only():
    root = turn(0, [1, 2], [7])
    left = turn(1, [1, 2, 7, 3], [8], parent=0)
    right = turn(2, [1, 2, 7, 4], [9], parent=0)
    first, second = training_samples(rollout(1.0, turns=[root, left, right]), {"main": 1.0})
    assert first.token_ids == [1, 2, 7, 3, 8]
    assert first.loss_mask == [0, 0, 1, 0, 1]
    assert second.token_ids == [1, 2, 7, 4, 9]
    assert second.loss_mask == [0, 0, 0, 0, 1]


def test_a_turn_whose_prompt_does_not_continue_its_parent_is_refused():
    broken = [turn(0, [1, 2], [7]), turn(1, [1, 2, 6, 3], [8], parent=0)]
    with pytest.raises(TokenProofError, match=r"turn 1 of rollout r .* turn 0"):
        training_samples(rollout(1.0, turns=broken), {"main": 1.0})


def test_samples_without_an_advantage_are_not_trained():
    turns = [turn(0, [1], [7], sample_id="a"), turn(1, [1], [8], sample_id="b")]
    (sample,) = training_samples(rollout(1.0, turns=turns), {"b": 1.0})
    assert (sample.sample_id, sample.token_ids) == ("b", [1, 8])


def test_tokens_of_an_external_model_are_context():
    turns = [turn(0, [1], [7], version=None), turn(1, [1, 7, 3], [8], parent=0)]
    (sample,) = training_samples(rollout(1.0, turns=turns), {"main": 1.0})
    assert sample.loss_mask == [0, 0, 0, 1]
