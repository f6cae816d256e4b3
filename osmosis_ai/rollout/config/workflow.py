"""Configuration that users subclass. A module-level instance in the entrypoint is found by discovery."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ConcurrencyConfig(BaseModel):
    """How many at once; None is unlimited."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    max_concurrent: int | None = Field(default=None, ge=1)


class BaseConfig(BaseModel):
    """A name and whatever else the author adds: extra fields and arbitrary types are welcome."""

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    name: str
    description: str | None = None


class AgentWorkflowConfig(BaseConfig):
    """Each rollout gets a deep copy of its own, so a workflow may write to it."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


class GraderConfig(BaseConfig):
    """Each grading gets a deep copy of its own."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)
