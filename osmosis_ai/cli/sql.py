"""`osmosis sql`: SQL on the workspace, read only."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from osmosis_ai.cli.display import json_line
from osmosis_ai.cli.options import JSON, WORKSPACE, workspace_at
from osmosis_ai.cli.transcript import printable
from osmosis_ai.errors import UsageError
from osmosis_ai.store.query import query

SHOWN_ROWS = 100
WIDEST = 60  # characters of a cell in the table


@click.command(
    epilog='Example: osmosis sql "SELECT run_id, avg(reward), count(*) FROM rollouts GROUP BY run_id"'
)
@click.argument("statement")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values on standard output.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"At most so many rows; {SHOWN_ROWS} in a table, else all.",
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=30.0, show_default=True)
@WORKSPACE
@JSON
def sql(
    statement: str, as_csv: bool, limit: int | None, seconds: float, workspace: Path, as_json: bool
) -> None:
    """Run one SELECT on the database of the workspace; nothing can be changed.

    \b
    Views, beside the tables (SELECT name, sql FROM sqlite_schema):
      rollouts  run_id, row, member, attempt, step, status, reward, turns,
                tokens, seconds, reason, answer, rollout_id
      samples   run_id, row, member, sample_id, reward, removed, frozen, metrics,
                rollout_id
      turns     run_id, row, ordinal, sample_id, answer, tool_calls,
                finish_reason, prompt_tokens, completion_tokens,
                policy_version, latency_ms, model, rollout_id
      steps     run_id, step, version, reward, loss, seconds, metrics
    """
    if as_csv and as_json:
        raise UsageError("--csv and --json are two answers to one question; choose one")
    database = workspace_at(workspace).database
    if not database.exists():
        raise UsageError(f"there is no database {database}; run an eval first, or name --workspace")
    answer = query(database, statement, max_seconds=seconds)
    if as_json:
        _json(answer.columns, islice(answer.rows, limit))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows([_plain(value) for value in row] for row in islice(answer.rows, limit))
    else:
        _table(answer.columns, answer.rows, limit or SHOWN_ROWS)


def _plain(value: Any) -> Any:
    """Bytes (token ids, hashes) as hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else value


def _json(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    twice = {name for name in columns if columns.count(name) > 1}
    if twice:
        raise UsageError(f"--json needs a name for each column; twice: {', '.join(sorted(twice))}. Use AS.")
    for row in rows:
        plain = dict(zip(columns, map(_plain, row), strict=True))
        sys.stdout.write(json_line({"event": "row", "values": plain}))


def _table(columns: Sequence[str], rows: Iterable[tuple[Any, ...]], limit: int) -> None:
    shown = list(islice(rows, limit + 1))
    cells = [[_cell(value) for value in row] for row in shown[:limit]]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    right = [
        all(isinstance(row[i], int | float) or row[i] is None for row in shown) for i in range(len(columns))
    ]
    for line in [list(columns), ["-" * width for width in widths], *cells]:
        padded = (
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(line, widths, right, strict=True)
        )
        sys.stdout.write("  ".join(padded).rstrip() + "\n")
    if len(shown) > limit:
        click.echo(f"the first {limit} rows; more with --limit N, all with --csv or --json", err=True)


def _cell(value: Any) -> str:
    """One line, no control characters, at most WIDEST wide; NULL is empty."""
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else printable(str(_plain(value)))
    text = text.replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
