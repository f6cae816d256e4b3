"""From an entrypoint (a file or a module) to the workflow, grader and configs that it defines."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from osmosis_ai.errors import ConfigError, EntrypointError
from osmosis_ai.rollout.agent_loop import RolloutAgentLoop
from osmosis_ai.rollout.agent_loop_grader import AgentLoopGrader, grader_with
from osmosis_ai.rollout.agent_loop_workflow import AgentLoopConfig, as_workflow
from osmosis_ai.rollout.config import AgentWorkflowConfig, GraderConfig
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.workflow import AgentWorkflow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """What an entrypoint defines, ready for `LocalBackend`."""

    workflow: type[AgentWorkflow[Any]]
    workflow_config: AgentWorkflowConfig | None = None
    grader: type[Grader[Any]] | None = None
    grader_config: GraderConfig | None = None


def load_entrypoint(
    entrypoint: str,
    *,
    workflow: str | None = None,
    grader: str | None = None,
    workflow_overrides: Mapping[str, Any] | None = None,
) -> Entrypoint:
    """Import `entrypoint` and find exactly one workflow and at most one grader and one config of each.

    Where there is no AgentWorkflow, one RolloutAgentLoop (an instance, or a class) is taken for it; its
    rewards then come from `run`, unless there is a grader. Where there is no Grader, one function with
    @osmosis_reward or @osmosis_rubric is.

    `entrypoint` is a path to a `.py` file or a dotted module; its folder (or the working directory) goes on
    sys.path. `workflow` and `grader` name an attribute of the module and settle which one when there are
    several. `workflow_overrides` (the `[workflow]` table of the TOML) are merged over the workflow's config.
    """
    scan = scan_entrypoint(entrypoint)
    return entrypoint_of(scan, workflow=workflow, grader=grader, workflow_overrides=workflow_overrides)


def entrypoint_of(
    scan: Scan,
    *,
    workflow: str | None = None,
    grader: str | None = None,
    workflow_overrides: Mapping[str, Any] | None = None,
) -> Entrypoint:
    """`load_entrypoint`, of a module that is imported."""
    loop = scan.agent_loop(workflow)
    chosen: type[AgentWorkflow[Any]]
    if loop is None:
        chosen = scan.the_class(AgentWorkflow, workflow, "workflow")
        config = scan.only(AgentWorkflowConfig, "workflow config")
    else:
        chosen = as_workflow(loop)
        config = scan.only(AgentLoopConfig, "agent loop config")
    if workflow_overrides:
        config = merge_overrides(config or scan.new_config(chosen), workflow_overrides)
    return Entrypoint(
        workflow=chosen,
        workflow_config=config,
        grader=scan.grader(grader) or (None if loop is None else AgentLoopGrader),
        grader_config=scan.only(GraderConfig, "grader config"),
    )


def load_grader(entrypoint: str, grader: str | None = None) -> tuple[type[Grader[Any]], GraderConfig | None]:
    """The one Grader of `entrypoint`, or its one function with @osmosis_reward as one; and its config."""
    return grader_of(scan_entrypoint(entrypoint), grader)


def grader_of(scan: Scan, grader: str | None = None) -> tuple[type[Grader[Any]], GraderConfig | None]:
    """`load_grader`, of a module that is imported."""
    found = scan.grader(grader)
    if found is None:
        raise EntrypointError(
            f"no Grader and no function with @osmosis_reward found in {scan.entrypoint!r}: define one of them"
        )
    return found, scan.only(GraderConfig, "grader config")


def scan_entrypoint(entrypoint: str) -> Scan:
    """Import `entrypoint`. Raises EntrypointError."""
    return Scan(entrypoint, _import(entrypoint))


def merge_overrides(config: AgentWorkflowConfig, overrides: Mapping[str, Any]) -> AgentWorkflowConfig:
    """A copy of `config` with the values of `overrides`, validated. All that is wrong is reported at once."""
    merged = config.model_copy()
    findings = []
    for key, value in overrides.items():
        try:
            setattr(merged, key, value)
        except ValidationError as error:
            findings += [
                _finding(key, issue["loc"], issue["msg"], issue["input"]) for issue in error.errors()
            ]
        except ValueError:  # a config that takes no further fields
            known = ", ".join(type(config).model_fields)
            findings.append(f"workflow.{key}: unknown key; known: {known}")
    if findings:
        raise ConfigError(findings)
    return merged


def _finding(key: str, location: tuple[int | str, ...], message: str, value: Any) -> str:
    path = ".".join(str(part) for part in location) or key
    return f"workflow.{path}: {message}, got {value!r}"


@dataclass(frozen=True, slots=True)
class Scan:
    """The variables of the entrypoint's module, imported ones too."""

    entrypoint: str
    module: ModuleType

    def the_class(self, base: type[Any], named: str | None, what: str) -> type[Any]:
        found = self.a_class(base, named, what)
        if found is not None:
            return found
        abstract = self._matching(lambda value: _is_subclass(value, base) and inspect.isabstract(value))
        hint = "".join(
            f"\n{name} is abstract: implement {', '.join(sorted(value.__abstractmethods__))}"
            for name, value in abstract.items()
        )
        raise EntrypointError(
            f"no {base.__name__} found in {self.entrypoint!r}: define one class there that subclasses "
            f"osmosis_ai.rollout.{base.__name__}{hint}"
        )

    def agent_loop(self, named: str | None) -> RolloutAgentLoop | None:
        """The one RolloutAgentLoop, when there is no AgentWorkflow; an instance before a class."""
        if named is not None:
            value = getattr(self.module, named, None)
            if not (isinstance(value, RolloutAgentLoop) or _is_subclass(value, RolloutAgentLoop)):
                return None
            return _instance(value, named)
        if self._matching(lambda value: _is_concrete(value, AgentWorkflow)):
            return None
        found = self._matching(lambda value: isinstance(value, RolloutAgentLoop)) or self._matching(
            lambda value: _is_concrete(value, RolloutAgentLoop)
        )
        if len(found) > 1:
            raise EntrypointError(
                f"{len(found)} agent loops found in {self.entrypoint!r}: {', '.join(found)}. "
                f'Keep one, or choose: workflow = "{next(iter(found))}" in [rollout]'
            )
        return next((_instance(value, name) for name, value in found.items()), None)

    def grader(self, named: str | None) -> type[Grader[Any]] | None:
        """The one Grader, or the one reward function; None when there is neither."""
        function: Any = getattr(self.module, named, None) if named else None
        if _is_reward(function):
            return grader_with(function)
        if (found := self.a_class(Grader, named, "grader")) is not None:
            return found
        functions = self._matching(_is_reward)
        if len(functions) > 1:
            raise EntrypointError(
                f"{len(functions)} functions with @osmosis_reward found in {self.entrypoint!r}: "
                f"{', '.join(functions)}. Keep one, choose with [rollout] grader = "
                f'"{next(iter(functions))}", or define a Grader that calls them'
            )
        return next((grader_with(value) for value in functions.values()), None)

    def a_class(self, base: type[Any], named: str | None, what: str) -> type[Any] | None:
        """The one concrete subclass of `base`; None when there is none."""
        if named is not None:
            return self._named(base, named, what)
        found = self._matching(lambda value: _is_concrete(value, base))
        if len(found) > 1:
            listed = ", ".join(f"{name} ({value.__module__})" for name, value in found.items())
            raise EntrypointError(
                f"{len(found)} {what}s found in {self.entrypoint!r}: {listed}. "
                f'Keep one, or choose: {what} = "{next(iter(found))}" in [rollout]'
            )
        return next(iter(found.values()), None)

    def only(self, base: type[T], what: str) -> T | None:
        """The one module-level instance of `base`; None when there is none."""
        found = self._matching(lambda value: isinstance(value, base))
        if len(found) > 1:
            raise EntrypointError(
                f"{len(found)} {what}s found in {self.entrypoint!r}: {', '.join(found)}. Keep one"
            )
        return next(iter(found.values()), None)

    def new_config(self, workflow: type[AgentWorkflow[Any]]) -> AgentWorkflowConfig:
        """A config to override where the module has no instance of one."""
        return _new_config(workflow)

    def _named(self, base: type[Any], name: str, what: str) -> type[Any]:
        value = getattr(self.module, name, None)
        if value is None:
            known = self._matching(lambda other: _is_subclass(other, base)) or ["none"]
            raise EntrypointError(f"{what} {name!r} is not in {self.entrypoint!r}; found: {', '.join(known)}")
        if not _is_subclass(value, base):
            raise EntrypointError(
                f"{what} {name!r} in {self.entrypoint!r} is no subclass of {base.__name__}: {value!r}"
            )
        if inspect.isabstract(value):
            missing = ", ".join(sorted(value.__abstractmethods__))
            raise EntrypointError(f"{what} {name!r} in {self.entrypoint!r} is abstract: implement {missing}")
        found: type[Any] = value
        return found

    def _matching(self, wanted: Callable[[Any], bool]) -> dict[str, Any]:
        """The variables that are wanted, by name; two names for one object count once."""
        found: dict[int, tuple[str, Any]] = {}
        for name, value in vars(self.module).items():
            if wanted(value):
                found.setdefault(id(value), (name, value))
        return dict(found.values())


