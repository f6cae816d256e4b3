"""OpenAI Chat Completions: request bytes -> ModelCall, Reply -> response bytes or server-sent events.

Against the policy every parameter is honoured or refused, none is dropped:

    honoured     messages, tools, tool_choice (auto, none), temperature, top_p, top_k, max_tokens,
                 max_completion_tokens, seed, stop (single special tokens), stream,
                 stream_options.include_usage, logprobs
    recorded     user, metadata, store, safety_identifier, prompt_cache_key: with the turn, without effect
    neutral      n = 1, presence_penalty = 0, response_format text, ...: only the value that changes nothing
    refused      everything else, with status 400 and what to do instead

`max_tokens` is an upper bound; the rest of the context and the run's own limit may lie below it, and what
was in force stands in `Turn.sampling`. `strict` of a tool is accepted and not enforced: a call that does
not fit its schema is data. A provider gets every parameter as it came. Usage is in every answer, streams
included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import orjson

from osmosis_ai.gateway.call import MODEL, MODEL_NAMES, ModelCall, Refusal, Reply, SamplingWish
from osmosis_ai.gateway.messages import BadMessageError, canonical
from osmosis_ai.types import Message, ToolSchema, Turn

HEARTBEAT = b": ping\n\n"
RECORDED = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key"})
MAX_SEED = 2**63 - 1

# Parameters of which the policy takes only values that change nothing: those values, and the way out.
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "Make one call for each completion"),
    "presence_penalty": ((0,), "Leave it out"),
    "frequency_penalty": ((0,), "Leave it out"),
    "repetition_penalty": ((1,), "Leave it out"),
    "min_p": ((0,), "Leave it out"),
    "top_logprobs": ((0,), "logprobs gives those of the sampled tokens"),
    "logit_bias": (({},), "Leave it out"),
    "response_format": (({"type": "text"},), "Ask for the format in the prompt, or offer a tool"),
    "parallel_tool_calls": ((True,), "Run the calls one after the other in the agent"),
    "service_tier": (("auto", "default"), "Leave it out"),
    "modalities": ((["text"],), "The policy writes text"),
    "functions": (([],), "Send tools"),
    "function_call": (("none", "auto"), "Send tool_choice"),
    "reasoning_effort": ((), "Leave it out"),
    "verbosity": ((), "Leave it out"),
    "prediction": ((), "Leave it out"),
    "audio": ((), "The policy writes text"),
    "web_search_options": ((), "Offer a tool"),
}
_HANDLED = frozenset({"model", "messages", "tools", "stream", "stream_options"})
_WISHED = frozenset(
    {
        "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed", "stop", "logprobs",
        "tool_choice",
    }
)  # fmt: skip


def parse(body: bytes, *, for_policy: bool) -> ModelCall:
    """Read a request. Raises Refusal (400, or 404 for another model)."""
    request = _load(body)
    _check_model(request.get("model"))
    messages = _messages(request.get("messages"), text_only=for_policy)
    tools = _tools(request.get("tools"))
    stream = _boolean(request, "stream")
    _check_stream_options(request.get("stream_options"))
    # null means "not given", everywhere
    params = {key: value for key, value in request.items() if key not in _HANDLED and value is not None}
    if not for_policy:
        _check_for_provider(params)
        return ModelCall(messages, tools, stream, SamplingWish(), request["messages"], params)
    recorded = {key: params.pop(key) for key in RECORDED & params.keys()}
    wish = _wish(params)
    return ModelCall(messages, tools, stream, wish, request["messages"], params, recorded)


def _load(body: bytes) -> dict[str, Any]:
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(request, dict):
        raise Refusal(400, "the body must be a JSON object", code="invalid_json")
    return request


def _check_model(model: Any) -> None:
    if model in MODEL_NAMES:
        return
    if model is None:
        raise _bad("model", f"is missing. Use {MODEL!r}")
    raise Refusal(
        404,
        f"there is no model {model!r} here. Use {MODEL!r} (in LiteLLM 'openai/{MODEL}'): the run's "
        "configuration says what answers",
        code="model_not_found",
        param="model",
    )


def _messages(messages: Any, *, text_only: bool) -> list[Message]:
    if not isinstance(messages, list) or not messages:
        raise _bad("messages", "must be a list of at least one message")
    try:
        return [canonical(raw, f"messages[{i}]", text_only=text_only) for i, raw in enumerate(messages)]
    except BadMessageError as error:
        raise Refusal(400, str(error), code="invalid_message", param=error.param) from error


def _tools(tools: Any) -> list[ToolSchema]:
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise _bad("tools", "must be a list")
    for position, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _bad(f"tools[{position}]", 'must be {"type": "function", "function": {"name": ..., ...}}')
    return tools


def _check_stream_options(options: Any) -> None:
    if options is None:
        return
    if not isinstance(options, dict):
        raise _bad("stream_options", "must be an object")
    for key, value in options.items():
        if key == "include_usage" and isinstance(value, bool):
            continue  # usage is always sent
        if key == "include_obfuscation" and value is False:
            continue
        raise _bad(f"stream_options.{key}", "is not supported; only include_usage is")


def _check_for_provider(params: dict[str, Any]) -> None:
    """What would be lost on the way back: a turn has one answer, and no room for a provider's logprobs."""
    for key, neutral in (("n", 1), ("logprobs", False), ("top_logprobs", 0)):
        if params.get(key, neutral) != neutral:
            raise _unsupported(key, params[key], (neutral,), "against a provider. Leave it out")


