"""The external model that `[llm]` or `[judge]` names: opened here, and imported only when it is wanted."""

from __future__ import annotations

import importlib.util
import os
import traceback
from pathlib import Path
from typing import Any

from osmosis_ai.config import EndpointTable, LlmTable, beside
from osmosis_ai.errors import UsageError
from osmosis_ai.providers.base import Provider
from osmosis_ai.store.base import Store
from osmosis_ai.store.export.jsonl import exported_rollouts, read_rollouts
from osmosis_ai.store.workspace import Workspace

REPLAY = "replay"  # the model that answers as in a recorded run


async def open_external_model(llm: LlmTable, folder: Path, store: Store, *, most: int) -> Provider:
    """The model of `[llm]`; a replay reads its run from the store, or from a file beside the config."""
    if llm.model != REPLAY:
        return open_provider(llm, folder, most=most)
    from osmosis_ai.providers.replay import ReplayProvider

    if _is_file(llm.replay):
        return ReplayProvider(exported_rollouts(beside(folder, llm.replay)), llm.replay)
    if await store.get_run(llm.replay) is None:
        known = ", ".join(summary.run.run_id for summary in await store.list_runs())
        raise UsageError(
            f"llm.replay = {llm.replay!r}: there is no such run in this workspace. Known: {known or 'none'}. "
            "A file of `osmosis runs export --format jsonl` can be replayed too; its name ends in .jsonl."
        )

    async def bytes_of(rollout_id: str) -> dict[int, bytes]:
        return {ordinal: native.answered for ordinal, native in (await store.natives(rollout_id)).items()}

    rollouts = [rollout async for rollout in read_rollouts(store, llm.replay)]
    return ReplayProvider(rollouts, llm.replay, bytes_of)


def check_replay(llm: LlmTable, folder: Path, workspace: Workspace) -> None:
    """Raise UsageError when the file is no export, or there is no workspace that could have the run."""
    if _is_file(llm.replay):
        for _ in exported_rollouts(beside(folder, llm.replay)):
            return
    elif not workspace.database.is_file():
        raise UsageError(f"llm.replay = {llm.replay!r}: there are no runs in {workspace.root}.")


def _is_file(replay: str) -> bool:
    return replay.endswith(".jsonl")


def open_provider(table: EndpointTable, folder: Path, *, most: int, name: str = "llm") -> Provider:
    """The model of the table `name` of a configuration in `folder`, sent at most `most` calls at once."""
    if table.model == "scripted":
        from osmosis_ai.providers.scripted import ScriptedProvider

        if table.script.endswith(".jsonl"):
            return ScriptedProvider.from_file(beside(folder, table.script), model=table.script)
        return ScriptedProvider(_script(f"{name}.script", table.script, folder), model=table.script)
    from osmosis_ai.providers.openai_compatible import OpenAICompatibleProvider
    from osmosis_ai.providers.patience import RetryPolicy

    api_key = _api_key(f"{name}.api_key_env", table.api_key_env)
    retry = RetryPolicy(attempts=table.retries + 1, throttled_seconds=table.timeout_seconds)
    seconds = table.timeout_seconds
    if not table.base_url:
        from osmosis_ai.providers.litellm import LiteLLMProvider

        return LiteLLMProvider(
            table.model, api_key=api_key, total_seconds=seconds, retry=retry, most=most, table=name
        )
    return OpenAICompatibleProvider(
        table.base_url, table.model, api_key=api_key, total_seconds=seconds, retry=retry, most=most
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
