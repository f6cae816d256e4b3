"""Helpers for the tools of an agent loop: from a tool call to its arguments, from a value to a message."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import BaseModel

from osmosis_ai.rollout.core.exceptions import ToolArgumentError, ToolExecutionError

__all__ = [
    "ToolArgumentError",
    "ToolExecutionError",
    "create_tool_error_result",
    "create_tool_result",
    "execute_tool_calls",
    "get_tool_call_info",
    "parse_tool_arguments",
    "serialize_tool_result",
]

ToolExecutor = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def create_tool_result(tool_call_id: str, content: str) -> dict[str, str]:
    """The message that answers a tool call."""
    return {"role": "tool", "content": content, "tool_call_id": tool_call_id}


def create_tool_error_result(tool_call_id: str, error_message: str) -> dict[str, str]:
    """The message that answers a tool call which failed; the model can react to it."""
    return create_tool_result(tool_call_id, f"Error: {error_message}")


def serialize_tool_result(result: Any) -> str:
    """A tool's value as text: 4.5 -> "4.5", True -> "true", "x" -> "x", {"a": 1} -> '{"a": 1}'."""
    if isinstance(result, str):
        return result
    if isinstance(result, int | float) and not isinstance(result, bool):
        return str(result)
    return json.dumps(result, default=_jsonable, ensure_ascii=False)


def _jsonable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return str(value)


def parse_tool_arguments(
    arguments: Any, *, tool_call_id: str = "unknown", tool_name: str | None = None
) -> dict[str, Any]:
    """The arguments of a call as a dict. No text at all means no arguments. Raises ToolArgumentError."""
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    try:
        parsed = json.loads(arguments)
    except (TypeError, ValueError) as error:
        raise ToolArgumentError(f"the arguments are not JSON: {error}", tool_call_id, tool_name) from error
    if not isinstance(parsed, dict):
        raise ToolArgumentError(
            f"the arguments must be a JSON object, got {type(parsed).__name__}", tool_call_id, tool_name
        )
    return parsed


def get_tool_call_info(tool_call: Any) -> tuple[str, str, dict[str, Any]]:
    """Id, function name and arguments of a tool call.

    Raises ToolArgumentError, with the call's id in `.tool_call_id`, when they cannot be read.
    """
    call = tool_call.model_dump() if isinstance(tool_call, BaseModel) else tool_call
    tool_call_id = _id_of(call)
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not name:
        raise ToolArgumentError(f"the tool call names no function: {call!r}", tool_call_id)
    arguments = parse_tool_arguments(function.get("arguments"), tool_call_id=tool_call_id, tool_name=name)
    return tool_call_id, name, arguments


async def execute_tool_calls(
    tool_calls: Sequence[dict[str, Any]] | None, executor: ToolExecutor
) -> list[dict[str, Any]]:
    """The result of each call, run at the same time, in the order of the calls.

    An executor that raises, or returns no message, gives its own call an error result and no other.
    """
    return list(await asyncio.gather(*(_execute(call, executor) for call in tool_calls or ())))


async def _execute(call: dict[str, Any], executor: ToolExecutor) -> dict[str, Any]:
    try:
        result: Any = executor(call)
        if inspect.isawaitable(result):
            result = await result
    # The boundary to the author's tool: what it raises is told to the model, and the other calls go on.
    except Exception as error:
        tool_call_id = error.tool_call_id if isinstance(error, ToolExecutionError) else _id_of(call)
        return create_tool_error_result(tool_call_id, str(error) or type(error).__name__)
    if not isinstance(result, dict):
        return create_tool_error_result(_id_of(call), f"the tool gave no result message but {result!r}")
    return result


def _id_of(call: Any) -> str:
    found = call.get("id") if isinstance(call, dict) else getattr(call, "id", None)
    return str(found) if found else "unknown"
