"""`osmosis runs list` and `osmosis runs show`: what the store holds, read only."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osmosis_ai.cli.display import Display, first_line, step_parts
from osmosis_ai.cli.options import DATASET, JSON, WORKSPACE, existing_store, workspace_at
from osmosis_ai.cli.transcript import transcript
from osmosis_ai.errors import UsageError
from osmosis_ai.store.base import Amendment, RolloutFilter, RunRecord, RunSummary
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Rollout

if TYPE_CHECKING:
    from osmosis_ai.store.sqlite import SqliteStore


@click.command("list", epilog="Example: osmosis runs list --json")
@WORKSPACE
@JSON
def list_runs(workspace: Path, as_json: bool) -> None:
    """All runs of the workspace, newest first."""
    asyncio.run(_list(workspace_at(workspace), Display(as_json=as_json)))


async def _list(workspace: Workspace, display: Display) -> None:
    store = existing_store(workspace)
    try:
        for summary in await store.list_runs():
            display.data({"event": "run", **asdict(summary)})
            display.out(_summary_line(summary))
    finally:
        await store.close()


def _summary_line(summary: RunSummary) -> str:
    run = summary.run
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created_at))
    reward = "" if summary.mean_reward is None else f"  reward {summary.mean_reward:.3f}"
    step = f"  step {summary.last_step}" if summary.last_step else ""
    counts = ", ".join(f"{count} {status}" for status, count in summary.rollouts_by_status.items())
    return f"{run.run_id:<28} {run.kind:<6} {run.state:<12} {when}{step}{reward}  {counts}"


@click.command(epilog="Example: osmosis runs show hello --row 3")
@click.argument("run_id")
@click.option("--row", type=int, help="The rollouts of one row, in full.")
@click.option("--step", type=int, help="Only rollouts of this step.")
@click.option("--rollout", "rollout_id", help="One rollout, in full.")
@click.option("--by", metavar="COLUMN", help="Of an eval: report by this metadata column of the dataset too.")
@DATASET
@WORKSPACE
@JSON
def show(
    run_id: str,
    row: int | None,
    step: int | None,
    rollout_id: str | None,
    by: str | None,
    dataset: Path | None,
    workspace: Path,
    as_json: bool,
) -> None:
    """One run: its steps and rollouts; with --row or --rollout, conversations in full.

    Of an eval also the report: rewards with their intervals, failures, turns, tokens, time and cost.
    """
    wanted = RolloutFilter(
        run_id, step=step, row_index=row, rollout_ids=[rollout_id] if rollout_id is not None else []
    )
    in_full = row is not None or rollout_id is not None
    display = Display(as_json=as_json)

    async def work() -> None:
        store = existing_store(workspace_at(workspace))
        try:
            run = await _show(store, wanted, in_full, display)
            if run.kind == "eval" and not in_full:
                await _report(store, run, by, dataset, display)
        finally:
            await store.close()

    asyncio.run(work())


async def _show(store: SqliteStore, wanted: RolloutFilter, in_full: bool, display: Display) -> RunRecord:
    run = await store.get_run(wanted.run_id)
    if run is None:
        known = ", ".join(summary.run.run_id for summary in await store.list_runs())
        raise UsageError(f"there is no run {wanted.run_id!r}. Known: {known or 'none'}.")
    rollouts = await store.rollouts(wanted, turns=in_full)
    if in_full and not rollouts:
        raise UsageError(f"run {run.run_id!r} has no such rollout. {await _held(store, run.run_id)}")
    if in_full:
        for rollout in rollouts:
            display.data(_plain(run, rollout))
            display.out(transcript(rollout))
        return run
    display.data({"event": "run", **asdict(run)})
    display.out(f"run {run.run_id}: {run.kind}, {run.state}{': ' + run.error if run.error else ''}")
    for amendment in run.lineage:
        display.out(_amendment_line(amendment))
    steps = await store.steps(run.run_id)
    for record in steps:
        display.data({"event": "step", "step": record.step, "version": record.version} | record.metrics)
        display.out("  " + "  ".join(step_parts(record, steps[-1].step)))
    width = max((len(_place(rollout)) for rollout in rollouts), default=0)
    for rollout in sorted(rollouts, key=lambda r: (r.step, r.row_index, r.group_id, r.member, r.attempt)):
        plain = _plain(run, rollout)
        display.data(plain)
        if run.kind == "eval":
            after = f"  (after change {plain['lineage']})" if plain["lineage"] else ""
            display.out(_rollout_line(rollout, width) + after)
    return run


async def _report(
    store: SqliteStore, run: RunRecord, by: str | None, dataset: Path | None, display: Display
) -> None:
    """What `osmosis eval run` said at its end, from what is stored."""
    from osmosis_ai.cli.eval_report import say_report
    from osmosis_ai.eval.stored import column_of, counted, dataset_rows
    from osmosis_ai.eval.tally import Tallies
    from osmosis_ai.providers.prices import Prices

    column = {} if by is None else column_of(dataset_rows(run, dataset), by)
    table, llm = run.config.get("eval", {}), run.config.get("llm") or {}
    prices = None
    if llm.get("input_price") is not None and llm.get("output_price") is not None:
        prices = Prices(llm["input_price"], llm["output_price"], llm.get("cached_input_price"))
    tallies = Tallies(table.get("attempts", 1), table.get("pass_threshold", 1.0), prices, column)
    for outcome in counted(await store.outcomes(RolloutFilter(run.run_id))):
        tallies.add(outcome)
    say_report(display, run.run_id, tallies.all.report(), tallies.by(), by)


async def _held(store: SqliteStore, run_id: str) -> str:
    rollouts = await store.rollouts(RolloutFilter(run_id), turns=False)
    if not rollouts:
        return "It has none at all."
    rows = sorted({rollout.row_index for rollout in rollouts})
    steps = sorted({rollout.step for rollout in rollouts})
    return (
        f"It has {len(rollouts)}: rows {rows[0]} to {rows[-1]}, steps {steps[0]} to {steps[-1]}, "
        f"ids like {rollouts[0].rollout_id}."
    )


def _plain(run: RunRecord, rollout: Rollout) -> dict[str, Any]:
    return {"event": "rollout", "lineage": run.lineage_at(rollout.started_at), **asdict(rollout)}


def _amendment_line(amendment: Amendment) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(amendment.at))
    changes = "; ".join(f"{key} was {was}, is {now}" for key, (was, now) in amendment.changes.items())
    return f"  {when} changes accepted: {changes}"


def _place(rollout: Rollout) -> str:
    return f"row {rollout.row_index}" + (f"  member {rollout.member}" if rollout.member else "")


def _rollout_line(rollout: Rollout, width: int) -> str:
    reward = "-" if rollout.reward is None else f"{rollout.reward:g}"
    reason = f"  {first_line(rollout.reason)}" if rollout.reason else ""
    return f"  {_place(rollout):<{width}}  {rollout.status.value:<16} reward {reward}{reason}"
