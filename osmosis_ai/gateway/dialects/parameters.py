"""Reading the parameters of a request: each is honoured or refused by name, none is dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import orjson

from osmosis_ai.gateway.call import MODEL, MODEL_NAMES, Refusal
from osmosis_ai.gateway.messages import BadMessageError
from osmosis_ai.types import ToolSchema

MAX_INTEGER = 2**63 - 1
MAX_N = 64  # answers to one call

# Values that change nothing, and the way out for who sends another.
Neutral = Mapping[str, tuple[tuple[Any, ...], str]]


def load(body: bytes) -> dict[str, Any]:
    """The request as a JSON object; null means "not given", everywhere."""
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(request, dict):
        raise Refusal(400, "the body must be a JSON object", code="invalid_json")
    return {key: value for key, value in request.items() if value is not None}


def check_model(model: Any) -> None:
    if model in MODEL_NAMES:
        return
    if model is None:
        raise bad("model", f"is missing. Use {MODEL!r}")
    raise Refusal(
        404,
        f"there is no model {model!r} here. Use {MODEL!r} (in LiteLLM 'openai/{MODEL}'): the run's "
        "configuration says what answers",
        code="model_not_found",
        param="model",
    )


def check_known(params: Mapping[str, Any], honoured: frozenset[str], neutral: Neutral) -> None:
    """Raise Refusal for the first parameter that is neither honoured nor neutral."""
    for key, value in params.items():
        if key in honoured:
            continue
        if key not in neutral:
            known = ", ".join(sorted(honoured))
            raise bad(key, f"is not a parameter that is honoured here. Leave it out. Honoured: {known}")
        allowed, way_out = neutral[key]
        if not any(_same(value, choice) for choice in allowed):
            raise unsupported(key, value, allowed, way_out)


def number(params: Mapping[str, Any], key: str, holds: Callable[[float], bool], allowed: str) -> float | None:
    value = params.get(key)
    if value is None:
        return None
    wrong = isinstance(value, bool) or not isinstance(value, int | float)
    if wrong or not isfinite(value) or not holds(value):
        raise bad(key, f"must be {allowed}, got {value!r}")
    return float(value)


def temperature(params: Mapping[str, Any]) -> float | None:
    return number(params, "temperature", lambda value: value >= 0, "a number of at least 0")


def top_p(params: Mapping[str, Any]) -> float | None:
    return number(params, "top_p", lambda value: 0 < value <= 1, "a number above 0 and at most 1")


def integer(params: Mapping[str, Any], key: str, lowest: int, highest: int = MAX_INTEGER) -> int | None:
    value = params.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        upper = "" if highest == MAX_INTEGER else f" and at most {highest}"
        raise bad(key, f"must be a whole number of at least {lowest}{upper}, got {value!r}")
    return value


def boolean(params: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = params.get(key)
    if value is not None and not isinstance(value, bool):
        raise bad(key, f"must be true or false, got {value!r}")
    return default if value is None else value


def stop_texts(params: Mapping[str, Any], key: str = "stop") -> tuple[str, ...]:
    stop = params.get(key)
    texts = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise bad(key, f"must be a text or a list of texts, none of them empty, got {stop!r}")
    return tuple(texts)


def function_tools(tools: Any) -> list[ToolSchema]:
    """Tools in the Chat Completions spelling."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise bad("tools", "must be a list")
    for position, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad(f"tools[{position}]", 'must be {"type": "function", "function": {"name": ..., ...}}')
    return tools


def bad(param: str, problem: str) -> Refusal:
    return Refusal(400, f"{param} {problem}", code="invalid_parameter", param=param)


def bad_message(error: BadMessageError) -> Refusal:
    return Refusal(400, str(error), code="invalid_message", param=error.param)


def unsupported(param: str, value: Any, supported: tuple[Any, ...], way_out: str) -> Refusal:
    choices = " or ".join(orjson.dumps(choice).decode() for choice in supported)
    allowed = choices or "nothing: it is not supported"
    shown = orjson.dumps(value).decode()[:100]
    return Refusal(
        400,
        f"{param} = {shown} is not supported here; supported: {allowed}. {way_out}.",
        code="unsupported_parameter",
        param=param,
    )


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """The inside of OpenAI's error object."""
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    return {"message": str(refusal), "type": kind, "code": refusal.code, "param": refusal.param}


def _same(value: Any, neutral: Any) -> bool:
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
