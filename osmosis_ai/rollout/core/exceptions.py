"""What the code of an agent loop may catch.

OsmosisRolloutError
├── OsmosisTransportError     no connection to whoever answers the LLM calls
├── OsmosisTimeoutError       no answer in time
├── OsmosisServerError        an answer with 5xx
├── OsmosisValidationError    any other refusal, or an answer that cannot be read
├── AgentLoopNotFoundError    no loop of that name is registered
└── ToolExecutionError        a tool failed
    └── ToolArgumentError     its arguments cannot be read
"""

from __future__ import annotations

from collections.abc import Sequence

from osmosis_ai.errors import OsmosisError


class OsmosisRolloutError(OsmosisError):
    """Base of the errors of a rollout."""


class OsmosisTransportError(OsmosisRolloutError):
    """The connection failed."""


class OsmosisTimeoutError(OsmosisRolloutError):
    """There was no answer in time."""


class OsmosisServerError(OsmosisRolloutError):
    """The other side failed (5xx)."""

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


class OsmosisValidationError(OsmosisRolloutError):
    """The other side refused, or answered with something that cannot be used."""

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


class AgentLoopNotFoundError(OsmosisRolloutError):
    """No agent loop of this name is registered."""

    def __init__(self, name: str, available: Sequence[str]) -> None:
        known = ", ".join(sorted(available)) or "none"
        super().__init__(f"no agent loop {name!r} is registered; registered: {known}")
        self.name = name
        self.available = list(available)


class ToolExecutionError(OsmosisRolloutError):
    """A tool call failed."""

    def __init__(self, message: str, tool_call_id: str = "unknown", tool_name: str | None = None) -> None:
        super().__init__(message)
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name


class ToolArgumentError(ToolExecutionError):
    """The arguments of a tool call cannot be read. The message is fit for the model to read."""
