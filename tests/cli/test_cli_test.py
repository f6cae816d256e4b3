"""`osmosis test`, through a pipe as a person would type: seed 003's agent loop and an AgentWorkflow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOOP = str(ROOT / "tests" / "seeds" / "seed_003_calculator.py")
WORKFLOW = str(ROOT / "tests" / "controller" / "lean_agents.py")
ROWS = [
    {"user_prompt": "What is 3 times 4?", "ground_truth": "12"},
    {"user_prompt": "What is 2 plus 2?", "ground_truth": "4"},
]
SCRIPT = """
def answer(messages, tools, random):
    if messages[-1]["role"] == "user":
        return {"tool_calls": [{"function": {"name": "multiply", "arguments": '{"a": 3, "b": 4}'}}]}
    return {"content": "It is " + messages[-1]["content"]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "model.py").write_text(SCRIPT)
    return tmp_path


def osmosis(folder: Path, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "osmosis_ai", "test", *arguments, "-d", "rows.jsonl"]
    return subprocess.run(command, cwd=folder, input=typed, capture_output=True, text=True, timeout=180)


def test_r12_every_row_is_run_and_a_row_below_the_threshold_fails(folder: Path):
    done = osmosis(folder, LOOP, "--script", "model.py:answer", "-o", "report.json", "--pass-threshold", "1")
    assert done.returncode == 1
    assert "row 0    ok     reward 1  2 turns" in done.stdout
    assert "row 1    FAILED reward 0  2 turns" in done.stdout
    assert done.stdout.endswith("1 of 2 rows passed\n")
    report = json.loads((folder / "report.json").read_text())
    assert (report["summary"]["total"], report["summary"]["passed"]) == (2, 1)
    assert [result["reward"] for result in report["results"]] == [1.0, 0.0]
    assert not (folder / ".osmosis").exists()  # nothing is stored


def test_r12_without_a_threshold_a_reward_of_0_is_a_result_and_no_failure(folder: Path):
    done = osmosis(folder, LOOP, "--script", "model.py:answer", "--offset", "1", "--json")
    row, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert (row["row_index"], row["reward"], row["success"], summary["total"]) == (1, 0.0, True, 1)


def test_r12_a_row_whose_code_raises_fails(folder: Path):
    (folder / "rows.jsonl").write_text('{"user_prompt": "raises", "ground_truth": "right"}\n')
    done = osmosis(folder, WORKFLOW, "--script", f"{WORKFLOW}:answer")
    assert done.returncode == 1
    assert "row 0    FAILED no reward  0 turns  workflow_error: " in done.stdout
    assert "no soup today" in done.stdout


def test_r12_you_are_the_model_and_see_tool_results_and_the_reward(folder: Path):
    typed = 'call multiply {"a": 3, "b": 4}\nThe answer is 12.\nsave session.jsonl\n\n'
    done = osmosis(folder, LOOP, "--be-the-model", typed=typed)
    assert done.returncode == 0
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "user | What is 3 times 4?" in lines
    assert 'assistant | calls multiply({"a": 3, "b": 4})' in lines
    assert "tool | 12" in lines
    assert "sample calculator  reward 1.0" in lines
    assert lines.index("tool | 12") < lines.index("assistant | The answer is 12.")


def test_r12_a_saved_session_is_a_script_for_later_tests(folder: Path):
    osmosis(folder, LOOP, "--be-the-model", typed='call add {"a": 3, "b": 9}\n12\nsave session.jsonl\n\n')
    again = osmosis(folder, LOOP, "--script", "session.jsonl", "--limit", "1", "--json")
    row, _ = [json.loads(line) for line in again.stdout.splitlines()]
    assert (row["reward"], row["turns"]) == (1.0, 2)


def test_a_typed_call_that_no_tool_can_take_is_refused_and_sent_when_it_is_meant(folder: Path):
    typed = 'call multiply {"a": 3\ncall divide {}\ncall! multiply {"a": 3\n12\n\n'
    done = osmosis(folder, LOOP, "--be-the-model", typed=typed)
    assert "the arguments are no JSON" in done.stdout
    assert "there is no tool 'divide': add, multiply" in done.stdout
    assert "tool | Error:" in done.stdout  # the agent's answer to the malformed call
    assert "reward 1.0" in done.stdout


def test_two_calls_are_one_answer_when_the_first_line_goes_on(folder: Path):
    typed = 'call multiply {"a": 3, "b": 4} \\\ncall add {"a": 1, "b": 1}\n12\n\n'
    done = osmosis(folder, LOOP, "--be-the-model", typed=typed)
    assert [line.strip() for line in done.stdout.splitlines() if " tool | " in line] == [
        "tool | 12",
        "tool | 2",
    ]


def test_r12_one_rollout_is_stepped_through_with_its_messages_and_tools(folder: Path):
    done = osmosis(folder, LOOP, "--script", "model.py:answer", "-i", typed="m\nt\nstep\n\n\n")
    assert done.returncode == 0
    assert done.stdout.count("user | What is 3 times 4?") == 2  # once as it came, once for m
    assert "  multiply(a, b)  Multiply two numbers" in done.stdout
    assert "[2] Enter or n: next" in done.stdout
    assert "assistant | It is 12" in done.stdout


def test_continue_asks_nothing_more(folder: Path):
    done = osmosis(folder, LOOP, "--script", "model.py:answer", "-i", "--row", "1", typed="c\n")
    assert done.returncode == 0
    assert done.stdout.count(" > ") == 1
    assert "sample calculator  reward 0.0" in done.stdout


@pytest.mark.parametrize("typed", ["q\n", ""])
def test_quitting_and_the_end_of_input_interrupt(folder: Path, typed: str):
    done = osmosis(folder, LOOP, "--be-the-model", typed=typed)
    assert (done.returncode, "reward" in done.stdout) == (130, False)


def test_r30_a_workflow_is_tested_like_an_agent_loop(folder: Path):
    (folder / "rows.jsonl").write_text('{"user_prompt": "ok", "ground_truth": "right"}\n')
    done = osmosis(folder, "-m", f"{WORKFLOW}:Lean", "--be-the-model", typed="hello\n\n")
    assert done.returncode == 0
    assert "sample lean  reward 1.0" in done.stdout


def test_who_answers_is_said_once(folder: Path):
    none, two = osmosis(folder, LOOP), osmosis(folder, LOOP, "--model", "m", "--script", "a.py:b")
    for done in (none, two):
        assert (done.returncode, "say who answers: one of --model" in done.stderr) == (2, True)
    assert "needs --base-url" in osmosis(folder, LOOP, "--model", "m").stderr
