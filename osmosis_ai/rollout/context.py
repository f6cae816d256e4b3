"""`RolloutContext`: the handle of the running rollout, in both styles.

Every rollout has one, found with `get_rollout_context()`: where the policy is, and which samples there are.
In the RolloutAgentLoop style it is also what `run` is given, with the request and the means to answer it.
"""

from __future__ import annotations

import os
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from osmosis_ai.rollout.samples import MessagesSource, Samples, SampleSource

if TYPE_CHECKING:  # a workflow does not pay for the other style: 25 ms
    from osmosis_ai.rollout.agent_loop import RolloutResult
    from osmosis_ai.rollout.core.llm_client import CompletionsResult, LLMClientProtocol
    from osmosis_ai.rollout.core.schemas import RolloutMetrics, RolloutRequest
    from osmosis_ai.rollout.debug_log import DebugLog

_current: ContextVar[RolloutContext | None] = ContextVar("osmosis_rollout_context", default=None)


def get_rollout_context() -> RolloutContext | None:
    """The context of the rollout that this code runs in; None outside of one."""
    return _current.get()


@dataclass(frozen=True, slots=True)
class _Loop:
    """What a context has for the `run` of a RolloutAgentLoop, and nothing else has."""

    request: RolloutRequest
    tools: list[Any]
    llm: LLMClientProtocol | None
    started: float  # time.perf_counter()


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
        request: RolloutRequest | None = None,
        tools: list[Any] | None = None,
        llm: LLMClientProtocol | None = None,
        debug_log: DebugLog | None = None,
        use_environment: bool = True,
    ) -> None:
        outside = os.environ if use_environment else {}
        if request is not None:
            rollout_id = rollout_id or request.rollout_id
        self.chat_completions_url = chat_completions_url or outside.get("OSMOSIS_CHAT_COMPLETIONS_URL", "")
        self.api_key = api_key or outside.get("OSMOSIS_API_KEY")
        self.rollout_id = rollout_id or outside.get("OSMOSIS_ROLLOUT_ID", "")
        self._sources: dict[str, SampleSource] = {}
        self._agents: dict[str, Any] = {}
        self._unnamed = 0  # agents without a name so far
        self._before: list[RolloutContext | None] = []
        self._loop: _Loop | None = None
        self._debug_log = debug_log
        self._num_tool_calls = 0
        self._tool_latency_ms = 0.0
        if request is not None:
            self.serve(request, tools or [], llm)

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

    def unnamed_sample_id(self) -> str:
        """The id of an agent or session without a name: agent-0, agent-1, ... in the order of creation.

        The rollouts of a group run the same code, so the same agent gets the same id in each of them: a
        reward is set against those of the same sample id in the group, and a random id has no other.
        """
        while f"agent-{self._unnamed}" in self._sources:
            self._unnamed += 1
        return f"agent-{self._unnamed}"

    def get_samples(self) -> Samples:
        """The samples as they are now: `ctx.get_samples()` or `await ctx.get_samples()`."""
        return Samples(self._sources)

    # --- the RolloutAgentLoop style

    def serve(self, request: RolloutRequest, tools: list[Any], llm: LLMClientProtocol | None) -> None:
        """Make this the context of a RolloutAgentLoop's `run`; its time starts now."""
        self._loop = _Loop(request, tools, llm, time.perf_counter())

    @property
    def request(self) -> RolloutRequest:
        """What is asked for: messages, limits, completion_params, metadata."""
        return self._of_loop("request").request

    @property
    def tools(self) -> list[Any]:
        """What `get_tools` returned."""
        return self._of_loop("tools").tools

    @property
    def llm(self) -> LLMClientProtocol:
        """Whatever answers `chat`."""
        llm = self._of_loop("llm").llm
        if llm is None:
            raise RuntimeError(
                f"the context of rollout {self.rollout_id} was made without llm=, so it cannot chat"
            )
        return llm

    async def chat(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        """Ask the model. Every keyword goes out as a parameter of the call; the tools go along.

        Append what comes back, and never change an earlier message: the tokens of a conversation that was
        edited do not continue the ones that were sampled.
        """
        return await self.llm.chat_completions(messages, **kwargs)

    def complete(
        self,
        messages: list[dict[str, Any]] | None = None,
        finish_reason: str = "stop",
        reward: float | None = None,
        *,
        final_messages: list[dict[str, Any]] | None = None,
    ) -> RolloutResult:
        """The result of a rollout that came to its end. `final_messages` is another name of `messages`."""
        from osmosis_ai.rollout.agent_loop import RolloutResult, finite_or_none

        if (messages is None) == (final_messages is None):
            raise TypeError("ctx.complete needs the final messages, once: messages= or final_messages=")
        final = messages if messages is not None else final_messages
        return RolloutResult(
            "COMPLETED",
            list(final or ()),
            finish_reason,
            metrics=self.get_metrics(),
            reward=finite_or_none(reward, self.rollout_id),
        )

    def error(self, error_message: str, final_messages: list[dict[str, Any]] | None = None) -> RolloutResult:
        """The result of a rollout that failed: it has no reward, and is not trained."""
        from osmosis_ai.rollout.agent_loop import RolloutResult

        return RolloutResult(
            "ERROR",
            list(final_messages or ()),
            "error",
            error_message=error_message,
            metrics=self.get_metrics(),
            cause=sys.exc_info()[1],  # set when it is called from an `except` block
        )

    def record_tool_call(self, latency_ms: float = 0.0) -> None:
        """Count a tool call, and its time."""
        self._num_tool_calls += 1
        self._tool_latency_ms += latency_ms

    def get_metrics(self) -> RolloutMetrics:
        """The figures so far."""
        from osmosis_ai.rollout.core.schemas import RolloutMetrics

        loop = self._of_loop("get_metrics")
        metrics = RolloutMetrics() if loop.llm is None else loop.llm.get_metrics().model_copy()
        metrics.total_latency_ms = (time.perf_counter() - loop.started) * 1000
        metrics.num_tool_calls = self._num_tool_calls
        metrics.tool_latency_ms = self._tool_latency_ms
        return metrics

    @property
    def debug_enabled(self) -> bool:
        """Whether `log_event` goes anywhere."""
        return self._debug_log is not None

    def log_event(self, event_type: str, /, **data: Any) -> None:
        """A line in the rollout's debug log; nothing when there is no log. Never waits for the disk."""
        if self._debug_log is not None:
            self._debug_log.write(self.rollout_id, event_type, data)

    def _of_loop(self, name: str) -> _Loop:
        if self._loop is None:  # an AttributeError, so that hasattr(ctx, "request") says False
            raise AttributeError(
                f"RolloutContext.{name} exists in the run(ctx) of a RolloutAgentLoop; this is the context of "
                f"rollout {self.rollout_id or '(no id)'}, which has none"
            )
        return self._loop
