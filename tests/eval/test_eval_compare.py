"""Exact tests and what flips, against published values."""

from dataclasses import replace

import pytest

from osmosis_ai.datasets import dataset_fingerprint
from osmosis_ai.eval.compare import compare, mcnemar_p_value
from osmosis_ai.eval.gates import exit_code, mean_at_least
from osmosis_ai.eval.statistics import mean_reward
from osmosis_ai.eval.stored import StoredRun, column_of, counted, dataset_rows, text_of
from osmosis_ai.store.base import RunRecord
from osmosis_ai.types import Rollout, Sample, Status


@pytest.mark.parametrize(
    ("only_first", "only_second", "p_value"),
    [
        # Agresti, Categorical Data Analysis, table 10.1: 150 and 86 of 1600 changed their mind about the
        # prime minister; the exact p-value is the one of R's exact2x2 and scipy.stats.binomtest(86, 236)
        (86, 150, 3.7159361395713866e-05),
        # the example of statsmodels.stats.contingency_tables.mcnemar: [[101, 121], [59, 33]]
        (121, 59, 4.434449263755165e-06),
        (4, 14, 0.0308837890625),
        (5, 15, 0.04138946533203125),
        (0, 6, 0.03125),
        (12, 40, 0.0001275387838557407),
        (1, 0, 1.0),
        (3, 3, 1.0),
        (0, 0, 1.0),
    ],
)
def test_mcnemar_is_the_exact_binomial_test(only_first, only_second, p_value):
    assert mcnemar_p_value(only_first, only_second) == pytest.approx(p_value, rel=1e-12)
    assert mcnemar_p_value(only_second, only_first) == mcnemar_p_value(only_first, only_second)


def test_mcnemar_holds_for_many_rows():
    assert mcnemar_p_value(5000, 5000) == 1.0
    assert 0.0 < mcnemar_p_value(4800, 5200) < 1e-4


def run(name: str, rewards: dict[int, list[float]], threshold: float = 1.0) -> StoredRun:
    record = RunRecord(name, "eval", "done", 0.0, {"dataset": "d"}, {"eval": {"pass_threshold": threshold}})

    def sample(reward: float) -> Sample:
        return Sample("s", [{"role": "assistant", "content": f"{reward:g} at once\nand more"}], reward)

    rollouts = [
        Rollout(
            f"{name}{row}{member}", name, row, f"r{row}", member, status=Status.GRADED,
            samples={"s": sample(reward)},
        )
        for row, tries in rewards.items()
        for member, reward in enumerate(tries)
    ]  # fmt: skip
    return StoredRun(record, rollouts)


def test_rewards_that_are_not_0_or_1_have_no_mcnemar_but_flips():
    compared = compare(run("a", {0: [0.4], 1: [0.9]}, 0.5), run("b", {0: [0.6], 1: [0.8]}, 0.5))
    assert compared.mcnemar is None
    assert [(flip.row, flip.first, flip.second) for flip in compared.flips] == [(0, 0.4, 0.6)]


def test_several_attempts_flip_by_their_mean_and_speak_by_the_attempt_that_decided():
    compared = compare(run("a", {0: [1.0, 1.0]}), run("b", {0: [1.0, 0.0]}))
    (flip,) = compared.flips
    assert (flip.first, flip.second) == (1.0, 0.5)
    assert (flip.first_says, flip.second_says) == ("1 at once", "0 at once")
    assert compared.mcnemar is None


def test_the_last_attempt_at_a_place_counts_and_one_that_runs_does_not():
    first = Rollout("x0", "x", 3, "r3", 0, attempt=0, status=Status.INFRASTRUCTURE)
    again = replace(first, rollout_id="x1", attempt=1, status=Status.GRADED)
    runs = replace(first, rollout_id="x2", attempt=2, status=Status.RUNNING)
    other = replace(first, rollout_id="y", member=1)
    assert [rollout.rollout_id for rollout in counted([runs, other, again, first])] == ["x1", "y"]


def test_the_dataset_is_looked_for_beside_the_config_file(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"user_prompt": "hi", "metadata": {"kind": "greeting"}}')
    identity = {"dataset": dataset_fingerprint(tmp_path / "data.jsonl")[:16]}
    config = {"source": str(tmp_path / "eval.toml"), "dataset": {"path": "data.jsonl"}}
    rows = dataset_rows(RunRecord("a", "eval", "done", 0.0, identity, config))
    assert column_of(rows, "kind") == {0: "greeting"}


@pytest.mark.parametrize(
    ("content", "text"),
    [("hi", "hi"), ([{"type": "text", "text": "a"}, {"toolUse": {}}, {"text": "b"}], "a\nb"), (None, "")],
)
def test_words_are_read_from_messages_of_any_framework(content, text):
    assert text_of({"role": "assistant", "content": content}) == text


def test_a_mean_at_its_threshold_holds_and_no_reward_at_all_does_not():
    mean = mean_reward({0: [1.0], 1: [0.0]})
    assert exit_code([mean_at_least(mean, 0.5)]) == 0
    assert exit_code([mean_at_least(mean, 0.51)]) == 3
    assert exit_code([mean_at_least(None, 0.0)]) == 3
    assert exit_code([mean_at_least(mean, 0.51)], otherwise=5) == 5
    assert mean_at_least(None, 0.5).message == "nothing was graded, so there is no mean reward to reach 0.5"
