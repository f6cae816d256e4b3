"""Osmosis: evaluate and train language-model agents with reinforcement learning.

The names of `__all__` are imported when they are used.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

__version__ = "0.1.0"

_HOMES = {
    "CompletionsResult": "rollout.core.llm_client",
    "InitResponse": "rollout.core.schemas",
    "MissingAPIKeyError": "rewards.rubric",
    "ModelNotFoundError": "rewards.rubric",
    "OpenAIFunctionToolSchema": "rollout.core.schemas",
    "OsmosisLLMClient": "rollout.client",
    "OsmosisRolloutError": "rollout.core.exceptions",
    "OsmosisServerError": "rollout.core.exceptions",
    "OsmosisTimeoutError": "rollout.core.exceptions",
    "OsmosisTransportError": "rollout.core.exceptions",
    "OsmosisValidationError": "rollout.core.exceptions",
    "ProviderRequestError": "rewards.rubric",
    "RolloutAgentLoop": "rollout.agent_loop",
    "RolloutContext": "rollout.context",
    "RolloutMetrics": "rollout.core.schemas",
    "RolloutRequest": "rollout.core.schemas",
    "RolloutResponse": "rollout.core.schemas",
    "RolloutResult": "rollout.agent_loop",
    "RubricResult": "rewards.rubric",
    "create_app": "rollout.server.agent_loop_app",
    "evaluate_rubric": "rewards.rubric",
    "get_agent_loop": "rollout.registry",
    "list_agent_loops": "rollout.registry",
    "osmosis_reward": "rewards.functions",
    "osmosis_rubric": "rewards.functions",
    "register_agent_loop": "rollout.registry",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> _Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
