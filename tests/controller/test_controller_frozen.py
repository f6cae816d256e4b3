"""Frozen samples on their way from a grader's callback into the controller, the store and a resumed run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from controller_bench import configure

from osmosis_ai.controller.opening import OpenRun, open_run
from osmosis_ai.controller.results import read_samples
from osmosis_ai.controller.rollouts import open_renderer
from osmosis_ai.controller.training import Hooks, run_training
from osmosis_ai.engine.policy import new_policy
from osmosis_ai.errors import OsmosisError
from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.train.conversations import conversation_samples
from osmosis_ai.types import Rollout, Status

TRAIN = f"""
[run]
name = "train"
[rollout]
entrypoint = "{Path(__file__).with_name("frozen_agents.py")}"
[dataset]
path = "rows.jsonl"
[policy]
path = "start"
[sampling]
max_tokens = 8
[train]
steps = 1
rows_per_step = 1
group_size = 6
"""


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


async def train(folder: Path, on_rollout: Callable[[Rollout], None], then: Callable[[OpenRun], Any]) -> Any:
    config = configure(folder, [("12 times 34", "408")], TRAIN)
    hooks = Hooks(lambda text: None, lambda *_: None, on_rollout, lambda rollout: None, lambda record: None)
    async with open_run(config, "train", Workspace(folder / "ws")) as run:
        await run_training(run, hooks)
        return await then(run)


async def test_a_frozen_sample_is_trained_neither_after_a_resume_nor_by_fine_tuning(tmp_path: Path):
    """All rollouts of the step are stored when the run is stopped; the resumed run trains on them as read."""
    new_policy(tmp_path / "start", texts=["ok 12 times 34"], hidden_size=32, layers=1, vocab_size=300, seed=0)
    seen: list[Rollout] = []

    def stop_at_the_last(rollout: Rollout) -> None:
        seen.append(rollout)
        if len(seen) == 6:
            raise OsmosisError("pulled the plug")

    async def read(run: OpenRun) -> Any:
        assert run.config.policy is not None
        rollouts = await run.store.rollouts(RolloutFilter("train", statuses=[Status.GRADED]))
        learnt = conversation_samples(rollouts, open_renderer(run, run.config.policy))
        return rollouts, await run.store.steps("train"), learnt

    with pytest.raises(OsmosisError, match="pulled the plug"):
        await train(tmp_path, stop_at_the_last, read)
    rollouts, [step], learnt = await train(tmp_path, seen.append, read)
    assert len(rollouts) == 6
    tokens = sum(t.completion_tokens for r in rollouts for t in r.turns if t.sample_id == "checker")
    assert step.metrics["funnel"]["losses"]["frozen"]["tokens"] == tokens > 0
    assert {row.sample_id for row in learnt} == {"solver"}
