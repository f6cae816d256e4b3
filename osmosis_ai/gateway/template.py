"""A chat template, compiled once: the text of `transformers`, without most of what it costs.

`render_jinja_template` compiles the template into a sandbox, copies messages and tools, because they may be
more than JSON, and renders. Here the same function compiles, the copies are left out (ours are JSON), and
some of Jinja's own costs are cut, none of which a template can see:

- its globals are a chain of dicts that is merged for each rendering: merged once;
- `message.role` asks an object for its attributes before its items: a dict is asked for the item at once,
  unless dicts have an attribute of that name; and `loop.first` is not searched for a way out of the sandbox;
- nor are a call of a macro, which is the template's own code, and the methods of a text, but for the two that
  format and could lead out.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import BuiltinMethodType
from typing import Any

from jinja2 import Template
from jinja2.environment import Environment
from jinja2.runtime import Context, LoopContext, Macro

from osmosis_ai.types import Message, ToolSchema

_OF_DICTS = frozenset(dir(dict))
_OF_TEXTS = frozenset(name for name in dir(str) if name[0] != "_") - {"format", "format_map"}
_OF_LOOPS = frozenset({"first", "last", "index", "index0", "revindex", "revindex0", "length"})


class ChatTemplate:
    """`special_tokens` are the names that a template may use: bos_token, eos_token, ..."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        self._template: Template = _compile_jinja_template(source)
        self._special_tokens = special_tokens
        self.depends_on_time = "strftime_now" in source
        _speed_up(self._template)

    def render(self, messages: list[Message], tools: Sequence[ToolSchema], *, reply: bool) -> str:
        """Raises whatever the template raises; most of it is a jinja2.TemplateError."""
        return self._template.render(
            messages=messages,
            tools=list(tools) or None,
            documents=None,
            add_generation_prompt=reply,
            **self._special_tokens,
        )


def _speed_up(template: Template) -> None:
    environment = template.environment
    if getattr(environment, "osmosis", False):  # transformers compiles the same template once
        return
    slow_getattr, slow_call = environment.getattr, environment.call  # type: ignore[attr-defined]

    def fast_getattr(value: Any, name: str) -> Any:
        if type(value) is dict and name not in _OF_DICTS:
            try:
                return value[name]
            except KeyError:
                return environment.undefined(obj=value, name=name)
        if (type(value) is LoopContext and name in _OF_LOOPS) or (type(value) is str and name in _OF_TEXTS):
            return getattr(value, name)
        return slow_getattr(value, name)

    def fast_call(context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        of_text = _is_text_method(function)
        if of_text or type(function) is Macro:
            kwargs.pop("_block_vars", None)
            kwargs.pop("_loop_vars", None)
            if of_text:
                return function(*args, **kwargs)
            return Macro.__call__(function, context.eval_ctx, *args, **kwargs)
        return slow_call(context, function, *args, **kwargs)

    _set(environment, getattr=fast_getattr, call=fast_call, osmosis=True)
    template.globals = dict(template.globals)


def _is_text_method(function: Any) -> bool:
    return (
        type(function) is BuiltinMethodType
        and type(function.__self__) is str
        and function.__name__ in _OF_TEXTS
    )


def _set(environment: Environment, **attributes: Any) -> None:
    for name, value in attributes.items():
        setattr(environment, name, value)
