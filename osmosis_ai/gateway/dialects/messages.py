"""Anthropic Messages: blocks <-> messages.

    in the request                             message inside
    system (a text, or text blocks)            system, in front
    user: text blocks                          user, neighbouring texts joined
    user: tool_result                          tool, each its own
    assistant: text blocks                     content, joined
    assistant: tool_use                        a tool call; arguments are the input as JSON
    assistant: thinking, redacted_thinking     `thinking_blocks`: recorded, neither compared nor shown to the
                                               policy; for a provider `reasoning_content`

The order of the blocks is kept. `is_error` of a tool_result is recorded and not shown to the policy: say in
the text what went wrong. `cache_control` is dropped: it changes the price of an answer, not the answer. A
tool call whose arguments cannot be an `input` (no JSON object, or with half a surrogate pair or an infinite
number in it) goes out as {"INVALID_JSON": "<arguments>"}, and when it comes back so, it is the same call
again.

    honoured     messages, system, tools (custom), tool_choice (auto, none), max_tokens, temperature, top_p,
                 top_k, stop_sequences, stream
    recorded     metadata
    neutral      thinking disabled, service_tier
    refused      everything else; images, documents and every block that is not in the table

A provider is asked in Chat Completions: what can be said there is translated, everything else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any

import orjson

from osmosis_ai.gateway.call import MODEL, ModelCall, Refusal, Reply, SamplingWish
from osmosis_ai.gateway.dialects.base import Recall
from osmosis_ai.gateway.dialects.chat import unsent
from osmosis_ai.gateway.dialects.parameters import (
    Neutral,
    bad,
    bad_message,
    boolean,
    check_known,
    check_model,
    integer,
    load,
    stop_texts,
    temperature,
    top_p,
    unsupported,
)
from osmosis_ai.gateway.messages import BadMessageError, canonical, read_arguments
from osmosis_ai.types import Message, ToolSchema, Turn

WIRE = "messages"
ID_PREFIX = "msg_"
HEARTBEAT = b'event: ping\ndata: {"type": "ping"}\n\n'
INVALID_JSON = "INVALID_JSON"
NEUTRAL: Neutral = {
    "thinking": (({"type": "disabled"},), "Leave it out"),
    "service_tier": (("auto", "standard_only"), "Leave it out"),
    "container": ((), "Leave it out"),
    "mcp_servers": (([],), "Offer tools"),
}
_HONOURED = frozenset(
    {
        "model", "messages", "system", "tools", "tool_choice", "max_tokens", "temperature", "top_p", "top_k",
        "stop_sequences", "stream", "metadata",
    }
)  # fmt: skip
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def parse(body: bytes, *, for_policy: bool, recall: Recall) -> ModelCall:
    """Read a request. Raises Refusal (400, or 404 for another model).

    `max_tokens`, which Anthropic demands, may be left out: counting tokens has none.
    """
    request = load(body)
    if _rounded(_inputs(request)):  # read again, slowly, by a parser that keeps integers of any size
        request["messages"] = json.loads(body)["messages"]
    check_model(request.get("model"))
    try:
        messages = _system(request.get("system"))
        messages += _messages(request.get("messages"), text_only=for_policy)
    except BadMessageError as error:
        raise bad_message(error) from error
    tools = _tools(request.get("tools"))
    check_known(request, _HONOURED, NEUTRAL)
    wish = SamplingWish(
        temperature=temperature(request),
        top_p=top_p(request),
        top_k=integer(request, "top_k", 0),
        max_tokens=integer(request, "max_tokens", 1),
        stop=stop_texts(request, "stop_sequences"),
        tools_allowed=_tools_allowed(_tool_choice(request)) if for_policy else True,
    )
    native = {} if for_policy else _for_provider(request, wish)
    recorded = {"metadata": request["metadata"]} if for_policy and "metadata" in request else {}
    native_messages = [_with_reasoning(message) for message in messages]
    return ModelCall(messages, tools, boolean(request, "stream"), wish, native_messages, native, recorded)


def _tool_choice(request: dict[str, Any]) -> dict[str, Any]:
    choice = request.get("tool_choice", {"type": "auto"})
    if not isinstance(choice, dict) or not isinstance(choice.get("type"), str):
        raise bad("tool_choice", 'must be {"type": ...}, with "auto", "any", "tool" or "none"')
    return choice


def _tools_allowed(choice: dict[str, Any]) -> bool:
    kind: str = choice["type"]
    if kind not in ("auto", "none"):
        raise unsupported(
            "tool_choice", choice, ({"type": "auto"}, {"type": "none"}), "Ask for the tool in the prompt"
        )
    if kind == "auto" and choice.get("disable_parallel_tool_use"):
        raise unsupported(
            "tool_choice.disable_parallel_tool_use", True, (False,), "Run the calls one after the other"
        )
    return kind != "none"


def _for_provider(request: dict[str, Any], wish: SamplingWish) -> dict[str, Any]:
    """The parameters in the Chat Completions spelling."""
    same = ("temperature", "top_p", "top_k", "max_tokens")
    params = {key: request[key] for key in same if key in request}
    if wish.stop:
        params["stop"] = list(wish.stop)
    if "tool_choice" in request:
        choice = _tool_choice(request)
        named = {"type": "function", "function": {"name": choice.get("name")}}
        known = {"auto": "auto", "any": "required", "none": "none", "tool": named}
        if choice["type"] not in known:
            raise unsupported("tool_choice", choice, tuple({"type": kind} for kind in known), "Leave it out")
        params["tool_choice"] = known[choice["type"]]
        if choice.get("disable_parallel_tool_use"):
            params["parallel_tool_calls"] = False
    return params


def _tools(tools: Any) -> list[ToolSchema]:
    if not isinstance(tools or [], list):
        raise bad("tools", "must be a list")
    return [_tool(tool, f"tools[{position}]") for position, tool in enumerate(tools or [])]


def _tool(tool: Any, place: str) -> ToolSchema:
    custom = isinstance(tool, dict) and tool.get("type", "custom") in ("custom", None)
    if not custom or not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), dict):
        raise bad(
            place, 'must be {"name": ..., "input_schema": {...}}: Anthropic\'s own tools are not run here'
        )
    function = {"name": tool["name"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": {**function, "parameters": tool["input_schema"]}}


# --- blocks to messages


def _rounded(value: Any) -> bool:
    """Whether a fast parser may have read an integer beyond 64 bits as a float."""
    if isinstance(value, dict | list):
        return any(map(_rounded, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and abs(value) >= 2**63


def _system(system: Any) -> list[Message]:
    if not system:
        return []
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
    if not isinstance(blocks, list):
        raise BadMessageError("system", "must be a text or a list of text blocks")
    texts = [_text_of(block, f"system[{position}]") for position, block in enumerate(blocks)]
    return [{"role": "system", "content": "\n\n".join(texts)}]


def _messages(messages: Any, *, text_only: bool) -> list[Message]:
    if not isinstance(messages, list) or not messages:
        raise bad("messages", "must be a list of at least one message")
    read: list[Message] = []
    for position, message in enumerate(messages):
        place = f"messages[{position}]"
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise BadMessageError(f"{place}.role", f"must be user or assistant, got {str(role)[:80]!r}")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise BadMessageError(f"{place}.content", "must be a text or a list of blocks")
        if role == "assistant":
            read.append(_assistant(blocks, f"{place}.content"))
        else:
            read += _user(role, blocks, f"{place}.content", text_only)
    return read


def _assistant(blocks: list[dict[str, Any]], place: str) -> Message:
    texts, calls, thinking = [], [], []
    for position, block in enumerate(blocks):
        where = f"{place}[{position}]"
        kind = block.get("type")
        if kind == "tool_use":
            calls.append(_call_of(block, where))
        elif kind in ("thinking", "redacted_thinking"):
            thinking.append(block)
        else:
            texts.append(_text_of(block, where))
    raw: Message = {"role": "assistant", "content": "".join(texts)}
    if calls:
        raw["tool_calls"] = calls
    if thinking:
        raw["thinking_blocks"] = thinking
    return canonical(raw, place, text_only=True)


def _inputs(request: dict[str, Any]) -> list[Any]:
    """The inputs of all tool calls, wherever the request has the right shape."""
    messages = request.get("messages")
    contents = (
        [m.get("content") for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    )
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return [b.get("input") for b in blocks if isinstance(b, dict) and b.get("type") == "tool_use"]


def _call_of(block: dict[str, Any], place: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise BadMessageError(f"{place}.input", "must be an object")
    broken = arguments.get(INVALID_JSON) if arguments.keys() == {INVALID_JSON} else None
    text = broken if isinstance(broken, str) else json.dumps(arguments, ensure_ascii=False)
    return {
        "id": block.get("id"),
        "type": "function",
        "function": {"name": block.get("name"), "arguments": text},
    }


def _user(role: str, blocks: list[dict[str, Any]], place: str, text_only: bool) -> list[Message]:
    """Tool results as messages of their own, the texts between them joined."""
    read: list[Message] = []
    parts: list[dict[str, Any]] = []

    def flush() -> None:
        if parts:
            read.append(canonical({"role": role, "content": list(parts)}, place, text_only=text_only))
            parts.clear()

    for position, block in enumerate(blocks):
        where = f"{place}[{position}]"
        if block.get("type") == "tool_result":
            flush()
            read.append(_tool_result(block, where, text_only))
        else:
            parts.append(_part(block, where, text_only))
    flush()
    return read or [{"role": role, "content": ""}]


def _tool_result(block: dict[str, Any], place: str, text_only: bool) -> Message:
    content = block.get("content")
    if isinstance(content, list):
        content = [_part(part, f"{place}.content[{i}]", text_only) for i, part in enumerate(content)]
    raw = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
    message = canonical(raw, place, text_only=text_only)
    if block.get("is_error"):
        message["is_error"] = True
    return message


def _part(block: Any, place: str, text_only: bool) -> dict[str, Any]:
    """A text part; for a provider, an image in the Chat Completions spelling."""
    source = block.get("source") if isinstance(block, dict) and block.get("type") == "image" else None
    if not text_only and isinstance(source, dict) and source.get("type") in ("url", "base64"):
        data = f"data:{source.get('media_type')};base64,{source.get('data')}"
        url = source.get("url") if source["type"] == "url" else data
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", "text": _text_of(block, place)}


def _text_of(block: Any, place: str) -> str:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    if not isinstance(text, str):
        kind = block.get("type") if isinstance(block, dict) else block
        raise BadMessageError(
            place,
            f"a block of type {str(kind)[:80]!r} is not supported here: only text is read. "
            'Send {"type": "text", "text": "..."}',
        )
    return text


def _with_reasoning(message: Message) -> Message:
    """For a provider: thinking as the reasoning that it was, notes of ours left out."""
    native = {key: value for key, value in message.items() if key not in ("thinking_blocks", "is_error")}
    thoughts = [block.get("thinking") for block in message.get("thinking_blocks") or ()]
    if texts := [text for text in thoughts if isinstance(text, str)]:
        native["reasoning_content"] = "".join(texts)
    return native


# --- a reply to blocks


def plain(call_id: str, call: ModelCall, replies: Sequence[Reply]) -> bytes:
    """The whole answer as one JSON object."""
    [reply] = replies
    turn = reply.turn
    return _dump(
        {**_opened(call_id, turn.model), "content": _blocks(turn), **_ending(turn), "usage": _usage(turn)}
    )


def _opened(call_id: str, model: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    response = turn.response
    blocks: list[dict[str, Any]] = []
    if reasoning := response.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": str(reasoning), "signature": ""})
    if response["content"]:
        blocks.append({"type": "text", "text": response["content"]})
    for call in response.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": _input(arguments)})
    return blocks


def _input(arguments: str) -> dict[str, Any]:
    read = read_arguments(arguments)
    try:
        if read is not None and read.keys() != {INVALID_JSON} and _can_be_sent(read):
            return read
    except RecursionError:  # hundreds of lists in one another
        pass
    return {INVALID_JSON: arguments}


def _can_be_sent(value: Any) -> bool:
    """Whether JSON parsers give back what is sent: no half surrogate pairs, no infinite numbers."""
    if isinstance(value, str):
        return not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, dict):
        return all(_can_be_sent(key) and _can_be_sent(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_can_be_sent(item) for item in value)
    return not isinstance(value, float) or isfinite(value)


def _dump(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits in the input of a tool
        return json.dumps(value).encode()


def _ending(turn: Turn) -> dict[str, Any]:
    stopped_by = turn.sampling.get("stopped_by")
    if stopped_by is not None and turn.finish_reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
    return {"stop_reason": _STOP_REASONS.get(turn.finish_reason, "end_turn"), "stop_sequence": None}


def _usage(turn: Turn) -> dict[str, int]:
    return {"input_tokens": turn.prompt_tokens, "output_tokens": turn.completion_tokens}


def events(call_id: str, call: ModelCall) -> EventStream:
    return EventStream(call_id)


class EventStream:
    """message_start; per block start, deltas, stop; message_delta with usage; message_stop.

    The number of input tokens is known when the answer is: it stands in message_delta, not in message_start.
    """

    def __init__(self, call_id: str) -> None:
        self._call_id = call_id
        self._sent = ""

    def start(self) -> bytes:
        return _event("message_start", message=_opened(self._call_id, MODEL))

    def text(self, index: int, delta: str) -> bytes:
        opening = b"" if self._sent else _block_start(0, {"type": "text", "text": ""})
        self._sent += delta
        return opening + _block_delta(0, {"type": "text_delta", "text": delta})

    def finish(self, replies: Sequence[Reply]) -> bytes:
        turn = replies[0].turn
        blocks = _blocks(turn)
        parts = []
        if self._sent:  # the text went out first, as block 0
            [text] = [block for block in blocks if block["type"] == "text"]
            blocks.remove(text)
            if rest := unsent(text["text"], self._sent):
                parts.append(self.text(0, rest))
            parts.append(_event("content_block_stop", index=0))
        first = 1 if self._sent else 0
        parts += [_whole_block(first + position, block) for position, block in enumerate(blocks)]
        parts.append(_event("message_delta", delta=_ending(turn), usage=_usage(turn)))
        parts.append(_event("message_stop"))
        return b"".join(parts)

    def error(self, refusal: Refusal) -> bytes:
        return b"event: error\ndata: " + error_body(refusal) + b"\n\n"


def _whole_block(index: int, block: dict[str, Any]) -> bytes:
    if block["type"] == "tool_use":
        started = {**block, "input": {}}
        text = json.dumps(block["input"], ensure_ascii=False)
        deltas = [{"type": "input_json_delta", "partial_json": text}]
    elif block["type"] == "thinking":
        started = {**block, "thinking": ""}
        deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
    else:
        started = {**block, "text": ""}
        deltas = [{"type": "text_delta", "text": block["text"]}]
    parts = [_block_start(index, started), *(_block_delta(index, delta) for delta in deltas)]
    return b"".join([*parts, _event("content_block_stop", index=index)])


def _block_start(index: int, block: dict[str, Any]) -> bytes:
    return _event("content_block_start", index=index, content_block=block)


def _block_delta(index: int, delta: dict[str, Any]) -> bytes:
    return _event("content_block_delta", index=index, delta=delta)


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"


def error_body(refusal: Refusal) -> bytes:
    """Anthropic's error object; code and param are ours beside it."""
    kind = _ERROR_TYPES.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": str(refusal), "code": refusal.code, "param": refusal.param}
    return orjson.dumps({"type": "error", "error": error})


def counted(num_tokens: int) -> bytes:
    return orjson.dumps({"input_tokens": num_tokens})