def _wish(params: dict[str, Any]) -> SamplingWish:
    for key, value in params.items():
        if key in _WISHED:
            continue
        if key not in NEUTRAL:
            known = ", ".join(sorted(_WISHED | _HANDLED | RECORDED))
            raise _bad(key, f"is not a parameter that the policy honours. Leave it out. Honoured: {known}")
        allowed, way_out = NEUTRAL[key]
        if not any(_same(value, neutral) for neutral in allowed):
            raise _unsupported(key, value, allowed, way_out)
    return SamplingWish(
        temperature=_number(params, "temperature", lambda value: value >= 0, "a number of at least 0"),
        top_p=_number(params, "top_p", lambda value: 0 < value <= 1, "a number above 0 and at most 1"),
        top_k=_integer(params, "top_k", 0, MAX_SEED),
        max_tokens=_max_tokens(params),
        seed=_integer(params, "seed", 0, MAX_SEED),
        stop=_stop(params.get("stop")),
        logprobs=_boolean(params, "logprobs"),
        tools_allowed=_tools_allowed(params.get("tool_choice")),
    )


def _max_tokens(params: dict[str, Any]) -> int | None:
    older = _integer(params, "max_tokens", 1, MAX_SEED)
    newer = _integer(params, "max_completion_tokens", 1, MAX_SEED)
    if older is not None and newer is not None and older != newer:
        raise _bad("max_tokens", f"is {older} but max_completion_tokens is {newer}. Send one of them")
    return older if newer is None else newer


def _stop(stop: Any) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _bad("stop", "must be a text or a list of texts")
    return tuple(texts)


def _tools_allowed(choice: Any) -> bool:
    if choice in (None, "auto"):
        return True
    if choice == "none":
        return False
    raise _unsupported("tool_choice", choice, ("auto", "none"), "Ask for the tool in the prompt")


def _number(params: dict[str, Any], key: str, holds: Callable[[float], bool], allowed: str) -> float | None:
    value = params.get(key)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not isfinite(value)
        or not holds(value)
    ):
        raise _bad(key, f"must be {allowed}, got {value!r}")
    return float(value)


def _integer(params: dict[str, Any], key: str, lowest: int, highest: int) -> int | None:
    value = params.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise _bad(key, f"must be a whole number of at least {lowest}, got {value!r}")
    return value


def _boolean(params: dict[str, Any], key: str) -> bool:
    value = params.get(key)
    if value is not None and not isinstance(value, bool):
        raise _bad(key, f"must be true or false, got {value!r}")
    return bool(value)


def _same(value: Any, neutral: Any) -> bool:
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _bad(param: str, problem: str) -> Refusal:
    return Refusal(400, f"{param} {problem}", code="invalid_parameter", param=param)


