"""`osmosis eval run`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from osmosis_ai.cli.display import Display, EvalProgress, first_line
from osmosis_ai.cli.options import config_options, read_config, run_async, selection_options, workspace_at
from osmosis_ai.config import Config
from osmosis_ai.controller.opening import OpenRun, Rollouts, open_rollouts, open_run
from osmosis_ai.controller.storm import LEAST_BUDGET, Storm
from osmosis_ai.errors import InfrastructureError, OsmosisError, UsageError
from osmosis_ai.eval.run import RETRY, evaluate, read_earlier
from osmosis_ai.eval.stored import counted, lineage_note
from osmosis_ai.eval.tally import EvalReport, Tally
from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import RETRIED, Outcome, Status

PARTIAL = 5


@dataclass(frozen=True, slots=True)
class GoingOn:
    """What becomes of a run of that name that is there already."""

    fresh: bool
    accept_changes: bool
    retry: str | None  # a key of RETRY

    def __post_init__(self) -> None:
        other = "--accept-changes" if self.accept_changes else "--retry" if self.retry else ""
        if self.fresh and other:
            raise UsageError(f"--fresh starts a new run, {other} goes on with the old one: give one of them")


@click.command(epilog="Example: osmosis eval run eval.toml --name second")
@selection_options
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Go on although model, data, code or settings have changed; the run records what did.",
)
@click.option(
    "--retry",
    type=click.Choice(list(RETRY)),
    help="Run again what ended so: errors (of workflow, grader, model), timeouts, failed (both).",
)
@config_options
def run(
    config: Path,
    name: str | None,
    settings: tuple[str, ...],
    fresh: bool,
    accept_changes: bool,
    retry: str | None,
    workspace: Path,
    as_json: bool,
    **selection: Any,
) -> None:
    """Run the workflow of CONFIG on every row and report the rewards.

    The same command goes on where it stopped: what has a result is not run again, but with --retry. A result
    that is superseded stays in the store and counts no more. A dead endpoint or rollout server stops the run
    early with what it has. Exit code 5 when some rollouts could not be brought to a result for reasons that
    are not the workflow's or the grader's (4 when that is all of them), 1 when the workflow or the grader
    failed in every rollout.
    """
    going_on = GoingOn(fresh, accept_changes, retry)
    read = read_config(config, name, settings, selection)
    report = run_async(_evaluate(read, workspace_at(workspace), going_on, Display(as_json=as_json)))
    sys.exit(exit_code(report))


def exit_code(report: EvalReport) -> int:
    """Nothing graded is no result; a part that is not the user code's is missing from a partial one."""
    unfinished = sum(report.failures.get(s.value, 0) for s in RETRIED) or bool(report.stopped)
    if report.graded:
        return PARTIAL if unfinished else 0
    return InfrastructureError.exit_code if unfinished else OsmosisError.exit_code


async def _evaluate(config: Config, workspace: Workspace, going_on: GoingOn, display: Display) -> EvalReport:
    how = {"fresh": going_on.fresh, "accept_changes": going_on.accept_changes}
    async with open_run(config, "eval", workspace, **how) as opened:
        display.note(f"{'resuming' if opened.resumed else 'starting'} run {opened.run_id}")
        tally = Tally(config.eval.attempts, config.eval.pass_threshold)
        try:
            with display.bar("starting"):
                await _run_rollouts(opened, tally, RETRY.get(going_on.retry or "", frozenset()), display)
        except asyncio.CancelledError:
            await opened.finish(interrupted=True)
            display.note("interrupted; what has a result is kept. The same command goes on.")
            raise
        except Exception as error:  # whatever ended the run, also what nobody foresaw: its record says so
            await opened.fail(error)
            raise
        report = tally.report()
        await opened.finish(report.stopped)
        if opened.record.lineage and (note := await _lineage(opened)):
            display.note(f"note: {note}")
        display.data({"event": "report", "run_id": opened.run_id, **_plain(report)})
        display.out(report_text(opened.run_id, report))
        return report


async def _run_rollouts(opened: OpenRun, tally: Tally, retry: Collection[Status], display: Display) -> None:
    """What has no result yet, to a result. A line of data says that its rollout is on disk."""
    attempts = opened.config.eval.attempts
    async with open_rollouts(opened, training=False, notify=display.note) as parts:
        earlier = await read_earlier(opened.store, opened.run_id, retry)
        known = earlier.among(parts.rows.indices, attempts)
        for outcome in known:
            tally.add(outcome)
        to_run = len(parts.rows) * attempts - len(known)
        progress = EvalProgress(display, to_run)
        parts.dispatcher.on_retry = progress.on_retry
        parts.dispatcher.storm = _storm(parts, opened.config.eval.failure_budget, to_run)
        places = evaluate(parts.dispatcher, opened.run_id, parts.rows, attempts, earlier)
        async with aclosing(places) as ended:
            async for rollout in ended:
                outcome = rollout.outcome
                tally.add(outcome)
                display.data(_rollout_line(outcome))
                progress.on_rollout(rollout)
        tally.stopped = parts.dispatcher.stopped


def _storm(parts: Rollouts, budget: int | None, to_run: int) -> Storm:
    """When the run is stopped early, for failures that are not the workflow's or the grader's."""
    return Storm(
        window=parts.dispatcher.window,
        budget=max(LEAST_BUDGET, to_run) if budget is None else budget,
        down=parts.down,
    )


async def _lineage(opened: OpenRun) -> str | None:
    outcomes = counted(await opened.store.outcomes(RolloutFilter(opened.run_id)))
    return lineage_note(opened.record, [outcome.started_at for outcome in outcomes])


def _rollout_line(outcome: Outcome) -> dict[str, Any]:
    return {
        "event": "rollout",
        "rollout_id": outcome.rollout_id,
        "row": outcome.row_index,
        "member": outcome.member,
        "status": outcome.status.value,
        "reward": outcome.reward,
        "reason": outcome.reason,
        "turns": outcome.turns,
        "completion_tokens": outcome.completion_tokens,
        "duration_seconds": outcome.duration_seconds,
    }


def _plain(report: EvalReport) -> dict[str, Any]:
    return asdict(report)


def report_text(run_id: str, report: EvalReport) -> str:
    """The result of an eval in a few lines."""
    lines = [f"run {run_id}: {report.graded} graded rollouts of {report.rows} rows"]
    if report.mean is not None:
        lines.append(
            f"  mean reward  {report.mean} ({report.mean.confidence:.0%} interval, {report.mean.method})"
        )
    for rates in report.pass_rates:
        lines.append(f"  pass@{rates.k:<7} {rates.at}   pass^{rates.k} {rates.hat}")
    for status, count in sorted(report.failures.items()):
        first = first_line(report.first_failures[status])
        lines.append(f"  {count} without a reward: {status}, first {first}")
    lines.append(f"  {report.turns} turns, {report.completion_tokens} completion tokens")
    if report.malformed_tool_calls:
        lines.append(f"  {report.malformed_tool_calls} malformed tool calls, answered with an error result")
    for reason, count in sorted(report.branches.items()):
        lines.append(f"  {count} calls began a branch: {reason} (docs/tokens.md)")
    if report.stopped:
        lines.append(f"stopped early: {first_line(report.stopped)}")
        lines.append("  what has a result is kept; the same command runs the rest when the cause is mended")
    lines.append(f"look at one: osmosis runs show {run_id} --row 0")
    return "\n".join(lines)
