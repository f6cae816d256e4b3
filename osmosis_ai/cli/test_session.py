"""One `osmosis test`: the rows side by side, or one of them stepped through, and what is said of them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from osmosis_ai.cli.display import Display, first_line
from osmosis_ai.cli.eval_progress import EvalProgress
from osmosis_ai.cli.eval_report import report_text
from osmosis_ai.cli.stepping import SteppedTarget, Steps, Terminal, TypedProvider
from osmosis_ai.config import Config
from osmosis_ai.controller.head_start import HeadStart
from osmosis_ai.controller.opening import open_run
from osmosis_ai.controller.rollouts import Rollouts, open_rollouts
from osmosis_ai.eval.run import evaluate_all, summarise
from osmosis_ai.eval.tally import EvalReport
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Rollout, Row, Status


def passed(rollout: Rollout, threshold: float | None) -> bool:
    return rollout.reward is not None and (threshold is None or rollout.reward >= threshold)


async def run_rows(
    config: Config, display: Display, threshold: float | None, head_start: HeadStart | None = None
) -> list[Rollout]:
    """All rows, side by side."""
    with tempfile.TemporaryDirectory(prefix="osmosis-test-") as folder:
        async with open_run(config, "eval", Workspace(Path(folder))) as run:
            with display.bar("starting"):
                async with open_rollouts(
                    run, training=False, notify=display.note, head_start=head_start
                ) as parts:
                    rollouts = await _rows(run.run_id, parts, display, threshold)
    report = summarise(rollouts, 1, 1.0 if threshold is None else threshold)
    ok = sum(passed(rollout, threshold) for rollout in rollouts)
    passing = "have a reward" if threshold is None else "passed"
    display.data({"event": "summary", **_summary(rollouts, threshold)})
    display.out("\n".join([*_lines(report), f"{ok} of {len(rollouts)} rows {passing}"]))
    return rollouts


def _lines(report: EvalReport) -> list[str]:
    """The report of an eval, without the run that nobody can look at."""
    return report_text("test", report).splitlines()[1:-1]


async def _rows(run_id: str, parts: Rollouts, display: Display, threshold: float | None) -> list[Rollout]:
    progress = EvalProgress(display, len(parts.rows), lines=False)

    def on_end(rollout: Rollout) -> None:
        progress.on_result(rollout.outcome)
        display.data({"event": "row", **_result(rollout, threshold)})
        display.out(_row_line(rollout, threshold))

    parts.dispatcher.on_end = on_end
    return await evaluate_all(parts.dispatcher, run_id, parts.rows)


def _row_line(rollout: Rollout, threshold: float | None) -> str:
    word = "ok    " if passed(rollout, threshold) else "FAILED"
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:g}"
    reason = f"  {rollout.status.value}: {first_line(rollout.reason)}" if rollout.reason else ""
    return f"row {rollout.row_index:<4} {word} {reward}  {len(rollout.turns)} turns{reason}"


# --- one rollout in the terminal


async def step(config: Config, be_the_model: bool, head_start: HeadStart | None = None) -> list[Rollout]:
    """The one row, with the person. Quitting is an interruption."""
    terminal = Terminal()
    steps = Steps(terminal)
    provider = TypedProvider(steps) if be_the_model else None
    with tempfile.TemporaryDirectory(prefix="osmosis-test-") as folder:
        async with (
            open_run(config, "eval", Workspace(Path(folder))) as run,
            open_rollouts(
                run,
                training=False,
                notify=lambda text: None,
                provider=provider,
                through=None if be_the_model else lambda target: SteppedTarget(target, steps),
                head_start=head_start,
            ) as parts,
        ):
            row = next(iter(parts.rows))
            terminal.say(f"row {row.index}")
            working = asyncio.create_task(evaluate_all(parts.dispatcher, run.run_id, parts.rows))
            leaving = asyncio.create_task(steps.left.wait())
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
                raise KeyboardInterrupt
            rollouts = working.result()
            await steps.ended(result_lines(rollouts[0], row))
            return rollouts


def result_lines(rollout: Rollout, row: Row) -> list[str]:
    """How the rollout ended, and what it is worth."""
    lines = [f"{rollout.status.value}  {len(rollout.turns)} turns  label {row.label!r}"]
    if rollout.status is not Status.GRADED:
        lines.append(f"  reason: {rollout.reason}")
    for name, sample in rollout.samples.items():
        lines.append(f"  sample {name}  reward {sample.reward}")
    return lines


# --- the report


def report_of(rollouts: list[Rollout], threshold: float | None) -> dict[str, Any]:
    """What --output writes."""
    return {
        "summary": _summary(rollouts, threshold),
        "results": [_result(rollout, threshold) for rollout in rollouts],
    }


def _summary(rollouts: list[Rollout], threshold: float | None) -> dict[str, Any]:
    ok = sum(passed(rollout, threshold) for rollout in rollouts)
    return {
        "total": len(rollouts),
        "passed": ok,
        "failed": len(rollouts) - ok,
        "total_duration_ms": sum(rollout.duration_seconds for rollout in rollouts) * 1000,
        "total_tokens": sum(_tokens(rollout) for rollout in rollouts),
    }


def _result(rollout: Rollout, threshold: float | None) -> dict[str, Any]:
    return {
        "row_index": rollout.row_index,
        "success": passed(rollout, threshold),
        "status": rollout.status.value,
        "error": rollout.reason or None,
        "duration_ms": rollout.duration_seconds * 1000,
        "token_usage": _tokens(rollout),
        "reward": rollout.reward,
        "turns": len(rollout.turns),
    }


def _tokens(rollout: Rollout) -> int:
    return sum(turn.prompt_tokens + turn.completion_tokens for turn in rollout.turns)
