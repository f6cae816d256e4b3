"""`@osmosis_reward` and `@osmosis_rubric`: reward functions with a checked signature."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar, Union

F = TypeVar("F", bound=Callable[..., Any])
Parameters = dict[str, inspect.Parameter]


def osmosis_reward(function: F) -> F:
    """Mark a reward function.

        @osmosis_reward
        def exact(solution_str: str, ground_truth: str, extra_info: dict = None, **kwargs) -> float:
            return 1.0 if solution_str == ground_truth else 0.0

    A function whose first parameter is `solution_str` must have this signature; others are not checked.
    Raises TypeError where it does not hold, and when a call returns no float. A `data_source` argument that
    the function does not take is left out.
    """
    parameters = _parameters(function)
    strict = next(iter(parameters), None) == "solution_str"
    if strict:
        _check_reward(function, parameters)
    takes_source = "data_source" in parameters or _takes_any(parameters)

    def prepare(kwargs: dict[str, Any]) -> dict[str, Any]:
        return kwargs if takes_source else {k: v for k, v in kwargs.items() if k != "data_source"}

    wrapped = _wrapped(function, prepare, check_float=strict)
    wrapped.osmosis_reward = True  # type: ignore[attr-defined]  # how an entrypoint finds it
    return wrapped


def osmosis_rubric(function: F) -> F:
    """Mark a reward function that asks a judge.

        @osmosis_rubric
        def polite(solution_str: str, ground_truth: str | None, extra_info: dict, **kwargs) -> float: ...

    Raises TypeError where the signature does not hold, when `extra_info` is missing in a call, and when a
    call returns no float.
    """
    parameters = _parameters(function)
    _check_rubric(function, parameters)
    position = list(parameters).index("extra_info")
    wrapped = _wrapped(function, lambda kwargs: kwargs, check_float=True)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("extra_info", args[position] if len(args) > position else None)
        if given is None:
            raise TypeError(f"{function.__name__}() needs extra_info")
        return wrapped(*args, **kwargs)

    checked.osmosis_rubric = True  # type: ignore[attr-defined]
    return typing.cast(F, checked)


def _wrapped(function: F, prepare: Callable[[dict[str, Any]], dict[str, Any]], *, check_float: bool) -> F:
    def checked(reward: Any) -> Any:
        if check_float and not isinstance(reward, float):
            raise TypeError(
                f"{function.__name__} must return a float, got {reward!r} ({type(reward).__name__})"
            )
        return reward

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return checked(await function(*args, **prepare(kwargs)))

        return typing.cast(F, call_async)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return checked(function(*args, **prepare(kwargs)))

    return typing.cast(F, call)


def _parameters(function: Callable[..., Any]) -> Parameters:
    """The parameters with their annotations as types, where these can be resolved."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # annotated with a name that exists for type checkers only
        hints = {}
    return {
        name: parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in inspect.signature(function).parameters.items()
    }


def _takes_any(parameters: Parameters) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def _check_reward(function: Callable[..., Any], parameters: Parameters) -> None:
    way_out = f"{function.__name__}(solution_str: str, ground_truth: str, extra_info: dict = None, **kwargs)"
    names = [name for name, p in parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    if names[:3] != ["solution_str", "ground_truth", "extra_info"]:
        raise TypeError(f"@osmosis_reward: write {way_out}, got the parameters {', '.join(names)}")
    for name in ("solution_str", "ground_truth"):
        if parameters[name].annotation is not str:
            raise TypeError(f"@osmosis_reward: {name} must be annotated as str: {way_out}")
    if not _is_dict(parameters["extra_info"].annotation):
        raise TypeError(f"@osmosis_reward: extra_info must be annotated as dict: {way_out}")
    if parameters["extra_info"].default is inspect.Parameter.empty:
        raise TypeError(f"@osmosis_reward: extra_info must have a default: {way_out}")


def _check_rubric(function: Callable[..., Any], parameters: Parameters) -> None:
    way_out = f"{function.__name__}(solution_str: str, ground_truth: str | None, extra_info: dict, **kwargs)"
    names = list(parameters)
    if names[:3] != ["solution_str", "ground_truth", "extra_info"]:
        raise TypeError(f"@osmosis_rubric: write {way_out}, got the parameters {', '.join(names)}")
    if parameters["solution_str"].annotation is not str:
        raise TypeError(f"@osmosis_rubric: solution_str must be annotated as str: {way_out}")
    if _without_none(parameters["ground_truth"].annotation) != {str}:
        raise TypeError(f"@osmosis_rubric: ground_truth must be annotated as str | None: {way_out}")
    if parameters["ground_truth"].default is not inspect.Parameter.empty:
        raise TypeError(f"@osmosis_rubric: ground_truth must not have a default: {way_out}")
    if not _is_dict(parameters["extra_info"].annotation):
        raise TypeError(f"@osmosis_rubric: extra_info must be annotated as dict: {way_out}")


def _without_none(annotation: Any) -> set[Any]:
    """{str} for str, str | None and Optional[str]."""
    is_union = typing.get_origin(annotation) in (Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    return {member for member in members if member is not type(None)}


def _is_dict(annotation: Any) -> bool:
    return {typing.get_origin(member) or member for member in _without_none(annotation)} == {dict}
