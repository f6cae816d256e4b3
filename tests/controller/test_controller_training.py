"""Training that cannot learn says so: equal rewards, no rewards, prompts too long, inputs that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from controller_bench import AGENTS, Does, configure, run_eval
from safetensors.torch import load_file

from osmosis_ai.controller.opening import open_run
from osmosis_ai.controller.training import Hooks, run_training
from osmosis_ai.engine.policy import new_policy
from osmosis_ai.errors import ConfigError, EngineError, OsmosisError, UsageError
from osmosis_ai.store.base import RolloutFilter, StepRecord
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Rollout, Status

TRAIN = f"""
[run]
name = "train"
[rollout]
entrypoint = "{AGENTS}"
[dataset]
path = "rows.jsonl"
[policy]
path = "start"
[sampling]
max_tokens = 8
[train]
steps = 1
rows_per_step = 2
group_size = 2
"""


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of random weights with a context of 128 tokens."""
    folder = tmp_path_factory.mktemp("policy") / "start"
    texts = ["The answer is 42. ok right long 12 times 34"]
    new_policy(folder, texts=texts, hidden_size=32, layers=1, vocab_size=300, max_context=128, seed=0)
    return folder


@pytest.fixture
def folder(tmp_path: Path, start: Path) -> Path:
    (tmp_path / "start").symlink_to(start)
    return tmp_path


async def train(
    folder: Path,
    does: list[Does],
    on_rollout: Callable[[Rollout], None] = lambda rollout: None,
    text: str = TRAIN,
    **settings: Any,
) -> tuple[list[StepRecord], list[Rollout]]:
    """The steps and rollouts that are stored afterwards."""
    config = configure(folder, does, text, **settings)
    hooks = Hooks(
        notify=lambda text: None,
        on_start=lambda last, steps: None,
        on_rollout=on_rollout,
        on_retry=lambda rollout: None,
        on_step=lambda record: None,
    )
    async with open_run(config, "train", Workspace(folder / "ws")) as run:
        await run_training(run, hooks)
        return await run.store.steps(run.run_id), await run.store.rollouts(RolloutFilter(run.run_id))


async def test_equal_rewards_are_no_signal_and_leave_the_weights_as_they_are(folder: Path):
    [step], rollouts = await train(folder, [("ok", "right"), ("ok", "right")])
    metrics = step.metrics
    assert [r.reward for r in rollouts] == [1.0] * 4
    assert (metrics["groups"], metrics["groups_with_signal"], metrics["loss"]) == (2, 0, None)
    assert metrics["funnel"]["losses"]["no_signal"]["rollouts"] == 4
    assert metrics["funnel"]["stages"]["trained"] == {"rollouts": 0, "tokens": 0}
    assert metrics["audit"]["tokens"] > 0  # the sampler is compared with the trainer all the same
    assert step.version == 0
    before, after = tensors(folder / "start"), tensors(folder / "ws" / "runs" / "train" / "policy")
    assert len(before) > 9
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


async def test_a_policy_that_could_not_be_written_leaves_the_older_and_is_written_later(folder: Path):
    does: list[Does] = [("ok", "length"), ("ok", "length")]
    await train(folder, does, train__group_size=6)
    policy = folder / "ws" / "runs" / "train" / "policy"
    draft, before = policy.with_name(".policy.draft"), tensors(policy)
    draft.write_text("a file where the draft would be")
    with pytest.raises(EngineError, match="/policy cannot be written: FileExistsError"):
        await train(folder, does, train__group_size=6, train__steps=2)
    older = tensors(policy)
    assert all(torch.equal(before[name], older[name]) for name in before)
    draft.unlink()
    await train(folder, does, train__group_size=6, train__steps=2)
    newer = tensors(policy)
    assert not all(torch.equal(before[name], newer[name]) for name in before)


def tensors(policy: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(policy / "model.safetensors"))


async def test_a_prompt_longer_than_the_context_fails_its_rollout_with_both_numbers(folder: Path):
    [step], rollouts = await train(folder, [("long", "right"), ("ok", "right")])
    failed = [r for r in rollouts if r.status is not Status.GRADED]
    assert [r.status for r in failed] == [Status.MODEL_ERROR] * 2
    assert "the prompt has " in failed[0].reason
    assert "tokens and the policy's context is 128, prompt and completion together" in failed[0].reason
    assert step.metrics["funnel"]["losses"]["model_error"]["rollouts"] == 2


async def test_a_step_without_one_reward_stops_the_run_and_says_what_came_instead(folder: Path):
    with pytest.raises(OsmosisError) as caught:
        await train(folder, [("ok", "raises"), ("ok", "raises")])
    assert caught.value.exit_code == 1
    assert str(caught.value).startswith(
        "step 1: none of its 4 rollouts has a reward (4 grader_error), so there is nothing to learn from. "
        "The first, of row "
    )
    assert "LeanGrader.grade raised RuntimeError: the judge is out" in str(caught.value)


