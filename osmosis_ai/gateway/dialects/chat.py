"""OpenAI Chat Completions: request bytes -> ModelCall, Replies -> response bytes or server-sent events.

Against the policy every parameter is honoured or refused, none is dropped:

    honoured     messages, tools, tool_choice (auto, none), temperature, top_p, top_k, max_tokens,
                 max_completion_tokens, n, seed, stop, stream, stream_options.include_usage, logprobs
    recorded     user, metadata, store, safety_identifier, prompt_cache_key: with the turn, without effect
    neutral      presence_penalty = 0, response_format text, ...: only the value that changes nothing
    refused      everything else, with status 400 and what to do instead

`n` answers are n turns: branches that share their prompt, answer i sampled with seed + i. `max_tokens` is an
upper bound; the rest of the context and the run's own limit may lie below it, and what was in force stands in
`Turn.sampling`. `strict` of a tool is accepted and not enforced: a call that does not fit its schema is data.
A provider gets every parameter as it came, but `n`: it is asked n times. Usage is in every answer, streams
included.

A body with a `rollout_id` comes from a RolloutAgentLoop's server: its model may be "default", and an answer
of the policy has `token_ids`, `logprobs` and `prompt_token_ids` of its turn beside the choices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from osmosis_ai.gateway.call import MODEL, NO_WISH, ModelCall, Refusal, Reply, SamplingWish
from osmosis_ai.gateway.dialects.base import Recall
from osmosis_ai.gateway.dialects.parameters import (
    MAX_N,
    Neutral,
    bad,
    bad_message,
    boolean,
    check_known,
    check_model,
    function_tools,
    integer,
    load,
    openai_error,
    stop_texts,
    temperature,
    top_p,
    unsupported,
)
from osmosis_ai.gateway.messages import BadMessageError, canonical
from osmosis_ai.types import Message, Turn

WIRE = "chat"
ID_PREFIX = "chatcmpl-"
HEARTBEAT = b": ping\n\n"
RECORDED = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key"})

# Parameters of which the policy takes only values that change nothing: those values, and the way out.
NEUTRAL: Neutral = {
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
_HANDLED = frozenset({"model", "messages", "tools", "stream", "stream_options", "n"})
_WISHED = frozenset(
    {
        "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed", "stop", "logprobs",
        "tool_choice",
    }
)  # fmt: skip
_HONOURED = _WISHED | _HANDLED | RECORDED


def parse(body: bytes, *, for_policy: bool, recall: Recall) -> ModelCall:
    """Read a request. Raises Refusal (400, or 404 for another model)."""
    request = load(body)
    rollout_id = _rollout_id(request)
    if rollout_id is None or request.get("model") != "default":
        check_model(request.get("model"))
    messages = _messages(request.get("messages"), text_only=for_policy)
    tools = function_tools(request.get("tools"))
    stream = boolean(request, "stream")
    n = integer(request, "n", 1, MAX_N) or 1
    check_stream_options(request.get("stream_options"))
    params = {key: value for key, value in request.items() if key not in _HANDLED}
    native = request["messages"]
    if not for_policy:
        if rollout_id is not None:
            params.pop("logprobs", None)  # that protocol's clients always ask for them, and can do without
        _check_for_provider(params)
        return ModelCall(messages, tools, stream, NO_WISH, native, params, n=n, rollout_id=rollout_id)
    check_known(params, _HONOURED, NEUTRAL)
    recorded = {key: params.pop(key) for key in RECORDED & params.keys()}
    wish = _wish(params)
    return ModelCall(messages, tools, stream, wish, native, params, recorded, n=n, rollout_id=rollout_id)


def _rollout_id(request: dict[str, Any]) -> str | None:
    """Take the rollout's id out of the request: it is no parameter."""
    rollout_id = request.pop("rollout_id", None)
    if rollout_id is not None and not isinstance(rollout_id, str):
        raise bad("rollout_id", "must be a text")
    return rollout_id


def _messages(messages: Any, *, text_only: bool) -> list[Message]:
    if not isinstance(messages, list) or not messages:
        raise bad("messages", "must be a list of at least one message")
    try:
        return [canonical(raw, f"messages[{i}]", text_only=text_only) for i, raw in enumerate(messages)]
    except BadMessageError as error:
        raise bad_message(error) from error


def check_stream_options(options: Any) -> None:
    if options is None:
        return
    if not isinstance(options, dict):
        raise bad("stream_options", "must be an object")
    for key, value in options.items():
        if key == "include_usage" and isinstance(value, bool):
            continue  # usage is always sent
        if key == "include_obfuscation" and value is False:
            continue
        raise bad(f"stream_options.{key}", "is not supported; only include_usage is")


def _check_for_provider(params: dict[str, Any]) -> None:
    """What would be lost on the way back: a turn has no room for a provider's logprobs."""
    for key, neutral in (("logprobs", False), ("top_logprobs", 0)):
        if params.get(key, neutral) != neutral:
            raise unsupported(key, params[key], (neutral,), "against a provider. Leave it out")


def _wish(params: dict[str, Any]) -> SamplingWish:
    return SamplingWish(
        temperature=temperature(params),
        top_p=top_p(params),
        top_k=integer(params, "top_k", 0),
        max_tokens=_max_tokens(params),
        seed=integer(params, "seed", 0),
        stop=stop_texts(params),
        logprobs=boolean(params, "logprobs"),
        tools_allowed=tools_allowed(params.get("tool_choice")),
    )


