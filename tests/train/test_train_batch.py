"""Groups become a batch, and the funnel adds up to 100 %."""

import pytest
from train_nouns import group, rollout, turn

from osmosis_ai.train.advantages import group_standardised, mean_baseline
from osmosis_ai.train.batch import build_batch
from osmosis_ai.train.funnel import Count
from osmosis_ai.types import Sample, Status


def test_advantages_of_one_right_answer_in_four():
    assert group_standardised([1, 0, 0, 0]) == pytest.approx([3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)])
    assert mean_baseline([1, 0, 0, 1]) == [0.5, -0.5, -0.5, 0.5]


def test_equal_rewards_give_no_signal_and_no_division_by_zero():
    assert group_standardised([0.3, 0.3, 0.3]) == [0.0, 0.0, 0.0]
    assert mean_baseline([0.2] * 6) == [0.0] * 6  # whose mean is not quite 0.2
    batch = build_batch([group(rollout(1.0), rollout(1.0, member=1))], [], group_standardised)
    assert batch.samples == []
    assert batch.groups_with_signal == 0
    assert batch.funnel.losses == {"no_signal": Count(2, 6)}
    assert batch.denominator == 1.0


def test_the_funnel_adds_up_and_every_loss_has_a_reason():
    slow = rollout(None, status=Status.WORKFLOW_TIMEOUT, turns=[turn(0, [1], [7, 8])], member=2)
    crashed = rollout(None, status=Status.INFRASTRUCTURE, turns=[turn(0, [1], [7])], member=3)
    mixed = group(rollout(1.0), rollout(0.0, member=1), slow)
    equal = group(rollout(0.0), rollout(0.0, member=1))
    batch = build_batch([mixed, equal], [crashed], group_standardised)
    stages = {stage: (count.rollouts, count.tokens) for stage, count in batch.funnel.stages()}
    assert stages == {
        "generated": (6, 15),
        "finished": (4, 12),
        "graded": (4, 12),
        "signal": (2, 6),
        "trained": (2, 6),
    }
    assert {reason: (c.rollouts, c.tokens) for reason, c in batch.funnel.losses.items()} == {
        "infrastructure": (1, 1),
        "workflow_timeout": (1, 2),
        "no_signal": (2, 6),
    }
    assert batch.funnel.adds_up()
    assert batch.denominator == 6.0
    assert batch.rewards == [1.0, 0.0, 0.0, 0.0]


def test_a_failed_rollout_is_no_reward_of_zero_in_the_baseline():
    failed = rollout(None, status=Status.WORKFLOW_ERROR, member=2)
    batch = build_batch([group(rollout(1.0), rollout(0.0, member=1), failed)], [], mean_baseline)
    assert [max(s.advantages, key=abs) for s in batch.samples] == [0.5, -0.5]


def test_one_graded_rollout_has_nothing_to_be_compared_with():
    failed = rollout(None, status=Status.GRADER_ERROR, member=1)
    batch = build_batch([group(rollout(1.0), failed)], [], group_standardised)
    assert {r: c.rollouts for r, c in batch.funnel.losses.items()} == {"grader_error": 1, "lone_survivor": 1}


def test_samples_are_compared_by_their_id_and_removed_ones_are_not_trained():
    def two(solver: float, critic: float, member: int):
        turns = [turn(0, [1], [7], sample_id="solver"), turn(1, [1], [8, 9], sample_id="critic")]
        made = rollout(0.0, turns=turns, member=member)
        made.samples = {"solver": Sample("solver", reward=solver), "critic": Sample("critic", reward=critic)}
        return made

    first, second = two(1.0, 0.0, 0), two(0.0, 0.0, 1)
    second.samples["critic"].removed = True
    batch = build_batch([group(first, second)], [], mean_baseline)
    by_sample = {(s.rollout_id, s.sample_id): max(s.advantages, key=abs) for s in batch.samples}
    assert by_sample == {("r", "solver"): -0.5, ("r", "critic"): 0.0}
    assert batch.funnel.losses["sample_removed"] == Count(0, 2)


def test_a_call_under_a_sample_that_the_grader_never_saw_is_lost_with_that_reason():
    made = rollout(1.0, turns=[turn(0, [1], [7]), turn(1, [1], [8, 9], sample_id="ghost")])
    del made.samples["ghost"]
    batch = build_batch([group(made, rollout(0.0, member=1))], [], mean_baseline)
    assert batch.funnel.losses == {"not_in_a_sample": Count(0, 2)}


def test_too_long_training_samples_are_lost_with_that_reason():
    long = rollout(1.0, turns=[turn(0, [1] * 10, [7, 8])])
    batch = build_batch([group(long, rollout(0.0, member=1))], [], mean_baseline, max_sample_tokens=8)
    assert batch.funnel.losses == {"too_long": Count(1, 2)}
    assert batch.funnel.trained == Count(1, 3)


@pytest.mark.parametrize(
    ("normalisation", "weights", "denominator"),
    [("token_mean", [1, 1], 6.0), ("sample_mean", [1 / 5, 1.0], 2.0), ("rollout_mean", [1 / 5, 1.0], 2.0)],
)
def test_normalisation_weights_and_denominator(normalisation, weights, denominator):
    five = rollout(1.0, turns=[turn(0, [1], [3, 4, 5, 6, 7], rollout_id="a")])
    one = rollout(0.0, turns=[turn(0, [1], [3], rollout_id="b")], member=1)
    batch = build_batch([group(five, one)], [], mean_baseline, normalisation=normalisation)
    assert [s.weight for s in batch.samples] == pytest.approx(weights)
    assert batch.denominator == denominator


def test_a_frozen_sample_is_not_trained_and_lost_with_that_reason():
    def two(solver: float, checker: float, member: int):
        turns = [turn(0, [1], [7], sample_id="solver"), turn(1, [1], [8, 9], sample_id="checker")]
        made = rollout(0.0, turns=turns, member=member)
        made.samples = {
            "solver": Sample("solver", reward=solver),
            "checker": Sample("checker", reward=checker, frozen=True),
        }
        return made

    batch = build_batch([group(two(1.0, 0.0, 0), two(0.0, 1.0, 1))], [], mean_baseline)
    assert [(s.sample_id, s.token_ids) for s in batch.samples] == [("solver", [1, 7])] * 2
    assert batch.funnel.losses == {"frozen": Count(0, 4)}
    assert batch.funnel.trained == Count(2, 2)


def test_rollouts_with_nothing_but_frozen_samples_are_lost_for_that_and_not_for_their_rewards():
    made = [rollout(float(member), member=member) for member in range(2)]
    for one in made:
        one.samples["main"].frozen = True
    batch = build_batch([group(*made)], [], mean_baseline)
    assert batch.funnel.losses == {"frozen": Count(2, 6)}
    assert batch.samples == []
