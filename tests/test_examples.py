"""The examples that are agents without a framework, evaluated by the command that their READMEs name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def evaluate(config: Path, workspace: Path, *options: str, exits: int = 0) -> list[dict]:
    command = [sys.executable, "-m", "osmosis_ai", "eval", "run", str(config), "--workspace", str(workspace)]
    done = subprocess.run([*command, "--json", *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == exits, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("example", ["bare_openai", "command_line"])
def test_an_agent_that_knows_only_a_url_and_a_key_is_evaluated(example, tmp_path):
    *rollouts, report = evaluate(EXAMPLES / example / "eval.toml", tmp_path)
    assert len(rollouts) == 16
    assert {rollout["status"] for rollout in rollouts} == {"graded"}
    assert {rollout["reward"] for rollout in rollouts} == {0.0, 1.0}  # the script makes mistakes on purpose
    assert any(rollout["turns"] > 1 for rollout in rollouts)  # tools were called
    assert report["graded"] == 16


def test_a_grader_that_asks_a_judge_is_half_of_the_reward(tmp_path):
    *rollouts, report = evaluate(EXAMPLES / "judge" / "eval.toml", tmp_path)
    assert (report["graded"], {rollout["turns"] for rollout in rollouts}) == (16, {1})
    assert {0.0, 0.5} <= {rollout["reward"] for rollout in rollouts} <= {0.0, 0.5, 1.0}
    said = (tmp_path / "runs" / "judge" / "judge.jsonl").read_text().splitlines()
    assert len(said) == 16


DIRECT = """
import httpx
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context


class Direct(AgentWorkflow):
    async def run(self, ctx):
        messages = list(ctx.prompt)
        get_rollout_context().register_agent("main", messages)
        messages.append({"role": "assistant", "content": "148, says a provider that was called directly"})


class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"""


def test_a_workflow_that_calls_a_provider_directly_is_noticed_and_told_what_to_change(tmp_path):
    config = (EXAMPLES / "bare_openai" / "eval.toml").read_text()
    (tmp_path / "agent.py").write_text(DIRECT)
    (tmp_path / "direct.toml").write_text(config.replace("../calculator", str(EXAMPLES / "calculator")))
    *rollouts, report = evaluate(
        tmp_path / "direct.toml", tmp_path / "ws", "--set", "dataset.limit=1", exits=1
    )
    assert [rollout["status"] for rollout in rollouts] == ["no_turns"] * 2
    reason = rollouts[0]["reason"]
    assert "run() made no LLM call that was answered" in reason
    assert "base_url" in reason and "api_key" in reason
    assert report["graded"] == 0
