"""User code that misbehaves: what each kind comes to, side by side in one run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from controller_bench import Does, configure, run_eval

from osmosis_ai.types import Rollout, Status

CASES: dict[Does, tuple[Status, str]] = {
    ("ok", "right"): (Status.GRADED, ""),
    ("prints", "wrong"): (Status.GRADED, ""),
    ("silent", "right"): (Status.NO_TURNS, "run() made no LLM call that was answered (no call came), so"),
    ("wrong_key", "right"): (Status.WORKFLOW_ERROR, "answered HTTP 401: this key opens no rollout"),
    ("wrong_key_ignored", "right"): (Status.NO_TURNS, "was answered (1 call came with a wrong key), so"),
    ("other_rollout", "right"): (Status.WORKFLOW_ERROR, "A key opens its own rollout only"),
    ("raises", "right"): (Status.WORKFLOW_ERROR, "Lean.run raised ValueError: no soup today"),
    ("blocks", "right"): (Status.WORKFLOW_TIMEOUT, "Lean.run exceeded its deadline of 1.5 s. It had made 1"),
    ("ok", "raises"): (Status.GRADER_ERROR, "LeanGrader.grade raised RuntimeError: the judge is out"),
    ("ok", "nothing"): (Status.GRADER_ERROR, "gave no reward to sample 'lean' of rollout bad.r9.m0.a0; call"),
    ("ok", "nan"): (Status.GRADER_ERROR, "must be a finite number, got nan"),
    ("ok", "nan_inside"): (Status.GRADER_ERROR, "must be a finite number, got nan"),
    ("ok", "unknown"): (Status.GRADER_ERROR, "no sample 'somebody'; its samples: 'lean'"),
    ("ok", "blocks"): (Status.GRADER_TIMEOUT, "LeanGrader.grade exceeded its deadline of 1 s"),
    ("late", "right"): (Status.GRADED, ""),
    ("tells", "quetzal"): (Status.GRADED, ""),
    ("keeps", "right"): (Status.GRADED, ""),
}
Outcome = tuple[Path, dict[Does, Rollout]]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All cases in one run, at once."""
    folder = tmp_path_factory.mktemp("misbehaviour")
    config = configure(
        folder, list(CASES), rollout__agent_timeout_seconds=1.5, rollout__grader_timeout_seconds=1.0
    )
    return folder, dict(zip(CASES, asyncio.run(run_eval(config, folder)), strict=True))


@pytest.mark.parametrize("does", CASES, ids=lambda does: f"{does[0]}-{does[1]}")
def test_each_failure_is_its_own_rollouts_and_says_what_happened(outcome: Outcome, does: Does):
    rollout = outcome[1][does]
    status, reason = CASES[does]
    assert (rollout.status, reason in rollout.reason) == (status, True), rollout.reason
    assert rollout.reward == (None if status is not Status.GRADED else 0.0 if does[1] == "wrong" else 1.0)


def test_a_blocking_workflow_holds_up_no_other(outcome: Outcome):
    rollouts = outcome[1]
    assert 1.5 <= rollouts["blocks", "right"].duration_seconds < 4
    assert all(r.duration_seconds < 1.5 for d, r in rollouts.items() if "blocks" not in d)


def test_turns_made_before_the_deadline_are_kept(outcome: Outcome):
    [turn] = outcome[1]["blocks", "right"].turns
    assert turn.response["content"] == "The answer is 42."


@pytest.mark.parametrize(
    ("does", "messages"),
    [(("raises", "right"), 1), (("ok", "raises"), 2), (("ok", "blocks"), 2), (("ok", "nan_inside"), 2)],
)
def test_how_far_a_failed_rollout_came_is_kept_without_a_reward(outcome: Outcome, does: Does, messages: int):
    [sample] = outcome[1][does].samples.values()
    assert (sample.sample_id, len(sample.messages), sample.reward) == ("lean", messages, None)


def test_a_call_after_the_end_of_the_rollout_is_refused_and_changes_nothing(outcome: Outcome):
    folder, rollouts = outcome
    told = (folder / f"told-{list(CASES).index(('late', 'right'))}").read_text()
    assert told.startswith("409 ")
    assert "rollout bad.r14.m0.a0 has ended" in told
    assert len(rollouts["late", "right"].turns) == 1


def test_the_label_is_nowhere_to_be_seen_for_the_workflow_and_metadata_not_in_the_prompt(outcome: Outcome):
    folder, rollouts = outcome
    place = list(CASES).index(("tells", "quetzal"))
    told = (folder / f"told-{place}").read_text()
    assert "AgentWorkflowContext" in told
    assert "quetzal" not in told
    [turn] = rollouts["tells", "quetzal"].turns
    assert turn.messages == [{"role": "user", "content": "tells"}]


def test_what_user_code_prints_is_in_the_log_of_the_run_which_has_nothing_else(outcome: Outcome):
    log = (outcome[0] / "ws" / "runs" / "bad" / "rollout-server.log").read_text()
    assert log.splitlines() == [
        '{"event": "report", "run_id": "forged"}',
        "below Python",
        "to standard error",
    ]


def test_what_a_workflow_keeps_lies_in_the_folder_of_its_rollout(outcome: Outcome):
    folder, rollouts = outcome
    kept = folder / "ws" / "runs" / "bad" / "artifacts" / rollouts["keeps", "right"].rollout_id / "notes.txt"
    assert kept.read_text() == "42 it is"


async def test_r13_what_a_rollout_logs_is_a_file_of_its_own_with_times_and_numbers(tmp_path: Path):
    config = configure(tmp_path, [("logs", "logged"), ("ok", "right")], rollout__debug_dir="logs")
    logged, _ = await run_eval(config, tmp_path)
    [file] = (tmp_path / "logs").glob("*/*.jsonl")  # the other rollout logs nothing
    assert (file.parent.name.isdigit(), file.stem) == (True, logged.rollout_id)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["seq"], line["event"]) for line in lines] == [(0, "asks"), (1, "answered"), (2, "grades")]
    assert lines[0]["question"] == "logs"
    assert all(line["rollout_id"] == logged.rollout_id and line["time"] > 1.7e9 for line in lines)
