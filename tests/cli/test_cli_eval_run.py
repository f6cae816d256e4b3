"""`osmosis eval run`: the plan before money, budgets, gates, and how each of them ends."""

import asyncio
import json
import sys
import xml.etree.ElementTree as ET
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
        if ctx.label == "raises":
            raise ValueError("no idea")
        ctx.set_reward(float(ctx.label or 1.0))
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
    """`osmosis eval run` on rows such as "2=0.5" (two calls, reward 0.5): exit code, JSON lines, messages."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "eval.toml").write_text(CONFIG)

    def run(prompts: list[str], *options: str) -> tuple[int, list[dict], str]:
        rows = [
            json.dumps({"user_prompt": prompt, "label": label, "kind": f"{prompt} calls"})
            for prompt, _, label in (text.partition("=") for text in prompts)
        ]
        (tmp_path / "rows.jsonl").write_text("\n".join(rows))
        monkeypatch.setattr(sys, "argv", ["osmosis", "eval", "run", "eval.toml", *(options or ["--json"])])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return int(ended.value.code or 0), lines, err

    return run


@pytest.mark.parametrize(("key", "limit"), [("rollout_tokens", 4), ("rollout_dollars", 3)])
def test_a_rollout_that_spends_its_budget_has_a_status_of_its_own_and_no_reward(eval_run, key, limit):
    code, lines, _ = eval_run(["1", "2", "2 swallows"], "--json", "--set", f"budget.{key}={limit}")
    ended = {line["row"]: line for line in lines if line["event"] == "rollout"}
    assert [ended[row]["status"] for row in range(3)] == ["graded", "over_budget", "over_budget"]
    assert [ended[row]["reward"] for row in range(3)] == [1.0, None, None]
    assert [ended[row]["turns"] for row in range(3)] == [1, 1, 1]
    assert f"(budget.{key}): no further call is answered" in ended[1]["reason"]
    assert code == 0  # the agents' own doing, as any failure of theirs


def report_of(lines: list[dict]) -> dict:
    return next(line for line in lines if line["event"] == "report")


# --- budgets of a run


def test_a_run_stops_within_a_wave_of_its_budget_and_goes_on_when_it_is_raised(eval_run):
    prompts = ["1"] * 8  # three dollars and four tokens each, two at once
    code, lines, _ = eval_run(prompts, "--json", "--set", "budget.run_dollars=6")
    report = report_of(lines)
    assert (code, report["by_choice"]) == (5, True)
    assert 2 <= report["graded"] <= 4  # what was out came to its end
    assert report["stopped"].startswith("budget.run_dollars = 6 is used up ($")
    code, lines, _ = eval_run(prompts, "--json", "--set", "budget.run_dollars=6")
    assert (code, report_of(lines)["graded"]) == (5, report["graded"])  # the store knows what was spent
    assert "rollout" not in [line["event"] for line in lines]
    code, lines, _ = eval_run(prompts, "--json", "--set", "budget.run_dollars=60")
    assert (code, report_of(lines)["graded"], report_of(lines)["dollars"]) == (0, 8, 24.0)


@pytest.mark.parametrize(("key", "limit"), [("run_tokens", 1), ("run_seconds", 0.001)])
def test_tokens_and_seconds_of_a_run_are_limited_as_dollars_are(eval_run, key, limit):
    code, lines, _ = eval_run(["1"] * 8, "--json", "--set", f"budget.{key}={limit}")
    assert code == 5
    assert report_of(lines)["stopped"].startswith(f"budget.{key} = {limit} is used up")
    assert report_of(lines)["graded"] <= 4


# --- the plan


def test_money_needs_a_yes_or_a_budget_where_nobody_can_be_asked(eval_run, tmp_path: Path):
    code, lines, err = eval_run(["1"] * 9)
    assert (code, lines) == (2, [])
    assert "error: 9 rollouts of scripted cost money" in err
    assert "add --yes, or say how much they may cost, e.g. --set budget.run_dollars=5" in err
    free = (tmp_path / "eval.toml").read_text().replace("1e6", "0")
    (tmp_path / "eval.toml").write_text(free)
    code, lines, _ = eval_run(["1"] * 9, "--json")  # what costs nothing is not asked about
    assert (code, report_of(lines)["dollars"]) == (0, 0.0)
    assert {line["event"] for line in lines} == {"rollout", "report"}


def test_the_plan_is_made_from_rows_of_the_run_that_are_run_once(eval_run):
    code, lines, err = eval_run(["1", "2", "3"] * 4, "--json", "--yes")
    plan = next(line for line in lines if line["event"] == "plan")
    ended = [line["row"] for line in lines if line["event"] == "rollout"]
    assert code == 0
    assert sorted(ended[:8]) == [0, 1, 3, 4, 6, 7, 9, 10]  # spread over the 12 rows
    assert sorted(ended) == list(range(12))
    assert (plan["rollouts"], plan["done"], plan["pilot"]) == (12, 8, 8)
    # 8 rollouts with 1, 2, 1, 2, 1, 2, 1, 2 calls of three tokens: $4.50 each, and four are left
    assert (plan["dollars"]["total"], plan["dollars_spent"]) == (18.0, 36.0)
    assert plan["dollars"]["low"] < 18.0 < plan["dollars"]["high"]
    assert report_of(lines)["dollars"] == 72.0
    assert "  rollouts  4 to do (12 rows, 8 of 12 done), 2 at once" in err
    assert "$36.00 spent so far" in err


def test_who_says_no_keeps_what_there_is_and_the_same_command_goes_on(eval_run, monkeypatch):
    monkeypatch.setattr("osmosis_ai.cli.eval_plan.somebody_is_there", lambda: True)
    answers = iter([False, True])

    async def answer() -> bool:
        return next(answers)

    monkeypatch.setattr("osmosis_ai.cli.eval_session.go_on", answer)
    prompts = ["1"] * 10
    code, lines, _ = eval_run(prompts, "--json")
    assert (code, report_of(lines)["graded"]) == (5, 8)
    assert report_of(lines)["stopped"] == "you did not want to go on"
    code, lines, _ = eval_run(prompts, "--json")  # two are left: too few to ask about
    assert (code, report_of(lines)["graded"]) == (0, 10)


def test_a_dry_run_says_where_each_value_comes_from_and_runs_nothing(eval_run, tmp_path, monkeypatch):
    monkeypatch.setenv("OSMOSIS_WORKSPACE", "elsewhere")
    code, lines, _ = eval_run(["1"] * 9, "--json", "--dry-run", "--limit", "4", "--set", "eval.attempts=3")
    [plan] = lines
    origins = {setting["key"]: setting["origin"] for setting in plan["settings"]}
    assert (code, plan["rows"], plan["rollouts"], plan["done"]) == (0, 4, 12, 0)
    assert origins["rollout.max_concurrent"] == "eval.toml:4:1"
    assert origins["dataset.limit"] == "--limit"
    assert origins["eval.attempts"] == "--set"
    assert origins["run.seed"] == "default"
    assert not (tmp_path / "elsewhere").exists()


def test_a_dry_run_is_refused_like_the_run(eval_run):
    rows = ["1"] * 4
    _, lines, _ = eval_run(rows, "--json", "--rows", "2,3")
    assert (report_of(lines)["rows"], report_of(lines)["first_row"]) == (
        2,
        2,
    )  # what `runs show --row` is told
    code, lines, err = eval_run(rows, "--json", "--dry-run", "--set", "run.seed=9")
    assert (code, len(lines)) == (2, 1)  # the settings, and then
    assert "error: run 'eval' exists and was made with other inputs:\n  seed: was 0, is 9\n" in err
    assert eval_run(rows, "--json", "--dry-run", "--set", "run.seed=9", "--accept-changes")[0] == 0


def test_a_workspace_that_cannot_be_made_is_an_error_and_no_traceback(eval_run):
    code, lines, err = eval_run(["1"], "--workspace", "agent.py")
    assert (code, lines) == (4, [])
    assert err.endswith("Choose a folder that may be written.\n")
    assert "agent.py cannot be made: " in err


# --- gates and exit codes


@pytest.mark.parametrize("threshold", ["nan", "inf"])
def test_a_threshold_that_is_no_number_is_refused_before_anything_is_run(eval_run, threshold):
    code, lines, err = eval_run(["1"], "--json", "--fail-under", threshold)
    assert (code, lines) == (2, [])
    assert err.startswith(f"error: --fail-under {threshold}: ")


def test_exit_code_3_when_the_mean_is_below_the_threshold(eval_run, tmp_path: Path):
    rows = ["1=0.5", "1=1", "1=raises"]
    code, lines, err = eval_run(rows, "--json", "--fail-under", "0.8", "--junit", "junit.xml", "--by", "kind")
    assert code == 3
    assert "mean reward 0.750" in err
    assert "is below 0.8" in err
    assert report_of(lines)["by"]["1 calls"]["graded"] == 2
    suite = ET.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert [case.get("name") for case in suite] == ["row 0", "row 1", "row 2"]
    assert suite[0][0].get("message") == "reward 0.5 is below 1"
    assert suite[2][0].get("type") == "grader_error"
    assert eval_run(rows, "--json", "--fail-under", "0.75")[0] == 0


def test_exit_code_1_when_nothing_was_graded_and_2_for_what_cannot_be_run(eval_run):
    assert eval_run(["1=raises"])[0] == 1
    assert eval_run(["1"], "--by", "colour")[0] == 2
    assert eval_run(["1"], "--fresh", "--retry", "failed")[0] == 2
    assert eval_run(["1"], "--junit", "no/such/folder.xml")[0] == 2


def test_exit_code_4_when_the_model_answers_nothing_and_130_when_interrupted(eval_run, monkeypatch, tmp_path):
    broken = AGENT.replace('return {"content": "one two three"}', "raise RuntimeError('boom')")
    (tmp_path / "agent.py").write_text(broken)
    assert eval_run(["1"], "--json", "--set", "rollout.retries=0")[0] == 4

    async def interrupted(*args: object, **kwargs: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr("osmosis_ai.cli.eval_session.Session.run", interrupted)
    code, _, err = eval_run(["1"], "--fresh")
    assert code == 130
    assert "what has a result is kept. The same command goes on." in err
