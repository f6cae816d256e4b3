"""A trained solver and a frozen checker in one rollout; both get a reward that differs within a group."""

from __future__ import annotations

from typing import Any

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.policy_client import PolicyEndpoint, chat


class Conversation(SampleSource):
    def __init__(self, messages: list[dict[str, Any]], *, frozen: bool) -> None:
        self.messages = messages
        self.frozen = frozen

    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name, messages=list(self.messages), frozen=self.frozen)


class SolverAndChecker(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        assert rollout is not None
        for name in ("solver", "checker"):
            messages = list(ctx.prompt)
            rollout.register_sample_source(name, Conversation(messages, frozen=name == "checker"))
            request = {"model": "osmosis-rollout", "messages": messages}
            completion = await chat(PolicyEndpoint.of(rollout), name, request)
            messages.append(completion["choices"][0]["message"])


class Length(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for name, sample in ctx.samples.items():
            ctx.set_sample_reward(name, len(sample.messages[-1]["content"]))
