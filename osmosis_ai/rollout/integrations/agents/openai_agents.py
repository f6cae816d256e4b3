"""The OpenAI Agents SDK: `OsmosisAgent` is `agents.Agent` with the policy as its model.

The conversation that an `OsmosisMemorySession` keeps is the sample; its name is the sample's id. The model is
a `LitellmModel` by type; a call goes through the SDK's own chat-completions conversion and from there
straight to the policy endpoint. LiteLLM is not on its path.
"""

from __future__ import annotations

import copy
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NoReturn, cast
from uuid import uuid4

# Read when these packages are imported, or used first: nothing phones home.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")

import httpx
import openai
from agents import Agent, Model, ModelResponse, RunConfig
from agents.extensions.models.litellm_model import LitellmModel
from agents.memory import SessionABC
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from osmosis_ai.rollout.context import RolloutContext, get_rollout_context
from osmosis_ai.rollout.policy_client import POLICY_MODEL, PolicyCallError, PolicyEndpoint, chat
from osmosis_ai.rollout.samples import RolloutSample, SampleSource

current_sample_id: ContextVar[str | None] = ContextVar("osmosis_current_sample_id", default=None)
_current_session: ContextVar[OsmosisMemorySession | None] = ContextVar("osmosis_session", default=None)

_PLACEHOLDER = (
    "OsmosisRolloutModel is a placeholder for the policy and cannot be called: give it to an OsmosisAgent "
    "that is built inside AgentWorkflow.run()"
)


# --- the session


class SessionSampleSource(SampleSource):
    """The items of any session as a sample, in the shape of the Responses API."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def get_sample(self, name: str) -> RolloutSample:
        items = await self._session.get_items()
        return RolloutSample(id=name, messages=copy.deepcopy([dict(item) for item in items]))


class OsmosisMemorySession(SessionABC):
    """Keeps the conversation in memory. Made inside a rollout it is a sample of that rollout.

    Without a name its sample id is agent-0, agent-1, ... in the order of creation.
    """

    def __init__(self, name: str | None = None) -> None:
        self._items: list[Any] = []
        self._trainable: bool | None = None  # None: no model has answered yet
        self._home = get_rollout_context()
        self.name = name or (uuid4().hex if self._home is None else self._home.unnamed_sample_id())
        self.session_id = self.name
        if self._home is not None:
            self._home.register_sample_source(self.name, _MemorySource(self))

    async def get_items(self, limit: int | None = None) -> list[Any]:
        self._enter()
        return copy.deepcopy(
            self._items if limit is None else self._items[max(len(self._items) - limit, 0) :]
        )

    async def add_items(self, items: list[Any]) -> None:
        self._enter()
        self._items.extend(copy.deepcopy(items))

    async def pop_item(self) -> Any | None:
        return self._items.pop() if self._items else None

    async def clear_session(self) -> None:
        self._items.clear()

    @property
    def frozen(self) -> bool:
        return self._trainable is False

    def answered_by(self, *, trainable: bool) -> None:
        """Note who answers. A sample is trained or it is not: half of it cannot be frozen."""
        if self._trainable not in (None, trainable):
            raise RuntimeError(
                f"session {self.name!r} is shared by a frozen agent (trainable=False) and a trained one: "
                "give each an OsmosisMemorySession of its own"
            )
        self._trainable = trainable

    def snapshot(self) -> list[dict[str, Any]]:
        """The items as they are, whichever context asks."""
        return copy.deepcopy([dict(item) for item in self._items])

    def _enter(self) -> None:
        """The runner reads the session before it calls the model: from here on calls are this sample's."""
        context = get_rollout_context()
        if context is not None and context is not self._home:
            raise RuntimeError(
                f"session {self.name!r} was made outside of rollout {context.rollout_id or '(no id)'} and is "
                "no sample of it: make the OsmosisMemorySession inside AgentWorkflow.run()"
            )
        current_sample_id.set(self.name)
        _current_session.set(self)


@contextmanager
def _calls_of(session: Any) -> Iterator[None]:
    """Inside, calls belong to this session, or to none; afterwards to whom they did before.

    Without one they would be charged to the session of the run before, or of the run that has this one as a
    tool. A sample id that the user has set by hand, for a session of another class, stays.
    """
    sample_id, before = current_sample_id.get(), _current_session.get()
    of_a_session = before is not None and before.name == sample_id
    id_token = current_sample_id.set(None if of_a_session else sample_id)
    session_token = _current_session.set(None)
    try:
        if isinstance(session, OsmosisMemorySession):
            session._enter()
        yield
    finally:
        _current_session.reset(session_token)
        current_sample_id.reset(id_token)


