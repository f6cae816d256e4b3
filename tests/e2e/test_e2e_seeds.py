"""The workflows of seed documents 002 and 004, word for word, through the controller of everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e_bench import CALCULATOR, RECORD, TABLES, Bench

SEEDS = Path(__file__).parents[1] / "seeds"


@pytest.mark.parametrize(
    ("seed", "sample", "tool"),
    [("002_math", "math-agent", "calculator"), ("004_multiply", "multiply-agent", "multiply")],
)
def test_r28_r29_a_seeds_workflow_is_trained_with_its_own_grader(
    bench: Bench, seed: str, sample: str, tool: str
):
    one_step = TABLES.replace("steps = 3", "steps = 1")
    bench.write("train.toml", one_step, entrypoint=str(SEEDS / f"seed_{seed}.py"))
    [step, _] = bench.lines("train", "run", "train.toml")
    assert step["funnel"]["stages"]["generated"]["rollouts"] == 8
    assert step["funnel"]["stages"]["graded"]["rollouts"] > 0
    assert step["audit"]["tokens"] > 0
    assert step["audit"]["max_difference"] <= 2e-6
    shown = bench.lines("runs", "show", "train", "--row", "0")
    turns = [turn for rollout in shown for turn in rollout["turns"]]
    assert {turn["sample_id"] for turn in turns} == {sample}
    assert {one["function"]["name"] for turn in turns for one in turn["tools"]} == {tool}
    assert all(turn["completion_ids"] and turn["prompt_tokens"] == len(turn["prompt_ids"]) for turn in turns)
    rewards = {r["samples"][sample]["reward"] for r in shown if r["status"] == "graded"}
    assert rewards <= {0.0, 1.0}


def test_r28_the_model_of_llm_answers_the_placeholder_of_seed_004(tmp_path: Path):
    bench = Bench(tmp_path)
    rows = (CALCULATOR / "data" / "train.jsonl").read_text().splitlines()[:4]
    (tmp_path / "four.jsonl").write_text("\n".join(rows) + "\n")
    bench.write("eval.toml", RECORD, entrypoint=str(SEEDS / "seed_004_multiply.py"))
    *rollouts, report = bench.lines("eval", "run", "eval.toml")
    assert (report["graded"], report["failures"]) == (32, {})
    assert {rollout["reward"] for rollout in rollouts} == {0.0, 1.0}
    assert report["completion_tokens"] > 0
