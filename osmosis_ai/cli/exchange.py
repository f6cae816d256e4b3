"""`osmosis runs export` and `osmosis runs import`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import click

from osmosis_ai import __version__
from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import DATASET, JSON, WORKSPACE, existing_store, run_async, workspace_at
from osmosis_ai.errors import UsageError
from osmosis_ai.eval.stored import dataset_rows, find_run
from osmosis_ai.store.base import RunRecord, Store
from osmosis_ai.store.export.atif import trajectories
from osmosis_ai.store.export.jsonl import import_run, read_rollouts, run_lines
from osmosis_ai.store.export.parquet import write_parquet
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Row

FORMATS = ("jsonl", "atif", "parquet")


@click.command("export", epilog="Example: osmosis runs export hello --format jsonl -o hello.jsonl")
@click.argument("run_id")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="jsonl", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The file to write.")
@DATASET
@WORKSPACE
@JSON
def export_run(
    run_id: str, kind: str, output: Path, dataset: Path | None, workspace: Path, as_json: bool
) -> None:
    """Write a run to a file.

    \b
    jsonl    everything that is stored; `osmosis runs import` reads it back
    atif     one ATIF-v1.7 trajectory per line, with token ids and logprobs
    parquet  one line per sample; needs pyarrow
    """
    display = Display(as_json=as_json)
    count = run_async(_export(workspace, run_id, kind, output, dataset, display))
    display.data({"event": "exported", "run_id": run_id, "format": kind, "path": str(output), "count": count})
    display.out(f"{output}: run {run_id}, {count} {'trajectories' if kind == 'atif' else 'rollouts'}")


async def _export(
    workspace: Path, run_id: str, kind: str, output: Path, dataset: Path | None, display: Display
) -> int:
    """Write beside the file first: what is there under its name is whole."""
    store = existing_store(workspace_at(workspace))
    part = output.with_name(f".{output.name}.part")
    try:
        run = await find_run(store, run_id)
        if kind == "jsonl":
            count = await _write(part, run_lines(store, run)) - len(await store.steps(run_id)) - 2
        else:
            rows = _rows(run, dataset, display)
            rollouts = read_rollouts(store, run_id)
            if kind == "parquet":
                count = await write_parquet(part, rollouts, rows)
            else:
                count = await _write(part, _atif_lines(store, run_id, rows))
        os.replace(part, output)
        return count
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)
        await store.close()


async def _write(path: Path, lines: AsyncIterator[str]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        async for line in lines:
            file.write(line + "\n")
            count += 1
    return count


async def _atif_lines(store: Store, run_id: str, rows: dict[int, Row]) -> AsyncIterator[str]:
    async for rollout in read_rollouts(store, run_id):
        for trajectory in trajectories(rollout, rows.get(rollout.row_index), __version__):
            yield json.dumps(trajectory, separators=(",", ":"), allow_nan=False)


def _rows(run: RunRecord, dataset: Path | None, display: Display) -> dict[int, Row]:
    """The dataset's rows; a note when they are not to be had and nobody named the file."""
    try:
        return dataset_rows(run, dataset)
    except UsageError as error:
        if dataset is not None:
            raise
        display.note(f"note: without labels and metadata. {error}")
        return {}


@click.command("import", epilog="Example: osmosis runs import hello.jsonl --workspace elsewhere")
@click.argument("path", type=click.Path(path_type=Path))
@WORKSPACE
@JSON
def import_file(path: Path, workspace: Path, as_json: bool) -> None:
    """Store the run of a file that `osmosis runs export --format jsonl` has written.

    The file is read to its end before anything is stored. A run that the workspace has is refused.
    """
    if not path.is_file():  # before a workspace is made for it
        raise UsageError(f"no such file: {path}")
    display = Display(as_json=as_json)
    run, count = asyncio.run(_import(workspace, path))
    display.data({"event": "imported", "run_id": run.run_id, "rollouts": count})
    display.out(f"run {run.run_id}: {count} rollouts imported")


async def _import(workspace: Path, path: Path) -> tuple[RunRecord, int]:
    store = SqliteStore(workspace_at(workspace).database)
    try:
        return await import_run(store, path)
    finally:
        await store.close()
