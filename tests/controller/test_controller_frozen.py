"""Frozen samples on their way from a grader's callback into the controller."""

from __future__ import annotations

from osmosis_ai.controller.dispatch import read_samples


def test_a_frozen_sample_may_go_without_a_reward_and_others_may_not():
    body = {"samples": {"solver": {"reward": 1.0}, "checker": {"reward": None, "frozen": True}}}
    samples, problem = read_samples(body)
    assert problem == ""
    assert [(s.sample_id, s.reward, s.frozen) for s in samples] == [
        ("solver", 1.0, False),
        ("checker", None, True),
    ]
    body["samples"]["checker"]["frozen"] = False
    assert read_samples(body)[1] == "sample 'checker' has reward None, which is not a finite number"


def test_a_frozen_sample_keeps_its_reward_which_must_be_finite():
    samples, problem = read_samples({"samples": {"checker": {"reward": 0.5, "frozen": True}}})
    assert (samples[0].reward, problem) == (0.5, "")
    assert read_samples({"samples": {"a": {"reward": "much", "frozen": True}}})[1] != ""


def test_without_any_reward_a_rollout_is_not_graded():
    body = {"samples": {"checker": {"reward": None, "frozen": True}}}
    assert read_samples(body)[1] == "every sample is frozen and none has a reward"
