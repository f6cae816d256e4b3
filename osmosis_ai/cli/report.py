"""`osmosis report`: a run as one HTML file."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from osmosis_ai.cli.options import DATASET, JSON, WORKSPACE, existing_store, workspace_at
from osmosis_ai.errors import UsageError

if TYPE_CHECKING:
    from osmosis_ai.eval.report.content import Content


@click.command(epilog="Example: osmosis report hello > hello.html")
@click.argument("run_id")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write here instead of standard output."
)
@DATASET
@WORKSPACE
@JSON
def report(run_id: str, output: Path | None, dataset: Path | None, workspace: Path, as_json: bool) -> None:
    """A run as one HTML file: figures, charts, and every conversation with search and filters.

    The file needs no network and can reach none. What looks like a key, a token or a password is redacted,
    and so are the values of environment variables whose names say that they are secret. With --json, which
    needs -o, standard output says what was written.
    """
    if as_json and output is None:
        raise UsageError("--json needs -o FILE: standard output is one or the other, the report or JSON")
    if output is None and sys.stdout.isatty():
        raise UsageError(f"a report is a file: osmosis report {run_id} > report.html, or -o report.html")
    from osmosis_ai.cli.display import Display
    from osmosis_ai.eval.report.page import page

    content = asyncio.run(_read(workspace, run_id, dataset))
    html = page(content)
    if output is None:
        sys.stdout.buffer.write(html)
    else:
        _write(output, html)
    display = Display(as_json=as_json)
    rollouts = len(content.index["rollouts"])
    display.data(
        {
            "event": "report",
            "run_id": run_id,
            "path": str(output),
            "rollouts": rollouts,
            "bytes": len(html),
            "redactions": content.redactions,
            "notes": content.notes,
        }
    )
    for note in content.notes:
        display.note(f"note: {note}")
    display.note(
        f"report of {run_id}: {rollouts} rollouts, {_size(len(html))}, {content.redactions} secrets redacted"
    )


async def _read(workspace: Path, run_id: str, dataset: Path | None) -> Content:
    from osmosis_ai.eval.report.content import read_content

    store = existing_store(workspace_at(workspace))
    try:
        return await read_content(store, run_id, os.environ, dataset)
    finally:
        await store.close()


def _size(num_bytes: int) -> str:
    """31,415 -> 31 kB; 2,718,281 -> 2.7 MB"""
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.0f} kB"


def _write(path: Path, html: bytes) -> None:
    try:
        path.write_bytes(html)
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written: {error}") from error
