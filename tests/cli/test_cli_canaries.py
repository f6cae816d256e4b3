"""`osmosis validate --dataset`: the grader is tried on answers whose order is known."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from osmosis_ai.cli.groups import root

ROWS = [{"user_prompt": f"{n} + {n}?", "label": str(2 * n)} for n in range(1, 5)]
HEAD = """
from osmosis_ai.rollout import AgentWorkflow, Grader
class Workflow(AgentWorkflow):
    async def run(self, ctx): ...
class Exact(Grader):
    async def grade(self, ctx):
        said = ctx.sample.messages[-1]["content"]
        ctx.set_reward({reward})
"""


@pytest.fixture
def tried(tmp_path: Path):
    """`osmosis validate` of a grader that gives an expression as reward: exit code and findings by code."""
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))

    def run(reward: str, *options: str, source: str = HEAD) -> tuple[int, dict[str, str]]:
        agent = tmp_path / f"canary_{abs(hash((reward, source)))}.py"
        agent.write_text(source.format(reward=reward))
        arguments = [str(agent), "--dataset", str(tmp_path / "rows.jsonl"), "--json", *options]
        done = CliRunner().invoke(root, ["validate", *arguments])
        said = json.loads(done.stdout)
        return done.exit_code, {f["code"]: f["message"] for f in said["errors"] + said["warnings"]}

    return run


def test_a_grader_that_puts_the_right_answer_first_passes(tried):
    assert tried("float(said == ctx.label)") == (0, {})
    assert tried("-abs(float(said or 1e9) - float(ctx.label))") == (0, {})


def test_a_grader_that_reads_the_blocks_of_a_framework_is_tried_in_that_shape(tried):
    assert tried("float(''.join(part['text'] for part in said) == ctx.label)") == (0, {})


def test_an_empty_answer_must_not_get_as_much_as_the_right_one(tried):
    code, found = tried("float(said in ctx.label)")
    assert (code, list(found)) == (2, ["CANARY_EMPTY_ANSWER"])
    assert (
        "as much as the right one in 4 of 4 rows. First row 0: the label '2' gets 1"
        in (found["CANARY_EMPTY_ANSWER"])
    )


def test_the_answer_to_another_row_must_not_get_as_much_as_the_right_one(tried):
    code, found = tried("float(said.isdigit())")
    assert (code, list(found)) == (2, ["CANARY_OTHER_ANSWER"])


def test_a_grader_that_gives_everything_the_same_is_found_out(tried):
    code, found = tried("0.5")
    assert (code, list(found)) == (2, ["CANARY_ALL_ALIKE"])
    assert "right, empty and wrong answers all get 0.5 in 4 rows" in found["CANARY_ALL_ALIKE"]


def test_an_answer_of_another_form_is_said_with_an_option(tried):
    form = "float(said == f'#### {ctx.label}')"
    assert list(tried(form)[1]) == ["CANARY_ALL_ALIKE"]
    assert tried(form, "--answer", "#### {label}") == (0, {})


def test_a_grader_that_raises_on_a_bad_answer_is_a_warning(tried):
    code, found = tried("float(int(said) == int(ctx.label))")
    assert (code, list(found)) == (0, ["CANARY_RAISED"])
    assert found["CANARY_RAISED"].startswith("on an empty answer the grader raised in 4 of 4 rows")


@pytest.mark.parametrize(
    ("reward", "needs"),
    [
        ("ctx.judge", "it needs a judge"),
        ("float(any(m.get('tool_calls') for m in ctx.sample.messages))", "it needs tool calls"),
        ("float((ctx.artifacts_dir / 'answer.txt').read_text())", "it needs files of the rollout"),
        ("ctx.samples['solver'].metrics['x']", "it cannot grade an answer in words alone"),
    ],
)
def test_a_grader_that_needs_more_than_words_is_left_out_and_that_is_said(tried, reward, needs):
    code, found = tried(reward)
    assert (code, list(found)) == (0, ["CANARY_SKIPPED"])
    assert found["CANARY_SKIPPED"].startswith(f"the grader was not tried: {needs}")


def test_a_reward_function_of_an_agent_loop_is_tried_like_a_grader(tried):
    loop = """
from osmosis_ai import osmosis_reward
from osmosis_ai.rollout import RolloutAgentLoop
class Loop(RolloutAgentLoop):
    name = "loop"
    def get_tools(self, request): return []
    async def run(self, ctx): ...
@osmosis_reward
def exact(solution_str: str, ground_truth: str, extra_info: dict = None, **kwargs) -> float:
    return {reward}
"""
    assert tried("float(solution_str == ground_truth)", source=loop) == (0, {})
    assert list(tried("1.0", source=loop)[1]) == ["CANARY_ALL_ALIKE"]
    without = loop.partition("@osmosis_reward")[0]
    code, found = tried("", source=without)
    assert (code, list(found)) == (0, ["CANARY_SKIPPED"])


def test_rows_without_labels_try_nothing(tried, tmp_path: Path):
    unlabelled = tmp_path / "unlabelled.jsonl"
    unlabelled.write_text('{"user_prompt": "hi"}\n{"user_prompt": "ho"}')
    code, found = tried("1.0", "--dataset", str(unlabelled))
    assert (code, list(found)) == (0, ["CANARY_SKIPPED"])


def test_a_grader_that_hangs_is_left_behind(tried, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("osmosis_ai.rollout.canaries.SECONDS", 0.2)
    code, found = tried("__import__('time').sleep(2)")
    assert (code, list(found)) == (2, ["CANARY_TIMEOUT"])


def test_what_the_grader_prints_stays_out_of_the_result(tried):
    assert tried("print('{}') or float(said == ctx.label)") == (0, {})