def _unsupported(param: str, value: Any, supported: tuple[Any, ...], way_out: str) -> Refusal:
    allowed = (
        " or ".join(orjson.dumps(choice).decode() for choice in supported) or "nothing: it is not supported"
    )
    shown = orjson.dumps(value).decode()[:100]
    return Refusal(
        400,
        f"{param} = {shown} is not supported here; supported: {allowed}. {way_out}.",
        code="unsupported_parameter",
        param=param,
    )


def plain(call_id: str, reply: Reply) -> bytes:
    """The whole answer as one JSON object."""
    turn = reply.turn
    choice = {
        "index": 0,
        "message": _outgoing(turn.response),
        "finish_reason": turn.finish_reason,
        "logprobs": _logprobs(reply),
    }
    return orjson.dumps(
        {
            "id": call_id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": turn.model,
            "choices": [choice],
            "usage": _usage(turn),
            "system_fingerprint": _fingerprint(turn),
        }
    )


@dataclass(slots=True)
class EventStream:
    """The same answer as server-sent events: role, texts, tool calls, finish_reason, usage, [DONE]."""

    call_id: str
    created: int
    sent: str = ""  # all text so far

    def start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, delta: str) -> bytes:
        self.sent += delta
        return self._chunk({"content": delta})

    def finish(self, reply: Reply) -> bytes:
        """What is left of the text, the tool calls, and the end. The turn is in the store by now."""
        turn = reply.turn
        content = turn.response["content"]
        if not content.startswith(self.sent):
            raise ValueError(f"the text {self.sent!r} was streamed, but the answer is {content!r}")
        rest = content[len(self.sent) :]
        events = [self.text(rest)] if rest else []
        extra = {
            key: value for key, value in turn.response.items() if key not in ("role", "content", "tool_calls")
        }
        if extra:
            events.append(self._chunk(extra))
        for index, call in enumerate(turn.response.get("tool_calls") or ()):
            events.append(self._chunk({"tool_calls": [{"index": index, **call}]}))
        events.append(self._end(reply))
        return b"".join(events)

    def error(self, refusal: Refusal) -> bytes:
        """The end of a stream that failed half-way; no [DONE], so that nobody takes it for whole."""
        return b"event: error\ndata: " + error_body(refusal) + b"\n\n"

    def _end(self, reply: Reply) -> bytes:
        turn = reply.turn
        finish = self._chunk({}, finish_reason=turn.finish_reason, logprobs=_logprobs(reply))
        usage = self._event({"choices": [], "usage": _usage(turn), "system_fingerprint": _fingerprint(turn)})
        return finish + usage + b"data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        return self._event({"choices": [choice]})

    def _event(self, fields: dict[str, Any]) -> bytes:
        event = {
            "id": self.call_id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": MODEL,
            **fields,
        }
        return b"data: " + orjson.dumps(event) + b"\n\n"


def error_body(refusal: Refusal) -> bytes:
    """OpenAI's error object."""
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    error = {"message": str(refusal), "type": kind, "code": refusal.code, "param": refusal.param}
    return orjson.dumps({"error": error})


def models() -> bytes:
    """The list of models: the one."""
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "osmosis"}
    return orjson.dumps({"object": "list", "data": [model]})


def _outgoing(response: Message) -> Message:
    """On the wire an assistant message without text has content null."""
    if response["content"] == "" and response.get("tool_calls"):
        return {**response, "content": None}
    return response


def _usage(turn: Turn) -> dict[str, int]:
    return {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.completion_tokens,
        "total_tokens": turn.prompt_tokens + turn.completion_tokens,
    }


def _fingerprint(turn: Turn) -> str | None:
    return None if turn.policy_version is None else f"policy-{turn.policy_version}"


def _logprobs(reply: Reply) -> dict[str, Any] | None:
    if reply.token_logprobs is None:
        return None
    content = [
        {"token": text, "logprob": logprob, "bytes": _bytes(text), "top_logprobs": []}
        for text, logprob in reply.token_logprobs
    ]
    return {"content": content, "refusal": None}


def _bytes(text: str) -> list[int] | None:
    """UTF-8 of a token's text; null for a token that is only part of a character."""
    return None if "\ufffd" in text else list(text.encode())
