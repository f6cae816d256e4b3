"""A RolloutAgentLoop as an AgentWorkflow, so that the same backend, gateway, store and trainer run it.

    row.prompt, metadata, label       -> ctx.request.messages, .metadata with "ground_truth" and "row_index"
    [workflow] of the TOML            -> ctx.request.max_turns, max_tokens_total, completion_params
    await ctx.chat(messages, **p)     -> the gateway's chat endpoint, with the tools, as sample `loop.name`
    ctx.complete(messages, reward=r)  -> that sample, rewarded with r
    ctx.error(message), or a raise    -> the workflow failed

The label rule of this style: an AgentWorkflow never sees the label, but the author of a RolloutAgentLoop
computes the reward inside `run` and finds the label in the metadata. It is the author who sees it, not the
model: nothing of the metadata is in a prompt unless the author puts it there.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from osmosis_ai.rollout import policy_client
from osmosis_ai.rollout.agent_loop import RolloutAgentLoop, RolloutResult, as_result, tools_for
from osmosis_ai.rollout.backends.failure import awaited
from osmosis_ai.rollout.config.workflow import AgentWorkflowConfig
from osmosis_ai.rollout.context import RolloutContext, get_rollout_context
from osmosis_ai.rollout.core.exceptions import (
    OsmosisRolloutError,
    OsmosisServerError,
    OsmosisTransportError,
    OsmosisValidationError,
)
from osmosis_ai.rollout.core.llm_client import CallLog, CompletionsResult, read_completion
from osmosis_ai.rollout.core.schemas import RolloutMetrics, RolloutRequest, wire_tools
from osmosis_ai.rollout.messages import copied
from osmosis_ai.rollout.policy_client import POLICY_MODEL, PolicyCallError, PolicyEndpoint
from osmosis_ai.rollout.samples import RolloutSample, SampleSource
from osmosis_ai.rollout.workflow import AgentWorkflow, AgentWorkflowContext


class AgentLoopConfig(AgentWorkflowConfig):
    """What a training cluster would say in each request; the `[workflow]` table of the TOML sets it."""

    model_config = ConfigDict(extra="forbid")  # any other key would have no effect

    name: str = "agent-loop"
    max_turns: int = Field(default=10, ge=1)
    max_tokens_total: int = Field(default=8192, ge=1)
    completion_params: dict[str, Any] = Field(default_factory=dict)  # beside those of [sampling]


class AgentLoopFailed(OsmosisRolloutError):
    """`run` returned `ctx.error(...)`."""


class AgentLoopWorkflow(AgentWorkflow[AgentLoopConfig]):
    """Runs `loop`, which all rollouts share. Made by `as_workflow`."""

    loop: ClassVar[RolloutAgentLoop]
    row_in_metadata = True

    async def run(self, ctx: AgentWorkflowContext[AgentLoopConfig]) -> None:
        context = get_rollout_context()
        if context is None:
            raise RuntimeError(f"{type(self.loop).__name__} runs inside a RolloutContext only")
        endpoint = PolicyEndpoint.of(context)
        request = _request(ctx, context)
        tools, plain = tools_for(self.loop, request)
        llm = PolicyLLMClient(endpoint, self.loop.name, plain)
        source = AgentLoopSample(llm)
        context.register_sample_source(self.loop.name, source)
        context.serve(request, tools, llm)
        result = as_result(await awaited(self.loop.run(context), "run"), self.loop, request.rollout_id)
        source.result = result
        if result.status == "ERROR":
            raise AgentLoopFailed(result.error_message or "no message") from result.cause


def as_workflow(loop: RolloutAgentLoop) -> type[AgentLoopWorkflow]:
    """A workflow class that runs `loop`, under the name of the loop's class."""
    kind = type(loop)
    body = {"loop": loop, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (AgentLoopWorkflow,), body)


def _request(ctx: AgentWorkflowContext[AgentLoopConfig], context: RolloutContext) -> RolloutRequest:
    config = ctx.config or AgentLoopConfig()
    return RolloutRequest(
        rollout_id=context.rollout_id,
        server_url=context.chat_completions_url,
        messages=copied(ctx.prompt),
        completion_params=dict(config.completion_params),
        max_turns=config.max_turns,
        max_tokens_total=config.max_tokens_total,
        metadata=ctx.metadata or {},
    )


class PolicyLLMClient:
    """`ctx.chat` through the gateway. A call is never repeated: it may have been sampled already."""

    def __init__(self, endpoint: PolicyEndpoint, sample_id: str, tools: list[dict[str, Any]]) -> None:
        self._endpoint = endpoint
        self._sample_id = sample_id
        self._tools = tools
        self.calls = CallLog()

    def get_metrics(self) -> RolloutMetrics:
        return self.calls.metrics()

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        """Every keyword is a parameter of the call; the gateway honours it or says why not."""
        params = {key: value for key, value in kwargs.items() if value is not None}
        if params.get("model") == "default":  # the protocol's name for the policy
            del params["model"]
        if "tools" in params:
            params["tools"] = wire_tools(params["tools"])
        elif self._tools:
            params["tools"] = self._tools
        if params.get("stream"):
            raise TypeError("chat(stream=True) is not supported: the answer comes in one piece")
        body = {"model": POLICY_MODEL, "messages": messages, **params}
        self.calls.asked(messages)
        started = time.perf_counter()
        result = await self._ask(body)
        self.calls.answered(result, (time.perf_counter() - started) * 1000)
        return result

    async def _ask(self, body: dict[str, Any]) -> CompletionsResult:
        try:
            return read_completion(await policy_client.chat(self._endpoint, self._sample_id, body))
        except PolicyCallError as error:
            if error.status is None:
                raise OsmosisTransportError(error.message) from error
            kind = OsmosisServerError if error.status >= 500 else OsmosisValidationError
            raise kind(error.message, error.status) from error


class AgentLoopSample(SampleSource):
    """The sample of an agent loop: its result, and until there is one how far the calls came."""

    def __init__(self, llm: PolicyLLMClient) -> None:
        self._llm = llm
        self.result: RolloutResult | None = None

    async def get_sample(self, name: str) -> RolloutSample:
        result = self.result
        if result is None:
            return RolloutSample(id=name, messages=self._llm.calls.transcript())
        messages = result.final_messages or self._llm.calls.transcript()
        metrics = {} if result.metrics is None else result.metrics.model_dump()
        return RolloutSample(
            id=name,
            messages=copied(messages),
            reward=result.reward,
            metrics={key: float(value) for key, value in metrics.items()},
            extra_fields={"finish_reason": result.finish_reason},
        )
