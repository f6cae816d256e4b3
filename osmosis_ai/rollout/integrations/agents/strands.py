"""Strands Agents: `OsmosisStrandsAgent` is `strands.Agent` with the policy as its model.

The model that an agent gets is a `LiteLLMModel` by type, but a call goes from here straight to the policy
endpoint; LiteLLM is not on its path.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import AsyncGenerator, Iterator
from typing import Any, NoReturn
from uuid import uuid4

# LiteLLM fetches a price list from the network when it is imported, unless this is set.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import litellm.exceptions
from strands import Agent as StrandsAgent
from strands.hooks import BeforeToolCallEvent, HookProvider, HookRegistry
from strands.models.litellm import LiteLLMModel
from strands.types.exceptions import ContextWindowOverflowException, ModelThrottledException

from osmosis_ai.rollout.context import RolloutContext, get_rollout_context
from osmosis_ai.rollout.policy_client import POLICY_MODEL, PolicyCallError, PolicyEndpoint, chat

UNNAMED = {"name": "Strands Agents", "agent_id": "default"}  # of an agent that is given none, by Strands

_PLACEHOLDER = (
    "OsmosisRolloutModel is a placeholder for the policy and cannot be called: give it to an "
    "OsmosisStrandsAgent that is built inside AgentWorkflow.run()"
)


class OsmosisRolloutModel(LiteLLMModel):
    """Stands for the policy until an agent is built inside a rollout.

    Takes no model_id. `params` go with every call as they are: temperature, max_tokens, top_p, seed, ...
    With `trainable=False` the agent that gets it is frozen: answered by the policy, graded, never trained.
    """

    def __init__(
        self, client_args: dict[str, Any] | None = None, *, trainable: bool = True, **model_config: Any
    ) -> None:
        self.trainable = trainable
        if "model_id" in model_config:
            raise TypeError(
                f"OsmosisRolloutModel takes no model_id (got {model_config['model_id']!r}): "
                "whoever runs the rollout decides which policy serves it"
            )
        super().__init__(client_args, **model_config)

    def for_sample(self, sample_id: str, rollout_ctx: RolloutContext) -> LiteLLMModel:
        """The model of one agent: bound to the rollout's endpoint, its calls marked with the sample's id."""
        return PolicyModel(sample_id, rollout_ctx, self.client_args, dict(self.config))

    def update_config(self, **model_config: Any) -> NoReturn:
        raise NotImplementedError(_PLACEHOLDER)

    def get_config(self) -> NoReturn:
        raise NotImplementedError(_PLACEHOLDER)

    def stream(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(_PLACEHOLDER)

    def structured_output(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(_PLACEHOLDER)


class PolicyModel(LiteLLMModel):
    """What `for_sample` returns: formats requests as `LiteLLMModel` does and sends them itself."""

    def __init__(
        self, sample_id: str, context: RolloutContext, client_args: dict[str, Any], config: dict[str, Any]
    ) -> None:
        self._endpoint = PolicyEndpoint.of(context)
        self._sample_id = sample_id
        self._sent_as: dict[str, dict[str, Any]] = {}  # tool call id -> the assistant message it came in
        self._malformed: dict[str, str] = {}  # tool call id -> what is wrong with its arguments
        identity = self._endpoint.identity(sample_id)
        headers = {**client_args.get("extra_headers", {}), **identity}
        super().__init__(
            {
                **client_args,
                "api_base": self._endpoint.base_url,
                "api_key": context.api_key,
                "extra_headers": headers,
            },
            **{**config, "model_id": POLICY_MODEL},
        )

    def problem_with(self, tool_call_id: str) -> str | None:
        """Why the arguments of this tool call cannot be used; None when they can."""
        return self._malformed.get(tool_call_id)

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """One call to the policy, as the events that Strands expects."""
        accepted = {"tool_choice", "system_prompt_content", "agent_metadata"}
        request = self.format_request(
            messages, tool_specs, system_prompt, **{k: v for k, v in options.items() if k in accepted}
        )
        completion = await self._call(request)
        for event in self._events(completion):
            yield event

    async def structured_output(
        self, output_model: type[Any], prompt: Any, system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The answer as an instance of `output_model`, asked for with a JSON schema."""
        schema = {"name": output_model.__name__, "schema": output_model.model_json_schema()}
        request = self.format_request(prompt, system_prompt=system_prompt)
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
        completion = await self._call(request)
        yield {
            "output": output_model.model_validate_json(completion["choices"][0]["message"]["content"] or "")
        }

    async def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        for key in ("stream", "stream_options"):
            request.pop(key, None)  # the whole answer at once: nothing here looks at half of one
        if not request.get("tools"):
            request.pop("tools", None)
        request["messages"] = [self._as_sent(_flat(message)) for message in request["messages"]]
        try:
            headers = self.client_args["extra_headers"]
            return await chat(self._endpoint, self._sample_id, request, headers)
        except PolicyCallError as error:
            raise _as_framework_error(error) from error

    def _as_sent(self, message: dict[str, Any]) -> dict[str, Any]:
        """The policy's own message word for word, where Strands has only parsed and written it again.

        Strands turns `{"a":1}` into `{"a": 1}`, malformed arguments into `{}`, and drops white space beside a
        tool call. The tokens were sampled as they were sampled, and the history must say so.
        """
        calls = message.get("tool_calls") or []
        sent = self._sent_as.get(calls[0]["id"]) if calls else None
        if sent is None or [call["id"] for call in calls] != [call["id"] for call in sent["tool_calls"]]:
            return message
        if (message.get("content") or "").strip() != (sent["content"] or "").strip():
            return message
        if all(self._unedited(now, then) for now, then in zip(calls, sent["tool_calls"], strict=True)):
            return copy.deepcopy(sent)
        return message

    def _unedited(self, now: dict[str, Any], then: dict[str, Any]) -> bool:
        """Whether the call is still what the policy asked for, and not what a hook made of it."""
        arguments = json.loads(now["function"]["arguments"])
        if then["id"] in self._malformed:
            return bool(arguments == _as_malformed(then["function"]["arguments"]))
        return bool(arguments == json.loads(then["function"]["arguments"] or "{}"))

    def _events(self, completion: dict[str, Any]) -> Iterator[dict[str, Any]]:
        choice = completion["choices"][0]
        message = choice["message"]
        yield {"messageStart": {"role": "assistant"}}
        if message.get("reasoning_content"):
            yield from _block({}, {"reasoningContent": {"text": message["reasoning_content"]}})
        if message.get("content"):
            yield from _block({}, {"text": message["content"]})
        calls = self._remember(message)
        for call in calls:
            function = call["function"]
            start = {"toolUse": {"name": function["name"], "toolUseId": call["id"]}}
            arguments = function["arguments"]
            if call["id"] in self._malformed:
                arguments = json.dumps(_as_malformed(arguments), ensure_ascii=False)
            yield from _block(start, {"toolUse": {"input": arguments}})
        yield {"messageStop": {"stopReason": _stop_reason(choice.get("finish_reason"), bool(calls))}}
        usage = completion.get("usage") or {}
        tokens = {
            "inputTokens": usage.get("prompt_tokens", 0),
            "outputTokens": usage.get("completion_tokens", 0),
            "totalTokens": usage.get("total_tokens", 0),
        }
        yield {"metadata": {"usage": tokens, "metrics": {"latencyMs": 0}}}

    def _remember(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = [
            {
                "id": call.get("id") or f"call_{uuid4().hex}",
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": call["function"].get("arguments") or "",
                },
            }
            for call in message.get("tool_calls") or []
        ]
        sent = {"role": "assistant", "content": message.get("content"), "tool_calls": calls}
        for call in calls:
            self._sent_as[call["id"]] = sent
            problem = _argument_problem(call["function"]["arguments"])
            if problem:
                self._malformed[call["id"]] = (
                    f"The arguments of tool {call['function']['name']!r} are {problem}. "
                    "The tool was not called. Call it again with a JSON object."
                )
        return calls