def _max_tokens(params: dict[str, Any]) -> int | None:
    older = integer(params, "max_tokens", 1)
    newer = integer(params, "max_completion_tokens", 1)
    if older is not None and newer is not None and older != newer:
        raise bad("max_tokens", f"is {older} but max_completion_tokens is {newer}. Send one of them")
    return older if newer is None else newer


def tools_allowed(choice: Any) -> bool:
    if choice in (None, "auto"):
        return True
    if choice == "none":
        return False
    raise unsupported("tool_choice", choice, ("auto", "none"), "Ask for the tool in the prompt")


def plain(call_id: str, call: ModelCall, replies: Sequence[Reply]) -> bytes:
    """The whole answer as one JSON object."""
    choices = [
        {
            "index": index,
            "message": _outgoing(reply.turn.response),
            "finish_reason": reply.turn.finish_reason,
            "logprobs": _logprobs(reply),
        }
        for index, reply in enumerate(replies)
    ]
    return orjson.dumps(
        {
            "id": call_id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": replies[0].turn.model,
            "choices": choices,
            "usage": usage(replies),
            "system_fingerprint": fingerprint(replies[0].turn),
            **(_tokens(replies[0].turn) if call.rollout_id is not None else {}),
        }
    )


def _tokens(turn: Turn) -> dict[str, Any]:
    """For a RolloutAgentLoop's server; nothing of a provider, which has no tokens."""
    if not turn.completion_ids:
        return {}
    return {
        "token_ids": turn.completion_ids,
        "logprobs": turn.logprobs,
        "prompt_token_ids": turn.prompt_ids,
    }


def events(call_id: str, call: ModelCall) -> EventStream:
    return EventStream(call_id, call.n)


class EventStream:
    """The same answer as events: role, texts, tool calls, finish_reason (of each answer), usage, [DONE]."""

    def __init__(self, call_id: str, n: int) -> None:
        self._call_id = call_id
        self._created = int(time.time())
        self._sent = [""] * n  # text of each answer so far
        # A stream has an event for each token: what is the same in all of them is written once.
        around = [self._chunk(index, {"content": ""}).rsplit(b'""', 1) for index in range(n)]
        self._around = [(before, after) for before, after in around]

    def start(self) -> bytes:
        roles = [self._chunk(i, {"role": "assistant", "content": ""}) for i in range(len(self._sent))]
        return b"".join(roles)

    def text(self, index: int, delta: str) -> bytes:
        self._sent[index] += delta
        before, after = self._around[index]
        return before + orjson.dumps(delta) + after

    def finish(self, replies: Sequence[Reply]) -> bytes:
        parts = [self._rest(index, reply) for index, reply in enumerate(replies)]
        last: dict[str, Any] = {
            "choices": [],
            "usage": usage(replies),
            "system_fingerprint": fingerprint(replies[0].turn),
        }
        return b"".join([*parts, self._event(last), b"data: [DONE]\n\n"])

    def error(self, refusal: Refusal) -> bytes:
        """No [DONE] behind it, so that nobody takes the stream for whole."""
        return b"event: error\ndata: " + error_body(refusal) + b"\n\n"

    def _rest(self, index: int, reply: Reply) -> bytes:
        response = reply.turn.response
        rest = unsent(response["content"], self._sent[index])
        parts = [self.text(index, rest)] if rest else []
        extra = {k: v for k, v in response.items() if k not in ("role", "content", "tool_calls")}
        if extra:
            parts.append(self._chunk(index, extra))
        for position, tool_call in enumerate(response.get("tool_calls") or ()):
            parts.append(self._chunk(index, {"tool_calls": [{"index": position, **tool_call}]}))
        parts.append(self._chunk(index, {}, reply.turn.finish_reason, _logprobs(reply)))
        return b"".join(parts)

    def _chunk(
        self, index: int, delta: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        return self._event({"choices": [choice]})

    def _event(self, fields: dict[str, Any]) -> bytes:
        event = {
            "id": self._call_id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": MODEL,
            **fields,
        }
        return b"data: " + orjson.dumps(event) + b"\n\n"


def unsent(content: Any, sent: str) -> Any:
    """What of an answer's text has not been streamed yet."""
    if not sent:
        return content
    if not isinstance(content, str) or not content.startswith(sent):
        raise ValueError(f"the text {sent!r} was streamed, but the answer is {content!r}")
    return content[len(sent) :]


def error_body(refusal: Refusal) -> bytes:
    """OpenAI's error object."""
    return orjson.dumps({"error": openai_error(refusal)})


def counted(num_tokens: int) -> bytes:
    return orjson.dumps({"input_tokens": num_tokens})


def _outgoing(response: Message) -> Message:
    """On the wire an assistant message without text has content null."""
    if response["content"] == "" and response.get("tool_calls"):
        return {**response, "content": None}
    return response


def usage(replies: Sequence[Reply]) -> dict[str, int]:
    """Tokens of the prompt, once, and of all answers."""
    prompt = replies[0].turn.prompt_tokens
    completion = sum(reply.turn.completion_tokens for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def fingerprint(turn: Turn) -> str | None:
    return None if turn.policy_version is None else f"policy-{turn.policy_version}"


def _logprobs(reply: Reply) -> dict[str, Any] | None:
    if reply.token_logprobs is None:
        return None
    return {"content": token_logprobs(reply.token_logprobs), "refusal": None}


def token_logprobs(pairs: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [
        {"token": text, "logprob": logprob, "bytes": _bytes(text), "top_logprobs": []}
        for text, logprob in pairs
    ]


def _bytes(text: str) -> list[int] | None:
    """UTF-8 of a token's text; null for a token that is only part of a character."""
    return None if "\ufffd" in text else list(text.encode())
