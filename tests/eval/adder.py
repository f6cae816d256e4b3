"""A workflow that asks once, a grader that wants the label, and a model that cannot double odd numbers."""

from typing import Any

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext, get_rollout_context
from osmosis_ai.rollout.policy_client import PolicyEndpoint, chat

CONFIG = """
[rollout]
entrypoint = "{agent}"
[dataset]
path = "rows.jsonl"
[llm]
model = "scripted"
script = "{agent}:answer"
"""


class Adder(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        assert rollout is not None
        messages = list(ctx.prompt)
        rollout.register_agent("adder", type("Agent", (), {"messages": messages}))
        body = {"model": "openai/osmosis-rollout", "messages": messages}
        messages.append((await chat(PolicyEndpoint.of(rollout), "adder", body))["choices"][0]["message"])


class Exact(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        said = ctx.sample.messages[-1]["content"]
        if said == "?":
            raise ValueError("no answer")
        ctx.set_reward(said == ctx.label)


def answer(messages: list[dict[str, Any]], tools: list[Any], random: Any) -> dict[str, Any]:
    number = messages[-1]["content"]
    return {"content": "?" if number == "none" else str(2 * int(number) + int(number) % 2)}
