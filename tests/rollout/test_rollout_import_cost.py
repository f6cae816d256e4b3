"""`import osmosis_ai.rollout` is light."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "litellm", "strands", "agents", "fastapi", "uvicorn", "starlette", "aiohttp")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "code",
    [
        "import osmosis_ai.rollout",
        "from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, "
        "GraderContext, RolloutContext, ConcurrencyConfig",
        "from osmosis_ai.rollout import RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult\n"
        "from osmosis_ai.rollout.tools import execute_tool_calls\nfrom osmosis_ai import osmosis_reward",
    ],
)
def test_what_users_subclass_loads_no_framework_and_no_server(code):
    loaded = run(f"{code}\nimport sys; print(' '.join(sys.modules))").split()
    assert [name for name in HEAVY if name in loaded] == []


def test_importing_the_package_costs_at_most_one_and_a_half_times_pydantic():
    def seconds(module: str) -> float:
        code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
        return min(float(run(code)) for _ in range(3))

    assert seconds("osmosis_ai.rollout") <= 1.5 * seconds("pydantic")


def test_every_exported_name_can_be_imported():
    import osmosis_ai.rollout as rollout

    assert len(rollout.__all__) == 28
    for name in rollout.__all__:
        assert getattr(rollout, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Workflow'"):
        rollout.Workflow
