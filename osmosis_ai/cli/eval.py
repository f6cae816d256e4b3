"""`osmosis eval run`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from osmosis_ai.cli.display import Display, EvalProgress, first_line
from osmosis_ai.cli.options import config_options, read_config, run_async, selection_options, workspace_at
from osmosis_ai.config import Config
from osmosis_ai.controller.opening import OpenRun, open_rollouts, open_run
from osmosis_ai.errors import InfrastructureError, OsmosisError
from osmosis_ai.eval.run import evaluate, read_earlier
from osmosis_ai.eval.tally import EvalReport, Tally
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import RETRIED, Outcome

PARTIAL = 5


@click.command(epilog="Example: osmosis eval run examples/calculator/record.toml --limit 20")
@selection_options
@config_options
def run(
    config: Path,
    name: str | None,
    settings: tuple[str, ...],
    fresh: bool,
    workspace: Path,
    as_json: bool,
    **selection: Any,
) -> None:
    """Run the workflow of CONFIG on every row and report the rewards.

    The same command goes on where it stopped: what has a result is not run again. Exit code 5 when some
    rollouts could not be brought to a result for reasons that are not the workflow's or the grader's (4 when
    that is all of them), 1 when the workflow or the grader failed in every rollout.
    """
    display = Display(as_json=as_json)
    report = run_async(
        _evaluate(read_config(config, name, settings, selection), workspace_at(workspace), fresh, display)
    )
    sys.exit(exit_code(report))


def exit_code(report: EvalReport) -> int:
    """Nothing graded is no result; a part that is not the user code's is missing from a partial one."""
    unfinished = sum(report.failures.get(s.value, 0) for s in RETRIED)
    if report.graded:
        return PARTIAL if unfinished else 0
    return InfrastructureError.exit_code if unfinished else OsmosisError.exit_code


async def _evaluate(config: Config, workspace: Workspace, fresh: bool, display: Display) -> EvalReport:
    async with open_run(config, "eval", workspace, fresh=fresh) as opened:
        display.note(f"{'resuming' if opened.resumed else 'starting'} run {opened.run_id}")
        tally = Tally(config.eval.attempts, config.eval.pass_threshold)
        try:
            with display.bar("starting"):
                await _run_rollouts(opened, tally, display)
        except asyncio.CancelledError:
            await opened.finish(interrupted=True)
            display.note("interrupted; what has a result is kept. The same command goes on.")
            raise
        except Exception as error:  # whatever ended the run, also what nobody foresaw: its record says so
            await opened.fail(error)
            raise
        await opened.finish()
        report = tally.report()
        display.data({"event": "report", "run_id": opened.run_id, **_plain(report)})
        display.out(report_text(opened.run_id, report))
        return report


async def _run_rollouts(opened: OpenRun, tally: Tally, display: Display) -> None:
    """What has no result yet, to a result. A line of data says that its rollout is on disk."""
    attempts = opened.config.eval.attempts
    earlier = await read_earlier(opened.store, opened.run_id)
    for outcome in earlier.results:
        tally.add(outcome)
    async with open_rollouts(opened, training=False, notify=display.note) as parts:
        progress = EvalProgress(display, len(parts.rows) * attempts - len(earlier.results))
        parts.dispatcher.on_retry = progress.on_retry
        places = evaluate(parts.dispatcher, opened.run_id, parts.rows, attempts, earlier)
        async with aclosing(places) as ended:
            async for rollout in ended:
                outcome = rollout.outcome
                tally.add(outcome)
                display.data(_rollout_line(outcome))
                progress.on_rollout(rollout)


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
    lines.append(f"look at one: osmosis runs show {run_id} --row 0")
    return "\n".join(lines)