class OsmosisStrandsAgent(StrandsAgent):
    """A drop-in `strands.Agent`. With an `OsmosisRolloutModel` it is driven by the policy, and its
    conversation becomes the sample named after it (`name`, else `agent_id`, else agent-0, agent-1, ...
    in the order of creation).

    `messages` may be OpenAI chat messages such as `ctx.prompt`. Their leading system messages become the
    system prompt, after the agent's own `system_prompt` if it has one; Strands knows no system message
    elsewhere. With any other model the agent is neither routed nor registered.
    """

    def __init__(
        self,
        model: Any = None,
        messages: list[Any] | None = None,
        tools: list[Any] | None = None,
        system_prompt: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if isinstance(model, OsmosisRolloutModel):
            context = get_rollout_context()
            if context is None:
                raise RuntimeError(
                    "OsmosisStrandsAgent found no active RolloutContext: build it inside "
                    "AgentWorkflow.run(), or inside `with RolloutContext(...)`"
                )
            self.osmosis_frozen = not model.trainable
            sample_id = _given_name(kwargs) or context.unnamed_sample_id()
            model = model.for_sample(sample_id, context)
            context.register_agent(sample_id, self)
            kwargs["hooks"] = [*(kwargs.get("hooks") or []), _MalformedCalls(model)]
        system, turns = to_strands(messages or [])
        super().__init__(model, turns, tools, _with_system(system_prompt, system), *args, **kwargs)


def _given_name(options: dict[str, Any]) -> str | None:
    """The agent's name, else its id; what Strands calls every agent without one is neither."""
    for key in ("name", "agent_id"):
        if options.get(key) not in (None, "", UNNAMED[key]):
            return str(options[key])
    return None


class _MalformedCalls(HookProvider):
    """A tool call whose arguments cannot be read is not run: the model gets an error result instead."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        registry.add_callback(BeforeToolCallEvent, self._check)

    def _check(self, event: BeforeToolCallEvent) -> None:
        problem = self._model.problem_with(event.tool_use["toolUseId"])
        if problem:
            event.cancel_tool = problem


# --- OpenAI messages to Strands messages


def to_strands(messages: list[Any]) -> tuple[str, list[Any]]:
    """The text of the leading system messages, and the rest with contents as Strands blocks. Copies.

    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        -> ("Be brief.", [{"role": "user", "content": [{"text": "Hi"}]}])
    """
    system: list[str] = []
    turns: list[Any] = []
    for position, message in enumerate(messages):
        role = message.get("role")
        if role in ("system", "developer"):
            if turns:
                raise ValueError(
                    f"message {position} has the role {role!r}; Strands knows system text only at the start"
                )
            system.append("\n".join(block.get("text", "") for block in _blocks(message.get("content"))))
        elif role == "tool":
            _append_result(turns, message)
        else:
            blocks = [*_blocks(message.get("content")), *map(_tool_use, message.get("tool_calls") or [])]
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(system), turns


def _blocks(content: Any) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"text": content}]
    return [_one_block(part) for part in content]


def _one_block(part: Any) -> Any:
    if isinstance(part, str):
        return {"text": part}
    if part.get("type") in ("text", "input_text", "output_text"):
        return {"text": part["text"]}
    if "type" in part:
        raise ValueError(f"a content part of type {part['type']!r} cannot be given to Strands; text can")
    return copy.deepcopy(part)  # a Strands block already


def _tool_use(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    problem = _argument_problem(arguments)
    read = _as_malformed(arguments) if problem else json.loads(arguments)
    return {"toolUse": {"toolUseId": call["id"], "name": function["name"], "input": read}}


def _append_result(turns: list[Any], message: dict[str, Any]) -> None:
    """Strands keeps the results of one assistant message together in one user message."""
    content = _blocks(message.get("content"))
    result = {
        "toolResult": {"toolUseId": message["tool_call_id"], "status": "success", "content": content},
    }
    if turns and turns[-1]["role"] == "user" and all("toolResult" in block for block in turns[-1]["content"]):
        turns[-1]["content"].append(result)
    else:
        turns.append({"role": "user", "content": [result]})


def _with_system(own: Any, from_messages: str) -> Any:
    if not from_messages:
        return own
    if not own:
        return from_messages
    return f"{own}\n\n{from_messages}" if isinstance(own, str) else [*own, {"text": from_messages}]


# --- the wire


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    """A content of nothing but text parts as one string."""
    content = message.get("content")
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        return {**message, "content": "\n".join(part["text"] for part in content)}
    return message


def _block(start: dict[str, Any], delta: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"contentBlockStart": {"start": start}}
    yield {"contentBlockDelta": {"delta": delta}}
    yield {"contentBlockStop": {}}


def _stop_reason(finish_reason: str | None, has_calls: bool) -> str:
    if finish_reason == "length":
        return "max_tokens"
    if finish_reason == "content_filter":
        return "content_filtered"
    return "tool_use" if has_calls else "end_turn"


def _argument_problem(arguments: str) -> str:
    """What is wrong with the text of the arguments; empty when it is a JSON object, or nothing at all."""
    if not arguments.strip():
        return ""
    try:
        return "" if isinstance(json.loads(arguments), dict) else "not a JSON object"
    except ValueError as error:
        return f"not valid JSON ({error})"


def _as_malformed(arguments: str) -> dict[str, str]:
    """How a malformed call stands in the conversation: what the policy wrote, under a name that says so."""
    return {"malformed_arguments": arguments}


def _as_framework_error(error: PolicyCallError) -> Exception:
    """What code written for Strands with LiteLLM expects to be raised.

    Strands repeats a call only for ModelThrottledException, that is after a 429, which sampled nothing.
    """
    if error.is_context_overflow:
        return ContextWindowOverflowException(error.message)
    if error.status == 429:
        return ModelThrottledException(error.message)
    kinds = {
        400: litellm.exceptions.BadRequestError,
        401: litellm.exceptions.AuthenticationError,
        404: litellm.exceptions.NotFoundError,
        422: litellm.exceptions.BadRequestError,
    }
    if error.status in kinds:
        found: Exception = kinds[error.status](error.message, model=POLICY_MODEL, llm_provider="openai")
        return found
    if error.status is None:
        return _connection_error(error)
    found = litellm.exceptions.APIError(
        error.status, error.message, llm_provider="openai", model=POLICY_MODEL
    )
    return found


def _connection_error(error: PolicyCallError) -> Exception:
    found: Exception = litellm.exceptions.APIConnectionError(
        error.message, llm_provider="openai", model=POLICY_MODEL
    )
    return found
