"""What users write (workflow, grader) and what runs it (backend, server).

Nothing is imported until a name is used, so `import osmosis_ai.rollout` loads no torch, no LiteLLM, no agent
framework and no web server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.rollout.backends.base import ExecutionBackend as ExecutionBackend
    from osmosis_ai.rollout.backends.base import ExecutionRequest as ExecutionRequest
    from osmosis_ai.rollout.backends.base import ExecutionResult as ExecutionResult
    from osmosis_ai.rollout.backends.base import RolloutErrorCategory as RolloutErrorCategory
    from osmosis_ai.rollout.backends.base import RolloutStatus as RolloutStatus
    from osmosis_ai.rollout.backends.local import LocalBackend as LocalBackend
    from osmosis_ai.rollout.config import AgentWorkflowConfig as AgentWorkflowConfig
    from osmosis_ai.rollout.config import BaseConfig as BaseConfig
    from osmosis_ai.rollout.config import ConcurrencyConfig as ConcurrencyConfig
    from osmosis_ai.rollout.config import GraderConfig as GraderConfig
    from osmosis_ai.rollout.context import RolloutContext as RolloutContext
    from osmosis_ai.rollout.context import get_rollout_context as get_rollout_context
    from osmosis_ai.rollout.grader import Grader as Grader
    from osmosis_ai.rollout.grader import GraderContext as GraderContext
    from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel as OsmosisRolloutModel
    from osmosis_ai.rollout.integrations.agents.strands import OsmosisStrandsAgent as OsmosisStrandsAgent
    from osmosis_ai.rollout.samples import RolloutSample as RolloutSample
    from osmosis_ai.rollout.samples import SampleSource as SampleSource
    from osmosis_ai.rollout.server.app import create_rollout_server as create_rollout_server
    from osmosis_ai.rollout.workflow import AgentWorkflow as AgentWorkflow
    from osmosis_ai.rollout.workflow import AgentWorkflowContext as AgentWorkflowContext

_HOMES = {
    "AgentWorkflow": "workflow",
    "AgentWorkflowConfig": "config",
    "AgentWorkflowContext": "workflow",
    "BaseConfig": "config",
    "ConcurrencyConfig": "config",
    "ExecutionBackend": "backends.base",
    "ExecutionRequest": "backends.base",
    "ExecutionResult": "backends.base",
    "Grader": "grader",
    "GraderConfig": "config",
    "GraderContext": "grader",
    "LocalBackend": "backends.local",
    "OsmosisRolloutModel": "integrations.agents.strands",
    "OsmosisStrandsAgent": "integrations.agents.strands",
    "RolloutContext": "context",
    "RolloutErrorCategory": "backends.base",
    "RolloutSample": "samples",
    "RolloutStatus": "backends.base",
    "SampleSource": "samples",
    "create_rollout_server": "server.app",
    "get_rollout_context": "context",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
