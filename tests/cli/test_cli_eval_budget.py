"""`osmosis eval run` with budgets: what is spent ends a rollout, or the run, and never becomes a reward."""

import json
import sys
from pathlib import Path

import pytest

from osmosis_ai.cli.main import main

AGENT = """
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context
from osmosis_ai.rollout.policy_client import PolicyCallError, PolicyEndpoint, chat
class Asker(AgentWorkflow):
    async def run(self, ctx):
        rollout, messages = get_rollout_context(), list(ctx.prompt)
        rollout.register_agent("main", messages)
        calls, *swallows = ctx.prompt[-1]["content"].split()
        for _ in range(int(calls)):
            body = {"model": "openai/osmosis-rollout", "messages": messages}
            try:
                answer = await chat(PolicyEndpoint.of(rollout), "main", body)
            except PolicyCallError:
                if swallows:
                    return
                raise
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "more"}]
class Always(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
def answer(messages, tools, random):
    return {"content": "one two three"}
"""
CONFIG = """
[rollout]
entrypoint = "agent.py"
max_concurrent = 2
[dataset]
path = "rows.jsonl"
[llm]
model = "scripted"
script = "agent.py:answer"
input_price = 0
output_price = 1e6  # a dollar a token
"""


@pytest.fixture
def eval_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`osmosis eval run` on rows with these prompts: exit code, JSON lines, messages."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "eval.toml").write_text(CONFIG)

    def run(prompts: list[str], *options: str) -> tuple[int, list[dict], str]:
        rows = [json.dumps({"user_prompt": prompt}) for prompt in prompts]
        (tmp_path / "rows.jsonl").write_text("\n".join(rows))
        monkeypatch.setattr(sys, "argv", ["osmosis", "eval", "run", "eval.toml", "--json", *options])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), [json.loads(line) for line in out.splitlines()], err

    return run


@pytest.mark.parametrize(("key", "limit"), [("rollout_tokens", 4), ("rollout_dollars", 3)])
def test_a_rollout_that_spends_its_budget_has_a_status_of_its_own_and_no_reward(eval_run, key, limit):
    code, lines, _ = eval_run(["1", "2", "2 swallows"], "--set", f"budget.{key}={limit}")
    ended = {line["row"]: line for line in lines if line["event"] == "rollout"}
    assert [ended[row]["status"] for row in range(3)] == ["graded", "over_budget", "over_budget"]
    assert [ended[row]["reward"] for row in range(3)] == [1.0, None, None]
    assert [ended[row]["turns"] for row in range(3)] == [1, 1, 1]
    assert f"(budget.{key}): no further call is answered" in ended[1]["reason"]
    assert code == 0  # the agents' own doing, as any failure of theirs