def _is_reward(value: Any) -> bool:
    marked = hasattr(value, "osmosis_reward") or hasattr(value, "osmosis_rubric")
    return inspect.isfunction(value) and marked


def _is_subclass(value: Any, base: type[Any]) -> bool:
    return inspect.isclass(value) and issubclass(value, base) and value is not base


def _is_concrete(value: Any, base: type[Any]) -> bool:
    return _is_subclass(value, base) and not inspect.isabstract(value)


def _instance(value: Any, name: str) -> RolloutAgentLoop:
    if isinstance(value, RolloutAgentLoop):
        return value
    try:
        made: RolloutAgentLoop = value()
    # The boundary to the author's __init__; an abstract class is among what it raises.
    except Exception as error:
        raise EntrypointError(
            f"agent loop {name} cannot be made: {type(error).__name__}: {error}. "
            "Make an instance of it at module level"
        ) from error
    return made


def _new_config(workflow: type[AgentWorkflow[Any]]) -> AgentWorkflowConfig:
    """A config to override when the module has no instance: of the type that the workflow is generic over."""
    kind = next((found for base in workflow.__mro__ if (found := _config_type(base))), AgentWorkflowConfig)
    name = (
        {}
        if "name" in kind.model_fields and not kind.model_fields["name"].is_required()
        else {"name": workflow.__name__}
    )
    try:
        return kind(**name)
    except ValidationError as error:
        fields = ", ".join(str(issue["loc"][0]) for issue in error.errors())
        raise EntrypointError(
            f"[workflow] sets values of {kind.__name__}, but the entrypoint has no instance of it, and none "
            f"can be made without {fields}: define one at module level"
        ) from error


