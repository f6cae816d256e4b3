"""Graders that nobody wrote: the reward that a RolloutAgentLoop's `run` returned, or a reward function's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from osmosis_ai.rollout.config.workflow import GraderConfig
from osmosis_ai.rollout.grader import Grader, GraderContext
from osmosis_ai.rollout.messages import last_assistant_content

RewardFunction = Callable[..., Any]


class AgentLoopGrader(Grader[GraderConfig]):
    """Keeps the reward of `ctx.complete(..., reward=...)`; where it is None, asks the reward function."""

    reward_function: ClassVar[RewardFunction | None] = None

    async def grade(self, ctx: GraderContext) -> None:
        for name, sample in ctx.samples.items():
            if sample.reward is not None:
                continue
            function = type(self).reward_function
            if function is None:
                raise ValueError(
                    f"agent loop {name!r} gave no reward (ctx.complete(..., reward=None)), and its "
                    "entrypoint has no Grader and no function with @osmosis_reward to compute one"
                )
            solution = last_assistant_content(sample.messages)
            ctx.set_sample_reward(name, await self._ask(function, solution, ctx))

    async def _ask(self, function: RewardFunction, solution: str, ctx: GraderContext) -> float:
        info = dict(ctx.metadata or {})
        more = {"judge": ctx.judge} if ctx.has_judge and _takes_judge(function) else {}
        reward: Any = function(solution_str=solution, ground_truth=ctx.label, extra_info=info, **more)
        if inspect.isawaitable(reward):
            reward = await reward
        return float(reward)


def _takes_judge(function: RewardFunction) -> bool:
    parameters = inspect.signature(function).parameters
    return "judge" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def grader_with(function: RewardFunction) -> type[AgentLoopGrader]:
    """A grader that asks a function with @osmosis_reward or @osmosis_rubric where `run` gave no reward.

    One that takes a `judge`, or any keyword, gets the run's, if it has one.
    """
    body = {
        "reward_function": staticmethod(function),
        "__module__": function.__module__,
        "__doc__": function.__doc__,
    }
    return type(function.__name__, (AgentLoopGrader,), body)