class _MemorySource(SampleSource):
    def __init__(self, session: OsmosisMemorySession) -> None:
        self._session = session

    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name, messages=self._session.snapshot(), frozen=self._session.frozen)


# --- the model


class OsmosisRolloutModel(Model):
    """Stands for the policy until an `OsmosisAgent` is built inside a rollout.

    Sampling options live in `ModelSettings`; keywords given here (also as `params={...}`) go with each call
    as extra arguments. With `trainable=False` the agent that gets it is frozen: answered by the policy,
    graded, never trained; its session is its own then.
    """

    def __init__(
        self, *, params: dict[str, Any] | None = None, trainable: bool = True, **litellm_kwargs: Any
    ) -> None:
        self.trainable = trainable
        self.params = {**(params or {}), **litellm_kwargs}

    async def get_response(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(_PLACEHOLDER)

    def stream_response(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(_PLACEHOLDER)


class OsmosisLitellmModel(LitellmModel):
    """The policy of the active rollout; each call carries the ids of the rollout and of the sample."""

    def __init__(self, *, trainable: bool = True, **params: Any) -> None:
        context = get_rollout_context()
        if context is None:
            raise RuntimeError(
                "OsmosisLitellmModel found no active RolloutContext: build the agent inside "
                "AgentWorkflow.run(), or inside `with RolloutContext(...)`"
            )
        self._endpoint = PolicyEndpoint.of(context)
        self._params = params
        super().__init__(model=POLICY_MODEL, base_url=self._endpoint.base_url, api_key=context.api_key)
        self._chat_model = OpenAIChatCompletionsModel(
            model=POLICY_MODEL, openai_client=cast(Any, _PolicyClient(self._endpoint, trainable))
        )

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        settings = self._with_params(model_settings)
        return await self._chat_model.get_response(system_instructions, input, settings, *args, **kwargs)

    def stream_response(
        self, system_instructions: Any, input: Any, model_settings: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        settings = self._with_params(model_settings)
        return self._chat_model.stream_response(system_instructions, input, settings, *args, **kwargs)

    def _with_params(self, settings: Any) -> Any:
        if not self._params:
            return settings
        return replace(settings, extra_args={**self._params, **(settings.extra_args or {})})


class _PolicyClient:
    """The little of `openai.AsyncOpenAI` that the SDK's chat-completions model uses."""

    def __init__(self, endpoint: PolicyEndpoint, trainable: bool) -> None:
        self._endpoint = endpoint
        self._trainable = trainable
        self.base_url = endpoint.base_url
        self.chat = self
        self.completions = self

    async def create(self, **arguments: Any) -> ChatCompletion | AsyncIterator[ChatCompletionChunk]:
        sample_id = current_sample_id.get()
        if sample_id is None:
            raise RuntimeError(
                "no session is active, so this call belongs to no sample: pass an OsmosisMemorySession that "
                "is made inside AgentWorkflow.run() to Runner.run(..., session=session)"
            )
        self._note_session(sample_id)
        headers = {name: str(value) for name, value in (arguments.pop("extra_headers", None) or {}).items()}
        extra_body = arguments.pop("extra_body", None) or {}
        if arguments.pop("extra_query", None):
            raise openai.OpenAIError("ModelSettings.extra_query is not supported by the policy endpoint")
        streamed = arguments.pop("stream", None) is True
        arguments.pop("stream_options", None)  # usage always comes
        body = {key: value for key, value in arguments.items() if _is_given(value)}
        try:
            answer = await chat(self._endpoint, sample_id, {**body, **extra_body}, headers)
        except PolicyCallError as error:
            raise _as_framework_error(error) from error
        return _chunks(answer) if streamed else ChatCompletion.model_validate(_complete(answer))

    def _note_session(self, sample_id: str) -> None:
        session = _current_session.get()
        if session is not None and session.name == sample_id:
            session.answered_by(trainable=self._trainable)
        elif not self._trainable:
            raise RuntimeError(
                f"a frozen agent (trainable=False) ran under sample {sample_id!r}, which is no "
                "OsmosisMemorySession: with a sample source of your own, give it RolloutSample(frozen=True)"
            )


def _is_given(value: Any) -> bool:
    return value is not None and not isinstance(value, openai.Omit | openai.NotGiven)


def _complete(answer: dict[str, Any]) -> dict[str, Any]:
    """Fills in what OpenAI-compatible endpoints leave out and the SDK's types require."""
    answer.setdefault("id", f"chatcmpl-{uuid4().hex}")
    answer.setdefault("object", "chat.completion")
    answer.setdefault("created", 0)
    answer.setdefault("model", POLICY_MODEL)
    for index, choice in enumerate(answer["choices"]):
        choice.setdefault("index", index)
        choice["finish_reason"] = choice.get("finish_reason") or "stop"
        choice.setdefault("logprobs", None)
        choice["message"].setdefault("role", "assistant")
        for call in choice["message"].get("tool_calls") or []:
            call.setdefault("type", "function")
    return answer


async def _chunks(answer: dict[str, Any]) -> AsyncIterator[ChatCompletionChunk]:
    """A finished answer as a stream of one chunk with everything and one with the end and the usage."""
    completion = _complete(answer)
    choice = completion["choices"][0]
    delta = dict(choice["message"])
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
    common = {"id": completion["id"], "created": completion["created"], "model": completion["model"]}
    common["object"] = "chat.completion.chunk"
    yield ChatCompletionChunk.model_validate(
        {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    )
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    yield ChatCompletionChunk.model_validate({**common, "choices": [end], "usage": completion.get("usage")})


def _as_framework_error(error: PolicyCallError) -> Exception:
    """The exception that the `openai` package raises for the same answer.

    The SDK repeats a call only when the user's ModelSettings.retry says so; after a broken connection it is
    told that the call may have been sampled.
    """
    request = httpx.Request("POST", "http://policy/chat/completions")
    if error.status is None:
        broken = openai.APIConnectionError(message=error.message, request=request)
        broken.unsafe_to_replay = True  # type: ignore[attr-defined]  # read by the SDK's retry advice
        return broken
    headers = {"retry-after": error.retry_after} if error.retry_after else {}
    response = httpx.Response(error.status, headers=headers, request=request)
    kinds: dict[int, type[openai.APIStatusError]] = {
        400: openai.BadRequestError,
        401: openai.AuthenticationError,
        403: openai.PermissionDeniedError,
        404: openai.NotFoundError,
        409: openai.ConflictError,
        422: openai.UnprocessableEntityError,
        429: openai.RateLimitError,
    }
    kind = kinds.get(
        error.status, openai.InternalServerError if error.status >= 500 else openai.APIStatusError
    )
    return kind(error.message, response=response, body={"code": error.code, "message": error.message})


# --- the agent


class OsmosisAgent(Agent[Any]):
    """A drop-in `agents.Agent`. An `OsmosisRolloutModel` is replaced by the policy of the active rollout; any
    other model stays as it is."""

    def __init__(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        if isinstance(model, OsmosisRolloutModel):
            model = OsmosisLitellmModel(trainable=model.trainable, **model.params)
        # The fields before `model` may be given by position; the seeds and everybody else name them.
        super().__init__(*args, **{**kwargs, "model": model})


class _PolicyRunner(AgentRunner):
    """Runs an OsmosisAgent so that a call to a tool that does not exist is answered, not raised.

    A policy under training calls tools that do not exist. The SDK's default ends the run with an exception;
    the model shall get an error result, as for malformed arguments. Other agents run as they always did.
    Each run has the calls of its own session.
    """

    async def run(self, starting_agent: Any, input: Any, **kwargs: Any) -> Any:
        with _calls_of(kwargs.get("session")):
            return await super().run(starting_agent, input, **_answering(starting_agent, kwargs))

    def run_sync(self, starting_agent: Any, input: Any, **kwargs: Any) -> Any:
        return super().run_sync(starting_agent, input, **_answering(starting_agent, kwargs))

    def run_streamed(self, starting_agent: Any, input: Any, **kwargs: Any) -> Any:
        with _calls_of(kwargs.get("session")):  # the run's task takes these with it
            return super().run_streamed(starting_agent, input, **_answering(starting_agent, kwargs))


def _answering(agent: Any, options: dict[str, Any]) -> dict[str, Any]:
    given = options.get("run_config")
    if not isinstance(agent, OsmosisAgent) or isinstance(given, dict):
        return options
    config = replace(given or RunConfig(), tool_not_found_behavior="return_error_to_model")
    return {**options, "run_config": config}


if type(get_default_agent_runner()) is AgentRunner:  # a runner of the user's own stays
    set_default_agent_runner(_PolicyRunner())

__all__ = [
    "OsmosisAgent",
    "OsmosisLitellmModel",
    "OsmosisMemorySession",
    "OsmosisRolloutModel",
    "RolloutContext",
    "SessionSampleSource",
    "current_sample_id",
]
