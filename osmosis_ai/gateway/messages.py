"""Messages in canonical form, and when two of them are the same.

Agents send back what they were given, in their own spelling: a text as a list of text parts, null for an
empty text, arguments of a tool call parsed and written again. None of this is an edit. Two messages are the
same when these are equal: role, text, name, tool_call_id, and the tool calls by id, name and arguments,
where arguments are compared as JSON values (key order and spacing mean nothing, 1.0 is 1, but true is not
1).

Three kinds of fields:
- compared, recorded and rendered: role, content, name, tool_calls, tool_call_id;
- `KEPT` (a model's reasoning and a client's own notes): recorded, but neither compared nor shown to the
  policy, because agents drop and rewrite them at will and the policy has never seen them as tokens;
- any other: refused for the policy, which could not read it; passed on to a provider.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import orjson

from osmosis_ai.types import Message

ROLES = ("system", "developer", "user", "assistant", "tool")
KEPT = frozenset(
    {
        "reasoning_content",
        "reasoning",
        "thinking_blocks",
        "provider_specific_fields",
        "annotations",
        "refusal",
        "is_error",
    }
)
_KNOWN = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
_EMPTY: tuple[Any, ...] = (None, "", [], {})


class BadMessageError(ValueError):
    """A message that cannot be used; `param` is its place in the request."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


def canonical(raw: Any, place: str, *, text_only: bool) -> Message:
    """The message as it is recorded. `place` names it in errors; `text_only` holds for the policy.

    {"role": "user", "content": [{"type": "text", "text": "2 times "}, {"type": "text", "text": "3?"}]}
        -> {"role": "user", "content": "2 times 3?"}
    """
    if not isinstance(raw, dict):
        raise BadMessageError(place, f"a message is an object, got {_shown(raw)}")
    role = raw.get("role")
    if role not in ROLES:
        raise BadMessageError(f"{place}.role", f"must be one of {', '.join(ROLES)}, got {_shown(role)}")
    message: Message = {"role": role, "content": _content(raw.get("content"), f"{place}.content", text_only)}
    if role == "tool":
        message["tool_call_id"] = _text(raw.get("tool_call_id"), f"{place}.tool_call_id")
    if raw.get("tool_calls"):
        if role != "assistant":
            raise BadMessageError(f"{place}.tool_calls", f"only an assistant calls tools, this is {role!r}")
        message["tool_calls"] = _tool_calls(raw["tool_calls"], f"{place}.tool_calls")
    if raw.get("name") is not None:
        message["name"] = _text(raw["name"], f"{place}.name")
    if raw.keys() - _KNOWN:
        _other_fields(raw, message, place, text_only)
    return message


def _other_fields(raw: Message, message: Message, place: str, text_only: bool) -> None:
    for key, value in raw.items():
        if key in _KNOWN or value in _EMPTY:
            continue
        if key in KEPT or not text_only:
            message[key] = value
        elif key == "function_call":
            raise BadMessageError(f"{place}.{key}", "is not supported; send tool_calls")
        else:
            raise BadMessageError(
                f"{place}.{key}",
                f"is not supported: the policy reads {', '.join(sorted(_KNOWN))}. Leave it out",
            )


def _content(content: Any, place: str, text_only: bool) -> Any:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadMessageError(place, f"must be a text or a list of parts, got {_shown(content)}")
    texts = []
    for position, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif text_only:
            raise BadMessageError(
                f"{place}[{position}]",
                f"the policy reads text only, got a part of type {_shown(kind)}. "
                'Send {"type": "text", "text": "..."}',
            )
        else:
            return content
    return "".join(texts)


def _tool_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise BadMessageError(place, f"must be a list, got {_shown(calls)}")
    return [_tool_call(call, f"{place}[{position}]") for position, call in enumerate(calls)]


def _tool_call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise BadMessageError(place, 'must be {"id", "type": "function", "function": {"name", "arguments"}}')
    arguments = function.get("arguments")
    if arguments is None:
        arguments = ""
    elif isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": _text(call.get("id"), f"{place}.id"),
        "type": "function",
        "function": {
            "name": _text(function.get("name"), f"{place}.function.name"),
            "arguments": _text(arguments, f"{place}.function.arguments"),
        },
    }


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise BadMessageError(place, f"must be a text, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def fingerprint(message: Message) -> bytes:
    """Equal for two canonical messages exactly if they are the same (module docstring)."""
    calls = [
        [call["id"], call["function"]["name"], comparable_arguments(call["function"]["arguments"])]
        for call in message.get("tool_calls") or ()
    ]
    compared = [message["role"], message["content"], message.get("name"), message.get("tool_call_id"), calls]
    return blake2b(orjson.dumps(compared, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def extend_chain(chain: bytes, message_fingerprint: bytes) -> bytes:
    """The fingerprint of a conversation from that of all but its last message; b"" is the empty one."""
    return blake2b(chain + message_fingerprint, digest_size=16).digest()


def fingerprints_of_response(response: Message) -> list[bytes]:
    """How agents may send a recorded answer back: as it was, and with unreadable arguments replaced by {}.

    Arguments that are no JSON object cannot be kept by a framework that parses them (Strands sends `{}`
    instead); the call's id still says that it is the same call.
    """
    found = [fingerprint(response)]
    calls = response.get("tool_calls") or []
    if any(read_arguments(call["function"]["arguments"]) is None for call in calls):
        mended = [
            {**call, "function": {**call["function"], "arguments": "{}"}}
            if read_arguments(call["function"]["arguments"]) is None
            else call
            for call in calls
        ]
        found.append(fingerprint({**response, "tool_calls": mended}))
    return found


def read_arguments(text: str) -> dict[str, Any] | None:
    """The JSON object that the arguments of a tool call are; None if they are none."""
    try:
        # Not orjson: it reads integers beyond 64 bits as floats, and two different ones would be the same.
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def comparable_arguments(text: str) -> str:
    """A text that is equal for equal arguments.

    '{"b": 1.0, "a": true}' -> 'J{"a":true,"b":1}';  'not json' -> 'Tnot json'
    """
    value = read_arguments(text)
    if value is None:
        return "T" + text
    try:
        return "J" + json.dumps(_integral(value), sort_keys=True, separators=(",", ":"))
    except RecursionError:  # hundreds of lists in one another
        return "T" + text


def _integral(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_integral(item) for item in value]
    return value


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
