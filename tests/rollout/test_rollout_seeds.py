"""The code of the documents that users start from runs as it stands, and so do our examples."""

import inspect
import runpy
from pathlib import Path

import pytest
from rollout_stubs import execute, text, tool_call

from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend
from osmosis_ai.rollout.discovery import load_entrypoint

ROOT = Path(__file__).parents[2]
SEEDS = ROOT / "tests" / "seeds"
PROMPT = [
    {"role": "system", "content": "You are a calculator."},
    {"role": "user", "content": "What is 37 times 4?"},
]
MULTIPLY = tool_call("multiply", '{"a": 37, "b": 4}')


class One(Grader):
    async def grade(self, ctx):
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, 1.0)


async def run(path, policy, script, **overrides):
    found = load_entrypoint(str(path), workflow_overrides=overrides)
    backend = LocalBackend(
        workflow=found.workflow, workflow_config=found.workflow_config, grader=found.grader or One
    )
    policy.script = script
    results = await execute(backend, policy, prompt=PROMPT)
    await backend.close()
    return results.workflow[0], results.grader[0]


@pytest.mark.parametrize(
    ("seed", "sample_id", "script"),
    [
        ("000_tools", "search-agent", [tool_call("search", '{"query": "x"}'), text("148")]),
        ("001_strands", "simple-strands-agent", [text("148")]),
        ("001_openai_agents", "simple-openai-agent", [text("148")]),
        ("001_tools", "search-agent", [tool_call("search", '{"query": "x"}'), text("148")]),
        ("002_search", "search-agent", [tool_call("search", '{"query": "x"}'), text("148")]),
        ("002_math", "math-agent", [tool_call("calculator", '{"expression": "37*4"}'), text("It is 148.")]),
        ("004_multiply", "multiply-agent", [MULTIPLY, text("It is 148.")]),
    ],
)
async def test_r18_r20_r21_a_seed_runs_and_is_rewarded(policy, seed, sample_id, script):
    ran, graded = await run(SEEDS / f"seed_{seed}.py", policy, script)
    assert ran.succeeded, ran.err_message
    assert {name: sample.reward for name, sample in graded.samples.items()} == {sample_id: 1.0}
    assert len(policy.calls) == len(script)


@pytest.mark.parametrize("seed", ["002_math", "004_multiply"])
async def test_a_wrong_answer_gets_no_reward(policy, seed):
    _, graded = await run(SEEDS / f"seed_{seed}.py", policy, [text("It is 149.")])
    assert [sample.reward for sample in graded.samples.values()] == [0.0]


@pytest.mark.parametrize("seed", ["000_config", "001_base_class", "001_config"])
async def test_a_seed_that_calls_no_model_runs_and_has_no_sample(policy, seed):
    ran, graded = await run(SEEDS / f"seed_{seed}.py", policy, [text("")])
    assert ran.succeeded, ran.err_message
    assert "produced no sample" in graded.err_message


def test_r27_the_config_of_a_seed_takes_values_of_the_toml():
    found = load_entrypoint(str(SEEDS / "seed_000_config.py"), workflow_overrides={"max_iterations": 3})
    assert (found.workflow_config.name, found.workflow_config.max_iterations) == ("my-workflow", 3)
    found = load_entrypoint(str(SEEDS / "seed_001_config.py"), workflow_overrides={"temperature": 0.5})
    assert (found.workflow_config.temperature, found.workflow_config.concurrency.max_concurrent) == (0.5, 4)


def test_r14_a_workflow_has_the_shape_that_seed_001_shows():
    shape = runpy.run_path(str(SEEDS / "seed_001_shape.py"))["AgentWorkflow"]
    assert shape.__abstractmethods__ == AgentWorkflow.__abstractmethods__ == {"run"}
    for method in (shape.__init__, shape.run):
        ours = inspect.signature(getattr(AgentWorkflow, method.__name__))
        assert [*ours.parameters.values()][1].name == [*inspect.signature(method).parameters][1]
    assert inspect.signature(AgentWorkflow.__init__).parameters["config"].default is None


async def test_r16_the_four_changes_of_seed_002_make_a_strands_agent_one_of_ours(policy):
    seed = runpy.run_path(str(SEEDS / "seed_002_migration.py"))

    class Migrated(AgentWorkflow):
        async def run(self, ctx):
            agent = seed["OsmosisStrandsAgent"](model=seed["model"], name="was-strands", messages=ctx.prompt)
            await agent.invoke_async()

    policy.script = [text("148")]
    results = await execute(LocalBackend(workflow=Migrated, grader=One), policy, prompt=PROMPT)
    assert list(results.grader[0].samples) == ["was-strands"]
    assert policy.calls[0].body["temperature"] == 1.0


@pytest.mark.parametrize(
    "example",
    [
        "calculator/strands_agent.py",
        "calculator/openai_agents_agent.py",
        "rollout/multiply_rollout/workflow.py",
    ],
)
async def test_r31_an_example_runs_and_tells_right_from_wrong(policy, example):
    for answer, reward in (("148", 1.0), ("I think 148, no: 149", 0.0)):
        if "multiply_rollout" in example and reward == 0.0:
            answer = "149"
        policy.asked.clear()
        ran, graded = await run(ROOT / "examples" / example, policy, [MULTIPLY, text(answer)])
        assert ran.succeeded, ran.err_message
        assert [sample.reward for sample in graded.samples.values()] == [reward]


@pytest.mark.parametrize("example", ["strands_agent", "openai_agents_agent"])
async def test_the_calculator_is_bounded_to_four_calls(policy, example):
    ran, graded = await run(ROOT / "examples" / "calculator" / f"{example}.py", policy, [MULTIPLY])
    assert ran.succeeded, ran.err_message
    assert len(policy.calls) == 4
    assert [sample.reward for sample in graded.samples.values()] == [0.0]
