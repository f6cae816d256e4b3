"""The external model that `[llm]` or `[judge]` names: opened here, and imported only when it is wanted."""

from __future__ import annotations

import importlib.util
import os
import traceback
from pathlib import Path
from typing import Any

from osmosis_ai.config import EndpointTable, beside
from osmosis_ai.errors import UsageError
from osmosis_ai.providers.base import Provider


def open_provider(table: EndpointTable, folder: Path, *, most: int, name: str = "llm") -> Provider:
    """The model of the table `name` of a configuration in `folder`, sent at most `most` calls at once."""
    if table.model == "scripted":
        from osmosis_ai.providers.scripted import ScriptedProvider

        if table.script.endswith(".jsonl"):
            return ScriptedProvider.from_file(beside(folder, table.script), model=table.script)
        return ScriptedProvider(_script(f"{name}.script", table.script, folder), model=table.script)
    from osmosis_ai.providers.openai_compatible import OpenAICompatibleProvider
    from osmosis_ai.providers.patience import RetryPolicy

    return OpenAICompatibleProvider(
        table.base_url,
        table.model,
        api_key=_api_key(f"{name}.api_key_env", table.api_key_env),
        total_seconds=table.timeout_seconds,
        retry=RetryPolicy(attempts=table.retries + 1, throttled_seconds=table.timeout_seconds),
        most=most,
    )


def _api_key(key: str, variable: str) -> str | None:
    return from_environment(key, variable) if variable else None


def from_environment(key: str, name: str) -> str:
    """The secret that the environment variable `name` holds. Raises UsageError when there is none."""
    if not os.environ.get(name):
        raise UsageError(
            f"{key} = {name!r}, but there is no such environment variable, or it is empty: export {name}=... "
            "first."
        )
    return os.environ[name]


def _script(key: str, name: str, folder: Path) -> Any:
    """The function that `key`, as in llm.script = "file.py:function", names."""
    file, _, attribute = name.partition(":")
    path = beside(folder, file)
    if not path.is_file() or not attribute:
        raise UsageError(f'{key} = {name!r}: expected "file.py:function"; there is no function at {path}')
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{key} = {name!r}: {path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the script is the user's code and may raise anything
        text = "".join(traceback.format_exception_only(error)).strip()
        raise UsageError(f"{key} = {name!r}: importing {path} failed: {text}") from error
    if not callable(function := getattr(module, attribute, None)):
        own = (n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__)
        known = ", ".join(n for n in own if not n.startswith("_"))
        raise UsageError(f"{key} = {name!r}: {path} has no function {attribute!r}. It has: {known}.")
    return function
