"""An agent loop as a workflow: found in an entrypoint, run by the same backend, rewarded by its result."""

import itertools
from pathlib import Path

import pytest
from cluster_stub import ADD, OneCall
from rollout_stubs import execute, refusal, text, tool_call

from osmosis_ai.errors import ConfigError, EntrypointError
from osmosis_ai.rollout import AgentLoopConfig, AgentWorkflowContext, LocalBackend, get_rollout_context
from osmosis_ai.rollout.agent_loop_grader import AgentLoopGrader
from osmosis_ai.rollout.agent_loop_workflow import as_workflow
from osmosis_ai.rollout.core.exceptions import OsmosisServerError, OsmosisValidationError
from osmosis_ai.rollout.discovery import load_entrypoint

SEEDS = Path(__file__).parents[1] / "seeds"
counter = itertools.count()

HEAD = "from osmosis_ai.rollout import *\nfrom osmosis_ai import osmosis_reward\n"
LOOP = (
    "class {0}(RolloutAgentLoop):\n"
    "    name = 'solver'\n"
    "    def get_tools(self, request): return []\n"
    "    async def run(self, ctx):\n"
    "        messages = [*ctx.request.messages, (await ctx.chat(ctx.request.messages)).message]\n"
    "        return ctx.complete(messages, reward={1})\n"
)
REWARD = (
    "@osmosis_reward\n"
    "def {0}(solution_str: str, ground_truth: str, extra_info: dict = None, **kwargs) -> float:\n"
    "    return 0.25 if ground_truth in solution_str else 0.0\n"
)
GRADER = (
    "class Half(Grader):\n    async def grade(self, ctx):\n"
    "        for name in ctx.samples: ctx.set_sample_reward(name, 0.5)\n"
)


@pytest.fixture
def write(tmp_path):
    def write(source: str) -> str:
        path = tmp_path / f"loop_entry_{next(counter)}.py"
        path.write_text(HEAD + source)
        return str(path)

    return write


async def run(found, policy, **request):
    backend = LocalBackend(
        workflow=found.workflow,
        workflow_config=found.workflow_config,
        grader=found.grader,
        grader_config=found.grader_config,
    )
    results = await execute(backend, policy, **request)
    await backend.close()
    return results.workflow[0], results.grader[0]


async def run_loop(loop, policy, config=None, **request):
    backend = LocalBackend(workflow=as_workflow(loop), workflow_config=config, grader=AgentLoopGrader)
    results = await execute(backend, policy, **request)
    await backend.close()
    return results.workflow[0], results.grader[0]


def loop_with(body, **attributes):
    return type("Solver", (OneCall,), {"run": body, **attributes})()


async def test_r01_the_documents_calculator_is_rewarded_by_its_own_result(policy):
    found = load_entrypoint(str(SEEDS / "seed_003_calculator.py"))
    assert (found.workflow.__name__, found.grader) == ("CalculatorAgent", AgentLoopGrader)
    policy.script = [tool_call("multiply", '{"a": 37, "b": 4}'), text("It is 148.")]
    ran, graded = await run(found, policy)
    assert ran.succeeded, ran.err_message
    [sample] = graded.samples.values()
    assert (sample.id, sample.reward, sample.extra_fields) == ("calculator", 1.0, {"finish_reason": "stop"})
    assert [message["role"] for message in sample.messages] == ["user", "assistant", "tool", "assistant"]
    assert sample.metrics["num_tool_calls"] == 1.0
    [first, second] = policy.calls
    assert {first.headers["x-sample-id"], second.headers["x-sample-id"]} == {"calculator"}
    assert [tool["function"]["name"] for tool in first.body["tools"]] == ["add", "multiply"]
    assert second.body["messages"][:2] == sample.messages[:2]


