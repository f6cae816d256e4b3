"""The base classes of the RolloutAgentLoop style, under their public path."""

from osmosis_ai.rollout.agent_loop import RolloutAgentLoop, RolloutResult
from osmosis_ai.rollout.context import RolloutContext

__all__ = ["RolloutAgentLoop", "RolloutContext", "RolloutResult"]
