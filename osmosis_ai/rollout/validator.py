"""What is wrong with an agent loop or a workflow, all at once, before a rollout finds out."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

from osmosis_ai.errors import OsmosisError, UsageError
from osmosis_ai.rollout.agent_loop_grader import AgentLoopGrader
from osmosis_ai.rollout.agent_loop_workflow import AgentLoopConfig, as_workflow
from osmosis_ai.rollout.config.workflow import AgentWorkflowConfig, GraderConfig
from osmosis_ai.rollout.core.schemas import RolloutRequest
from osmosis_ai.rollout.discovery import Entrypoint, Scan, merge_overrides, scan_entrypoint
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.workflow import AgentWorkflow

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
    kind: str = "agent loop"  # or "workflow"
    found: dict[str, str] = field(default_factory=dict)  # what the entrypoint defines, by its name there

    @property
    def valid(self) -> bool:
        return not self.errors

    def __bool__(self) -> bool:
        return self.valid

    @property
    def resolved_agent_name(self) -> str | None:
        return self.agent_name

    def lines(self, *, verbose: bool = False) -> list[str]:
        """For a person: one line a finding, and what is there when nothing is wrong."""
        lines = [f"error   {finding}" for finding in self.errors]
        lines += [f"warning {finding}" for finding in self.warnings]
        if self.valid:
            lines.append(f"{self.kind.capitalize()} '{self.agent_name}' validated successfully.")
            if self.kind == "agent loop":
                lines.append(f"  - Tools: {self.tool_count}")
            lines += [f"  - {name}: {value}" for name, value in self.found.items()] if verbose else []
        return lines

    def raise_if_invalid(self) -> None:
        """Raise AgentLoopValidationError with every error."""
        if self.errors:
            raise AgentLoopValidationError(self)


class AgentLoopValidationError(UsageError):
    """An agent loop or a workflow cannot be served; `result` has all findings."""

    def __init__(self, result: ValidationResult) -> None:
        name = result.agent_name or "(no name)"
        super().__init__("\n".join([f"{result.kind} {name} is not valid:", *map(str, result.errors)]))
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
    # The boundary to the author's get_tools: whatever it raises is a finding, sys.exit() too.
    except (Exception, SystemExit) as error:
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


# --- workflows ---------------------------------------------------------------------------------------

MAX_NAME = 256  # characters of an agent's name
T = TypeVar("T")


def validate_backend(
    workflow_cls: Any,
    workflow_config: AgentWorkflowConfig | None = None,
    grader_cls: Any = None,
    grader_config: GraderConfig | None = None,
) -> ValidationResult:
    """Check a workflow and its grader, as a LocalBackend would be given them."""
    name = getattr(workflow_config, "name", None) or getattr(workflow_cls, "__name__", None)
    result = ValidationResult(agent_name=name if isinstance(name, str) else None, kind="workflow")
    if not isinstance(name, str) or not 1 <= len(name.strip()) <= MAX_NAME:
        message = f"the name must have 1 to {MAX_NAME} characters, got {name!r}"
        result.errors.append(ValidationError("INVALID_AGENT_NAME", message, "workflow_config.name"))
    result.errors += _class(workflow_cls, AgentWorkflow, "WORKFLOW", "run", workflow_config)
    if grader_cls is None:
        message = "there is no Grader: define one class that subclasses osmosis_ai.rollout.Grader"
        result.errors.append(ValidationError("MISSING_GRADER", message, "grader"))
    else:
        result.errors += _class(grader_cls, Grader, "GRADER", "grade", grader_config)
    return result


def _class(cls: Any, base: type[Any], code: str, method: str, config: Any) -> Findings:
    """`code` is WORKFLOW or GRADER, `method` what must be asynchronous there."""
    what = code.lower()
    make: Any = cls
    if not inspect.isclass(cls) or not issubclass(cls, base):
        yield ValidationError(f"INVALID_{code}_CLASS", f"{cls!r} is no subclass of {base.__name__}", what)
        return
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(make.__abstractmethods__))
        message = f"{cls.__name__} is abstract: implement {missing}"
        yield ValidationError(f"INVALID_{code}_CLASS", message, what)
        return
    if not inspect.iscoroutinefunction(getattr(cls, method)):
        message = f"{cls.__name__}.{method} must be `async def {method}(self, ctx)`"
        yield ValidationError(f"{code}_{method.upper()}_NOT_ASYNC", message, f"{what}.{method}")
    try:
        make(copy.deepcopy(config))
    # The boundary to the author's __init__: whatever it raises is a finding, sys.exit() too.
    except (Exception, SystemExit) as error:
        message = f"{cls.__name__}.__init__ raised {type(error).__name__}: {error}"
        yield ValidationError(f"{code}_INIT_FAILED", message, what)


# --- entrypoints -------------------------------------------------------------------------------------


def validate_entrypoint(
    entrypoint: str,
    *,
    workflow: str | None = None,
    grader: str | None = None,
    workflow_overrides: Mapping[str, Any] | None = None,
) -> tuple[ValidationResult, Entrypoint | None]:
    """Import `entrypoint` and check all that it defines; what can be run of it, when nothing is wrong."""
    try:
        scan = scan_entrypoint(entrypoint)
    except OsmosisError as error:
        failed = ValidationError("IMPORT_FAILED", str(error), "entrypoint")
        return ValidationResult([failed], kind="entrypoint"), None
    problems: list[ValidationError] = []
    config: AgentWorkflowConfig | None
    chosen: type[AgentWorkflow[Any]] | None
    with_grader = _or_finding(problems, "GRADER_NOT_FOUND", lambda: scan.grader(grader))
    grader_config = _or_finding(
        problems, "CONFIG_NOT_FOUND", lambda: scan.only(GraderConfig, "grader config")
    )
    found_before = len(problems)
    loop = _or_finding(problems, "WORKFLOW_NOT_FOUND", lambda: scan.agent_loop(workflow))
    if loop is not None:
        result, chosen = validate_agent_loop(loop), as_workflow(loop)
        config = _or_finding(problems, "CONFIG_NOT_FOUND", lambda: scan.only(AgentLoopConfig, "loop config"))
        with_grader = with_grader or AgentLoopGrader
    elif len(problems) > found_before:
        return ValidationResult(problems, kind="entrypoint"), None
    else:
        chosen, config, result = _workflow_of(scan, workflow, with_grader, grader_config, problems)
    if workflow_overrides and chosen is not None:
        made = config or scan.new_config(chosen)
        config = _or_finding(problems, "INVALID_CONFIG", lambda: merge_overrides(made, workflow_overrides))
    result.errors[:0] = problems
    if chosen is None or not result.valid:
        return result, None
    result.found = _names(chosen, config, with_grader)
    return result, Entrypoint(chosen, config, with_grader, grader_config)


def _workflow_of(
    scan: Scan,
    named: str | None,
    grader: type[Grader[Any]] | None,
    grader_config: GraderConfig | None,
    problems: list[ValidationError],
) -> tuple[type[AgentWorkflow[Any]] | None, AgentWorkflowConfig | None, ValidationResult]:
    config = _or_finding(
        problems, "CONFIG_NOT_FOUND", lambda: scan.only(AgentWorkflowConfig, "workflow config")
    )
    chosen = _or_finding(
        problems, "WORKFLOW_NOT_FOUND", lambda: scan.the_class(AgentWorkflow, named, "workflow")
    )
    if chosen is None:
        return None, config, ValidationResult(kind="workflow")
    ambiguous = any(finding.code == "GRADER_NOT_FOUND" for finding in problems)
    result = validate_backend(chosen, config, grader, grader_config)
    result.errors = [e for e in result.errors if not (ambiguous and e.code == "MISSING_GRADER")]
    return chosen, config, result


def _or_finding(problems: list[ValidationError], code: str, look: Callable[[], T]) -> T | None:
    """What `look` finds; None, and a finding, when it raises."""
    try:
        return look()
    except OsmosisError as error:
        problems.append(ValidationError(code, str(error), "entrypoint"))
        return None


def _names(
    workflow: type[AgentWorkflow[Any]], config: AgentWorkflowConfig | None, grader: type[Grader[Any]] | None
) -> dict[str, str]:
    if grader is AgentLoopGrader:
        graded = "the reward of ctx.complete"
    else:
        graded = "none" if grader is None else grader.__name__
    return {
        "Workflow": workflow.__name__,
        "Config": "none" if config is None else type(config).__name__,
        "Grader": graded,
    }
