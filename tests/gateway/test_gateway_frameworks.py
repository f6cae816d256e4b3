"""Unmodified agent frameworks through the gateway: every call continues the one before, token by token."""

import os
from itertools import pairwise

import pytest
from gateway_parts import CALL_2_3, user

from osmosis_ai.rollout import RolloutContext

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")

TWO_CALLS = CALL_2_3 + '<tool_call>{"name": "add", "arguments": {"a": 4, "b": 5}}</tool_call>'
MALFORMED = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": }}</tool_call>'
ANSWERS = [TWO_CALLS, MALFORMED, "Let me see. " + CALL_2_3, "The answer is 5. "]


def in_turn():
    """The answers one after the other, by how many the conversation has already."""
    return lambda prompt, _: ANSWERS[min(prompt.count("<|im_start|>assistant") - 1, len(ANSWERS) - 1)]


async def run_strands():
    from strands import tool

    from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel, OsmosisStrandsAgent

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    agent = OsmosisStrandsAgent(
        name="adder",
        model=OsmosisRolloutModel(params={"temperature": 1.0}),
        tools=[add],
        system_prompt="You add.",
        messages=[user("2 plus 3?")],
        callback_handler=None,
    )
    await agent.invoke_async()


async def run_openai_agents():
    from agents import ModelSettings, Runner, function_tool

    from osmosis_ai.rollout.integrations.agents.openai_agents import (
        OsmosisAgent,
        OsmosisMemorySession,
        OsmosisRolloutModel,
    )

    @function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    agent = OsmosisAgent(
        name="adder",
        instructions="You add.",
        model=OsmosisRolloutModel(),
        model_settings=ModelSettings(temperature=1.0, max_tokens=4096),
        tools=[add],
    )
    await Runner.run(agent, [user("2 plus 3?")], session=OsmosisMemorySession(name="adder"))


@pytest.mark.parametrize("run", [run_strands, run_openai_agents])
async def test_a_conversation_with_tools_is_one_branch(open_gateway, store, run):
    g = await open_gateway(in_turn())
    context = RolloutContext(chat_completions_url=g.gateway.base_url + "/v1", api_key=g.key, rollout_id="r1")
    with context:
        await run()
    turns = store.turns["r1"]
    assert [turn.sample_id for turn in turns] == ["adder"] * 4
    assert [(turn.parent, turn.branch_reason) for turn in turns] == [
        (None, None),
        (0, None),
        (1, None),
        (2, None),
    ]
    assert [turn.malformed_tool_calls for turn in turns] == [0, 1, 0, 0]
    for before, turn in pairwise(turns):
        known = before.prompt_ids + before.completion_ids
        assert turn.prompt_ids[: len(known)] == known
    assert turns[-1].response["content"] == "The answer is 5. "
    assert g.gateway.counters("r1").refused == {}
