"""`osmosis eval compare`: two runs over the same rows, side by side."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from osmosis_ai.cli.display import Display, first_line
from osmosis_ai.cli.options import DATASET, JSON, WORKSPACE, existing_store, workspace_at
from osmosis_ai.eval.compare import Comparison, Flip, Part, compare, refuse_incomparable
from osmosis_ai.eval.gates import exit_code, no_regression
from osmosis_ai.eval.statistics import Difference
from osmosis_ai.eval.stored import StoredRun, column_of, dataset_rows, read_run

SHOWN_FLIPS = 20


@click.command("compare", epilog="Example: osmosis eval compare hello second --by items")
@click.argument("first")
@click.argument("second")
@click.option("--by", "column", help="Split by this metadata column of the dataset.")
@DATASET
@click.option("--allow-code-change", is_flag=True, help="Compare although workflow or grader differ.")
@click.option("--fail-on-regression", is_flag=True, help="Exit code 3 when SECOND is clearly worse.")
@click.option("--flips", type=click.IntRange(0), default=SHOWN_FLIPS, show_default=True, help="Shown rows.")
@WORKSPACE
@JSON
def compare_runs(
    first: str,
    second: str,
    column: str | None,
    dataset: Path | None,
    allow_code_change: bool,
    fail_on_regression: bool,
    flips: int,
    workspace: Path,
    as_json: bool,
) -> None:
    """How much better is eval run SECOND than FIRST, row by row?

    What is hard about a row cancels out, so far fewer rows show a difference than two separate means need.
    Runs over other rows, with other attempts or other code are refused.
    """
    display = Display(as_json=as_json)
    runs = asyncio.run(_read(workspace, first, second))
    refuse_incomparable(*runs, allow_code_change=allow_code_change)  # before the dataset is looked for
    parts = None if column is None else column_of(dataset_rows(runs[1].record, dataset), column)
    comparison = compare(*runs, allow_code_change=allow_code_change, column=parts)
    gates = [no_regression(comparison.difference)] if fail_on_regression else []
    display.data({"event": "comparison", **plain(comparison)})
    display.out(comparison_text(comparison, flips, column))
    for gate in gates:
        display.note(gate.message)
    sys.exit(exit_code(gates))


async def _read(workspace: Path, first: str, second: str) -> tuple[StoredRun, StoredRun]:
    store = existing_store(workspace_at(workspace))
    try:
        return await read_run(store, first), await read_run(store, second)
    finally:
        await store.close()


def plain(comparison: Comparison) -> dict[str, Any]:
    return asdict(comparison) | {"clear": comparison.difference.is_clear}


def comparison_text(comparison: Comparison, max_flips: int, column: str | None = None) -> str:
    """The comparison in a few lines: means, difference, test, groups, flips."""
    return "\n".join(
        [
            *_head(comparison),
            *_by(comparison.by, column),
            *_flips(comparison, max_flips),
            *(f"note: {note}" for note in comparison.notes),
        ]
    )


def _head(comparison: Comparison) -> Iterator[str]:
    difference, test = comparison.difference, comparison.mcnemar
    estimate = difference.estimate
    width = max(len(comparison.first), len(comparison.second), len("difference"))
    yield f"{comparison.first:<{width}}  mean reward {difference.mean_first:.3f}"
    yield f"{comparison.second:<{width}}  mean reward {difference.mean_second:.3f}"
    yield (
        f"{'difference':<{width}}  {signed(difference)} over {estimate.num_rows} rows "
        f"({estimate.confidence:.0%} interval, {estimate.method}): {verdict(difference)}"
    )
    yield f"  {difference.rows_better} rows better, {difference.rows_worse} worse"
    if test is not None:
        yield (
            f"  solved by both {test.both}, only by {comparison.first} {test.only_first}, only by "
            f"{comparison.second} {test.only_second}, by neither {test.neither}; "
            f"McNemar (exact) p = {test.p_value:.2g}"
        )
    for key, (before, after) in comparison.changes.items():
        yield f"  {key}: {before} -> {after}"


def signed(difference: Difference) -> str:
    """+0.590 [+0.505, +0.665]"""
    estimate = difference.estimate
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:+.3f} [{estimate.why_no_interval}]"
    return f"{estimate.mean:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def verdict(difference: Difference) -> str:
    if not difference.is_clear:
        return "no clear difference"
    return "clearly better" if difference.estimate.mean > 0 else "clearly worse"


def _by(parts: list[Part], column: str | None) -> Iterator[str]:
    if parts:
        width = max(len(part.value) for part in parts)
        yield f"by {column}:"
    for part in parts:
        d = part.difference
        yield (
            f"  {part.value:<{width}}  {part.rows:>5} rows  {d.mean_first:.3f} -> {d.mean_second:.3f}  "
            f"{signed(d)}"
        )


def _flips(comparison: Comparison, limit: int) -> Iterator[str]:
    flips = comparison.flips
    lost = sum(flip.second < flip.first for flip in flips)
    yield f"flips: {lost} rows lost, {len(flips) - lost} won"
    for flip in flips[:limit]:
        yield from _flip(comparison, flip)
    if len(flips) > limit:
        yield f"  ... and {len(flips) - limit} more (--flips {len(flips)})"


def _flip(comparison: Comparison, flip: Flip) -> Iterator[str]:
    yield f"  row {flip.row}: {flip.first:g} -> {flip.second:g}"
    yield f"    {comparison.first}: {first_line(flip.first_says)}"
    yield f"    {comparison.second}: {first_line(flip.second_says)}"
