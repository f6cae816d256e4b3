"""`osmosis test`: an agent loop or workflow on a dataset, with any model or with none; nothing is stored."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from osmosis_ai.cli.code import code_options, read_code
from osmosis_ai.cli.display import Display, first_line
from osmosis_ai.cli.eval_progress import EvalProgress
from osmosis_ai.cli.eval_report import report_text
from osmosis_ai.cli.options import JSON, SET, run_async, setting
from osmosis_ai.cli.stepping import SteppedTarget, Steps, Terminal, TypedProvider
from osmosis_ai.config import Config, config_of
from osmosis_ai.controller.opening import open_run
from osmosis_ai.controller.rollouts import Rollouts, open_rollouts
from osmosis_ai.errors import OsmosisError, UsageError
from osmosis_ai.eval.run import evaluate_all, summarise
from osmosis_ai.eval.tally import EvalReport
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Rollout, Row, Status

PATIENCE_SECONDS = 86_400.0  # of a person


@dataclass(frozen=True, slots=True)
class Model:
    """Who answers; exactly one of the first three, or the person."""

    name: str | None
    policy: str | None
    script: str | None
    base_url: str | None
    api_key_env: str | None
    be_the_model: bool

    def tables(self) -> dict[str, Any]:
        """The table [llm] or [policy]; neither where the person answers. Raises UsageError."""
        given = [self.name, self.policy, self.script, self.be_the_model or None]
        if sum(value is not None for value in given) != 1:
            raise UsageError("say who answers: one of --model, --policy, --script and --be-the-model")
        if self.name is not None and not self.base_url:
            raise UsageError(
                f"--model {self.name} needs --base-url, its endpoint, e.g. http://localhost:8000/v1 or "
                "https://api.openai.com/v1"
            )
        if self.policy is not None:
            path = self.policy if self.policy.startswith("run:") else str(Path(self.policy).absolute())
            return {"policy": {"path": path}}
        if self.script is not None:
            return {"llm": {"model": "scripted", "script": self.script}}
        if self.name is not None:
            url = {"base_url": self.base_url, "api_key_env": self.api_key_env or ""}
            return {"llm": {"model": self.name, **url}}
        return {}


@click.command(epilog="Example: osmosis test agent.py -d data/orders.jsonl --script model.py:answer --row 3")
@code_options
@click.option("-d", "--dataset", required=True, help="JSONL, CSV, Parquet or JSON file.")
@click.option("--model", help="Name of a model at --base-url.")
@click.option("--base-url", help="OpenAI-compatible endpoint, up to and including /v1.")
@click.option("--api-key-env", help="Environment variable that holds the endpoint's key.")
@click.option("--policy", metavar="DIR", help="A policy folder.")
@click.option("--script", help="file.py:function that answers, or a session that was saved (.jsonl).")
@click.option("--be-the-model", is_flag=True, help="You type the answers and tool calls; one row.")
@click.option("-i", "--interactive", is_flag=True, help="Pause after each answer; one row.")
@click.option("--row", type=click.IntRange(0), help="Only this row, counted from 0.")
@click.option("--limit", type=click.IntRange(1), help="At most so many rows.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Skip so many rows first.")
@click.option("--pass-threshold", type=float, help="A row with a smaller reward fails, too.")
@click.option("--grader", default="", help="Class to use when the entrypoint holds several graders.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the results to a JSON file.")
@SET
@JSON
def test(
    entrypoint: str | None,
    module: str | None,
    dataset: str,
    model: str | None,
    base_url: str | None,
    api_key_env: str | None,
    policy: str | None,
    script: str | None,
    be_the_model: bool,
    interactive: bool,
    row: int | None,
    limit: int | None,
    offset: int,
    pass_threshold: float | None,
    grader: str,
    output: Path | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run an agent loop or workflow on the rows of a dataset. Nothing is stored.

    Exit code 1 when a row has no reward, or one below --pass-threshold. With --interactive one rollout is
    stepped through in the terminal; with --be-the-model no model is needed at all: you type the answers,
    see the results of the tools and the reward, and save the session as a script for later tests.
    """
    code = read_code(entrypoint, module)
    who = Model(model, policy, script, base_url, api_key_env, be_the_model)
    one_row = interactive or be_the_model or row is not None
    if one_row:
        offset, limit = row if row is not None else offset, 1
    tables = {
        "rollout": {"entrypoint": code.entrypoint, "workflow": code.attribute or "", "grader": grader},
        "dataset": {"path": str(Path(dataset).absolute()), "offset": offset, "limit": limit},
        **who.tables(),
    }
    if interactive or be_the_model:
        tables["rollout"] |= {"agent_timeout_seconds": PATIENCE_SECONDS, "retries": 0}
    config = config_of(tables, Path.cwd() / "test.toml", dict(setting(text) for text in settings))
    display = Display(as_json=as_json)
    stepping = _step(config, be_the_model) if interactive or be_the_model else None
    rollouts = run_async(stepping or _run(config, display, pass_threshold))
    failed = [rollout for rollout in rollouts if not passed(rollout, pass_threshold)]
    if output is not None:
        output.write_text(json.dumps(report_of(rollouts, pass_threshold), indent=2) + "\n")
    sys.exit(OsmosisError.exit_code if failed else 0)


def passed(rollout: Rollout, threshold: float | None) -> bool:
    return rollout.reward is not None and (threshold is None or rollout.reward >= threshold)


async def _run(config: Config, display: Display, threshold: float | None) -> list[Rollout]:
    """All rows, side by side."""
    with tempfile.TemporaryDirectory(prefix="osmosis-test-") as folder:
        async with open_run(config, "eval", Workspace(Path(folder))) as run:
            with display.bar("starting"):
                async with open_rollouts(run, training=False, notify=display.note) as parts:
                    rollouts = await _rows(run.run_id, parts, display, threshold)
    report = summarise(rollouts, 1, 1.0 if threshold is None else threshold)
    ok = sum(passed(rollout, threshold) for rollout in rollouts)
    display.data({"event": "summary", **_summary(rollouts, threshold)})
    display.out("\n".join([*_lines(report), f"{ok} of {len(rollouts)} rows passed"]))
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


async def _step(config: Config, be_the_model: bool) -> list[Rollout]:
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
