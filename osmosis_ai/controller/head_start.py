"""The user's code is imported while the command still reads its configuration and imports its own parts.

An agent framework takes most of the time until the first rollout begins. It needs to know one thing: which
file is the entrypoint. So that is read first, by no more than the TOML parser, and a process begins with it.
What is wrong with the configuration is found meanwhile, and ends the process again.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from osmosis_ai.controller.user_process import UserProcess

Tables = dict[str, dict[str, Any]]

# What is wrong is found where the configuration is read as a whole. RuntimeError: links in a circle
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, KeyError, RuntimeError)


class HeadStart:
    """A process that imports an entrypoint; ended on the way out of the block unless somebody has taken it.

    Without an entrypoint there is none, and who wants one makes their own.
    """

    def __init__(
        self, entrypoint: str = "", withheld: frozenset[str] = frozenset(), run_name: str = ""
    ) -> None:
        self.run_name = run_name  # by the configuration
        self._of = (entrypoint, withheld)
        self._process: UserProcess | None = None
        self._begun = False

    @classmethod
    def of_config(cls, path: Path, overrides: Mapping[str, Any]) -> HeadStart:
        """With what the TOML file names as entrypoint and as keys, if it can be read; see `load_config`."""
        try:
            if not path.is_file():  # a pipe can be read once
                return cls()
            return cls.of_tables(tomllib.loads(path.read_text(encoding="utf-8")), overrides, path)
        except _UNREADABLE:
            return cls()

    @classmethod
    def of_tables(cls, tables: Tables, overrides: Mapping[str, Any], source: Path) -> HeadStart:
        """The same for tables that stand for those of the file `source`, which need not exist."""
        try:
            tables = _with(tables, overrides)
            entrypoint = source_of(source.parent, tables["rollout"]["entrypoint"])
            named = {tables.get(name, {}).get("api_key_env") for name in ("llm", "judge")}
            run_name = str(tables.get("run", {}).get("name") or source.stem)
            return cls(entrypoint, frozenset(filter(None, named)), run_name)
        except _UNREADABLE:
            return cls()

    def begin(self) -> None:
        """Start the process. Safe to call twice."""
        entrypoint, withheld = self._of
        if self._begun or not entrypoint:
            return
        self._begun = True
        with suppress(OSError):  # who needs the process says so
            self._process = UserProcess(withheld)
            self._process.preload(entrypoint)

    def take(self, entrypoint: str, withheld: frozenset[str]) -> UserProcess | None:
        """The process, once, if it has been made with these."""
        if self._of != (entrypoint, withheld):
            return None
        process, self._process = self._process, None
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()


def _with(tables: Tables, overrides: Mapping[str, Any]) -> Tables:
    changed = dict(tables)
    for dotted, value in overrides.items():
        table, key = dotted.split(".")
        changed[table] = {**changed.get(table, {}), key: value}
    return changed


def source_of(folder: Path, entrypoint: str) -> str:
    """The absolute path of a file that a configuration in `folder` names; a module's name as it is."""
    if not entrypoint.endswith(".py"):
        return entrypoint
    return str((folder / os.path.expanduser(entrypoint)).resolve())
