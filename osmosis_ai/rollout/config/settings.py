"""Settings of the RolloutAgentLoop server and of its client to the training cluster.

A value given in code wins; else the environment variable (prefix + the field's name in capitals), read when
the object is made; else the default. A value out of range is an error that names where it came from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

from osmosis_ai.errors import ConfigError

DEFAULT_MAX_METADATA_SIZE_BYTES = 2**20


class _Settings(BaseModel):
    """A model whose missing fields are read from the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    prefix: ClassVar[str]

    @model_validator(mode="wrap")
    @classmethod
    def _with_environment(cls, given: Any, make: ModelWrapValidatorHandler[Any]) -> Any:
        if not isinstance(given, Mapping):
            return make(given)
        outside = {
            name: value
            for name in cls.model_fields
            if name not in given and (value := os.environ.get(cls.prefix + name.upper()))
        }
        try:
            return make({**outside, **given})
        except ValidationError as error:
            findings = [
                f"{cls.prefix}{str(issue['loc'][0]).upper()}={outside[str(issue['loc'][0])]}: {issue['msg']}"
                for issue in error.errors()
                if issue["loc"] and issue["loc"][0] in outside
            ]
            if findings:
                raise ConfigError(findings) from error
            raise


class RolloutClientSettings(_Settings):
    """How calls to the training cluster are made."""

    prefix: ClassVar[str] = "OSMOSIS_ROLLOUT_CLIENT_"

    timeout_seconds: float = Field(300.0, ge=1, le=3600)  # of one attempt
    max_retries: int = Field(3, ge=0, le=10)  # further attempts of a chat call after a 5xx or no answer
    complete_rollout_retries: int = Field(2, ge=0, le=10)  # the same for /v1/rollout/completed
    retry_base_delay: float = Field(1.0, ge=0.1, le=60)  # seconds before the first retry; doubles
    retry_max_delay: float = Field(30.0, ge=1, le=300)  # seconds, at most
    max_connections: int = Field(100, ge=1, le=1000)  # open at once, of one rollout
    max_keepalive_connections: int = Field(20, ge=1, le=100)  # of these kept for the next call


class RolloutServerSettings(_Settings):
    """How rollouts are admitted and remembered; None is unlimited."""

    prefix: ClassVar[str] = "OSMOSIS_ROLLOUT_SERVER_"

    max_concurrent_rollouts: int | None = Field(None, ge=1, le=10_000)
    max_queued_rollouts: int | None = Field(None, ge=0)  # above it a new rollout is answered 429
    record_ttl_seconds: float = Field(3600.0, ge=60, le=86_400)  # of an ended rollout
    cleanup_interval_seconds: float = Field(60.0, ge=10, le=3600)
    request_timeout_seconds: float | None = Field(None, gt=0)  # deadline of get_tools, and of run


class RolloutSettings(_Settings):
    """Everything."""

    prefix: ClassVar[str] = "OSMOSIS_ROLLOUT_"

    client: RolloutClientSettings = Field(default_factory=RolloutClientSettings)
    server: RolloutServerSettings = Field(default_factory=RolloutServerSettings)
    max_metadata_size_bytes: int = Field(DEFAULT_MAX_METADATA_SIZE_BYTES, ge=1024, le=100 * 2**20)


_configured: RolloutSettings | None = None


def get_settings() -> RolloutSettings:
    """The settings of this process: what `configure` was given, else what the environment says."""
    global _configured
    if _configured is None:
        _configured = RolloutSettings()
    return _configured


def configure(settings: RolloutSettings) -> None:
    """Use these settings where none are given."""
    global _configured
    _configured = settings


def reset_settings() -> None:
    """Forget them; the next use reads the environment again."""
    global _configured
    _configured = None