async def test_r02_the_request_comes_from_the_row_and_from_the_workflow_table(policy):
    seen = []

    async def body(self, ctx):
        seen.append((ctx.request, get_rollout_context() is ctx))
        await ctx.chat(ctx.request.messages, **ctx.request.completion_params)
        return ctx.complete([], reward=1.0)

    policy.script = [text("148")]
    config = AgentLoopConfig(max_turns=3, max_tokens_total=99, completion_params={"temperature": 0.5})
    row = {"metadata": {"kind": "easy"}, "label": "148", "row_index": 7}
    ran, _ = await run_loop(loop_with(body), policy, config, **row)
    assert ran.succeeded, ran.err_message
    [(request, is_ambient)] = seen
    assert (request.max_turns, request.max_tokens_total, is_ambient) == (3, 99, True)
    assert request.metadata == {
        "row_index": 7,
        "kind": "easy",
        "ground_truth": "148",
    }  # the label rule of this style
    assert policy.calls[0].body == {
        "model": "openai/osmosis-rollout",
        "messages": [{"role": "user", "content": "What is 37 times 4?"}],
        "temperature": 0.5,
        "tools": [ADD],
    }


async def test_a_workflow_still_never_sees_the_label(policy):
    from osmosis_ai.rollout import AgentWorkflow

    seen = []

    class Workflow(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext):
            seen.append(ctx.metadata)

    await execute(LocalBackend(workflow=Workflow), policy, grade=False, label="148", metadata={"a": 1})
    await execute(LocalBackend(workflow=Workflow), policy, grade=False, label="148")
    assert seen == [{"a": 1}, None]


async def test_r10_no_reward_is_an_ungraded_rollout_that_says_what_to_do(policy):
    async def body(self, ctx):
        return ctx.complete([(await ctx.chat(ctx.request.messages)).message])

    policy.script = [text("148")]
    ran, graded = await run_loop(loop_with(body), policy)
    assert ran.succeeded
    assert not graded.succeeded
    assert "agent loop 'one-call' gave no reward (ctx.complete(..., reward=None))" in graded.err_message


async def test_r02_ctx_error_fails_the_rollout_and_keeps_how_far_it_came(policy):
    async def body(self, ctx):
        await ctx.chat(ctx.request.messages)
        return ctx.error("it gave up")

    policy.script = [text("148")]
    ran, graded = await run_loop(loop_with(body), policy)
    assert (ran.succeeded, graded.succeeded, ran.err_category) == (False, False, "agent_error")
    assert "AgentLoopFailed: it gave up" in ran.err_message
    assert [m["content"] for m in ran.samples["one-call"].messages] == ["What is 37 times 4?", "148"]


@pytest.mark.parametrize("caught", [True, False])
async def test_a_model_that_fails_is_not_the_loops_failure_even_when_the_loop_catches_it(policy, caught):
    async def body(self, ctx):
        try:
            await ctx.chat(ctx.request.messages)
        except Exception as e:  # as the document's "Error Handling" has it
            kinds.append(type(e))
            if not caught:
                raise
            return ctx.error(f"Agent failed: {e}")

    kinds = []
    policy.script = [refusal(503, "the engine failed")]
    ran, _ = await run_loop(loop_with(body), policy)
    assert (ran.err_category, kinds) == ("http_error", [OsmosisServerError])
    assert "the engine failed" in ran.err_message


async def test_a_parameter_that_the_policy_refuses_is_told_to_the_author(policy):
    async def body(self, ctx):
        with pytest.raises(OsmosisValidationError, match="top_k must be") as caught:
            await ctx.chat(ctx.request.messages, top_k=5)
        assert caught.value.status_code == 400
        return ctx.complete([], reward=0.0)

    policy.script = [refusal(400, "top_k must be 0")]
    ran, _ = await run_loop(loop_with(body), policy)
    assert ran.succeeded, ran.err_message
    assert len(policy.calls) == 1  # never sent twice


@pytest.mark.parametrize(
    ("tools", "body", "text"),
    [
        (None, None, "Solver.get_tools must return a list, [] when there are no tools; got None"),
        (["add"], None, "tool 0 must be a dict or an OpenAIFunctionToolSchema, got 'add'"),
        ([], lambda self, ctx: 7, "it is not asynchronous: write `async def run(self, ctx)`"),
    ],
)
async def test_a_loop_that_gives_something_else_fails_its_own_rollout(policy, tools, body, text):
    loop = loop_with(body or OneCall.run, get_tools=lambda self, request: tools)
    ran, _ = await run_loop(loop, policy)
    assert text in ran.err_message


