"""What is wrong with an agent loop, all at once, before a rollout finds out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from osmosis_ai.errors import UsageError
from osmosis_ai.rollout.core.schemas import RolloutRequest

FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")  # what OpenAI-compatible endpoints take


@dataclass(frozen=True, slots=True)
class ValidationError:
    """One finding: a code that stays, a message for the person, and where."""

    code: str
    message: str
    field: str | None = None  # such as "tools[0].function.name"

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(slots=True)
class ValidationResult:
    """True when nothing is wrong; warnings are not."""

    errors: list[ValidationError] = field(default_factory=list)
    warnings: list[ValidationError] = field(default_factory=list)
    agent_name: str | None = None
    tool_count: int = 0

    @property
    def valid(self) -> bool:
        return not self.errors

    def __bool__(self) -> bool:
        return self.valid

    def raise_if_invalid(self) -> None:
        """Raise AgentLoopValidationError with every error."""
        if self.errors:
            raise AgentLoopValidationError(self)


class AgentLoopValidationError(UsageError):
    """An agent loop cannot be served; `result` has all findings."""

    def __init__(self, result: ValidationResult) -> None:
        name = result.agent_name or "(no name)"
        super().__init__("\n".join([f"agent loop {name} is not valid:", *map(str, result.errors)]))
        self.result = result
        self.errors = result.errors


WARNINGS = frozenset({"UNKNOWN_TOOL_TYPE", "MISSING_FUNCTION_DESCRIPTION", "PARAMETERS_TYPE_NOT_OBJECT"})
Findings = Iterator[ValidationError]


def validate_agent_loop(loop: Any, request: RolloutRequest | None = None) -> ValidationResult:
    """Check name, `get_tools` (for `request`, or for one about nothing) and `run`."""
    name = getattr(loop, "name", None)
    result = ValidationResult(agent_name=name if isinstance(name, str) else None)
    findings = [*_name(loop), *_run(loop)]
    tools, problems = _tools_of(loop, request)
    findings += problems
    result.tool_count = len(tools)
    for position, tool in enumerate(tools):
        findings += _tool(tool, f"tools[{position}]")
    for finding in findings:
        (result.warnings if finding.code in WARNINGS else result.errors).append(finding)
    return result


def _name(loop: Any) -> Findings:
    name = getattr(loop, "name", None)
    if name is None:
        yield ValidationError("MISSING_NAME", 'it has no name: name = "my_agent" in the class body', "name")
    elif not isinstance(name, str):
        yield ValidationError("INVALID_NAME_TYPE", f"name must be a text, got {name!r}", "name")
    elif not name.strip():
        yield ValidationError("EMPTY_NAME", f"name must not be empty, got {name!r}", "name")


def _run(loop: Any) -> Findings:
    run = getattr(loop, "run", None)
    if run is None or getattr(run, "__isabstractmethod__", False):
        yield ValidationError("MISSING_RUN_METHOD", "it has no run(ctx)", "run")
    elif not callable(run):
        yield ValidationError("RUN_NOT_CALLABLE", f"run must be a method, got {run!r}", "run")
    elif not inspect.iscoroutinefunction(run):
        yield ValidationError("RUN_NOT_ASYNC", "run must be `async def run(self, ctx)`", "run")


def _tools_of(loop: Any, request: RolloutRequest | None) -> tuple[list[Any], list[ValidationError]]:
    try:
        tools = loop.get_default_tools() if request is None else loop.get_tools(request)
    # The boundary to the author's get_tools: whatever it raises is a finding.
    except Exception as error:
        message = f"get_tools raised {type(error).__name__}: {error}"
        return [], [ValidationError("GET_TOOLS_EXCEPTION", message, "get_tools")]
    if tools is None:
        message = "get_tools returned None; return a list, [] when there are no tools"
        return [], [ValidationError("GET_TOOLS_RETURNS_NONE", message, "get_tools")]
    if not isinstance(tools, list):
        if inspect.iscoroutine(tools):
            tools.close()
        message = f"get_tools must return a list, got {type(tools).__name__}; it is no `async def`"
        return [], [ValidationError("GET_TOOLS_INVALID_TYPE", message, "get_tools")]
    return tools, []


def _tool(tool: Any, where: str) -> Findings:
    plain = tool.model_dump(mode="json") if isinstance(tool, BaseModel) else tool
    if not isinstance(plain, dict):
        message = f"{where} must be a dict or an OpenAIFunctionToolSchema, got {tool!r}"
        yield ValidationError("INVALID_TOOL_TYPE", message, where)
        return
    kind = plain.get("type")
    if kind is None:
        yield ValidationError("MISSING_TOOL_TYPE", f'{where} has no "type": "function"', f"{where}.type")
    elif kind != "function":
        yield ValidationError("UNKNOWN_TOOL_TYPE", f"{where} has type {kind!r}", f"{where}.type")
    function = plain.get("function")
    if function is None:
        yield ValidationError("MISSING_FUNCTION", f'{where} has no "function"', f"{where}.function")
    elif not isinstance(function, dict):
        message = f"{where}.function must be a dict, got {function!r}"
        yield ValidationError("INVALID_FUNCTION_TYPE", message, f"{where}.function")
    else:
        yield from _function(function, f"{where}.function")


def _function(function: dict[str, Any], where: str) -> Findings:
    name = function.get("name")
    if name is None:
        yield ValidationError("MISSING_FUNCTION_NAME", f'{where} has no "name"', f"{where}.name")
    elif not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        message = f"{where}.name must be 1 to 64 letters, digits, _ or -, no digit first; got {name!r}"
        yield ValidationError("INVALID_FUNCTION_NAME", message, f"{where}.name")
    if not function.get("description"):
        message = f"{where} ({name}) has no description: the model chooses tools by it"
        yield ValidationError("MISSING_FUNCTION_DESCRIPTION", message, f"{where}.description")
    parameters = function.get("parameters")
    if parameters is None:
        return
    if not isinstance(parameters, dict):
        message = f"{where}.parameters must be a JSON schema, got {parameters!r}"
        yield ValidationError("INVALID_PARAMETERS_TYPE", message, f"{where}.parameters")
    elif parameters.get("type") != "object":
        message = f'{where}.parameters has type {parameters.get("type")!r}, models expect "object"'
        yield ValidationError("PARAMETERS_TYPE_NOT_OBJECT", message, f"{where}.parameters.type")
