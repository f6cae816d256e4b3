"""The external model that `[llm]` names: opened here, and imported only when it is wanted."""

from __future__ import annotations

import importlib.util
import os
import traceback
from typing import Any

from osmosis_ai.config import Config, LlmTable
from osmosis_ai.errors import UsageError
from osmosis_ai.providers.base import Provider


def open_provider(llm: LlmTable, config: Config) -> Provider:
    """The external model that `[llm]` names."""
    if llm.model == "scripted":
        from osmosis_ai.providers.scripted import ScriptedProvider

        if llm.script.endswith(".jsonl"):
            return ScriptedProvider.from_file(config.resolve(llm.script), model=llm.script)
        return ScriptedProvider(_script(llm.script, config), model=llm.script)
    from osmosis_ai.providers.openai_compatible import OpenAICompatibleProvider
    from osmosis_ai.providers.patience import RetryPolicy

    return OpenAICompatibleProvider(
        llm.base_url,
        llm.model,
        api_key=_api_key(llm),
        total_seconds=llm.timeout_seconds,
        retry=RetryPolicy(attempts=llm.retries + 1, throttled_seconds=llm.timeout_seconds),
        most=config.rollout.max_concurrent,
    )


def _api_key(llm: LlmTable) -> str | None:
    return from_environment("llm.api_key_env", llm.api_key_env) if llm.api_key_env else None


def from_environment(key: str, name: str) -> str:
    """The secret that the environment variable `name` holds. Raises UsageError when there is none."""
    if not os.environ.get(name):
        raise UsageError(
            f"{key} = {name!r}, but there is no such environment variable, or it is empty: export {name}=... "
            "first."
        )
    return os.environ[name]


def _script(name: str, config: Config) -> Any:
    """The function that `llm.script = "file.py:function"` names."""
    file, _, attribute = name.partition(":")
    path = config.resolve(file)
    if not path.is_file() or not attribute:
        raise UsageError(
            f'llm.script = {name!r}: expected "file.py:function"; there is no function at {path}'
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"llm.script = {name!r}: {path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the script is the user's code and may raise anything
        text = "".join(traceback.format_exception_only(error)).strip()
        raise UsageError(f"llm.script = {name!r}: importing {path} failed: {text}") from error
    if not callable(function := getattr(module, attribute, None)):
        own = (n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__)
        known = ", ".join(n for n in own if not n.startswith("_"))
        raise UsageError(f"llm.script = {name!r}: {path} has no function {attribute!r}. It has: {known}.")
    return function