# --- discovery


def test_an_instance_comes_before_its_class_and_a_class_is_made(write):
    found = load_entrypoint(write(LOOP.format("Solver", 1.0) + "agent_loop = Solver()\nagain = agent_loop\n"))
    assert found.workflow.loop.name == "solver"
    assert load_entrypoint(write(LOOP.format("Solver", 1.0))).workflow.__name__ == "Solver"


@pytest.mark.parametrize("named", ["Two", "two"])
def test_one_of_several_loops_can_be_chosen(write, named):
    source = write(LOOP.format("One", 1.0) + LOOP.format("Two", 1.0) + "two = Two()\none = One()\n")
    with pytest.raises(EntrypointError, match=r'2 agent loops found in .*: two, one\. .* workflow = "two"'):
        load_entrypoint(source)
    assert load_entrypoint(source, workflow=named).workflow.__name__ == "Two"


def test_an_agent_workflow_comes_before_a_loop(write):
    source = LOOP.format("Solver", 1.0) + "class W(AgentWorkflow):\n    async def run(self, ctx): ...\n"
    assert load_entrypoint(write(source)).workflow.__name__ == "W"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("class S(RolloutAgentLoop):\n    def get_tools(self, request): ...\n", "no AgentWorkflow found"),
        (
            LOOP.format("S", 1.0) + "    def __init__(self, key): ...\n",
            "agent loop S cannot be made: TypeError",
        ),
        (LOOP.format("S", 1.0) + REWARD.format("a") + REWARD.format("b"), "2 functions with @osmosis_reward"),
    ],
)
def test_what_cannot_be_used_says_why(write, source, text):
    with pytest.raises(EntrypointError, match=text):
        load_entrypoint(write(source))


def test_the_workflow_table_sets_the_limits_and_refuses_what_it_does_not_know(write):
    source = write(LOOP.format("Solver", 1.0))
    config = load_entrypoint(source, workflow_overrides={"max_turns": 3}).workflow_config
    assert (config.max_turns, config.max_tokens_total) == (3, 8192)
    with pytest.raises(ConfigError) as caught:
        load_entrypoint(source, workflow_overrides={"max_turn": 3, "max_tokens_total": 0})
    assert [finding.split(":")[0] for finding in caught.value.findings] == [
        "workflow.max_turn",
        "workflow.max_tokens_total",
    ]


@pytest.mark.parametrize(
    ("source", "reward"),
    [
        (LOOP.format("Solver", 0.75), 0.75),
        (LOOP.format("Solver", 0.75) + REWARD.format("compute"), 0.75),  # run has given one
        (LOOP.format("Solver", None) + REWARD.format("compute"), 0.25),
        (LOOP.format("Solver", 0.75) + GRADER, 0.5),  # a grader has the last word
    ],
)
async def test_r10_r11_where_the_reward_comes_from(write, policy, source, reward):
    policy.script = [text("148")]
    ran, graded = await run(load_entrypoint(write(source)), policy)
    assert ran.succeeded, ran.err_message
    assert {name: sample.reward for name, sample in graded.samples.items()} == {"solver": reward}


@pytest.mark.parametrize(
    ("name", "answer", "reward"),
    [
        ("RewardRequired", "148", 1.0),
        ("RewardRequired", "149", 0.0),
        ("Logging", "148", 1.0),
        ("RewardOptional", "148", None),
        ("Errors", "148", None),
    ],
)
async def test_the_documents_fragments_run(policy, monkeypatch, name, answer, reward):
    monkeypatch.syspath_prepend(str(SEEDS))
    policy.script = [text(answer)]
    ran, graded = await run(load_entrypoint(str(SEEDS / "seed_003_fragments.py"), workflow=name), policy)
    assert ran.succeeded, ran.err_message
    if reward is None:
        assert "gave no reward" in graded.err_message
    assert [sample.reward for sample in graded.samples.values()] == [reward]
