"""What the five documents of the public SDK promise, row by row, and that each row is tested.

A test of a row carries its number: `test_r09_init_answers_202_with_the_tools`, `test_r19_r20_...` for two.
"""

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
PROMISES = {
    1: "RolloutAgentLoop, RolloutContext, RolloutResult, RolloutRequest and create_app; name, get_tools, run",
    2: "ctx.request, tools, chat(**params), complete, error, record_tool_call, log_event",
    3: "a chat result: message, has_tool_calls, tool_calls, usage, finish_reason",
    4: "tools as schema objects or plain dicts, everywhere",
    5: "the schema tree of osmosis_ai.rollout.core.schemas, by keyword",
    6: "the tool helpers, and ToolArgumentError with its tool_call_id",
    7: "create_app and its arguments; None is unlimited",
    8: "RolloutSettings and the seven environment variables, which reach the client",
    9: "/v1/rollout/init calls get_tools and returns the tools",
    10: "a reward of None or a float, delivered with the completion",
    11: "@osmosis_reward",
    12: "osmosis serve, validate, test --interactive, by module:attribute",
    13: "the log tree of log_event; nothing without a folder",
    14: "AgentWorkflow, its config and context, ConcurrencyConfig, Grader, GraderContext",
    15: "OsmosisRolloutModel and OsmosisStrandsAgent at the top are those of Strands",
    16: "OsmosisRolloutModel(params) is a placeholder; for_sample binds endpoint, key and both headers",
    17: "the order in which an OsmosisStrandsAgent is made",
    18: "messages=ctx.prompt, invoke_async again and again, the synchronous form, content blocks",
    19: "OsmosisAgent, OsmosisRolloutModel(), OsmosisMemorySession, OsmosisLitellmModel",
    20: "Runner.run(agent, ctx.prompt, session=session) with ModelSettings",
    21: "ctx.samples, ctx.label, ctx.set_sample_reward",
    22: "ctx.metadata for workflow and grader; None when the row has none",
    23: "ctx.config: the one module-level instance, with fields of any kind, or None",
    24: "unlimited by default; ConcurrencyConfig limits",
    25: "exactly one concrete workflow is discovered",
    26: "an entrypoint builds a backend and create_rollout_server",
    27: "config values come from the TOML",
    28: "the placeholder is the model of [llm] in an eval, the policy in training",
    29: "traces, token usage, x-sample-id and x-rollout-id, rewards by sample",
    30: "the preflight of eval and train submit; the submission needs a platform, which is not here",
    31: "examples/rollout/multiply_rollout/workflow.py",
    32: "we are the training cluster of the agent loop's protocol",
}


def rows(name: str) -> list[int]:
    """[19, 20] for test_r19_r20_a_tool_is_called; nothing for a test of something else."""
    found = re.match(r"test_((?:r\d\d_)+)", name)
    return [int(digits) for digits in re.findall(r"r(\d\d)_", found[1])] if found else []


def numbers() -> Iterator[int]:
    for file in TESTS.rglob("test_*.py"):
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE):
            yield from rows(name)


def test_each_promise_has_a_test_that_carries_its_number():
    assert rows("test_r19_r20_a_tool_is_called") == [19, 20]
    assert sorted({*numbers()}) == sorted(PROMISES) == list(range(1, 33))
