"""Configuration: of what users write (`workflow.py`), and of the RolloutAgentLoop server (`settings.py`)."""

from osmosis_ai.rollout.config.settings import (
    RolloutClientSettings,
    RolloutServerSettings,
    RolloutSettings,
    configure,
    get_settings,
    reset_settings,
)
from osmosis_ai.rollout.config.workflow import (
    AgentWorkflowConfig,
    BaseConfig,
    ConcurrencyConfig,
    GraderConfig,
)

__all__ = [
    "AgentWorkflowConfig",
    "BaseConfig",
    "ConcurrencyConfig",
    "GraderConfig",
    "RolloutClientSettings",
    "RolloutServerSettings",
    "RolloutSettings",
    "configure",
    "get_settings",
    "reset_settings",
]
