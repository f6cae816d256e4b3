"""`osmosis validate`: all findings at once, with codes, for agent loops and for workflows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from osmosis_ai.cli.groups import root
from osmosis_ai.rollout.validator import validate_backend

SEED = Path(__file__).parents[1] / "seeds" / "seed_003_calculator.py"
LOOP = """
from osmosis_ai.rollout import RolloutAgentLoop
class Bad(RolloutAgentLoop):
    name = " "
    def get_tools(self, request):
        return [{"type": "function", "function": {"name": "no spaces please", "parameters": []}}]
    def run(self, ctx): ...
"""
WORKFLOW = """
from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, Grader
class Bad(AgentWorkflow):
    def __init__(self, config=None): raise KeyError("tool")
    def run(self, ctx): ...
class Graders(Grader):
    def grade(self, ctx): ...
one = AgentWorkflowConfig(name="one")
two = AgentWorkflowConfig(name="two")
"""


def run(*arguments: str) -> tuple[int, dict]:
    result = CliRunner().invoke(root, ["validate", *arguments, "--json"])
    return result.exit_code, json.loads(result.stdout)


def codes(said: dict) -> list[str]:
    return [error["code"] for error in said["errors"]]


@pytest.mark.parametrize("form", ["{}", "-m {}:agent_loop", "-m {}:CalculatorAgent", "-m {}"])
def test_r12_the_agent_loop_of_seed_003_is_valid_by_instance_and_by_class(form: str):
    code, said = run(*form.format(SEED).split())
    assert (code, said["valid"], said["kind"], said["name"], said["tools"]) == (
        0, True, "agent loop", "calculator", 2,
    )  # fmt: skip
    shown = CliRunner().invoke(root, ["validate", *form.format(SEED).split()]).stdout
    assert shown == "Agent loop 'calculator' validated successfully.\n  - Tools: 2\n"


def test_r12_all_findings_of_an_agent_loop_come_at_once(tmp_path: Path):
    (tmp_path / "bad_loop.py").write_text(LOOP)
    code, said = run(str(tmp_path / "bad_loop.py"))
    assert code == 2
    assert codes(said) == ["EMPTY_NAME", "RUN_NOT_ASYNC", "INVALID_FUNCTION_NAME", "INVALID_PARAMETERS_TYPE"]
    assert [warning["code"] for warning in said["warnings"]] == ["MISSING_FUNCTION_DESCRIPTION"]


def test_r30_all_findings_of_a_workflow_come_at_once(tmp_path: Path):
    (tmp_path / "bad_workflow.py").write_text(WORKFLOW)
    code, said = run(str(tmp_path / "bad_workflow.py"))
    assert code == 2
    assert codes(said) == [
        "CONFIG_NOT_FOUND",
        "WORKFLOW_RUN_NOT_ASYNC",
        "WORKFLOW_INIT_FAILED",
        "GRADER_GRADE_NOT_ASYNC",
    ]


def test_r30_a_workflow_without_a_grader_is_a_finding(tmp_path: Path):
    source = "from osmosis_ai.rollout import AgentWorkflow\n"
    source += "class A(AgentWorkflow):\n    async def run(self, ctx): ...\n"
    (tmp_path / "no_grader.py").write_text(source)
    assert codes(run(str(tmp_path / "no_grader.py"))[1]) == ["MISSING_GRADER"]


def test_r30_an_init_that_ends_the_process_is_a_finding_beside_the_others(tmp_path: Path):
    (tmp_path / "leaves.py").write_text(WORKFLOW.replace('raise KeyError("tool")', "raise SystemExit(3)"))
    found = run(str(tmp_path / "leaves.py"))[1]["errors"]
    assert (len(found), found[2]["code"]) == (4, "WORKFLOW_INIT_FAILED")
    assert found[2]["message"] == "Bad.__init__ raised SystemExit: 3"


def test_r30_what_is_no_class_of_ours_has_a_code():
    result = validate_backend(int, None, str)
    assert [error.code for error in result.errors] == ["INVALID_WORKFLOW_CLASS", "INVALID_GRADER_CLASS"]
    assert result.resolved_agent_name == "int"


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import nothing_like_this", "IMPORT_FAILED"),
        ("raise SystemExit(3)", "IMPORT_FAILED"),
        ("x = 1", "WORKFLOW_NOT_FOUND"),
    ],
)
def test_what_cannot_be_loaded_is_a_finding(tmp_path: Path, source: str, code: str):
    (tmp_path / f"broken_{code.lower()}.py").write_text(source)
    exit_code, said = run(str(tmp_path / f"broken_{code.lower()}.py"))
    assert (exit_code, codes(said)) == (2, [code])


def test_one_of_module_and_file_is_given():
    result = CliRunner().invoke(root, ["validate"])
    assert "say which code: either -m module:attr or a path" in str(result.exception)
