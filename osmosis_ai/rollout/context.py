"""`RolloutContext`: the ambient handle of the running rollout."""

from __future__ import annotations

import os
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from osmosis_ai.rollout.samples import MessagesSource, Samples, SampleSource

_current: ContextVar[RolloutContext | None] = ContextVar("osmosis_rollout_context", default=None)


def get_rollout_context() -> RolloutContext | None:
    """The context of the rollout that this code runs in; None outside of one."""
    return _current.get()


class RolloutContext:
    """Where the policy is, which rollout this is, and the samples that it has registered so far.

    A context manager: inside the block it is what `get_rollout_context()` returns; afterwards that is again
    what it was before, also when contexts are nested. Empty values are read from the environment
    (`OSMOSIS_CHAT_COMPLETIONS_URL`, `OSMOSIS_API_KEY`, `OSMOSIS_ROLLOUT_ID`) unless `use_environment` is off.
    """

    def __init__(
        self,
        chat_completions_url: str = "",
        api_key: str | None = None,
        rollout_id: str = "",
        *,
        use_environment: bool = True,
    ) -> None:
        outside = os.environ if use_environment else {}
        self.chat_completions_url = chat_completions_url or outside.get("OSMOSIS_CHAT_COMPLETIONS_URL", "")
        self.api_key = api_key or outside.get("OSMOSIS_API_KEY")
        self.rollout_id = rollout_id or outside.get("OSMOSIS_ROLLOUT_ID", "")
        self._sources: dict[str, SampleSource] = {}
        self._agents: dict[str, Any] = {}
        self._before: list[RolloutContext | None] = []

    def __enter__(self) -> RolloutContext:
        self._before.append(_current.get())
        _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.set(self._before.pop())

    def __repr__(self) -> str:  # the key stays out of logs and tracebacks
        return f"RolloutContext(rollout_id={self.rollout_id!r}, samples={sorted(self._sources)})"

    @property
    def registered_agents(self) -> dict[str, Any]:
        return dict(self._agents)

    @property
    def sample_sources(self) -> dict[str, SampleSource]:
        return dict(self._sources)

    def register_agent(self, sample_id: str, agent: Any) -> None:
        """Make the `.messages` of `agent` the sample `sample_id`."""
        self.register_sample_source(sample_id, MessagesSource(agent))
        self._agents[sample_id] = agent

    def register_sample_source(self, name: str, source: SampleSource) -> None:
        """Make what `source` gives the sample `name`."""
        if name in self._sources:
            raise ValueError(
                f"sample id {name!r} is taken in rollout {self.rollout_id or '(no id)'}; "
                "give each agent or session of a rollout a name of its own"
            )
        self._sources[name] = source

    def get_samples(self) -> Samples:
        """The samples as they are now: `ctx.get_samples()` or `await ctx.get_samples()`."""
        return Samples(self._sources)
