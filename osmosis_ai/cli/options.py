"""Options that several commands share, and how a configuration file and the options become one Config."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from osmosis_ai.errors import UsageError
from osmosis_ai.store.workspace import Workspace

if TYPE_CHECKING:  # each command pays for what it uses: these take longer to import than all of Click
    from osmosis_ai.config import Config
    from osmosis_ai.store.sqlite import SqliteStore

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

CONFIG = click.argument("config", type=click.Path(path_type=Path))
WORKSPACE = click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    default=".osmosis",
    show_default=True,
    envvar="OSMOSIS_WORKSPACE",
    help="Folder of the database and the runs.",
)
DATASET = click.option(
    "--dataset",
    type=click.Path(path_type=Path),
    help="Where the run's dataset (labels, metadata) is, when the config's path does not lead there.",
)
NAME = click.option("--name", help="Name of the run, instead of [run] name or the file's name.")
FRESH = click.option("--fresh", is_flag=True, help="Start a new run; an older one of that name is kept.")
JSON = click.option("--json", "as_json", is_flag=True, help="JSON lines on standard output.")
SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="A key of the file, for this run: --set dataset.limit=10. May be given many times.",
)


SELECTION = (
    click.option("--rows", metavar="3,7,10-20", help="These rows only, counted from 0."),
    click.option("--limit", type=click.IntRange(1), help="At most so many rows."),
    click.option("--sample", type=click.IntRange(1), metavar="N", help="N rows, drawn at random."),
    click.option("--seed", type=int, help="Of --sample: the same seed draws the same rows."),
)


def selection_options(command: F) -> F:
    """--rows, --limit, --sample and --seed: keys of [dataset], for `read_config` as `selection`."""
    for option in reversed(SELECTION):
        command = option(command)
    return command


def config_options(command: F) -> F:
    """CONFIG, --name, --set, --fresh, --workspace and --json."""
    for option in (JSON, WORKSPACE, FRESH, SET, NAME, CONFIG):
        command = option(command)
    return command


def read_config(
    path: Path, name: str | None, settings: tuple[str, ...], selection: Mapping[str, Any] | None = None
) -> Config:
    """The configuration, with what the options say of it. Raises ConfigError, UsageError."""
    from osmosis_ai.config import load_config

    return load_config(path, overrides_of(name, settings, selection))


def overrides_of(
    name: str | None, settings: tuple[str, ...], selection: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What --name, --set and the options of a selection say, by dotted key. Raises UsageError."""
    overrides: dict[str, Any] = dict(setting(text) for text in settings)
    chosen = {key: value for key, value in (selection or {}).items() if value is not None}
    if "seed" in chosen and "sample" not in chosen:
        raise UsageError("--seed is the seed of --sample N, which is not given")
    overrides |= {f"dataset.{key}": value for key, value in chosen.items()}
    if name is not None:
        overrides["run.name"] = name
    return overrides


def setting(text: str) -> tuple[str, Any]:
    """One --set, as a dotted key and its value. Raises UsageError."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[^.\s]+\.[^.\s]+", key):
        raise UsageError(f"--set {text!r}: expected TABLE.KEY=VALUE, e.g. --set dataset.limit=10")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value  # a bare word is a string


def workspace_at(path: Path) -> Workspace:
    return Workspace(path.absolute())


def existing_store(workspace: Workspace) -> SqliteStore:
    """The store of a workspace that has one; looking at nothing makes nothing."""
    if not workspace.database.exists():
        raise UsageError(f"there is no database {workspace.database}; run an eval first, or name --workspace")
    from osmosis_ai.store.sqlite import SqliteStore

    return SqliteStore(workspace.database)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; Ctrl-C and SIGTERM cancel it in order first, then exit with 130."""
    import asyncio
    import signal

    from osmosis_ai import process

    async def with_sigterm() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    process.raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=process.loop_factory()) as runner:
            return runner.run(with_sigterm())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
