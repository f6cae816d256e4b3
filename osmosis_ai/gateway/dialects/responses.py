"""OpenAI Responses: input items <-> messages.

    item of the input                          message inside
    instructions                               system, in front
    message (or {"role", "content"})           its role; text parts joined
    reasoning                                  `reasoning_content` of the assistant message that follows
    function_call                              a tool call of the assistant message before it, or of a new one
    function_call_output                       tool

    assistant message inside                   items of the output
    reasoning_content (of a provider)          reasoning
    content                                    message, when there is text, or nothing else
    tool_calls                                 a function_call each

So an answer goes out as items and comes back as the one message that it was.

The gateway keeps answers for the life of their rollout and no longer. `previous_response_id` names an answer
of the same rollout: the call then continues its messages (without its instructions, as at OpenAI). An answer
that was made with `store: false` cannot be named. `conversation`, `background` and stored `prompt`s, which
would outlive the rollout, are refused.

    honoured     input, instructions, tools (functions), tool_choice (auto, none), temperature, top_p,
                 max_output_tokens, stream, previous_response_id, store, include (logprobs of the text)
    recorded     user, metadata, safety_identifier, prompt_cache_key
    neutral      parallel_tool_calls = true, text.format text, truncation disabled, ...
    refused      everything else; images, files and every item that is not in the table

A provider is asked in Chat Completions: what can be said there is translated, everything else is refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from osmosis_ai.gateway.call import MODEL, NO_WISH, ModelCall, Refusal, Reply, SamplingWish
from osmosis_ai.gateway.dialects import chat
from osmosis_ai.gateway.dialects.base import Recall
from osmosis_ai.gateway.dialects.parameters import (
    Neutral,
    bad,
    bad_message,
    boolean,
    check_known,
    check_model,
    integer,
    load,
    openai_error,
    temperature,
    top_p,
    unsupported,
)
from osmosis_ai.gateway.messages import BadMessageError, canonical
from osmosis_ai.types import Message, ToolSchema, Turn

WIRE = "responses"
ID_PREFIX = "resp_"
HEARTBEAT = chat.HEARTBEAT
RECORDED = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
LOGPROBS = "message.output_text.logprobs"
NEUTRAL: Neutral = {
    "text": (({"format": {"type": "text"}}, {}), "Ask for the format in the prompt, or offer a tool"),
    "reasoning": (({},), "Leave it out"),
    "parallel_tool_calls": ((True,), "Run the calls one after the other in the agent"),
    "truncation": (("disabled",), "Shorten the conversation in the agent"),
    "background": ((False,), "Wait for the answer"),
    "top_logprobs": ((0,), f"include {LOGPROBS!r} gives those of the sampled tokens"),
    "service_tier": (("auto", "default"), "Leave it out"),
    "conversation": ((), "Send the items, or previous_response_id"),
    "prompt": ((), "Send instructions and input"),
    "max_tool_calls": ((), "Count in the agent"),
}
_HONOURED = frozenset(
    {
        "model", "input", "instructions", "tools", "tool_choice", "temperature", "top_p", "max_output_tokens",
        "stream", "stream_options", "previous_response_id", "store", "include",
    }
)  # fmt: skip
# For a provider: parameters that mean the same in Chat Completions, under which name.
_SAME_IN_CHAT = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_output_tokens": "max_completion_tokens",
    "parallel_tool_calls": "parallel_tool_calls",
    "user": "user",
    "metadata": "metadata",
    "safety_identifier": "safety_identifier",
    "prompt_cache_key": "prompt_cache_key",
    "service_tier": "service_tier",
}
_ECHOED = ("instructions", "metadata", "tools", "tool_choice", "temperature", "top_p", "max_output_tokens",
           "previous_response_id", "user", "store")  # fmt: skip


def parse(body: bytes, *, for_policy: bool, recall: Recall) -> ModelCall:
    """Read a request. Raises Refusal (400, or 404 for another model)."""
    request = load(body)
    check_model(request.get("model"))
    instructions = _instructions(request)
    messages = instructions + _recalled(request, recall) + _items(request.get("input"), text_only=for_policy)
    tools = _tools(request.get("tools"))
    logprobs = _logprobs_wanted(request)
    chat.check_stream_options(request.get("stream_options"))
    if for_policy:
        check_known(request, _HONOURED | RECORDED, NEUTRAL)
        native: dict[str, Any] = {}
    else:
        native = _for_provider(request, logprobs)
    return ModelCall(
        messages,
        tools,
        boolean(request, "stream"),
        _wish(request, logprobs) if for_policy else NO_WISH,
        messages,
        native,
        recorded={key: request[key] for key in RECORDED & request.keys()} if for_policy else {},
        echoed={key: request[key] for key in _ECHOED if key in request},
        continuable=boolean(request, "store", default=True),
        instructions=len(instructions),
    )


def _instructions(request: dict[str, Any]) -> list[Message]:
    text = request.get("instructions")
    if text is not None and not isinstance(text, str):
        raise bad("instructions", "must be a text")
    return [{"role": "system", "content": text}] if text else []


def _recalled(request: dict[str, Any], recall: Recall) -> list[Message]:
    name = request.get("previous_response_id")
    if name is None:
        return []
    messages = recall(name) if isinstance(name, str) else None
    if messages is None:
        raise Refusal(
            400,
            f"previous_response_id {str(name)[:100]!r} is no answer of this rollout, or was made with "
            "store: false. Send the items of the conversation as input",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    return list(messages)


def _wish(request: dict[str, Any], logprobs: bool) -> SamplingWish:
    return SamplingWish(
        temperature=temperature(request),
        top_p=top_p(request),
        max_tokens=integer(request, "max_output_tokens", 1),
        logprobs=logprobs,
        tools_allowed=chat.tools_allowed(request.get("tool_choice")),
    )


def _logprobs_wanted(request: dict[str, Any]) -> bool:
    included = request.get("include") or []
    if not isinstance(included, list):
        raise bad("include", "must be a list")
    for name in included:
        if name not in (LOGPROBS, "reasoning.encrypted_content"):  # of reasoning there is none to encrypt
            raise unsupported("include", name, (LOGPROBS,), "Leave it out")
    return LOGPROBS in included


def _for_provider(request: dict[str, Any], logprobs: bool) -> dict[str, Any]:
    """The parameters in the Chat Completions spelling."""
    if logprobs:
        raise unsupported("include", LOGPROBS, (), "A turn keeps no logprobs of a provider")
    params: dict[str, Any] = {}
    for key, value in request.items():
        if key in _SAME_IN_CHAT:
            params[_SAME_IN_CHAT[key]] = value
        elif key == "tool_choice":
            named = isinstance(value, dict) and value.get("type") == "function"
            params[key] = {"type": "function", "function": {"name": value.get("name")}} if named else value
        elif key == "reasoning" and isinstance(value, dict) and value.keys() <= {"effort", "summary"}:
            if value.get("effort"):
                params["reasoning_effort"] = value["effort"]
        elif key == "text" and isinstance(value, dict) and value.keys() <= {"format", "verbosity"}:
            params |= _text_for_provider(value)
        else:
            check_known({key: value}, _HONOURED, NEUTRAL)
    return params


def _text_for_provider(text: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if text.get("verbosity"):
        params["verbosity"] = text["verbosity"]
    form = text.get("format") or {"type": "text"}
    if not isinstance(form, dict):
        raise bad("text.format", "must be an object")
    if form.get("type") == "json_schema":
        schema = {key: value for key, value in form.items() if key != "type"}
        params["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form.get("type") != "text":
        params["response_format"] = form
    return params


def _tools(tools: Any) -> list[ToolSchema]:
    if not isinstance(tools or [], list):
        raise bad("tools", "must be a list")
    return [_tool(tool, f"tools[{position}]") for position, tool in enumerate(tools or [])]


def _tool(tool: Any, place: str) -> ToolSchema:
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise bad(
            place, f'must be {{"type": "function", "name": ..., "parameters": ...}}, got {str(kind)[:80]!r}'
        )
    kept = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {k: tool[k] for k in kept if tool.get(k) is not None}}


# --- items to messages


def _items(items: Any, *, text_only: bool) -> list[Message]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise bad("input", "must be a text or a list of at least one item")
    reader = _ItemReader(text_only)
    try:
        for position, item in enumerate(items):
            reader.read(item, f"input[{position}]")
    except BadMessageError as error:
        raise bad_message(error) from error
    return reader.messages


class _ItemReader:
    """Items, one after the other, to messages: what one answer was is one assistant message again."""

    def __init__(self, text_only: bool) -> None:
        self.messages: list[Message] = []
        self._text_only = text_only
        self._reasoning: str | None = None

    def read(self, item: Any, place: str) -> None:
        if not isinstance(item, dict):
            raise BadMessageError(place, "an item is an object")
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "message":
            self._add({**item, "content": self._content(item.get("content"), place)}, place)
        elif kind == "function_call":
            self._add_call(item, place)
        elif kind == "function_call_output":
            output = self._content(item.get("output"), place, field="output")
            self._add({"role": "tool", "tool_call_id": item.get("call_id"), "content": output}, place)
        elif kind == "reasoning":
            self._reasoning = (self._reasoning or "") + _reasoning_text(item)
        else:
            way_out = "Send message, reasoning, function_call and function_call_output items"
            raise BadMessageError(place, f"items of type {kind!r} are not supported. {way_out}")

    def _add(self, raw: Message, place: str) -> None:
        known = ("role", "content", "name", "tool_call_id", "tool_calls")
        kept = {key: raw[key] for key in known if raw.get(key) is not None}
        if self._reasoning and kept.get("role") == "assistant":
            kept["reasoning_content"] = self._reasoning
        self._reasoning = None
        self.messages.append(canonical(kept, place, text_only=self._text_only))

    def _add_call(self, item: dict[str, Any], place: str) -> None:
        call = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": item.get("arguments")},
        }
        if self.messages and self.messages[-1]["role"] == "assistant" and not self._reasoning:
            [read] = canonical({"role": "assistant", "tool_calls": [call]}, place, text_only=True)[
                "tool_calls"
            ]
            self.messages[-1].setdefault("tool_calls", []).append(read)
        else:
            self._add({"role": "assistant", "tool_calls": [call]}, place)

    def _content(self, content: Any, place: str, field: str = "content") -> Any:
        """The text; for a provider, parts that are no text in the Chat Completions spelling."""
        if not isinstance(content, list):
            return content
        parts = [self._part(part, f"{place}.{field}[{i}]") for i, part in enumerate(content)]
        if all(part["type"] == "text" for part in parts):
            return "".join(part["text"] for part in parts)
        return parts

    def _part(self, part: Any, place: str) -> dict[str, Any]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("input_text", "output_text", "text", "refusal"):
            text = part.get("refusal" if kind == "refusal" else "text")
            if isinstance(text, str):
                return {"type": "text", "text": text}
        if kind == "input_image" and not self._text_only and isinstance(part.get("image_url"), str):
            return {"type": "image_url", "image_url": {"url": part["image_url"]}}
        raise BadMessageError(
            place,
            f"a part of type {kind!r} is not supported{' by the policy' if self._text_only else ''}. "
            'Send {"type": "input_text", "text": "..."}',
        )


def _reasoning_text(item: dict[str, Any]) -> str:
    parts = [part for key in ("summary", "content") if isinstance(item.get(key), list) for part in item[key]]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


# --- a reply to items


def plain(call_id: str, call: ModelCall, replies: Sequence[Reply]) -> bytes:
    """The whole answer as one JSON object."""
    [reply] = replies
    items = _output(call_id, reply)
    return orjson.dumps(_response(call_id, call, int(time.time()), reply, items))


def _output(call_id: str, reply: Reply) -> list[dict[str, Any]]:
    response = reply.turn.response
    name = call_id.removeprefix(ID_PREFIX)
    items: list[dict[str, Any]] = []
    if reasoning := response.get("reasoning_content"):
        items.append(_reasoning_item(name, str(reasoning)))
    calls = response.get("tool_calls") or []
    if response["content"] or not calls:
        items.append(_message_item(name, response["content"], reply))
    items += [_call_item(name, position, call) for position, call in enumerate(calls)]
    return items


def _reasoning_item(name: str, text: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}]
    return {"id": f"rs_{name}", "type": "reasoning", "summary": summary}


def _message_item(name: str, text: Any, reply: Reply | None, status: str = "completed") -> dict[str, Any]:
    pairs = reply.token_logprobs if reply else None
    part = {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": chat.token_logprobs(pairs) if pairs else [],
    }
    content = [part] if reply else []
    return {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": status, "content": content}


def _call_item(name: str, position: int, call: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    function = call["function"]
    return {
        "id": f"fc_{name}_{position}",
        "type": "function_call",
        "call_id": call["id"],
        "name": function["name"],
        "arguments": function["arguments"],
        "status": status,
    }


def _response(
    call_id: str, call: ModelCall, created: int, reply: Reply | None, items: list[dict[str, Any]]
) -> dict[str, Any]:
    """The response object; without a reply, as it stands at the beginning of a stream."""
    turn = reply.turn if reply else None
    cut_short = turn is not None and turn.finish_reason == "length"
    return {
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "instructions": None,
        "metadata": {},
        "truncation": "disabled",
        **call.echoed,
        "id": call_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress" if turn is None else "incomplete" if cut_short else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut_short else None,
        "model": MODEL if turn is None else turn.model,
        "output": items,
        "usage": None if turn is None else _usage(turn),
    }


def _usage(turn: Turn) -> dict[str, Any]:
    return {
        "input_tokens": turn.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": turn.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": turn.prompt_tokens + turn.completion_tokens,
    }


def events(call_id: str, call: ModelCall) -> EventStream:
    return EventStream(call_id, call)


class EventStream:
    """created, in_progress; per item added, deltas, done; completed or incomplete."""

    def __init__(self, call_id: str, call: ModelCall) -> None:
        self._call_id = call_id
        self._name = call_id.removeprefix(ID_PREFIX)
        self._call = call
        self._created = int(time.time())
        self._number = 0
        self._sent = ""
        self._message_at: int | None = None  # output_index of the message, once it has begun

    def start(self) -> bytes:
        response = _response(self._call_id, self._call, self._created, None, [])
        opening = [self._event(f"response.{kind}", response=response) for kind in ("created", "in_progress")]
        return b"".join(opening)

    def text(self, index: int, delta: str) -> bytes:
        opening = b"" if self._message_at is not None else self._open_message(0)
        return opening + self._delta(delta)

    def finish(self, replies: Sequence[Reply]) -> bytes:
        [reply] = replies
        items = _output(self._call_id, reply)
        if self._message_at == 0 and items[0]["type"] == "reasoning":
            items.insert(0, items.pop(1))  # the text went out first
        parts = [self._item(position, item) for position, item in enumerate(items)]
        response = _response(self._call_id, self._call, self._created, reply, items)
        parts.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(parts)

    def error(self, refusal: Refusal) -> bytes:
        # "error" inside is what makes the official client raise; the rest is the documented event.
        inside = openai_error(refusal)
        fields = {"code": refusal.code, "message": str(refusal), "param": refusal.param, "error": inside}
        return self._event("error", **fields)

    def _item(self, position: int, item: dict[str, Any]) -> bytes:
        """All events of an item that have not been sent yet."""
        if item["type"] == "message":
            return self._whole_message(position, item)
        if item["type"] == "function_call":
            started = {**item, "arguments": "", "status": "in_progress"}
            arguments = item["arguments"]
            where = {"item_id": item["id"], "output_index": position}
            between = self._event("response.function_call_arguments.delta", **where, delta=arguments)
            between += self._event(
                "response.function_call_arguments.done", **where, arguments=arguments, name=item["name"]
            )
        else:
            started, between = {**item, "summary": []}, self._summary(position, item)
        added = self._event("response.output_item.added", output_index=position, item=started)
        return added + between + self._event("response.output_item.done", output_index=position, item=item)

    def _summary(self, position: int, item: dict[str, Any]) -> bytes:
        [part] = item["summary"]
        where = {"item_id": item["id"], "output_index": position, "summary_index": 0}
        kind = "response.reasoning_summary"
        return b"".join(
            [
                self._event(f"{kind}_part.added", **where, part={"type": "summary_text", "text": ""}),
                self._event(f"{kind}_text.delta", **where, delta=part["text"]),
                self._event(f"{kind}_text.done", **where, text=part["text"]),
                self._event(f"{kind}_part.done", **where, part=part),
            ]
        )

    def _open_message(self, position: int) -> bytes:
        self._message_at = position
        item = _message_item(self._name, "", None, "in_progress")
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        added = self._event("response.output_item.added", output_index=position, item=item)
        return added + self._event("response.content_part.added", **self._where(), part=part)

    def _delta(self, delta: str) -> bytes:
        self._sent += delta
        return self._event("response.output_text.delta", **self._where(), delta=delta, logprobs=[])

    def _whole_message(self, position: int, item: dict[str, Any]) -> bytes:
        [part] = item["content"]
        parts = [b"" if self._message_at is not None else self._open_message(position)]
        if rest := chat.unsent(part["text"], self._sent):
            parts.append(self._delta(rest))
        logprobs = part["logprobs"]
        where = self._where()
        parts.append(self._event("response.output_text.done", **where, text=part["text"], logprobs=logprobs))
        parts.append(self._event("response.content_part.done", **where, part=part))
        parts.append(self._event("response.output_item.done", output_index=position, item=item))
        return b"".join(parts)

    def _where(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self._name}", "output_index": self._message_at, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


error_body = chat.error_body


def counted(num_tokens: int) -> bytes:
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": num_tokens})