def _config_type(workflow: type[Any]) -> type[AgentWorkflowConfig] | None:
    for base in getattr(workflow, "__orig_bases__", ()):
        for argument in get_args(base):
            if inspect.isclass(argument) and issubclass(argument, AgentWorkflowConfig):
                return argument
    return None


def _import(entrypoint: str) -> ModuleType:
    is_file = entrypoint.endswith(".py") or "/" in entrypoint
    try:
        return _import_file(Path(entrypoint)) if is_file else _import_module(entrypoint)
    except EntrypointError:
        raise
    # The boundary: a module may raise anything while it is imported, SystemExit too.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise EntrypointError(_import_failure(entrypoint, error)) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise EntrypointError(f"no such entrypoint: {str(path)!r} (working directory: {Path.cwd()})")
    path = path.resolve()
    _on_path(path.parent)
    name = _free_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise EntrypointError(f"entrypoint {str(path)!r} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    _on_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise EntrypointError(
                f"no such entrypoint: there is no module {error.name!r}; write a path to a .py file, "
                "or a module that can be imported from the working directory"
            ) from error
        raise


def _on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _free_name(path: Path) -> str:
    """The file's own name, by which its neighbours import it, unless another module has that name."""
    taken = sys.modules.get(path.stem)
    if path.stem.isidentifier() and (taken is None or getattr(taken, "__file__", None) == str(path)):
        return path.stem
    return f"osmosis_entrypoint_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"


def _import_failure(entrypoint: str, error: BaseException) -> str:
    """The error, and the last line of the user's own code on the way to it."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)
    ]
    text = "".join(traceback.format_exception_only(error)).strip()
    where = f"\n  {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    return f"importing entrypoint {entrypoint!r} failed: {text}{where}"


def _is_machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen") or filename == importlib.__file__
