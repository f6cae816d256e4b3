"""Every error that Osmosis raises on purpose.

    OsmosisError                      exit code 1
    ├── UsageError                    2   the user can mend it: a bad config, dataset, entrypoint, argument
    │   ├── ConfigError                   all findings of one file at once
    │   ├── DatasetError                  names the file and the line
    │   └── EntrypointError               no workflow, two workflows, an import that fails
    ├── InfrastructureError           4   an endpoint, the rollout server, the disk
    │   ├── ProviderError                 an external model did not answer (retryable or not)
    │   │   └── ProviderDownError             its endpoint answers nothing at all: no further call is sent
    │   ├── EngineError                   the embedded policy could not answer
    │   ├── StoreError                    the database cannot take the write (disk full, corrupt)
    │   └── RunLockedError                another process works on this run
    └── AuditError                    4   the sampler and the trainer disagree about the same tokens

A message names the thing, the value, the place and the way out. Exit codes: 0 done, 1 failed, 2 usage,
3 below a threshold, 4 infrastructure, 5 partial, 130 interrupted.
"""

from __future__ import annotations


class OsmosisError(Exception):
    """Base of all errors raised on purpose; shown to the user without a traceback."""

    exit_code = 1


class UsageError(OsmosisError):
    """Something that the user wrote is wrong and the user can mend it."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration file does not hold. `findings` lists everything that is wrong with it."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__("\n".join(findings))
        self.findings = findings


class DatasetError(UsageError):
    """A dataset cannot be read; the message names file and line."""


class EntrypointError(UsageError):
    """The module with the workflow and grader cannot be used."""


MODEL_REFUSALS = frozenset({"context_length_exceeded", "content_filter"})  # codes of a call that is refused


class InfrastructureError(OsmosisError):
    """Something around the user's code failed; trying again may help."""

    exit_code = 4


class ProviderError(InfrastructureError):
    """An external model did not answer a call."""

    def __init__(
        self, message: str, *, status: int = 502, retryable: bool = True, code: str = "provider_error"
    ) -> None:
        super().__init__(message)
        self.status = status  # HTTP status to hand to the caller
        self.retryable = retryable
        self.code = code  # OpenAI's, where the model itself refuses: one of `MODEL_REFUSALS`


class ProviderDownError(ProviderError):
    """The endpoint has failed so often in a row that calls are not sent any more.

    The message names the endpoint, how many calls failed, the last error, and when it is tried again. A run
    stops at it with what it has (`Provider.state().down`): further rollouts could only fail.
    """


class EngineError(InfrastructureError):
    """The engine could not answer a call."""


class StoreError(InfrastructureError):
    """The database cannot take a write or is not readable."""


class RunLockedError(InfrastructureError):
    """Another process works on this run."""


class AuditError(InfrastructureError):
    """Sampler and trainer give different probabilities to the same tokens."""
