"""`osmosis eval run`."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from osmosis_ai.cli.display import Display, EvalProgress, first_line
from osmosis_ai.cli.options import config_options, read_config, run_async, selection_options, workspace_at
from osmosis_ai.config import Config
from osmosis_ai.controller.opening import OpenRun, leftovers, open_rollouts, open_run
from osmosis_ai.errors import InfrastructureError, OsmosisError
from osmosis_ai.eval.run import EvalReport, evaluate, places_of, summarise
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import RETRIED, Rollout

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
        try:
            with display.bar("starting"):
                rollouts = await _rollouts(opened, display)
        except asyncio.CancelledError:
            await opened.finish(interrupted=True)
            display.note("interrupted; what has a result is kept. The same command goes on.")
            raise
        except Exception as error:  # whatever ended the run, also what nobody foresaw: its record says so
            await opened.fail(error)
            raise
        await opened.finish()
        report = summarise(rollouts, config.eval.attempts, config.eval.pass_threshold)
        display.data({"event": "report", "run_id": opened.run_id, **_plain(report)})
        display.out(report_text(opened.run_id, report))
        return report


async def _rollouts(opened: OpenRun, display: Display) -> list[Rollout]:
    config = opened.config
    known = await leftovers(opened)
    async with open_rollouts(opened, training=False, notify=display.note) as parts:
        total = len(places_of(opened.run_id, parts.rows, config.eval.attempts))
        progress = EvalProgress(display, total)

        def on_end(rollout: Rollout) -> None:
            progress.on_rollout(rollout)
            display.data(_rollout_line(rollout))

        parts.dispatcher.on_end = on_end
        parts.dispatcher.on_retry = progress.on_retry
        return await evaluate(parts.dispatcher, opened.run_id, parts.rows, config.eval.attempts, known)


def _rollout_line(rollout: Rollout) -> dict[str, Any]:
    return {
        "event": "rollout",
        "rollout_id": rollout.rollout_id,
        "row": rollout.row_index,
        "member": rollout.member,
        "status": rollout.status.value,
        "reward": rollout.reward,
        "reason": rollout.reason,
        "turns": len(rollout.turns),
        "completion_tokens": rollout.sampled_tokens,
        "duration_seconds": rollout.duration_seconds,
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
