"""Small questions about OpenAI chat messages."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from typing import Any

Message = dict[str, Any]
_ATOMS = frozenset({str, int, float, bool, type(None)})


def copied(value: Any) -> Any:
    """`copy.deepcopy`, in a fifth of its time for what is JSON. A list that is there twice becomes two."""
    try:
        return _copied(value)
    except RecursionError:  # it holds itself
        return copy.deepcopy(value)


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {key: _copied(item) for key, item in value.items()}
    if kind is list:
        return [_copied(item) for item in value]
    return copy.deepcopy(value)


def get_message_role(message: Message) -> str:
    return str(message.get("role") or "unknown")


def get_message_content(message: Message) -> str:
    """Its text; the texts of its parts, joined, when it has several."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part if isinstance(part, str) else part.get("text") for part in content]
        return "".join(text for text in texts if isinstance(text, str))
    return "" if content is None else str(content)


def is_assistant_message(message: Message) -> bool:
    return get_message_role(message) == "assistant"


def is_tool_message(message: Message) -> bool:
    return get_message_role(message) == "tool"


def is_user_message(message: Message) -> bool:
    return get_message_role(message) == "user"


def count_messages_by_role(messages: Iterable[Message]) -> dict[str, int]:
    """[user, assistant, user] -> {"user": 2, "assistant": 1}"""
    return dict(Counter(get_message_role(message) for message in messages))


def parse_tool_calls(message: Message) -> list[dict[str, Any]]:
    """The tool calls of an assistant message; none is an empty list."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def normalize_stop(stop: str | list[str] | None) -> list[str] | None:
    """ "x" -> ["x"]; a list and None stay as they are."""
    return [stop] if isinstance(stop, str) else stop


def last_assistant_content(messages: Iterable[Message]) -> str:
    """The text of the last assistant message; "" when there is none."""
    return next((get_message_content(m) for m in reversed(list(messages)) if is_assistant_message(m)), "")
