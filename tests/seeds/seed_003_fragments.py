# ruff: noqa
# fmt: off
# Code blocks of seed document 003 that stand for parts of a class: the classes, the imports, and what the document
# leaves to the reader (`# ... agent loop logic ...`) are added.
from osmosis_ai.rollout import RolloutAgentLoop, RolloutContext, RolloutResult
from seed_003_rewards import compute_reward_from_messages as compare_with_ground_truth


def compute_reward_from_messages(messages, metadata):
    return compare_with_ground_truth(messages, metadata.get("ground_truth"))


class Base(RolloutAgentLoop):
    def get_tools(self, request):
        return []


class RewardRequired(Base):
    name = "reward-required"

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        # ... agent loop logic ...
        messages = list(ctx.request.messages)
        result = await ctx.chat(messages)
        messages.append(result.message)
        finish_reason = result.finish_reason

        # Compute reward (required if platform expects it)
        reward = compute_reward_from_messages(messages, ctx.request.metadata)

        # reward must be a float, not None
        return ctx.complete(messages, finish_reason=finish_reason, reward=reward)


class RewardOptional(Base):
    name = "reward-optional"

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        # ... agent loop logic ...
        messages = list(ctx.request.messages)
        result = await ctx.chat(messages)
        messages.append(result.message)
        finish_reason = result.finish_reason

        # No reward computation needed
        return ctx.complete(messages, finish_reason=finish_reason, reward=None)


class Logging(Base):
    name = "logging"

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        ctx.log_event("agent_start", 
                      num_messages=len(ctx.request.messages))

        # ... agent logic ...
        messages = list(ctx.request.messages)
        result = await ctx.chat(messages)
        messages.append(result.message)
        finish_reason, reward = result.finish_reason, 1.0

        ctx.log_event("llm_response",
                      has_tools=result.has_tool_calls,
                      tokens=result.usage.get("total_tokens"))

        ctx.log_event("agent_complete",
                      finish_reason=finish_reason,
                      reward=reward)
        return ctx.complete(messages, finish_reason=finish_reason, reward=reward)


class Errors(Base):
    name = "errors"

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        try:
            # Agent logic
            messages = list(ctx.request.messages)
            messages.append((await ctx.chat(messages)).message)
            return ctx.complete(messages)
        except Exception as e:
            return ctx.error(f"Agent failed: {e}")
