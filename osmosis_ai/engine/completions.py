"""Generated text to an OpenAI assistant message: nothing that the policy wrote is lost or repaired."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

CALL_START = "<tool_call>"
CALL_END = "</tool_call>"

_NAME = re.compile(r'"name"\s*:\s*"([^"\\\s]+)"')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """One tool call of a completion; `arguments` is a JSON object as text, unless the call was malformed."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """An assistant message: the text outside of calls (None if there is none) and the calls."""

    content: str | None
    tool_calls: list[ParsedToolCall] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)  # a reason per malformed call


class _Malformed(Exception):
    """The body of a call is not `{"name": ..., "arguments": {...}}`; the text says what is wrong with it."""


def parse_completion(text: str) -> ParsedCompletion:
    """Cut `text` (a completion without its end token) into content and tool calls. Never raises.

    A malformed call is data: it gets a reason in `malformed`. With a readable name it is delivered as a call
    whose raw text is no JSON object, so the framework answers with an error and cannot run it by accident;
    without a name it stays in the content as it was written.

    'Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
        -> content "Sure. ", tool_calls [add '{"a": 1}'], malformed []
    '<tool_call>{"name": "add", "arguments": {"a": 1,}}</tool_call>'
        -> content None, tool_calls [add '{"a": 1,}'], malformed ["not JSON: ..."]
    '<tool_call>add 1 2</tool_call>'
        -> content '<tool_call>add 1 2</tool_call>', tool_calls [], malformed ["not JSON: ..."]
    """
    content: list[str] = []
    calls: list[ParsedToolCall] = []
    malformed: list[str] = []
    position = 0
    while (start := text.find(CALL_START, position)) >= 0:
        content.append(text[position:start])
        body, position, closed = _block(text, start + len(CALL_START))
        try:
            if not closed:
                raise _Malformed(f"not closed by {CALL_END}")
            calls.append(_well_formed(body))
        except _Malformed as problem:
            malformed.append(str(problem))
            block = text[start:position]
            recovered = _recover(body, block)
            if recovered is None:
                content.append(block)
            else:
                calls.append(recovered)
    content.append(text[position:])
    joined = "".join(content)
    return ParsedCompletion(
        None if not joined.strip() and (calls or not joined) else joined, calls, malformed
    )


def _block(text: str, start: int) -> tuple[str, int, bool]:
    """The body that begins at `start`, the position after its block, and whether the block was closed.

    A new call before the end of this one means that this one was never closed.
    """
    end = text.find(CALL_END, start)
    following = text.find(CALL_START, start)
    if end >= 0 and (following < 0 or end < following):
        return text[start:end], end + len(CALL_END), True
    stop = following if following >= 0 else len(text)
    return text[start:stop], stop, False


def _well_formed(body: str) -> ParsedToolCall:
    call = _load(body)
    if not isinstance(call, dict):
        raise _Malformed(f"not a JSON object but {_kind(call)}")
    name = call.get("name")
    if not isinstance(name, str) or not name.strip():
        raise _Malformed("no name" if name is None else f"the name is not a text: {_kind(name)}")
    if not _encodable(name):
        raise _Malformed("the name is not valid unicode")
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):  # some models write the object as text, as the OpenAI wire format does
        if not _is_object(arguments):
            raise _Malformed("the arguments are a text that is no JSON object")
        return ParsedToolCall(name, arguments)
    if not isinstance(arguments, dict):
        raise _Malformed(f"the arguments are not a JSON object but {_kind(arguments)}")
    return ParsedToolCall(name, _dump(arguments))


def _recover(body: str, block: str) -> ParsedToolCall | None:
    """A malformed call by its readable name, with argument text that is never a JSON object."""
    found = _NAME.search(body)
    if found is None or not _encodable(found.group(1)):
        return None
    raw = ""
    if (arguments := _ARGUMENTS.search(body)) is not None:
        raw = body[arguments.end() :].strip().removesuffix("}").rstrip()
    # Empty or whole arguments would run; then the raw text is the block itself, which is no JSON.
    return ParsedToolCall(found.group(1), block if not raw or _is_object(raw) else raw)


def _load(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"not JSON: {error}") from None


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON value")


def _is_object(text: str) -> bool:
    try:
        return isinstance(_load(text), dict)
    except _Malformed:
        return False


def _dump(value: Any) -> str:
    """The spacing that the chat template writes; escaped where the text has halves of surrogate pairs."""
    text = json.dumps(value, ensure_ascii=False)
    return text if _encodable(text) else json.dumps(value)


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "null")
