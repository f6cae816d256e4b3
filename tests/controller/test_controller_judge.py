"""Graders ask a judge: what it says is a reward or a failure, and never a turn of the rollout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from controller_bench import AGENTS, EVAL, configure, run_eval
from test_controller_training import TRAIN, train

from osmosis_ai.config import Config
from osmosis_ai.controller.judging import Judging
from osmosis_ai.engine.policy import new_policy
from osmosis_ai.errors import UsageError
from osmosis_ai.providers.scripted import ScriptedProvider
from osmosis_ai.types import Status

SCRIPTED = f"""
[judge]
model = "scripted"
script = "{AGENTS}:verdict"
"""
DEAD = """
[judge]
model = "gone"
base_url = "http://127.0.0.1:1/v1"
retries = 0
"""


def judged(
    folder: Path, *graders: str, judge: str = SCRIPTED, workflow: str = "ok", **settings: Any
) -> Config:
    return configure(folder, [(workflow, grader) for grader in graders], EVAL + judge, **settings)


def judge_calls(folder: Path, run: str = "bad") -> list[dict[str, Any]]:
    log = folder / "ws" / "runs" / run / "judge.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()]


async def test_r21_a_grader_asks_the_judge_of_the_toml_and_its_words_are_no_turns(tmp_path: Path):
    rubric, asked = await run_eval(judged(tmp_path, "judged", "asks"), tmp_path)
    assert (rubric.status, rubric.reward in (0.25, 0.75)) == (Status.GRADED, True)
    assert (asked.status, asked.reward) == (Status.GRADED, 39.0), asked.reason
    for rollout in (rubric, asked):
        [turn] = rollout.turns
        assert (turn.sample_id, turn.response["content"]) == ("lean", "The answer is 42.")
        assert list(rollout.samples) == ["lean"]
    calls = {call["rollout_id"]: call for call in judge_calls(tmp_path)}
    assert (
        "<<<BEGIN_CANDIDATE_OUTPUT>>>\nThe answer is 42."
        in calls[rubric.rollout_id]["messages"][1]["content"]
    )
    assert calls[asked.rollout_id]["sample_id"] == "umpire"
    assert json.loads(calls[rubric.rollout_id]["response"]["content"])["score"] == rubric.reward


async def test_the_judges_key_opens_nothing_while_the_workflow_runs(tmp_path: Path):
    [rollout] = await run_eval(judged(tmp_path, "judged", workflow="steals"), tmp_path)
    assert rollout.status is Status.GRADED
    assert "HTTP 401: this key opens no rollout" in (tmp_path / "told-0").read_text()


async def test_the_judges_key_opens_with_grading_and_dies_with_the_rollout(tmp_path: Path):
    provider = ScriptedProvider(lambda messages, tools, random: {"content": "fine"})
    judging = Judging(provider, tmp_path / "judge.jsonl")
    await judging.start()
    access = judging.access()
    body = {"model": "osmosis-rollout", "messages": [{"role": "user", "content": "well?"}]}

    async def ask() -> int:
        headers = {"Authorization": f"Bearer {access.key}", "x-rollout-id": "r-1~elsewhere"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{access.url}/chat/completions", json=body, headers=headers) as reply,
        ):
            return reply.status

    assert await ask() == 401
    judging.open("r-1", access.key, place="0/g/0", alias="r-1~elsewhere", seconds=60)
    assert await ask() == 200
    await judging.close("r-1")
    await judging.close("r-1")
    assert await ask() == 409
    await judging.stop()


@pytest.mark.parametrize("grader", ["judged", "shrugs"])
async def test_a_judge_that_does_not_answer_is_no_reward_whatever_the_grader_makes_of_it(
    tmp_path: Path, grader: str
):
    [rollout] = await run_eval(judged(tmp_path, grader, judge=DEAD, rollout__retries=1), tmp_path)
    assert (rollout.status, rollout.reward, rollout.attempt) == (Status.PROVIDER_ERROR, None, 1)
    assert rollout.reason.startswith("the grader's judge: the provider failed: http://127.0.0.1:1/v1")


async def test_without_a_judge_a_grader_that_wants_one_says_what_to_add(tmp_path: Path):
    [rollout] = await run_eval(judged(tmp_path, "judged", judge=""), tmp_path)
    assert rollout.status is Status.GRADER_ERROR
    assert "has no judge: the run names no model for its grader to ask. Add [judge]" in rollout.reason
    assert not (tmp_path / "ws" / "runs" / "bad" / "judge.jsonl").exists()


async def test_another_judge_is_another_run(tmp_path: Path):
    await run_eval(judged(tmp_path, "judged"), tmp_path)
    with pytest.raises(UsageError, match=r"judge: was 'script .*verdict .*', is 'gone at http"):
        await run_eval(judged(tmp_path, "judged", judge=DEAD), tmp_path)


async def test_what_a_judge_says_is_rewarded_and_never_trained(tmp_path: Path):
    texts = ["The answer is 42. ok judged"]
    new_policy(tmp_path / "start", texts=texts, hidden_size=32, layers=1, vocab_size=300, max_context=128)
    settings = {"train__group_size": 4, "train__rows_per_step": 1, "run__seed": 1}
    [step], rollouts = await train(tmp_path, [("ok", "judged")], text=TRAIN + SCRIPTED, **settings)
    assert [r.status for r in rollouts] == [Status.GRADED] * 4
    assert {rollout.reward for rollout in rollouts} == {0.25, 0.75}
    sampled = sum(turn.completion_tokens for rollout in rollouts for turn in rollout.turns)
    assert all(turn.sample_id == "lean" for rollout in rollouts for turn in rollout.turns)
    assert step.metrics["funnel"]["stages"]["trained"]["tokens"] == sampled > 0
    assert len(judge_calls(tmp_path, "train")) == 4
