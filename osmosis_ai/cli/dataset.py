"""`osmosis dataset validate` and `preview`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import JSON
from osmosis_ai.cli.transcript import message_lines, printable
from osmosis_ai.datasets import Dataset, Selection, open_dataset

FILE = click.argument("file", type=click.Path(path_type=Path))


@click.command(epilog="Example: osmosis dataset validate data/orders.jsonl")
@FILE
@JSON
def validate(file: Path, as_json: bool) -> None:
    """Read FILE from end to end and say everything that is wrong with it. Exit code 2 when something is."""
    display = Display(as_json=as_json)
    about = _about(open_dataset(file, strict=True))
    display.data({"event": "dataset", "path": str(file), **about})
    display.out(
        f"{file}: {about['rows']} rows, {about['labels']} with a label, "
        f"{about['system_prompts']} with a system prompt\n"
        f"  metadata: {printable(', '.join(about['metadata'])) or 'none'}\n"
        f"  longest prompt: {about['longest_prompt']} characters, in row {about['longest_row']}"
    )


def _about(dataset: Dataset) -> dict[str, Any]:
    """What one would look at first, in one pass."""
    labels = system_prompts = longest = longest_row = 0
    columns: dict[str, None] = {}
    for row in dataset:
        labels += row.label is not None
        system_prompts += row.prompt[0]["role"] == "system"
        length = sum(len(str(message["content"])) for message in row.prompt)
        if length > longest:
            longest, longest_row = length, row.index
        columns.update(dict.fromkeys(row.metadata or {}))
    return {
        "rows": len(dataset),
        "labels": labels,
        "system_prompts": system_prompts,
        "metadata": list(columns),
        "longest_prompt": longest,
        "longest_row": longest_row,
    }


@click.command(epilog="Example: osmosis dataset preview data/orders.jsonl --rows 0,3")
@FILE
@click.option("--rows", metavar="3,7,10-20", help="These rows, counted from 0; else the first five.")
@JSON
def preview(file: Path, rows: str | None, as_json: bool) -> None:
    """Show rows of FILE as a workflow and its grader get them."""
    display = Display(as_json=as_json)
    selection = Selection(rows=rows) if rows else Selection(limit=5)
    for row in open_dataset(file, selection):
        display.data({"event": "row", **asdict(row)})
        lines = [f"row {row.index}", *(line for message in row.prompt for line in message_lines(message))]
        lines.append(f"  label: {printable(row.label)}" if row.label is not None else "  no label")
        lines += [
            f"  {printable(key)}: {printable(str(value))}" for key, value in (row.metadata or {}).items()
        ]
        display.out("\n".join(lines))
