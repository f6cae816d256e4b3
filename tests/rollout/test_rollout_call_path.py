"""LiteLLM is what the models are by type; a call goes past it: none of its functions is entered."""

import sys
import threading
from collections import Counter

import pytest
from rollout_stubs import execute, text, tool_call

from osmosis_ai.rollout import AgentWorkflow, LocalBackend
from osmosis_ai.rollout.discovery import load_entrypoint

EXAMPLES = "examples/calculator"


@pytest.fixture
def entered():
    """How often each package's functions are entered, in all threads that begin during the test."""
    packages = Counter()

    def count(frame, event, argument):
        if event == "call":
            packages[str(frame.f_globals.get("__name__")).partition(".")[0]] += 1

    threading.setprofile(count)
    yield packages
    threading.setprofile(None)


@pytest.mark.parametrize(
    ("example", "framework"), [("strands_agent.py", "strands"), ("openai_agents_agent.py", "agents")]
)
async def test_a_rollout_calls_no_function_of_litellm(policy, entered, example, framework):
    policy.script = [tool_call("multiply", '{"a": 37, "b": 4}'), text("148")]
    found = load_entrypoint(f"{EXAMPLES}/{example}")
    backend = LocalBackend(
        workflow=found.workflow, workflow_config=found.workflow_config, grader=found.grader
    )
    prompt = [{"role": "user", "content": "What is 37 times 4?"}]
    results = await execute(backend, policy, prompt=prompt, label="148")
    await backend.close()
    assert [sample.reward for sample in results.grader[0].samples.values()] == [1.0]
    assert len(policy.calls) == 2
    assert entered[framework] > 100
    assert entered["litellm"] == 0
    assert "litellm" in sys.modules  # its classes are there


async def test_the_count_would_see_a_call_of_litellm(policy, entered):
    class Workflow(AgentWorkflow):
        async def run(self, ctx):
            import litellm

            litellm.get_llm_provider("openai/gpt-4o")

    backend = LocalBackend(workflow=Workflow)
    await execute(backend, policy)
    await backend.close()
    assert entered["litellm"] > 0
