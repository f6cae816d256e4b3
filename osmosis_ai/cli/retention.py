"""`osmosis runs delete` and `osmosis runs prune`."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import JSON, WORKSPACE, existing_store, workspace_at
from osmosis_ai.errors import UsageError
from osmosis_ai.store.base import RunSummary
from osmosis_ai.store.retention import Retention, delete_runs
from osmosis_ai.store.workspace import Workspace

YES = click.option("--yes", is_flag=True, help="Do not ask.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only say which runs would go.")
DAYS = {"d": 1.0, "w": 7.0, "m": 30.0, "y": 365.0}


@click.command(epilog="Example: osmosis runs delete second --dry-run")
@click.argument("run_ids", metavar="RUN_ID...", nargs=-1, required=True)
@YES
@DRY_RUN
@WORKSPACE
@JSON
def delete(run_ids: tuple[str, ...], yes: bool, dry_run: bool, workspace: Path, as_json: bool) -> None:
    """Delete runs: rollouts, turns, folder with checkpoints and trained weights. The database shrinks."""
    place = workspace_at(workspace)
    known = {summary.run.run_id for summary in _runs(place)}
    if unknown := [run_id for run_id in run_ids if run_id not in known]:
        raise UsageError(f"there is no run {unknown[0]!r}. Known: {', '.join(sorted(known)) or 'none'}.")
    _delete(place, run_ids, Display(as_json=as_json), yes=yes, dry_run=dry_run)


@click.command(epilog="Example: osmosis runs prune --older-than 30d --keep 3 --dry-run")
@click.option("--older-than", metavar="AGE", help="Runs that began longer ago: 12d, 6w, 3m (of 30 days), 1y.")
@click.option("--keep", type=click.IntRange(0), metavar="N", help="All but the newest N of each name.")
@click.option("--training", is_flag=True, help="Training runs too, with their checkpoints and weights.")
@YES
@DRY_RUN
@WORKSPACE
@JSON
def prune(
    older_than: str | None,
    keep: int | None,
    training: bool,
    yes: bool,
    dry_run: bool,
    workspace: Path,
    as_json: bool,
) -> None:
    """Delete eval runs by age, by number, or what both let go.

    Training runs stay unless --training is given. Fit for a timer: prune --older-than 30d --keep 3 --yes
    """
    if older_than is None and keep is None:
        raise UsageError("say which runs go: --older-than 30d, or --keep 3, or both")
    place = workspace_at(workspace)
    runs = [summary for summary in _runs(place) if training or summary.run.kind == "eval"]
    retention = Retention(None if older_than is None else days(older_than), keep)
    chosen = retention.chosen(runs, time.time())
    _delete(place, chosen, Display(as_json=as_json), yes=yes, dry_run=dry_run)


def days(age: str) -> float:
    """ "6w" -> 42.0. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([dwmy])", age)
    if match is None:
        raise UsageError(f"--older-than {age!r}: write a number and d, w, m or y, as in 30d")
    return float(match[1]) * DAYS[match[2]]


def _runs(workspace: Workspace) -> list[RunSummary]:
    async def read() -> list[RunSummary]:
        store = existing_store(workspace)
        try:
            return await store.list_runs()
        finally:
            await store.close()

    return asyncio.run(read())


def _delete(
    workspace: Workspace, run_ids: Sequence[str], display: Display, *, yes: bool, dry_run: bool
) -> None:
    if dry_run or not run_ids:
        display.data({"event": "deleted", "runs": [], "would_delete": list(run_ids)})
        return display.out("\n".join(f"would delete {run_id}" for run_id in run_ids) or "nothing to delete")
    if not yes:
        _ask(run_ids)
    freed = delete_runs(workspace, run_ids)
    sizes = {"bytes_before": freed.before, "bytes_after": freed.after}
    display.data({"event": "deleted", "runs": list(run_ids), "would_delete": [], **sizes})
    display.out(
        f"deleted {', '.join(run_ids)}; the database has {freed.after / 1e6:.1f} MB, "
        f"{freed.before / 1e6:.1f} MB before"
    )


def _ask(run_ids: Sequence[str]) -> None:
    """Deleting is for ever: a person says so, or --yes does."""
    if not sys.stdin.isatty():
        raise UsageError(f"{len(run_ids)} runs would be deleted for ever: say --yes, or look with --dry-run")
    click.echo(f"for ever: {', '.join(run_ids)}", err=True)
    click.confirm("delete?", abort=True, err=True)
