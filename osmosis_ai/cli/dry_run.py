"""`--dry-run`: the configuration that a run would have, and where each value of it comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import existing_store
from osmosis_ai.config import TABLES, Config
from osmosis_ai.controller.identity import changes_of, refuse_changes, refuse_kind, run_identity
from osmosis_ai.controller.opening import read_rows, run_id_of
from osmosis_ai.controller.place import is_result
from osmosis_ai.eval.run import Earlier
from osmosis_ai.eval.stored import counted
from osmosis_ai.store.base import RolloutFilter, RunRecord
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.toml_places import places


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: its value and where that comes from."""

    key: str  # "dataset.limit"
    value: Any
    origin: str  # "run.toml:7:1", "--set", "--name", "default", ...


async def show_plan(
    config: Config,
    workspace: Workspace,
    origins: Mapping[str, str],
    *,
    fresh: bool,
    accept_changes: bool,
    display: Display,
) -> None:
    """What `osmosis eval run` would do, without doing any of it. Raises DatasetError.

    Raises UsageError at the end where the run would be refused, because it was made with other inputs.
    """
    settings = settings_of(config, origins)
    rows = read_rows(config)
    total = len(rows) * config.eval.attempts
    run_id, known, done = await _done_before(config, workspace, rows.indices, fresh=fresh)
    plan = {"rows": len(rows), "rollouts": total, "done": done, "workspace": str(workspace.root)}
    plain = [asdict(setting) for setting in settings]
    display.data({"event": "dry_run", "run_id": run_id, "settings": plain, **plan})
    display.out(settings_text(settings))
    display.out(f"workspace {workspace.root}  # {origins['workspace']}")
    if known is not None:
        refuse_kind(known, "eval")
        if not accept_changes:
            refuse_changes(known, changes_of(known, run_identity(config, "eval", workspace)))
    before = f", {done} done" if done else ""
    display.out(f"run {run_id}: {total - done} rollouts to do, of {len(rows)} rows{before}; nothing was run")


async def _done_before(
    config: Config, workspace: Workspace, indices: Collection[int], *, fresh: bool
) -> tuple[str, RunRecord | None, int]:
    """The name of the run, what it was made with, and how many of its rollouts have a result."""
    if not workspace.database.exists():
        return config.run_name, None, 0
    store = existing_store(workspace)
    try:
        run_id = await run_id_of(store, config.run_name, fresh=fresh)
        known = await store.get_run(run_id)
        outcomes = await store.outcomes(RolloutFilter(run_id))
    finally:
        await store.close()
    results = Earlier(counted(outcome for outcome in outcomes if is_result(outcome.status)))
    return run_id, known, len(results.among(indices, config.eval.attempts))


def settings_of(config: Config, origins: Mapping[str, str]) -> list[Setting]:
    """Every key of the tables that an eval has, [workflow] with them.

    `origins` maps the keys that the command line gave to the option: {"dataset.limit": "--limit"}.
    """
    text = config.source.read_text(encoding="utf-8")
    in_file = places(text)
    found = []
    for table in (*(name for name in TABLES if name != "train"), "workflow"):
        of_table = getattr(config, table)
        if of_table is None:
            continue
        values = of_table if table == "workflow" else of_table.model_dump()
        for key, value in values.items():
            dotted = f"{table}.{key}"
            if dotted in origins:
                origin = origins[dotted]
            elif (table, key) in in_file:
                line, column = in_file[table, key]
                origin = f"{config.source}:{line}:{column}"
            else:
                origin = "default"
            found.append(Setting(dotted, value, origin + _environment(key, value)))
    return found


def _environment(key: str, value: Any) -> str:
    """Of a key that names a variable of the environment: whether there is one. Its value is a secret."""
    if not key.endswith("_env") or not value:
        return ""
    return f"; {value} is {'set' if os.environ.get(value) else 'not set'} in the environment"


def settings_text(settings: list[Setting]) -> str:
    """As TOML, with the origin behind each value."""
    lines: list[str] = []
    shown = [(setting, f"{setting.key.partition('.')[2]} = {_toml(setting.value)}") for setting in settings]
    width = min(44, max(len(text) for _, text in shown))
    table = ""
    for setting, text in shown:
        if (of := setting.key.partition(".")[0]) != table:
            table = of
            lines.append(f"[{table}]")
        lines.append(f"{text:<{width}}  # {setting.origin}")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """TOML has no null: a key that is not set is shown as such."""
    return "(not set)" if value is None else json.dumps(value, ensure_ascii=False, default=str)