async def test_a_run_that_stopped_without_a_reward_goes_on_when_the_cause_is_gone(folder: Path):
    does: list[Does] = [("ok", "needs_service"), ("ok", "needs_service")]
    with pytest.raises(OsmosisError, match="4 grader_error"):
        await train(folder, does)
    for number in (0, 1):
        (folder / f"told-{number}.up").touch()
    [step], rollouts = await train(folder, does)
    assert step.metrics["rewards"] == 4
    assert step.metrics["funnel"]["losses"]["superseded"]["rollouts"] == 4
    assert sorted(r.status for r in rollouts) == [Status.GRADED] * 4 + [Status.SUPERSEDED] * 4


async def test_steps_after_the_last_checkpoint_are_done_again_and_nothing_twice(folder: Path):
    """Checkpoint at step 2, stopped in step 4: step 3 is done again, from rollouts of the same weights."""
    does: list[Does] = [("ok", "length"), ("ok", "length")]
    settings = {"train__steps": 5, "train__checkpoint_every": 2, "train__group_size": 6}
    seen = 0

    def stop_in_step_4(rollout: Rollout) -> None:
        nonlocal seen
        seen += rollout.step == 4
        if seen == 2:
            raise OsmosisError("pulled the plug")

    with pytest.raises(OsmosisError, match="pulled the plug"):
        await train(folder, does, stop_in_step_4, **settings)
    steps, rollouts = await train(folder, does, **settings)
    assert [step.step for step in steps] == [1, 2, 3, 4, 5]
    assert [step.checkpoint != "" for step in steps] == [False, True, False, True, True]
    assert steps[2].metrics["groups_with_signal"] > 0
    assert steps[2].metrics["funnel"]["losses"].get("superseded") is None  # the restored weights made them
    fourth = [r for r in rollouts if r.step == 4]
    assert {r.attempt for r in fourth} == {0, 1}  # weights that were computed again made the second ones
    superseded = steps[3].metrics["funnel"]["losses"]["superseded"]["rollouts"]
    assert superseded == sum(r.attempt == 0 and r.status is Status.SUPERSEDED for r in fourth) >= 2
    for step in (1, 2, 3, 4, 5):  # what is stored as graded is what was trained on, and nothing besides
        graded = [(r.group_id, r.member) for r in rollouts if r.step == step and r.status is Status.GRADED]
        assert len(graded) == len(set(graded)) == 12


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"policy__path": "nothere"}, "no such folder. Make one with `osmosis policy new`."),
        ({"policy__path": "rows.jsonl"}, "no policy at"),
        ({"policy__path": "."}, "is not a policy: it has no config.json. Name a Hugging Face model folder."),
        ({"train__algorithm": "sft"}, 'train.algorithm = "sft" needs train.from_run = the name of a run'),
        (
            {"train__algorithm": "sft", "train__from_run": "nope"},
            "train.from_run = 'nope': there is no such run. Known: none.",
        ),
    ],
)
async def test_inputs_that_do_not_hold_are_usage_errors(
    folder: Path, settings: dict[str, Any], expected: str
):
    with pytest.raises(UsageError) as caught:
        await train(folder, [("ok", "right")], **settings)
    assert expected in str(caught.value)


async def test_a_distribution_that_the_trainer_cannot_score_is_refused_before_anything_starts(folder: Path):
    with pytest.raises(ConfigError) as caught:
        await train(folder, [("ok", "right")], sampling__temperature=0.0, sampling__top_p=0.5)
    assert [finding.split(": ")[1] for finding in caught.value.findings] == [
        "sampling.temperature = 0 cannot be trained; it must be above 0",
        "sampling.top_p = 0.5 cannot be trained; it must be 1",
    ]


async def test_fine_tuning_needs_rollouts_with_the_reward_that_is_asked_for(folder: Path):
    await run_eval(configure(folder, [("ok", "wrong"), ("ok", "raises")]), folder)
    sft = {"train__algorithm": "sft", "train__from_run": "bad"}
    with pytest.raises(UsageError) as caught:
        await train(folder, [("ok", "wrong"), ("ok", "raises")], **sft)
    assert str(caught.value) == (
        "train.from_run = 'bad': of its 1 graded rollouts none has a reward of at least "
        "train.min_reward = 1; the best has 0."
    )


async def test_a_cancelled_step_goes_on_with_what_it_had(folder: Path):
    seen: list[str] = []

    def stop(rollout: Rollout) -> None:
        seen.append(rollout.rollout_id)
        if len(seen) == 2:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await train(folder, [("ok", "length"), ("slow", "length")], stop)
    again: list[str] = []
    _, rollouts = await train(
        folder, [("ok", "length"), ("slow", "length")], lambda r: again.append(r.rollout_id)
    )
    assert not set(seen) & set(again)
    assert sum(r.status is Status.GRADED for r in rollouts) == 4
