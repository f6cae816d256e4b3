"""What users write (workflow, grader) and what runs it (backend, server).

Nothing is imported until a name is used, so `import osmosis_ai.rollout` loads no torch, no LiteLLM, no agent
framework and no web server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.rollout.agent_loop import RolloutAgentLoop as RolloutAgentLoop
    from osmosis_ai.rollout.agent_loop import RolloutResult as RolloutResult
    from osmosis_ai.rollout.agent_loop_workflow import AgentLoopConfig as AgentLoopConfig
    from osmosis_ai.rollout.backends.base import ExecutionBackend as ExecutionBackend
    from osmosis_ai.rollout.backends.base import ExecutionRequest as ExecutionRequest
    from osmosis_ai.rollout.backends.base import ExecutionResult as ExecutionResult
    from osmosis_ai.rollout.backends.base import RolloutErrorCategory as RolloutErrorCategory
    from osmosis_ai.rollout.backends.base import RolloutStatus as RolloutStatus
    from osmosis_ai.rollout.backends.local import LocalBackend as LocalBackend
    from osmosis_ai.rollout.client import OsmosisLLMClient as OsmosisLLMClient
    from osmosis_ai.rollout.config import AgentWorkflowConfig as AgentWorkflowConfig
    from osmosis_ai.rollout.config import BaseConfig as BaseConfig
    from osmosis_ai.rollout.config import ConcurrencyConfig as ConcurrencyConfig
    from osmosis_ai.rollout.config import GraderConfig as GraderConfig
    from osmosis_ai.rollout.config import RolloutClientSettings as RolloutClientSettings
    from osmosis_ai.rollout.config import RolloutServerSettings as RolloutServerSettings
    from osmosis_ai.rollout.config import RolloutSettings as RolloutSettings
    from osmosis_ai.rollout.config import configure as configure
    from osmosis_ai.rollout.config import get_settings as get_settings
    from osmosis_ai.rollout.config import reset_settings as reset_settings
    from osmosis_ai.rollout.context import RolloutContext as RolloutContext
    from osmosis_ai.rollout.context import get_rollout_context as get_rollout_context
    from osmosis_ai.rollout.core.exceptions import AgentLoopNotFoundError as AgentLoopNotFoundError
    from osmosis_ai.rollout.core.exceptions import OsmosisRolloutError as OsmosisRolloutError
    from osmosis_ai.rollout.core.exceptions import OsmosisServerError as OsmosisServerError
    from osmosis_ai.rollout.core.exceptions import OsmosisTimeoutError as OsmosisTimeoutError
    from osmosis_ai.rollout.core.exceptions import OsmosisTransportError as OsmosisTransportError
    from osmosis_ai.rollout.core.exceptions import OsmosisValidationError as OsmosisValidationError
    from osmosis_ai.rollout.core.exceptions import ToolArgumentError as ToolArgumentError
    from osmosis_ai.rollout.core.exceptions import ToolExecutionError as ToolExecutionError
    from osmosis_ai.rollout.core.llm_client import CompletionsResult as CompletionsResult
    from osmosis_ai.rollout.core.llm_client import LLMClientProtocol as LLMClientProtocol
    from osmosis_ai.rollout.core.schemas import (
        DEFAULT_MAX_METADATA_SIZE_BYTES as DEFAULT_MAX_METADATA_SIZE_BYTES,
    )
    from osmosis_ai.rollout.core.schemas import CompletionsChoice as CompletionsChoice
    from osmosis_ai.rollout.core.schemas import CompletionsRequest as CompletionsRequest
    from osmosis_ai.rollout.core.schemas import CompletionsResponse as CompletionsResponse
    from osmosis_ai.rollout.core.schemas import CompletionUsage as CompletionUsage
    from osmosis_ai.rollout.core.schemas import InitResponse as InitResponse
    from osmosis_ai.rollout.core.schemas import MessageDict as MessageDict
    from osmosis_ai.rollout.core.schemas import OpenAIFunctionCallSchema as OpenAIFunctionCallSchema
    from osmosis_ai.rollout.core.schemas import (
        OpenAIFunctionParametersSchema as OpenAIFunctionParametersSchema,
    )
    from osmosis_ai.rollout.core.schemas import OpenAIFunctionParsedSchema as OpenAIFunctionParsedSchema
    from osmosis_ai.rollout.core.schemas import OpenAIFunctionPropertySchema as OpenAIFunctionPropertySchema
    from osmosis_ai.rollout.core.schemas import OpenAIFunctionSchema as OpenAIFunctionSchema
    from osmosis_ai.rollout.core.schemas import OpenAIFunctionToolCall as OpenAIFunctionToolCall
    from osmosis_ai.rollout.core.schemas import OpenAIFunctionToolSchema as OpenAIFunctionToolSchema
    from osmosis_ai.rollout.core.schemas import RolloutMetrics as RolloutMetrics
    from osmosis_ai.rollout.core.schemas import RolloutRequest as RolloutRequest
    from osmosis_ai.rollout.core.schemas import RolloutResponse as RolloutResponse
    from osmosis_ai.rollout.core.schemas import SamplingParamsDict as SamplingParamsDict
    from osmosis_ai.rollout.core.schemas import ToolResponse as ToolResponse
    from osmosis_ai.rollout.core.schemas import get_max_metadata_size_bytes as get_max_metadata_size_bytes
    from osmosis_ai.rollout.core.schemas import set_max_metadata_size_bytes as set_max_metadata_size_bytes
    from osmosis_ai.rollout.grader import Grader as Grader
    from osmosis_ai.rollout.grader import GraderContext as GraderContext
    from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel as OsmosisRolloutModel
    from osmosis_ai.rollout.integrations.agents.strands import OsmosisStrandsAgent as OsmosisStrandsAgent
    from osmosis_ai.rollout.messages import count_messages_by_role as count_messages_by_role
    from osmosis_ai.rollout.messages import get_message_content as get_message_content
    from osmosis_ai.rollout.messages import get_message_role as get_message_role
    from osmosis_ai.rollout.messages import is_assistant_message as is_assistant_message
    from osmosis_ai.rollout.messages import is_tool_message as is_tool_message
    from osmosis_ai.rollout.messages import is_user_message as is_user_message
    from osmosis_ai.rollout.messages import normalize_stop as normalize_stop
    from osmosis_ai.rollout.messages import parse_tool_calls as parse_tool_calls
    from osmosis_ai.rollout.registry import AgentLoopRegistry as AgentLoopRegistry
    from osmosis_ai.rollout.registry import get_agent_loop as get_agent_loop
    from osmosis_ai.rollout.registry import list_agent_loops as list_agent_loops
    from osmosis_ai.rollout.registry import register_agent_loop as register_agent_loop
    from osmosis_ai.rollout.registry import unregister_agent_loop as unregister_agent_loop
    from osmosis_ai.rollout.samples import RolloutSample as RolloutSample
    from osmosis_ai.rollout.samples import SampleSource as SampleSource
    from osmosis_ai.rollout.server.agent_loop_app import create_app as create_app
    from osmosis_ai.rollout.server.app import create_rollout_server as create_rollout_server
    from osmosis_ai.rollout.server.protocol import GraderCompleteRequest as GraderCompleteRequest
    from osmosis_ai.rollout.server.protocol import RolloutCompleteRequest as RolloutCompleteRequest
    from osmosis_ai.rollout.server.protocol import RolloutInitRequest as RolloutInitRequest
    from osmosis_ai.rollout.server.protocol import RolloutInitResponse as RolloutInitResponse
    from osmosis_ai.rollout.server.serve import DEFAULT_HOST as DEFAULT_HOST
    from osmosis_ai.rollout.server.serve import DEFAULT_PORT as DEFAULT_PORT
    from osmosis_ai.rollout.server.serve import ServeError as ServeError
    from osmosis_ai.rollout.server.serve import serve_agent_loop as serve_agent_loop
    from osmosis_ai.rollout.server.serve import validate_and_report as validate_and_report
    from osmosis_ai.rollout.tools import create_tool_error_result as create_tool_error_result
    from osmosis_ai.rollout.tools import create_tool_result as create_tool_result
    from osmosis_ai.rollout.tools import execute_tool_calls as execute_tool_calls
    from osmosis_ai.rollout.tools import get_tool_call_info as get_tool_call_info
    from osmosis_ai.rollout.tools import parse_tool_arguments as parse_tool_arguments
    from osmosis_ai.rollout.tools import serialize_tool_result as serialize_tool_result
    from osmosis_ai.rollout.validator import AgentLoopValidationError as AgentLoopValidationError
    from osmosis_ai.rollout.validator import ValidationError as ValidationError
    from osmosis_ai.rollout.validator import ValidationResult as ValidationResult
    from osmosis_ai.rollout.validator import validate_agent_loop as validate_agent_loop
    from osmosis_ai.rollout.validator import validate_backend as validate_backend
    from osmosis_ai.rollout.validator import validate_entrypoint as validate_entrypoint
    from osmosis_ai.rollout.workflow import AgentWorkflow as AgentWorkflow
    from osmosis_ai.rollout.workflow import AgentWorkflowContext as AgentWorkflowContext

# What is promised to authors, and where it is.
_HOMES = {
    "AgentLoopConfig": "agent_loop_workflow",
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
    "RolloutAgentLoop": "agent_loop",
    "RolloutClientSettings": "config",
    "RolloutContext": "context",
    "RolloutErrorCategory": "backends.base",
    "RolloutRequest": "core.schemas",
    "RolloutResult": "agent_loop",
    "RolloutSample": "samples",
    "RolloutSettings": "config",
    "RolloutStatus": "backends.base",
    "SampleSource": "samples",
    "create_app": "server.agent_loop_app",
    "create_rollout_server": "server.app",
    "get_rollout_context": "context",
}
# The other names of the RolloutAgentLoop style: importable from here, but not by `import *`, where a name
# like ValidationError would take the place of somebody else's.
_ALSO = {
    "AgentLoopNotFoundError": "core.exceptions",
    "AgentLoopRegistry": "registry",
    "AgentLoopValidationError": "validator",
    "CompletionUsage": "core.schemas",
    "CompletionsChoice": "core.schemas",
    "CompletionsRequest": "core.schemas",
    "CompletionsResponse": "core.schemas",
    "CompletionsResult": "core.llm_client",
    "DEFAULT_HOST": "server.serve",
    "DEFAULT_MAX_METADATA_SIZE_BYTES": "core.schemas",
    "DEFAULT_PORT": "server.serve",
    "GraderCompleteRequest": "server.protocol",
    "InitResponse": "core.schemas",
    "LLMClientProtocol": "core.llm_client",
    "MessageDict": "core.schemas",
    "OpenAIFunctionCallSchema": "core.schemas",
    "OpenAIFunctionParametersSchema": "core.schemas",
    "OpenAIFunctionParsedSchema": "core.schemas",
    "OpenAIFunctionPropertySchema": "core.schemas",
    "OpenAIFunctionSchema": "core.schemas",
    "OpenAIFunctionToolCall": "core.schemas",
    "OpenAIFunctionToolSchema": "core.schemas",
    "OsmosisLLMClient": "client",
    "OsmosisRolloutError": "core.exceptions",
    "OsmosisServerError": "core.exceptions",
    "OsmosisTimeoutError": "core.exceptions",
    "OsmosisTransportError": "core.exceptions",
    "OsmosisValidationError": "core.exceptions",
    "RolloutCompleteRequest": "server.protocol",
    "RolloutInitRequest": "server.protocol",
    "RolloutInitResponse": "server.protocol",
    "RolloutMetrics": "core.schemas",
    "RolloutResponse": "core.schemas",
    "RolloutServerSettings": "config",
    "SamplingParamsDict": "core.schemas",
    "ServeError": "server.serve",
    "ToolArgumentError": "core.exceptions",
    "ToolExecutionError": "core.exceptions",
    "ToolResponse": "core.schemas",
    "ValidationError": "validator",
    "ValidationResult": "validator",
    "configure": "config",
    "count_messages_by_role": "messages",
    "create_tool_error_result": "tools",
    "create_tool_result": "tools",
    "execute_tool_calls": "tools",
    "get_agent_loop": "registry",
    "get_max_metadata_size_bytes": "core.schemas",
    "get_message_content": "messages",
    "get_message_role": "messages",
    "get_settings": "config",
    "get_tool_call_info": "tools",
    "is_assistant_message": "messages",
    "is_tool_message": "messages",
    "is_user_message": "messages",
    "list_agent_loops": "registry",
    "normalize_stop": "messages",
    "parse_tool_arguments": "tools",
    "parse_tool_calls": "messages",
    "register_agent_loop": "registry",
    "reset_settings": "config",
    "serialize_tool_result": "tools",
    "serve_agent_loop": "server.serve",
    "set_max_metadata_size_bytes": "core.schemas",
    "unregister_agent_loop": "registry",
    "validate_agent_loop": "validator",
    "validate_and_report": "server.serve",
    "validate_backend": "validator",
    "validate_entrypoint": "validator",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name) or _ALSO.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ALSO})
